// The runs of this page: what is known of each, which are shown, which is the best.

const data = embedded();
const column = (role) => data.columns.find((each) => each.role === role).values;
const named = (role) => data.columns.filter((each) => each.role === role);

const keys = column("key");
const states = column("state");
const devices = column("device").map((name) => name ?? "unknown device");
const virtual = column("virtual");
const epochTimes = column("epoch time");
const parameters = named("parameter").map((each) => ({ ...each, distinct: distinct(each.values) }));
const varying = parameters.filter((each) => each.distinct.length > 1);
const figures = new Map(named("figure").map((each) => [each.name, each.values]));
const higher = new Map(data.figures.map((each) => [each.name, each.higher]));
const everyRun = keys.map((_, run) => run);
const deviceNames = [...new Set(devices)].sort((a, b) => b.startsWith("cpu") - a.startsWith("cpu"));
const virtualDevices = new Set(devices.filter((_, run) => virtual[run]));

const view = {
  filter: "", // its text
  picked: new Map(), // parameter's name → Set of values
  brushes: new Map(), // axis's name → test of a run
  result: data.result,
  figure: data.result,
  colour: null,
  selected: null,
};

/** The different values in order, numbers before texts. */
function distinct(values) {
  return [...new Set(values)].sort(compare);
}

/** Numbers by size, then texts; what is missing, and NaN, come last. */
function compare(a, b) {
  const [x, y] = [typeof a === "number", typeof b === "number"];
  if (x && y) return a - b;
  const missing = (value) => value === null || value === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  if (x !== y) return x ? -1 : 1;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

const runName = (run) => `Run ${run + 1}`;
const resultOf = (run) => figures.get(view.result)?.[run];
const resultHigher = () => higher.get(view.result) ?? false;

/** Of two runs the better first; then those without a result, then the failed. */
function byResult(a, b) {
  const [x, y] = [resultOf(a), resultOf(b)];
  const ended = (run) => states[run] !== "failed";
  if (ended(a) !== ended(b)) return ended(b) - ended(a);
  const [p, q] = [typeof x === "number", typeof y === "number"];
  if (!p || !q) return q - p || a - b;
  return (resultHigher() ? y - x : x - y) || a - b;
}

/** The best run on each device, of those that did not fail. */
function bestByDevice() {
  const best = new Map();
  for (const run of everyRun) {
    if (states[run] === "failed" || typeof resultOf(run) !== "number") continue;
    const device = devices[run];
    if (!best.has(device) || byResult(run, best.get(device)) < 0) best.set(device, run);
  }
  return best;
}

// The filter: pieces of text that must all be found, and comparisons such as lr<0.1. -------------

const texts = everyRun.map((run) =>
  [
    runName(run),
    states[run],
    devices[run],
    ...parameters.map((each) => `${each.name}=${plain(each.values[run])}`),
  ]
    .join("\n")
    .toLowerCase(),
);

const COMPARED = new Map([
  ["run", everyRun.map((run) => run + 1)],
  ["state", states],
  ["device", devices],
  ["seconds", epochTimes],
  ...figures,
  ...parameters.map((each) => [each.name, each.values]),
]);

function termOf(word) {
  const [, name, sign, wanted] = /^(.+?)(<=|>=|!=|=|<|>)(.*)$/s.exec(word) ?? [];
  const values =
    COMPARED.get(name) ??
    COMPARED.get([...COMPARED.keys()].find((key) => key.toLowerCase() === name));
  if (!values || wanted === "") return (run) => texts[run].includes(word.toLowerCase());
  const asNumber = Number(wanted);
  const same = (value) =>
    typeof value === "number"
      ? value === asNumber
      : String(value).toLowerCase() === wanted.toLowerCase();
  return {
    "=": (run) => same(values[run]),
    "!=": (run) => !same(values[run]),
    "<": (run) => typeof values[run] === "number" && values[run] < asNumber,
    ">": (run) => typeof values[run] === "number" && values[run] > asNumber,
    "<=": (run) => typeof values[run] === "number" && values[run] <= asNumber,
    ">=": (run) => typeof values[run] === "number" && values[run] >= asNumber,
  }[sign];
}

function visibleRuns() {
  const tests = view.filter.split(/\s+/).filter(Boolean).map(termOf);
  tests.push(...view.brushes.values());
  for (const each of parameters) {
    const wanted = view.picked.get(each.name);
    if (wanted?.size) tests.push((run) => wanted.has(each.values[run]));
  }
  return everyRun.filter((run) => tests.every((test) => test(run)));
}

/** At most so many: half are the best, half are spread evenly over the others, and the selected run. */
function sample(runs, most) {
  if (runs.length <= most) return runs;
  const sorted = [...runs].sort(byResult);
  const half = most >> 1;
  const others = sorted.slice(half);
  const chosen = sorted.slice(0, half);
  for (let i = 0; i < most - half; i++)
    chosen.push(others[Math.floor((i * others.length) / (most - half))]);
  if (runs.includes(view.selected) && !chosen.includes(view.selected)) chosen.push(view.selected);
  return chosen;
}

// Colours: by device or by a parameter. --------------------------------------------------------

/** {of(run): {stroke, dash}, entries of a legend} for a parameter's name, or null for the device. */
function colouring(name) {
  const parameter = parameters.find((each) => each.name === name);
  const values = parameter ? parameter.values : devices;
  const kinds = parameter ? parameter.distinct : deviceNames;
  const line = (stroke, dash) =>
    svg("line", {
      x1: 0,
      x2: 22,
      y1: 6,
      y2: 6,
      stroke,
      "stroke-width": 2.5,
      "stroke-dasharray": dash,
    });
  const say = (value) => clipped(parameter ? `${name} ${plain(value)}` : value, 48);
  const numbers = kinds.filter((value) => typeof value === "number");
  if (kinds.length > HUES && numbers.length === kinds.length) {
    const [low, high] = extent(numbers);
    const scale =
      low > 0 && high / low > 50 ? logarithmic([low, high], [0, 1]) : linear([low, high], [0, 1]);
    return {
      of: (run) => ({ stroke: ramp(scale(values[run])), dash: "" }),
      entries: [low, high].map((value) => ({
        mark: line(ramp(scale(value)), ""),
        text: say(value),
      })),
    };
  }
  const place = new Map(kinds.map((value, index) => [value, index]));
  const own = kinds.length > HUES ? HUES - 1 : kinds.length; // the others share one grey
  const style = (index) =>
    index < own
      ? { stroke: hue(index), dash: DASHES[index] }
      : { stroke: "var(--other)", dash: "" };
  const entries = kinds
    .slice(0, own)
    .map((value, index) => ({ mark: line(hue(index), DASHES[index]), text: say(value) }));
  if (own < kinds.length)
    entries.push({ mark: line("var(--other)", ""), text: `${kinds.length - own} others` });
  return { of: (run) => style(place.get(values[run])), entries };
}

/** What a tip says about a run, after the figures that are shown. */
function describeRun(run, rows) {
  const settings = varying.slice(0, 8).map((each) => [each.name, plain(each.values[run])]);
  return [
    element("b", {}, `${runName(run)}${states[run] === "done" ? "" : ` · ${states[run]}`}`),
    clipped(devices[run], 48),
    element(
      "dl",
      {},
      [...rows, ...settings].map(([name, value]) => [
        element("dt", {}, clipped(name, 24)),
        element("dd", {}, clipped(String(value), 32)),
      ]),
    ),
  ];
}
