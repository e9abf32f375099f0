// What all pages draw with: elements, numbers as people read them, scales, axes, hovering.

const UNSET = "–";
const embedded = () => JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/** An HTML element: attributes by name, `on…` as listeners, children as nodes or texts (never markup). */
function element(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "css") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// Numbers. -------------------------------------------------------------------------------------

const grouped = (text) => text.replace(/^(-?\d{5,})/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, " "));

/** Four significant digits: 0.9312, 2.303, 12 040, 1.5e-5. */
function number(value, digits = 4) {
  if (typeof value !== "number") return value === null || value === undefined ? UNSET : String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return grouped(String(value));
  if (size >= 1e9 || size < 1e-4) return String(Number(value.toPrecision(digits - 1))).replace("e+", "e");
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return grouped(value.toFixed(decimals));
}

/** A parameter or a tick, as somebody would type it: 0.01, 1e-5, 10000, relu. */
function plain(value) {
  if (typeof value !== "number") return value === null || value === undefined ? UNSET : String(value);
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) {
    return Number(value.toPrecision(6)).toExponential().replace("e+", "e");
  }
  return String(Number(value.toPrecision(6)));
}

/** 850 ms, 1.2 s, 48 s, 3.4 min, 2.1 h. */
function duration(seconds) {
  if (typeof seconds !== "number") return UNSET;
  const short = (value) => (value < 9.95 ? value.toFixed(1) : value.toFixed(0));
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995e-3) return `${short(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${short(seconds * 1e3)} ms`;
  if (seconds < 99.5) return `${short(seconds)} s`;
  if (seconds < 5970) return `${short(seconds / 60)} min`;
  return seconds < 172000 ? `${short(seconds / 3600)} h` : `${short(seconds / 86400)} d`;
}

/** 512 B, 1.5 MiB, 23 GiB. */
function bytes(count) {
  if (typeof count !== "number") return UNSET;
  let unit = 0;
  for (; Math.abs(count) >= 1024 && unit < 4; unit++) count /= 1024;
  return `${unit && count < 99.95 && !Number.isInteger(count) ? count.toFixed(1) : count.toFixed(0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

const counted = (count, noun, nouns = `${noun}s`) => `${grouped(String(count))} ${count === 1 ? noun : nouns}`;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// Scales: functions from values to pixels, with .ticks. -------------------------------------------

/** The extent of the numbers; a loop, since Math.min(...values) has a limit. */
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (typeof value !== "number") continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

function linear([low, high], [from, to], wanted = 5, steps = [1, 2, 2.5, 5, 10]) {
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = steps.map((m) => m * power).find((s) => s >= rough * 0.999);
  const scale = (value) => from + ((value - low) / (high - low)) * (to - from);
  scale.ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    scale.ticks.push(Number((i * step).toPrecision(12)));
  }
  return scale;
}

/** A linear scale from 0 whose ticks are round numbers of KiB, MiB or GiB. */
function binary(high, [from, to]) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(high) / Math.log(1024)));
  const scale = linear([0, high / unit], [from, to], 4);
  return Object.assign((value) => scale(value / unit), { ticks: scale.ticks.map((tick) => tick * unit) });
}

function logarithmic([low, high], [from, to]) {
  if (low === high) [low, high] = [low / 2, high * 2];
  const [bottom, top] = [Math.log10(low), Math.log10(high)];
  const scale = (value) => from + ((Math.log10(value) - bottom) / (top - bottom)) * (to - from);
  const decades = top - bottom;
  const factors = decades > 4 ? [1] : decades > 1.3 ? [1, 3] : [1, 2, 3, 5, 7];
  const every = Math.max(1, Math.ceil(decades / 6));
  scale.ticks = [];
  for (let power = Math.floor(bottom); power <= top; power++) {
    if (power % every) continue;
    for (const factor of factors) {
      const tick = Number((factor * 10 ** power).toPrecision(12));
      if (tick >= low * 0.999 && tick <= high * 1.001) scale.ticks.push(tick);
    }
  }
  return scale;
}

// Charts. ------------------------------------------------------------------------------------------

const HUES = 6;
const hue = (index) => `var(--c${index % HUES})`;
const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "4 2", "12 3"];
const ramp = (share) => `color-mix(in oklab, var(--high) ${(share * 100).toFixed(1)}%, var(--low))`;

/** A dot whose form tells the series as its colour does; hollow for what is only virtual. */
function dot(x, y, series, { hollow = false, size = 4.5, ...rest } = {}) {
  const s = size;
  const d = [
    `M${-s},0a${s},${s} 0 1 0 ${2 * s},0a${s},${s} 0 1 0 ${-2 * s},0`,
    `M${-s * 0.9},${-s * 0.9}h${s * 1.8}v${s * 1.8}h${-s * 1.8}z`,
    `M0,${-s * 1.2}L${s * 1.15},${s * 0.85}H${-s * 1.15}z`,
    `M0,${-s * 1.3}L${s * 1.3},0L0,${s * 1.3}L${-s * 1.3},0z`,
    `M0,${s * 1.2}L${s * 1.15},${-s * 0.85}H${-s * 1.15}z`,
    `M${-s},${-s * 0.35}h${s * 0.65}v${-s * 0.65}h${s * 0.7}v${s * 0.65}h${s * 0.65}v${s * 0.7}h${-s * 0.65}v${s * 0.65}h${-s * 0.7}v${-s * 0.65}h${-s * 0.65}z`,
  ][series % HUES];
  return svg("path", {
    d, transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`, stroke: hue(series),
    fill: hollow ? "var(--surface)" : hue(series), "stroke-width": hollow ? 1.8 : 0, ...rest,
  });
}

