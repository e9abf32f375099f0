// Durations and memory: a dot for each run over the values of a parameter, the devices side by side.

const BANDS = 12; // up to so many different values have a band each; more numbers have a scale
const DOTS = 40; // of one device at one value

/** The parameter to begin with: the batch size where there is one. */
const usualParameter = () =>
  varying.find((each) => /batch/i.test(each.name)) ??
  varying.find(
    (each) => each.name !== "device" && each.distinct.every((value) => typeof value === "number"),
  ) ??
  varying.find((each) => each.name !== "device") ??
  varying[0] ??
  parameters[0];

function drawSpread(runs, { id, values, format, scale, axis, over, nothing }) {
  const card = byId(id);
  const measured = runs.filter((run) => typeof values[run] === "number");
  if (card.hidden) return;
  const [plot, key, table, note] = [".plot", ".key", ".figures", ":scope > .note"].map((s) =>
    card.querySelector(s),
  );
  const groups = grouping(measured, values, over);
  if (!groups.length) {
    for (const part of [plot, key, table]) part.replaceChildren();
    note.textContent = nothing;
    return;
  }
  const shown = deviceNames.filter((name) => groups.some((group) => group.device === name));
  const [low, high] = extent(groups.flatMap((group) => group.values));
  const log = low > 0 && high / low > 30;
  const scaled = (from, to) =>
    log ? logarithmic([low * 0.8, high * 1.1], [from, to]) : scale(high * 1.05 || 1, [from, to]);
  const area = chart(plot, {
    height: 300,
    left: widest(scaled(0, 1).ticks.map(format)) + 14,
    label: `${axis} over ${over.name}, by device: ${counted(measured.length, "run")}`,
  });
  const y = scaled(area.bottom, area.top + 6);
  axisLeft(area, y, format, `${axis}${log ? ", logarithmic" : ""}`);
  drawGroups(area, groups, shown, over, y, format, axis);
  key.replaceChildren(
    legend(
      shown.map((name) => ({
        mark: dot(11, 6, deviceNames.indexOf(name), { hollow: virtualDevices.has(name) }),
        text: clipped(name, 60),
      })),
    ),
  );
  table.replaceChildren(
    ...(groups.every((group) => group.x !== null)
      ? [medians(groups, shown, over, format, id === "durations")]
      : []),
  );
  note.textContent = spreadNote(groups, shown, id === "durations");
}

/** The runs of one device at one value of the parameter. */
function grouping(runs, values, over) {
  const groups = new Map();
  for (const run of runs) {
    const x = over.values[run];
    const name = JSON.stringify([devices[run], x]);
    if (!groups.has(name)) groups.set(name, { device: devices[run], x, runs: [] });
    groups.get(name).runs.push(run);
  }
  return [...groups.values()].map((group) => {
    group.runs.sort((a, b) => values[a] - values[b]);
    group.values = group.runs.map((run) => values[run]);
    group.median = median(group.values);
    return group;
  });
}

/** Where values stand across: in bands if they are few or no numbers, else on a scale. */
function across(area, over) {
  const numbers = over.distinct.filter((value) => typeof value === "number");
  if (over.distinct.length > BANDS && numbers.length > BANDS) {
    const [low, high] = extent(numbers);
    const span = [area.left + 16, area.right - 10];
    const scale =
      low > 0 && high / low > 50 ? logarithmic([low, high], span) : linear([low, high], span);
    return { scale, format: plain, band: 0 };
  }
  const shown = over.distinct.slice(0, BANDS);
  const band = (area.right - area.left) / shown.length;
  const scale = (value) =>
    shown.includes(value) ? area.left + band * (shown.indexOf(value) + 0.5) : null;
  scale.ticks = shown;
  const room = Math.max(4, Math.floor(band / 7));
  return { scale, format: (value) => clipped(plain(value), room), band };
}

