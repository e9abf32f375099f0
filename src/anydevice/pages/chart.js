// Charts in SVG: marks, axes, legends, and points that pointer and keyboard can ask about.

const HUES = 6;
const hue = (index) => `var(--c${index % HUES})`;
const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "4 2", "12 3"];
const ramp = (share) => `color-mix(in oklab, var(--high) ${(share * 100).toFixed(1)}%, var(--low))`;

/** A dot whose form shows the series, as its colour does; hollow for what is only virtual. */
function dot(x, y, series, { hollow = false, size = 4.5, ...rest } = {}) {
  const s = size;
  const d = [
    `M${-s},0a${s},${s} 0 1 0 ${2 * s},0a${s},${s} 0 1 0 ${-2 * s},0`,
    `M${-s * 0.9},${-s * 0.9}h${s * 1.8}v${s * 1.8}h${-s * 1.8}z`,
    `M0,${-s * 1.2}L${s * 1.15},${s * 0.85}H${-s * 1.15}z`,
    `M0,${-s * 1.3}L${s * 1.3},0L0,${s * 1.3}L${-s * 1.3},0z`,
    `M0,${s * 1.2}L${s * 1.15},${-s * 0.85}H${-s * 1.15}z`,
    `M${-s},0H${s}M0,${-s}V${s}`,
  ][series % HUES];
  return svg("path", {
    d,
    transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
    stroke: hue(series),
    fill: hollow ? "var(--surface)" : hue(series),
    "stroke-width": 1.6,
    ...rest,
  });
}

/** Room for a chart as wide as its holder: the SVG, and where the plot's edges are. */
function chart(holder, { height, left, right = 14, top = 26, bottom = 40, label }) {
  const width = Math.max(240, holder.clientWidth);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": label,
    tabindex: 0,
  });
  holder.replaceChildren(root);
  return { root, width, height, left, right: width - right, top, bottom: height - bottom };
}

/** Lines across the plot at the ticks; the axis's name stands above it, not turned. */
function axisLeft(area, scale, format, name) {
  for (const tick of scale.ticks) {
    const y = Math.round(scale(tick)) + 0.5;
    area.root.append(
      svg("line", { class: "grid", x1: area.left, x2: area.right, y1: y, y2: y }),
      svg("text", { x: area.left - 8, y: y + 4, "text-anchor": "end" }, format(tick)),
    );
  }
  area.root.append(svg("text", { class: "label", x: 0, y: 12 }, name));
}

/** Ticks below the plot, left out where they would touch; the axis's name in the middle below. */
function axisBottom(area, scale, format, name) {
  area.root.append(
    svg("line", {
      class: "axis",
      x1: area.left,
      x2: area.right,
      y1: area.bottom + 0.5,
      y2: area.bottom + 0.5,
    }),
    svg(
      "text",
      {
        class: "label",
        x: (area.left + area.right) / 2,
        y: area.height - 4,
        "text-anchor": "middle",
      },
      name,
    ),
  );
  let free = -Infinity;
  for (const tick of scale.ticks) {
    const [x, text] = [scale(tick), format(tick)];
    if (x - textWidth(text) / 2 < free) continue;
    free = x + textWidth(text) / 2 + 10;
    area.root.append(svg("text", { x, y: area.bottom + 18, "text-anchor": "middle" }, text));
  }
}

const textWidth = (text) => String(text).length * 7;
const widest = (texts) => Math.max(0, ...texts.map(textWidth));
const clipped = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** A number format for ticks: as few digits as keep them apart. */
function ticksAs(ticks) {
  const format = (digits) => (tick) =>
    number(Number(tick.toPrecision(digits)) + 0)
      .replace(/(\.\d*?)0+(?=$|e)/, "$1")
      .replace(/\.$/, "");
  for (let digits = 1; digits < 8; digits++) {
    if (ticks.every((tick) => Number(tick.toPrecision(digits)) === tick)) return format(digits);
  }
  return format(8);
}

