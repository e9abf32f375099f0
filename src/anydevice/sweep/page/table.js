// The table: sorted by any column, a page of rows at a time, the best on each device marked.

const FIRST_ROWS = 25;
const MORE_ROWS = 250;
const sorting = { name: null, down: false }; // no name: by the result, the best first
let rowsShown = FIRST_ROWS;

/** Figures of one column with the same decimals, so that they stand under each other. */
function aligned(values) {
  const sizes = values.filter((value) => typeof value === "number" && value !== 0).map(Math.abs);
  if (!sizes.length || sizes.every(Number.isInteger)) return number;
  const decimals = Math.min(6, Math.max(0, 3 - Math.floor(Math.log10(median(sizes)))));
  return (value) => {
    const size = Math.abs(value);
    if (typeof value !== "number" || (size !== 0 && (size < 10 ** (1 - decimals) || size >= 1e7)))
      return number(value);
    return grouped(value.toFixed(decimals));
  };
}

const heads = [
  { name: "run", values: everyRun.map((run) => run + 1) },
  { name: "epochs", values: column("epochs"), format: number, number: true },
  ...[...figures].map(([name, values]) => ({
    name,
    values,
    format: aligned(values),
    number: true,
    down: higher.get(name),
  })),
  { name: "epoch duration", values: epochTimes, format: duration, number: true },
  { name: "run duration", values: column("run time"), format: duration, number: true },
  { name: "peak memory", values: column("peak"), format: bytes, number: true },
  deviceNames.length > 1 && { name: "ran on", values: devices, format: String },
  ...parameters.map((each) => ({
    name: each.name,
    values: each.values,
    format: plain,
    number: each.values.every((value) => value === null || typeof value === "number"),
  })),
].filter((head) => head && (head.name === "run" || head.values.some((value) => value !== null)));

const sortedBy = () => (sorting.name ? sorting : { name: view.result, down: resultHigher() });

function sortBy(head) {
  const { name, down } = sortedBy();
  sorting.down = name === head.name ? !down : Boolean(head.down);
  sorting.name = head.name;
  drawTable(visibleRuns());
}

function sorted(runs) {
  const head = heads.find((each) => each.name === sorting.name);
  if (!head) return [...runs].sort(byResult);
  const last = (value) => value === null || (head.number && typeof value !== "number");
  return [...runs].sort((a, b) => {
    const [x, y] = [head.values[a], head.values[b]];
    if (last(x) || last(y)) return last(x) - last(y) || a - b;
    return (sorting.down ? compare(y, x) : compare(x, y)) || a - b;
  });
}

function drawTable(runs) {
  const [head, body] = byId("runs").querySelectorAll("thead, tbody");
  const by = sortedBy();
  head.replaceChildren(
    element(
      "tr",
      {},
      heads.map((each) =>
        element(
          "th",
          {
            scope: "col",
            class: each.number && "number",
            "aria-sort": each.name === by.name ? (by.down ? "descending" : "ascending") : null,
          },
          element(
            "button",
            { type: "button", class: "plain", onclick: () => sortBy(each) },
            clipped(each.name, 40),
          ),
        ),
      ),
    ),
  );
  const best = new Set(bestByDevice().values());
  const ordered = sorted(runs);
  body.replaceChildren(...ordered.slice(0, rowsShown).map((run) => rowOf(run, best.has(run))));
  drawMore(ordered.length);
}

function rowOf(run, best) {
  const choose = () => select(view.selected === run ? null : run);
  const name = element(
    "button",
    {
      type: "button",
      class: "plain",
      "aria-pressed": String(view.selected === run),
      "aria-label": `${runName(run)}, highlight in the charts`,
    },
    String(run + 1),
  );
  const marks = [
    best &&
      element("span", { class: "star", title: `best ${view.result} on ${devices[run]}` }, " ★"),
    states[run] !== "done" && element("span", { class: `state ${states[run]}` }, states[run]),
  ].filter(Boolean);
  return element(
    "tr",
    { "data-run": run, class: view.selected === run && "marked", onclick: choose },
    element("td", {}, name, marks),
    heads.slice(1).map((each) => {
      const text = each.format(each.values[run]);
      return element(
        "td",
        { class: each.number && "number", title: text.length > 30 ? text : null },
        text,
      );
    }),
  );
}

function drawMore(total) {
  const more = (count, text) =>
    element(
      "button",
      {
        type: "button",
        class: "control",
        onclick: () => {
          rowsShown += count;
          drawTable(visibleRuns());
        },
      },
      text,
    );
  const left = total - rowsShown;
  byId("runs")
    .querySelector(".more")
    .replaceChildren(
      ...[
        left > 0 && more(Math.min(left, MORE_ROWS), `Show ${Math.min(left, MORE_ROWS)} more`),
        left > MORE_ROWS && left <= 2000 && more(left, `Show all ${grouped(total)}`),
        left > 0 && element("p", { class: "note" }, `${rowsShown} of ${grouped(total)} rows`),
      ].filter(Boolean),
    );
}
