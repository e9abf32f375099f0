// One step: a lane for the host and for each stream, with what they do when.

const KINDS = {
  launch: [hue(0), "the host launches"], data: [hue(4), "the host fetches data or computes"],
  wait: ["var(--bad)", "the host waits for the GPU"], kernel: [hue(3), "kernels"],
  transfer: [hue(1), "copies"], collective: [hue(2), "collectives"],
};
const LANE = 30;

/** The picture of one card's step; drawn again when the window changes. */
function stepOverTime(card) {
  const holder = element("div");
  const draw = () => drawStep(holder, card);
  requestAnimationFrame(draw);
  whenResized(holder, draw);
  const there = new Set(card.step.lanes.flatMap(({ spans }) => spans.map((span) => span[2])));
  const marks = Object.entries(KINDS).filter(([kind]) => there.has(kind)).map(([, [fill, text]]) => ({
    mark: svg("rect", { x: 3, y: 1, width: 16, height: 10, rx: 2, fill }), text,
  }));
  return element("div", {}, legend(marks), holder);
}

function drawStep(holder, card) {
  const { lanes, seconds } = card.step;
  const left = Math.min(150, widest(lanes.map(({ name }) => name)) + 14);
  const height = lanes.length * LANE + 70;
  const area = chart(holder, { height, left, label: `One step on ${card.name}: host, streams and copies` });
  const x = linear([0, seconds], [area.left, area.right]);
  const points = [];
  lanes.forEach(({ name, spans }, index) => {
    const y = area.top + index * LANE;
    area.root.append(
      svg("text", { x: area.left - 8, y: y + 15, "text-anchor": "end" }, clipped(name, 20)),
      svg("line", { class: "grid", x1: area.left, x2: area.right, y1: y + LANE - 4.5, y2: y + LANE - 4.5 }),
    );
    for (const [begin, end, kind, text, more] of spans) {
      const [from, to] = [x(begin), x(end)];
      area.root.append(svg("rect", { x: from.toFixed(2), y, width: Math.max(0.6, to - from).toFixed(2), height: LANE - 8, fill: KINDS[kind][0] }));
      points.push({ x: (from + to) / 2, y: y + LANE / 2 - 4, series: index, name, text, more, begin, end, from, to });
    }
  });
  axisBottom(area, x, duration, "seconds from when the host begins with the step");
  const frame = svg("rect", { class: "chosen", visibility: "hidden" });
  area.root.append(frame);
  hover({ root: area.root }, points, {
    reach: 60,
    describe: ({ name, text, more, begin, end }) => [
      element("b", {}, more ? `${text} and ${counted(more, "other")}` : text),
      element("dl", {}, [["takes", end - begin], ["begins at", begin]].map(([what, figure]) => [element("dt", {}, what), element("dd", {}, duration(figure))]), element("dt", {}, "on"), element("dd", {}, name)),
    ],
    mark: (point) => {
      frame.setAttribute("visibility", point ? "visible" : "hidden");
      if (!point) return;
      const sides = { x: point.from - 0.5, width: Math.max(1.6, point.to - point.from + 1), y: point.y - LANE / 2 + 3.5, height: LANE - 7 };
      for (const [side, value] of Object.entries(sides)) frame.setAttribute(side, value.toFixed(1));
    },
  });
}
