// The controls, and the one function that redraws everything when what is shown changes.

const spreadOver = usualParameter();
const spreads = [
  {
    id: "durations",
    values: epochTimes,
    format: duration,
    scale: (high, span) => linear([0, high], span, 4),
    axis: "epoch duration",
    over: spreadOver,
    nothing: "No run shown has a duration.",
  },
  {
    id: "memory",
    values: column("peak"),
    format: bytes,
    scale: binary,
    axis: "peak memory",
    over: spreadOver,
    nothing: "No run shown has a peak memory.",
  },
];

function update() {
  const runs = visibleRuns();
  byId("shown").textContent =
    runs.length === keys.length
      ? counted(keys.length, "run")
      : `${grouped(runs.length)} of ${counted(keys.length, "run")}`;
  hideTip();
  drawCurves(runs);
  showSpreads();
  for (const spread of spreads) drawSpread(runs, spread);
  drawParallel(runs);
  drawTable(runs);
}

/** Shows the cards that have something to show; one without its neighbour takes the whole width. */
function showSpreads() {
  const measured = (spread) =>
    spread.over && spread.values.filter((value) => typeof value === "number").length > 1;
  for (const spread of spreads) byId(spread.id).hidden = !measured(spread);
  for (const spread of spreads) byId(spread.id).classList.toggle("half", spreads.every(measured));
}

function select(run) {
  view.selected = run;
  update();
}

function fill(list, options, chosen, changed) {
  list.replaceChildren(
    ...options.map(([value, text]) =>
      element("option", { value, selected: value === chosen }, clipped(text, 40)),
    ),
  );
  list.addEventListener("change", () => changed(list.value));
}

function setUpChoices() {
  const names = [...figures.keys()];
  const withTime = [...names.map((name) => [name, name]), ["seconds", "epoch duration"]];
  fill(byId("figure"), withTime, view.figure, (name) => {
    view.figure = name;
    logarithmicFigures = null;
    update();
  });
  fill(
    byId("result"),
    names.map((name) => [name, `${name}, ${higher.get(name) ? "highest" : "lowest"} is best`]),
    view.result,
    (name) => {
      view.result = name;
      view.brushes.clear();
      drawTiles();
      update();
    },
  );
  byId("result-label").hidden = names.length < 2;
  const colours = [["", "device"], ...varying.map((each) => [each.name, each.name])];
  // A device should change how long a run takes, not what it learns.
  view.colour = (varying.find((each) => each.name !== "device") ?? varying[0])?.name ?? "";
  fill(byId("colour"), colours, view.colour, (name) => {
    view.colour = name;
    update();
  });
  byId("colour").closest("label").hidden = colours.length < 2;
  byId("log").addEventListener("change", (event) => {
    logarithmicFigures = event.target.checked;
    update();
  });
  for (const spread of spreads) {
    const list = byId(spread.id).querySelector("select");
    fill(
      list,
      varying.map((each) => [each.name, each.name]),
      spread.over?.name,
      (name) => {
        spread.over = parameters.find((each) => each.name === name);
        update();
      },
    );
    list.closest("label").hidden = varying.length < 2;
  }
  byId("unbrush").addEventListener("click", () => {
    view.brushes.clear();
    update();
  });
}

function setUpFilter() {
  let waiting;
  const find = () => {
    view.filter = byId("filter").value;
    rowsShown = FIRST_ROWS;
    update();
  };
  byId("filter").addEventListener("input", () => {
    clearTimeout(waiting);
    if (keys.length < 500) find();
    else waiting = setTimeout(find, 150); // many runs: not after every letter
  });
  byId("groups").replaceChildren(
    ...varying
      .filter((each) => each.distinct.length <= 6)
      .slice(0, 6)
      .map((each) =>
        element(
          "fieldset",
          {},
          element("legend", {}, clipped(each.name, 24)),
          each.distinct.map((value) => {
            const button = element(
              "button",
              {
                type: "button",
                class: "control",
                "aria-pressed": "false",
                onclick: () => pick(each.name, value, button),
              },
              plain(value),
            );
            return button;
          }),
        ),
      ),
  );
}

function pick(name, value, button) {
  const wanted = view.picked.get(name) ?? new Set();
  if (!wanted.delete(value)) wanted.add(value);
  view.picked.set(name, wanted);
  button.setAttribute("aria-pressed", String(wanted.has(value)));
  update();
}

document.body.classList.toggle("picture", location.hash === "#picture");
setUpChoices();
setUpFilter();
drawHead();
drawTiles();
drawImportance();
drawMeans();
drawPictures();
drawFailures();
drawDamaged();
drawEnvironment();
update();
whenResized(document.body, update);
