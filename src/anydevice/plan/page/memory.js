// Memory over the steps: one area for each category, on top of each other.

const SHADES = {
  "parameters": hue(0), "gradients": hue(1), "optimizer state": hue(2), "activations": hue(3),
  "activation gradients": hue(4), "inputs": hue(5),
  "optimizer temporaries": "color-mix(in oklab, var(--c2) 45%, var(--surface))",
  "other": "var(--other)", "workspace": "color-mix(in oklab, var(--text) 45%, var(--surface))",
};
const shade = (category) => SHADES[category] ?? "var(--other)";

/** The picture of one card; drawn again when the window changes. */
function memoryOverSteps(card) {
  const holder = element("div");
  const draw = () => drawMemory(holder, card);
  requestAnimationFrame(draw);
  whenResized(holder, draw);
  const marks = card.timeline.categories.map((category) => ({
    mark: svg("rect", { x: 3, y: 1, width: 16, height: 10, rx: 2, fill: shade(category) }), text: category,
  }));
  return element("div", {}, legend(marks), holder);
}

function drawMemory(holder, card) {
  const { categories, events, last } = card.timeline;
  const sums = card.timeline.bytes.map(cumulated);
  const peak = Math.max(card.peak.bytes, 1);
  const room = card.memory - card.context;
  const showsRoom = room < peak * 1.6;
  const area = chart(holder, { height: 340, left: 68, top: 34, label: `Memory of ${card.name} over the steps` });
  const x = linear([0, Math.max(last, 1)], [area.left, area.right]);
  const y = binary(Math.max(peak, showsRoom ? room : 0) * 1.06, [area.bottom, area.top]);
  axisLeft(area, y, bytes, "bytes of tensors and workspaces");
  categories.forEach((category, index) => {
    area.root.append(svg("path", { d: band(events, sums, index, x, y), fill: shade(category) }));
  });
  drawSteps(area, card, x);
  if (showsRoom) {
    const top = y(room);
    area.root.append(
      svg("line", { class: "capacity", x1: area.left, x2: area.right, y1: top, y2: top }),
      svg("text", { class: "halo", x: area.right - 4, y: top - 6, "text-anchor": "end" }, `${bytes(room)}, GPU memory less the CUDA context`),
    );
  }
  const moment = svg("line", { class: "moment", y1: area.top, y2: area.bottom, visibility: "hidden" });
  area.root.append(moment);
  const points = events.map((event, i) => ({ x: x(event), y: y(sums[i].at(-1)), i, series: 0 }));
  hover({ root: area.root }, points, {
    reach: 1e6,
    describe: ({ i }) => described(card, i, sums[i].at(-1)),
    mark: (point) => {
      moment.setAttribute("visibility", point ? "visible" : "hidden");
      if (point) for (const end of ["x1", "x2"]) moment.setAttribute(end, Math.round(point.x) + 0.5);
    },
  });
}

function cumulated(held) {
  let sum = 0;
  return held.map((size) => (sum += size));
}

/** Along the upper edge, back along the lower one; memory changes at once, so the edges are steps. */
function band(events, sums, index, x, y) {
  const upper = [], lower = [];
  events.forEach((event, i) => {
    const [left, right] = [x(event), x(events[i + 1] ?? event + 1)];
    const [high, low] = [y(sums[i][index]), y(index ? sums[i][index - 1] : 0)];
    upper.push(`${left.toFixed(1)},${high.toFixed(1)} ${right.toFixed(1)},${high.toFixed(1)}`);
    lower.unshift(`${right.toFixed(1)},${low.toFixed(1)} ${left.toFixed(1)},${low.toFixed(1)}`);
  });
  return `M${upper.join("L")}L${lower.join("L")}Z`;
}

/** Where each step ends, and its number in the middle of it. */
function drawSteps(area, card, x) {
  let begin = 0;
  card.marks.forEach((end, index) => {
    const at = Math.round(x(Math.min(end, card.timeline.last))) + 0.5;
    area.root.append(
      svg("line", { class: "mark", x1: at, x2: at, y1: area.top - 6, y2: area.bottom }),
      svg("text", { x: (x(begin) + at) / 2, y: area.bottom + 18, "text-anchor": "middle" }, `step ${index + 1}`),
    );
    begin = end;
  });
  area.root.append(
    svg("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom + 0.5, y2: area.bottom + 0.5 }),
    svg("text", { class: "label", x: (area.left + area.right) / 2, y: area.height - 4, "text-anchor": "middle" }, "allocations and frees, one after another"),
  );
}

function described(card, i, total) {
  const { categories, events } = card.timeline;
  const rows = categories.map((category, k) => [category, card.timeline.bytes[i][k]]).filter(([, size]) => size > 0);
  const step = card.marks.filter((end) => end <= events[i]).length + 1;
  const which = step <= card.marks.length ? `step ${step}` : "after the last step";
  return [
    element("b", {}, `${bytes(total)}, ${which}`),
    element("dl", {}, rows.sort((a, b) => b[1] - a[1]).map(([category, size]) => [element("dt", {}, category), element("dd", {}, bytes(size))])),
  ];
}
