// Parallel coordinates: an axis for each parameter and one for the result, a line for each run.

const PATHS = 400;
const AXES = 9; // of parameters
const AXIS_ROOM = 96; // pixels between axes, at least; a narrow window scrolls

function axesOf() {
  const axes = varying.slice(0, AXES).map((each) => ({
    name: each.name,
    values: each.values,
    distinct: each.distinct,
    format: plain,
  }));
  const results = figures.get(view.result);
  axes.push({ name: "epoch duration", values: epochTimes, format: duration });
  if (results) axes.push({ name: view.result, values: results, format: number, result: true });
  return axes.filter(
    (axis) =>
      extent(axis.values).every(Number.isFinite) && axis.values.some((value) => value !== null),
  );
}

/** A value's height on its axis: few different values at even steps, others on a scale. */
function heights(axis, top, bottom) {
  const numbers = axis.values.filter((value) => typeof value === "number");
  if (axis.distinct && (axis.distinct.length <= 8 || numbers.length < axis.values.length)) {
    const steps = axis.distinct.length - 1;
    const place = new Map(axis.distinct.map((value, index) => [value, index]));
    const scale = (value) =>
      bottom - ((place.get(value) + (steps ? 0 : 0.5)) / (steps || 1)) * (bottom - top);
    const every = Math.ceil(axis.distinct.length / 10);
    scale.ticks = axis.distinct.filter((_, index) => index % every === 0);
    return scale;
  }
  const [low, high] = extent(numbers);
  return low > 0 && high / low > 50
    ? logarithmic([low, high], [bottom, top])
    : linear([low, high], [bottom, top], 4);
}

function drawParallel(runs) {
  const card = byId("parallel");
  card.hidden = everyRun.length < 2 || !varying.length || !figures.size;
  byId("unbrush").hidden = !view.brushes.size;
  if (card.hidden) return;
  const axes = axesOf();
  const holder = card.querySelector(".plot");
  holder.style.minWidth = `${axes.length * AXIS_ROOM}px`;
  const area = chart(holder, {
    height: 360,
    left: 56,
    right: 56,
    top: 44,
    bottom: 16,
    label: `Parallel coordinates of ${axes.length} axes, ${counted(runs.length, "run")}`,
  });
  area.root.style.width = "100%";
  axes.forEach((axis, index) => {
    axis.x =
      axes.length < 2
        ? area.left
        : area.left + (index * (area.right - area.left)) / (axes.length - 1);
    axis.y = heights(axis, area.top, area.bottom);
  });
  const complete = (run) =>
    axes.every(
      (axis) =>
        typeof axis.y(axis.values[run]) === "number" && Number.isFinite(axis.y(axis.values[run])),
    );
  const whole = runs.filter(complete);
  const drawn = sample(whole, PATHS);
  drawRunPaths(area, axes, drawn);
  const room = Math.floor((area.right - area.left) / Math.max(1, axes.length - 1) / 7.5);
  axes.forEach((axis, index) => drawAxis(area, axis, index === axes.length - 1, room));
  drawRampKey(card.querySelector(".key"), drawn);
  const without = runs.length - whole.length;
  card.querySelector(".note").textContent = sentences(
    "Drag along an axis to keep the runs that pass there; click the axis to clear it.",
    varying.length > AXES && `Only the first ${AXES} of ${varying.length} parameters have an axis.`,
    drawn.length < whole.length &&
      `${drawn.length} of ${grouped(whole.length)} runs are drawn, half of them the best.`,
    without && `${counted(without, "run")} without a result cannot be drawn.`,
  );
}

/** By rank, so that the best stand out where most results are nearly the same. */
function shades(runs) {
  const sorted = [...runs].sort(byResult);
  const shares = new Map(
    sorted.map((run, place) => [run, 1 - place / Math.max(1, sorted.length - 1)]),
  );
  return (run) => ramp(shares.get(run));
}

function drawRampKey(holder, runs) {
  const [low, high] = extent(runs.map(resultOf));
  const [worst, best] = resultHigher() ? [low, high] : [high, low];
  holder.replaceChildren(
    element(
      "p",
      { class: "rampkey" },
      element("span", { class: "muted" }, view.result ?? ""),
      number(worst),
      element("i"),
      number(best),
    ),
  );
}