function drawGroups(area, groups, shown, over, y, format, axis) {
  const { scale, format: tick, band } = across(area, over);
  axisBottom(area, scale, tick, over.name);
  const lane = Math.min(48, (band * 0.8) / shown.length);
  const points = [];
  shown.forEach((device, at) => {
    const series = deviceNames.indexOf(device);
    const hollow = virtualDevices.has(device);
    const own = groups
      .filter(
        (group) =>
          group.device === device && scale(group.x) !== null && typeof scale(group.x) === "number",
      )
      .sort((a, b) => compare(a.x, b.x));
    const middle = (group) => scale(group.x) + (at - (shown.length - 1) / 2) * lane;
    if (own.length > 1) {
      const place = (group) => `${middle(group).toFixed(1)},${y(group.median).toFixed(1)}`;
      const d = `M${own.map(place).join("L")}`;
      area.root.append(
        svg("path", {
          class: "line",
          d,
          stroke: hue(series),
          "stroke-dasharray": hollow ? "4 4" : DASHES[0],
          opacity: 0.55,
        }),
      );
    }
    for (const group of own) {
      const chosen = evenly(group.runs.length, DOTS);
      const [size, opacity] = chosen.length > 8 ? [3, 0.6] : [4.5, 0.95];
      chosen.forEach((index, place) => {
        const aside = scattered(place, chosen.length) * lane * 0.7;
        const point = {
          x: middle(group) + aside,
          y: y(group.values[index]),
          series,
          run: group.runs[index],
          value: group.values[index],
        };
        points.push(point);
        const faded = view.selected !== null && view.selected !== point.run;
        area.root.append(
          dot(point.x, point.y, series, {
            hollow,
            size,
            opacity: faded ? 0.25 : opacity,
            "data-run": point.run,
          }),
        );
      });
    }
  });
  const ring = svg("circle", {
    r: 9,
    fill: "none",
    stroke: "var(--text)",
    "stroke-width": 1.5,
    visibility: "hidden",
  });
  area.root.append(ring);
  hover(area, points, {
    describe: (point) => describeRun(point.run, [[axis, format(point.value)]]),
    mark: (point) => {
      ring.setAttribute("visibility", point ? "visible" : "hidden");
      if (point) dress(ring, { cx: point.x, cy: point.y }, []);
    },
    choose: (point) => select(point.run),
  });
}

/** Where in its lane, from -0.5 to 0.5, a dot stands: a few side by side, many all over it. */
const scattered = (place, count) =>
  count > 8 ? ((place * 0.618) % 1) - 0.5 : (place + 0.5) / count - 0.5;

const evenly = (count, most) =>
  count <= most
    ? Array.from({ length: count }, (_, i) => i)
    : Array.from({ length: most }, (_, i) => Math.round((i * (count - 1)) / (most - 1)));

/** The medians as a table; for each real GPU with how many times as fast as the CPU it is. */
function medians(groups, shown, over, format, compared) {
  const cpu = shown.find((name) => name.startsWith("cpu"));
  const cell = (x, device) =>
    groups.find((group) => group.x === x && group.device === device)?.median;
  const rows = over.distinct.filter((x) => groups.some((group) => group.x === x)).slice(0, BANDS);
  const ratio = (x, device) => {
    const [slow, fast] = [cell(x, cpu), cell(x, device)];
    return compared && slow && fast && device !== cpu && !virtualDevices.has(device)
      ? ` (${number(slow / fast, 2)}× the CPU)`
      : "";
  };
  return element(
    "table",
    {},
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        element("th", { scope: "col" }, clipped(over.name, 24)),
        shown.map((name) =>
          element(
            "th",
            { scope: "col", class: "number" },
            clipped(name.split(" · ")[0] + (virtualDevices.has(name) ? " (virtual)" : ""), 24),
          ),
        ),
      ),
    ),
    element(
      "tbody",
      {},
      rows.map((x) =>
        element(
          "tr",
          {},
          element("td", {}, clipped(plain(x), 24)),
          shown.map((device) =>
            element("td", { class: "number" }, `${format(cell(x, device))}${ratio(x, device)}`),
          ),
        ),
      ),
    ),
  );
}

function spreadNote(groups, shown, timed) {
  const apart = shown.length > 1 && shown.some((name) => name.startsWith("cpu"));
  return sentences(
    "Each dot is a run; the line joins the medians.",
    timed &&
      shown.some((name) => virtualDevices.has(name)) &&
      "Hollow dots ran on a virtual GPU: the CPU computed, so this is not a GPU's speed.",
    !timed &&
      apart &&
      "For a run on the CPU this is the whole process; for one on a GPU, what its tensors took.",
    groups.some((group) => group.runs.length > DOTS) &&
      `Where more than ${DOTS} runs share a place, ${DOTS} of them are drawn, evenly spread.`,
  );
}
