// Confusion matrices and ROC curves of the best run.

const SIDE = 260; // of a picture

function drawPictures() {
  const shown = data.pictures ?? [];
  byId("pictures").hidden = !shown.length;
  if (!shown.length) return;
  const parts = shown.map((each) => (each.kind === "curves" ? curvesPicture(each) : matrixPicture(each)));
  byId("pictures").querySelector(".matrices").replaceChildren(...parts);
  byId("pictures").querySelector(".note").textContent =
    `Of run ${shown[0].run + 1}, the best one that has them, after its last epoch. ` +
    "A matrix has a row for each target and a column for each answer.";
}

function matrixPicture({ name, rows }) {
  const cell = (count, place, row, total) =>
    element(
      "td",
      {
        class: place === row ? "right" : null,
        style: `--share: ${total ? count / total : 0}`,
        title: `target ${row}, answer ${place}: ${number(count)}`,
      },
      number(count),
    );
  const line = (counts, row) => {
    const total = counts.reduce((sum, count) => sum + (count ?? 0), 0);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, String(row)),
      counts.map((count, place) => cell(count, place, row, total)),
    );
  };
  const head = element(
    "tr",
    {},
    element("td", {}),
    rows[0].map((_, place) => element("th", { scope: "col" }, String(place))),
  );
  const table = element("table", { class: "matrix" }, element("tbody", {}, head, rows.map(line)));
  return element("figure", {}, element("figcaption", {}, name), element("div", { class: "scroll" }, table));
}

function curvesPicture({ name, rows }) {
  const path = ([across, up]) => across.map((x, place) => `${x * SIDE},${(1 - up[place]) * SIDE}`).join(" ");
  const lines = rows.map((curve, place) =>
    svg(
      "polyline",
      { points: path(curve), style: `stroke: var(--c${place % 6})` },
      svg("title", {}, rows.length > 1 ? `class ${place}` : name),
    ),
  );
  const picture = svg(
    "svg",
    { viewBox: `-1 -1 ${SIDE + 2} ${SIDE + 2}`, class: "roc", role: "img", "aria-label": `${name} curve` },
    svg("rect", { width: SIDE, height: SIDE }),
    svg("line", { x1: 0, y1: SIDE, x2: SIDE, y2: 0 }),
    lines,
  );
  const axes = "true positive rate over false positive rate";
  return element("figure", {}, element("figcaption", {}, name), picture, element("small", {}, axes));
}
