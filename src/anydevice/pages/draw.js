// What all pages are made of: elements, numbers as people read them, scales.

const UNSET = "–";
const embedded = () => JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/** An HTML element: attributes by name, `on…` as listeners, children as nodes or as plain text. */
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

const grouped = (value) =>
  String(value).replace(/^(-?\d{5,})/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ","));

/** Four significant digits: 0.9312, 2.303, 12,040, 1.5e-5. */
function number(value, digits = 4) {
  if (typeof value !== "number")
    return value === null || value === undefined ? UNSET : String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return grouped(value);
  if (size >= 1e9 || size < 1e-4)
    return String(Number(value.toPrecision(digits - 1))).replace("e+", "e");
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return grouped(value.toFixed(decimals));
}

/** A parameter or a tick, as somebody would type it: 0.01, 1e-5, 10000, relu. */
function plain(value) {
  if (typeof value !== "number")
    return value === null || value === undefined ? UNSET : String(value);
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) {
    return Number(value.toPrecision(6)).toExponential().replace("e+", "e");
  }
  return String(Number(value.toPrecision(6)));
}

/** 850 ms, 1.23 s, 48 s, 3.4 min, 2 h, as duration_text in anydevice/text.py. */
function duration(seconds) {
  if (typeof seconds !== "number") return UNSET;
  const figures = (value, digits) => String(Number(value.toPrecision(digits)));
  for (const [unit, length, least] of [["d", 86400, 172e3], ["h", 3600, 5970], ["min", 60, 99.5]]) {
    const value = seconds / length;
    if (seconds >= least) return `${value < 99.5 ? figures(value, 2) : value.toFixed(0)} ${unit}`;
  }
  for (const [unit, length] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]])
    if (seconds >= 0.9995 * length) return `${figures(seconds / length, 3)} ${unit}`;
  return seconds ? `${figures(seconds * 1e9, 3)} ns` : "0 s";
}

/** 512 B, 1.5 MiB, 23.0 GiB, as size_text in anydevice/text.py. */
function bytes(count) {
  if (typeof count !== "number") return UNSET;
  let unit = 0;
  for (; Math.abs(count) >= 1024 && unit < 3; unit++) count /= 1024;
  return `${count.toFixed(unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB"][unit]}`;
}

const listed = (names) =>
  names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");
/** The sentences that apply, one after the other. */
const sentences = (...texts) => texts.filter(Boolean).join(" ");

const counted = (count, noun, nouns = `${noun}s`) =>
  `${grouped(count)} ${count === 1 ? noun : nouns}`;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// Scales: functions from values to pixels, with .ticks. ----------------------------------------

/** The extent of the numbers; a loop, since Math.min(...values) has a limit. */
function extent(values) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values) {
    if (typeof value !== "number") continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

function linear([low, high], [from, to], wanted = 5, steps = [1, 2, 2.5, 5, 10]) {
  if (low === high)
    [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
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
  return Object.assign((value) => scale(value / unit), {
    ticks: scale.ticks.map((tick) => tick * unit),
  });
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