/** Room for a chart as wide as its holder: the SVG, and where the plot's edges are. */
function chart(holder, { height, left, right = 14, top = 26, bottom = 40, label }) {
  const width = Math.max(240, holder.clientWidth);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label, tabindex: 0,
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
    svg("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom + 0.5, y2: area.bottom + 0.5 }),
    svg("text", { class: "label", x: (area.left + area.right) / 2, y: area.height - 4, "text-anchor": "middle" }, name),
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
  const format = (digits) => (tick) => number(Number(tick.toPrecision(digits)) + 0).replace(/(\.\d*?)0+(?=$|e)/, "$1").replace(/\.$/, "");
  for (let digits = 1; digits < 8; digits++) {
    if (ticks.every((tick) => Number(tick.toPrecision(digits)) === tick)) return format(digits);
  }
  return format(8);
}

/** A line below the header of a chart: what each colour, form and dash means. */
function legend(entries) {
  return element("ul", { class: "legend" }, entries.map(({ mark, text }) =>
    element("li", {}, svg("svg", { viewBox: "0 0 22 12", "aria-hidden": "true" }, mark), text)));
}

// Hovering. ------------------------------------------------------------------------------------------

const tip = element("div", { class: "tip", role: "status", hidden: true });
document.body.append(tip);

let pointerWas = "";

/** Shows `content` beside a point of the picture; the tip stays inside the window. */
function showTip(root, x, y, content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = root.getBoundingClientRect();
  const scale = box.width / root.viewBox.baseVal.width;
  const [px, py] = [box.left + x * scale, box.top + y * scale];
  const room = document.documentElement.clientWidth;
  const left = px + 14 + tip.offsetWidth > room - 8 ? px - 14 - tip.offsetWidth : px + 14;
  tip.style.transform = `translate(${Math.max(8, left) + scrollX}px, ${Math.max(8, py - tip.offsetHeight / 2) + scrollY}px)`;
}

const hideTip = () => { tip.hidden = true; };

/**
 * Makes a picture's points known to pointer and keyboard. `points` are {x, y, series, …} in the
 * picture's pixels, `describe(point)` gives the tip's nodes, `mark(point or null)` draws the emphasis;
 * `across` below 1 lets the pointer be further away to the sides than above and below.
 */
function hover(area, points, { describe, mark = () => {}, reach = 40, across = 1, choose = () => {} }) {
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
    let best = -1, least = reach * reach;
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
    go(aside ? otherSeries(points, current, step) : (current + step + points.length) % points.length);
  });
}

/** The point of the next series that lies nearest to this one. */
function otherSeries(points, current, step) {
  if (current < 0) return 0;
  const here = points[current];
  const all = [...new Set(points.map((point) => point.series))];
  const next = all[(all.indexOf(here.series) + step + all.length) % all.length];
  let best = current, least = Infinity;
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