/** A line below the header of a chart: what each colour, form and dash means. */
function legend(entries) {
  return element(
    "ul",
    { class: "legend" },
    entries.map(({ mark, text }) =>
      element("li", {}, svg("svg", { viewBox: "0 0 22 12", "aria-hidden": "true" }, mark), text),
    ),
  );
}

// Hovering. ------------------------------------------------------------------------------------

const tip = element("div", { class: "tip", role: "status", hidden: true });
document.body.append(tip);

let pointerWas = "";

/** Shows `content` next to a point of the picture; the tip stays inside the window. */
function showTip(root, x, y, content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = root.getBoundingClientRect();
  const scale = box.width / root.viewBox.baseVal.width;
  const [px, py] = [box.left + x * scale, box.top + y * scale];
  const room = document.documentElement.clientWidth;
  const left = px + 14 + tip.offsetWidth > room - 8 ? px - 14 - tip.offsetWidth : px + 14;
  const above = py - tip.offsetHeight / 2;
  const [tx, ty] = [Math.max(8, left) + scrollX, Math.max(8, above) + scrollY];
  tip.style.transform = `translate(${tx}px, ${ty}px)`;
}

const hideTip = () => {
  tip.hidden = true;
};

/**
 * Makes a picture's points known to pointer and keyboard. `points` are {x, y, series, …} in the
 * picture's pixels, `describe(point)` gives the tip's nodes, `mark(point or null)` stresses it;
 * `across` below 1 lets the pointer be further away to the sides than above and below.
 */
function hover(
  area,
  points,
  { describe, mark = () => {}, reach = 40, across = 1, choose = () => {} },
) {
  const { root } = area;
  let current = -1;
  const go = (index) => {
    current = index;
    mark(points[index] ?? null);
    if (points[index]) showTip(root, points[index].x, points[index].y, describe(points[index]));
    else hideTip();
  };
  const nearest = (event) => {
    const box = root.getBoundingClientRect();
    const scale = root.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let best = -1,
      least = reach * reach;
    points.forEach((point, index) => {
      const distance = (across * (point.x - x)) ** 2 + (point.y - y) ** 2;
      if (distance < least) [best, least] = [index, distance];
    });
    return best;
  };
  root.addEventListener("pointermove", (event) => {
    // A browser also says so when the page moves below a pointer at rest; the keyboard may be in use.
    const place = `${event.clientX} ${event.clientY}`;
    if (place !== pointerWas) go(nearest(event));
    pointerWas = place;
  });
  root.addEventListener("pointerdown", (event) => go(nearest(event)));
  root.addEventListener("click", () => current >= 0 && choose(points[current]));
  root.addEventListener("pointerleave", () => go(-1));
  root.addEventListener("blur", () => go(-1));
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return go(-1);
    if (event.key === "Enter" && current >= 0) return choose(points[current]);
    if (!step || !points.length) return;
    event.preventDefault();
    const aside = event.key === "ArrowUp" || event.key === "ArrowDown";
    go(
      aside ? otherSeries(points, current, step) : (current + step + points.length) % points.length,
    );
  });
}

/** The point of the next series that lies nearest to this one. */
function otherSeries(points, current, step) {
  if (current < 0) return 0;
  const here = points[current];
  const all = [...new Set(points.map((point) => point.series))];
  const next = all[(all.indexOf(here.series) + step + all.length) % all.length];
  let best = current,
    least = Infinity;
  points.forEach((point, index) => {
    const distance = Math.abs(point.x - here.x);
    if (point.series === next && distance < least) [best, least] = [index, distance];
  });
  return best;
}

/** Calls `draw` now and whenever the holder's width changes. */
function whenResized(holder, draw) {
  let width = holder.clientWidth;
  new ResizeObserver(() => {
    if (holder.clientWidth === width) return;
    width = holder.clientWidth;
    draw();
  }).observe(holder);
}
