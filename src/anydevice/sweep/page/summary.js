// The text of the page: the head with its key figures, failures, damage, the environment.

function drawHead() {
  byId("title").textContent = data.title;
  const count = (state) => states.filter((each) => each === state).length;
  const ends = ["done", "running", "stopped", "interrupted", "failed"]
    .filter(count)
    .map((state) => `${grouped(count(state))} ${state}`);
  const names = varying.map((each) => clipped(each.name, 40));
  const over = names.length ? ` over ${listed(names)}` : "";
  const of = data.experiment ? ` of ${data.experiment}` : "";
  byId("summary").replaceChildren(
    keys.length
      ? `${counted(keys.length, "run")}${of}${over}: ${listed(ends)}. `
      : "This folder has no runs yet.",
    count("failed") ? element("a", { href: "#failures" }, "See why they failed.") : "",
  );
  byId("made").textContent = sentences(
    `Made ${data.made} by anydevice ${data.version}.`,
    "A run's figures are those of its last epoch;",
    "its epoch duration is the median over its epochs.",
  );
  byId("bar").hidden = keys.length < 2;
}

function drawTiles() {
  const tile = (name, value, below) => [
    element("dt", {}, name),
    element("dd", {}, value, element("small", {}, below)),
  ];
  const about = (run) =>
    varying
      .slice(0, 3)
      .map((each) => clipped(`${each.name} ${plain(each.values[run])}`, 30))
      .join(" · ");
  const best = [...bestByDevice()].sort(([, a], [, b]) => byResult(a, b)).slice(0, 3);
  const tiles = best.map(([device, run]) =>
    tile(
      `Best ${view.result}${deviceNames.length > 1 ? ` on ${clipped(device, 32)}` : ""}`,
      number(resultOf(run)),
      `${runName(run)}${varying.length ? `: ${about(run)}` : ""}`,
    ),
  );
  const timed = everyRun.filter((run) => typeof epochTimes[run] === "number" && !virtual[run]);
  const quickest = timed.sort((a, b) => epochTimes[a] - epochTimes[b])[0];
  if (quickest !== undefined) {
    tiles.push(
      tile(
        "Fastest epoch",
        duration(epochTimes[quickest]),
        `${runName(quickest)} on ${clipped(devices[quickest], 32)}`,
      ),
    );
  }
  const spent = column("run time").filter((value) => typeof value === "number");
  if (spent.length)
    tiles.push(
      tile(
        "All runs together",
        duration(spent.reduce((a, b) => a + b, 0)),
        counted(keys.length, "run"),
      ),
    );
  byId("tiles").replaceChildren(...tiles.map((parts) => element("div", {}, parts)));
}

function drawFailures() {
  const { shown, kinds } = data.failures;
  const card = byId("failures");
  card.hidden = !shown.length;
  const which = (runs) => {
    const first = runs
      .slice(0, 8)
      .map((run) => run + 1)
      .join(", ");
    const more = runs.length > 8 ? ` and ${runs.length - 8} more` : "";
    return `${runs.length === 1 ? "run" : "runs"} ${first}${more}`;
  };
  card
    .querySelector(".list")
    .replaceChildren(
      ...shown.map(({ title, text, runs }, index) =>
        element(
          "details",
          { open: shown.length < 3 && index === 0 },
          element(
            "summary",
            {},
            element("b", {}, title),
            " ",
            element("span", { class: "muted" }, which(runs)),
          ),
          element("pre", { tabindex: 0 }, text),
        ),
      ),
    );
  card.querySelector(".note").textContent =
    kinds > shown.length
      ? `${shown.length} of ${kinds} different errors are shown, the most frequent first.`
      : "";
}

function drawDamaged() {
  const card = byId("damaged");
  card.hidden = !data.damaged.length;
  const shown = data.damaged.slice(0, 50);
  const more = data.damaged.length - shown.length;
  card
    .querySelector("ul")
    .replaceChildren(
      ...[...shown, ...(more ? [`and ${more} more.`] : [])].map((text) => element("li", {}, text)),
    );
}

function drawEnvironment() {
  const card = byId("environment");
  card.hidden = !data.environment.length;
  card.querySelector("tbody").replaceChildren(
    ...data.environment.map(({ name, values, different }) => {
      const texts = values.map(([value, count]) =>
        different > 1 ? `${value} (${counted(count, "run")})` : value,
      );
      if (different > values.length) texts.push(`and ${different - values.length} others`);
      return element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        element(
          "td",
          {},
          texts.map((text) => element("div", {}, text)),
        ),
      );
    }),
  );
}
