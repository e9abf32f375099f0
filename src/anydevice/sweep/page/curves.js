// Learning curves: one line for each run, the chosen figure over the epochs.

const LINES = 60;
const placeOf = new Map(data.curves.runs.map((run, place) => [run, place]));
let logarithmicFigures = null; // null: decided by the values

const epochsOf = (place) => {
  const epochs = data.curves.epochs[place];
  return typeof epochs === "number" ? Array.from({ length: epochs }, (_, i) => i + 1) : epochs;
};

function drawCurves(runs) {
  const card = byId("curves");
  const values = data.curves.values[view.figure];
  card.hidden = !values || !placeOf.size;
  if (card.hidden) return;
  const known = runs.filter((run) => placeOf.has(run));
  const drawn = sample(known, LINES);
  const lines = drawn
    .map((run) => curveOf(run, values[placeOf.get(run)]))
    .filter((line) => line.points.length);
  const [low, high] = extent(lines.flatMap((line) => line.points.map((point) => point.value)));
  const log =
    low > 0 &&
    (logarithmicFigures ??
      high / median(lines.flatMap((line) => line.points.map((point) => point.value))) > 50);
  byId("log").checked = log;
  byId("log").disabled = low <= 0;

  const format = view.figure === "seconds" ? duration : null;
  const trial = log ? logarithmic([low, high], [1, 0]) : linear([low, high], [1, 0]);
  const ticks = format ?? (log ? plain : ticksAs(trial.ticks));
  const area = chart(card.querySelector(".plot"), {
    height: 340,
    left: widest(trial.ticks.map(ticks)) + 14,
    label: `Learning curves: ${view.figure} over the epochs, ${counted(lines.length, "run")}`,
  });
  const y = (log ? logarithmic : linear)([low, high], [area.bottom - 4, area.top + 4]);
  const [first, last] = extent(lines.flatMap((line) => line.points.map((point) => point.epoch)));
  const x = linear(
    [Math.min(first, last - 1), last],
    [area.left + 8, area.right],
    Math.min(10, Math.max(1, last - first)),
  );
  x.ticks = x.ticks.filter(Number.isInteger);
  axisLeft(area, y, ticks, view.figure === "seconds" ? "epoch duration" : view.figure);
  axisBottom(area, x, plain, "epoch");
  drawLines(area, lines, x, y, format ?? number);
  card.querySelector(".key").replaceChildren(legend(colouring(view.colour).entries));
  card.querySelector(".note").textContent = curvesNote(lines.length, known.length, runs.length);
}

function curveOf(run, figures) {
  const epochs = epochsOf(placeOf.get(run));
  const points = figures.flatMap((value, i) =>
    typeof value === "number" ? [{ epoch: epochs[i], value }] : [],
  );
  return { run, points };
}

function drawLines(area, lines, x, y, format) {
  const { of } = colouring(view.colour);
  const group = svg("g", { class: lines.length > 24 ? "many" : null });
  const strong = svg("g");
  area.root.append(group, strong);
  const points = [];
  const paths = new Map();
  const dashed = (line) => of(line.run).dash !== "";
  const solidFirst = [...lines].sort((a, b) => dashed(a) - dashed(b)); // so that equal lines show
  for (const line of solidFirst) {
    const { stroke, dash } = of(line.run);
    const places = line.points.map((point) => ({
      x: x(point.epoch),
      y: y(point.value),
      series: line.run,
      ...point,
    }));
    points.push(...places);
    const d = `M${places.map((place) => `${place.x.toFixed(1)},${place.y.toFixed(1)}`).join("L")}`;
    const path = svg("path", {
      class: "line",
      d,
      stroke,
      "stroke-dasharray": dash,
      "data-run": line.run,
    });
    paths.set(line.run, path);
    group.append(path);
    if (places.length === 1)
      group.append(svg("circle", { cx: places[0].x, cy: places[0].y, r: 3.5, fill: stroke }));
  }
  const emphasise = (run, point) => {
    group.classList.toggle("faded", paths.has(run));
    const path = paths.get(run)?.cloneNode();
    path?.classList.add("strong");
    strong.replaceChildren(...(path ? [path] : []));
    if (point)
      strong.append(
        svg("circle", { cx: point.x, cy: point.y, r: 4.5, fill: path.getAttribute("stroke") }),
      );
  };
  emphasise(view.selected);
  hover(area, points, {
    describe: (point) =>
      describeRun(point.series, [
        ["epoch", point.epoch],
        [view.figure, format(point.value)],
      ]),
    mark: (point) => emphasise(point ? point.series : view.selected, point),
    across: Math.min(1, 60 / (x(2) - x(1))),
    choose: (point) => select(point.series),
  });
}

function curvesNote(drawn, known, wanted) {
  const half = `the best ${LINES >> 1} by ${view.result}, and others, evenly spread`;
  const carried = `${grouped(placeOf.size)} of ${grouped(data.curves.of)} runs`;
  return sentences(
    drawn < known && `${drawn} of ${grouped(known)} runs are drawn: ${half}.`,
    drawn < known && "The filter searches all of them.",
    placeOf.size < data.curves.of && `The page has the curves of ${carried}.`,
    placeOf.size === data.curves.of &&
      known < wanted &&
      `${counted(wanted - known, "run")} ended before the first epoch.`,
    data.curves.points && `Longer curves show ${data.curves.points} of their epochs, evenly spread.`,
  );
}