function drawRunPaths(area, axes, runs) {
  const group = svg("g");
  const strong = svg("g");
  area.root.append(group, strong);
  const shade = shades(runs);
  const paths = new Map();
  const points = [];
  for (const run of [...runs].sort(byResult).reverse()) {
    const corners = axes.map((axis) => [axis.x, axis.y(axis.values[run])]);
    const d = `M${corners.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L")}`;
    const path = svg("path", { class: "line", d, stroke: shade(run), "data-run": run });
    paths.set(run, path);
    group.append(path);
    corners.slice(1).forEach(([x1, y1], index) => {
      // places along the line, for the pointer to find
      const [x0, y0] = corners[index];
      for (let part = 0.2; part <= 1.01; part += 0.2)
        points.push({ x: x0 + (x1 - x0) * part, y: y0 + (y1 - y0) * part, series: run });
    });
  }
  const emphasise = (run) => {
    group.classList.toggle("faded", paths.has(run));
    const path = paths.get(run)?.cloneNode();
    path?.classList.add("strong");
    strong.replaceChildren(...(path ? [path] : []));
  };
  emphasise(view.selected);
  hover(area, points, {
    describe: (point) =>
      describeRun(point.series, [
        [view.result, number(resultOf(point.series))],
        ["epoch duration", duration(epochTimes[point.series])],
      ]),
    mark: (point) => emphasise(point ? point.series : view.selected),
    choose: (point) => select(point.series),
    reach: 24,
  });
}

function drawAxis(area, axis, last, room) {
  const { root } = area;
  root.append(
    svg("line", { class: "axis", x1: axis.x, x2: axis.x, y1: area.top, y2: area.bottom }),
    svg(
      "text",
      { class: "label", x: axis.x, y: 16, "text-anchor": "middle" },
      clipped(axis.name, room),
    ),
  );
  const format = axis.distinct || axis.format === duration ? axis.format : ticksAs(axis.y.ticks);
  for (const tick of axis.y.ticks) {
    const text = clipped(format(tick), 9);
    root.append(
      svg(
        "text",
        {
          x: axis.x + (last ? 7 : -7),
          y: axis.y(tick) + 4,
          "text-anchor": last ? "start" : "end",
          class: "halo",
        },
        text,
      ),
    );
  }
  const brush = svg("rect", { class: "brush", x: axis.x - 8, width: 16, visibility: "hidden" });
  const grip = svg("rect", {
    class: "grip",
    x: axis.x - 12,
    width: 24,
    y: area.top - 10,
    height: area.bottom - area.top + 20,
  });
  root.append(brush, grip);
  brushing(area, axis, brush, grip);
}

function brushing(area, axis, brush, grip) {
  const kept = view.brushes.get(axis.name);
  const show = (from, to) =>
    dress(
      brush,
      { y: Math.min(from, to), height: Math.max(1, Math.abs(to - from)), visibility: "visible" },
      [],
    );
  if (kept) show(kept.from, kept.to);
  let start = null;
  const height = (event) => {
    const box = area.root.getBoundingClientRect();
    return Math.min(
      area.bottom + 8,
      Math.max(area.top - 8, ((event.clientY - box.top) * area.height) / box.height),
    );
  };
  grip.addEventListener("pointerdown", (event) => {
    start = height(event);
    grip.setPointerCapture(event.pointerId);
  });
  grip.addEventListener("pointermove", (event) => start !== null && show(start, height(event)));
  grip.addEventListener("click", (event) => event.stopPropagation());
  grip.addEventListener("pointerup", (event) => {
    const [from, to] = [Math.min(start, height(event)), Math.max(start, height(event))];
    start = null;
    view.brushes.delete(axis.name);
    if (to - from > 4) {
      const test = (run) => axis.y(axis.values[run]) >= from && axis.y(axis.values[run]) <= to;
      view.brushes.set(axis.name, Object.assign(test, { from, to }));
    }
    update();
  });
}
