// What parameters explain of the result, and means over seeds.

function drawImportance() {
  const shares = data.importance ?? [];
  const card = byId("importance");
  card.hidden = !shares.length;
  card.querySelector("dl").replaceChildren(
    ...shares.slice(0, 20).flatMap(([name, share]) => [
      element("dt", {}, clipped(name, 40)),
      element("dd", {}, element("i", { style: `width: ${100 * share}%` }), `${Math.round(100 * share)} %`),
    ]),
  );
  card.querySelector(".note").textContent =
    `The share of the variance of ${data.result} that a parameter explains by itself.`;
}

function drawMeans() {
  const groups = data.means ?? [];
  const card = byId("means");
  card.hidden = !groups.length;
  if (!groups.length) return;
  const names = Object.keys(groups[0].parameters);
  const measured = [...new Set(groups.flatMap((group) => Object.keys(group.figures)))];
  const cell = (tag) => (text) => element(tag, {}, text);
  card
    .querySelector("thead")
    .replaceChildren(element("tr", {}, [...names, "runs", ...measured].map(cell("th"))));
  card.querySelector("tbody").replaceChildren(
    ...groups.map((group) =>
      element(
        "tr",
        {},
        names.map((name) => cell("td")(plain(group.parameters[name]))),
        cell("td")(String(group.runs)),
        measured.map((name) => cell("td")(group.figures[name] ?? UNSET)),
      ),
    ),
  );
}
