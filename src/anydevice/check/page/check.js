// The page of a check: findings with their lines, and a step's timeline on each card.

const data = embedded();
byId("title").textContent = data.program;
byId("lead").textContent = lead();
byId("findings").append(...data.findings.map(article), small(), ...[...data.hints, ...data.notes].map(note));
byId("cards").append(...data.cards.filter(({ step }) => step).map(timeline));
byId("foot").textContent = `Made ${data.made} by anydevice ${data.version}. Costs are simulated: the step as it is, minus the step without the finding.`;

function lead() {
  if (!data.findings.length) return "No mistakes found.";
  const errors = data.findings.filter(({ kind }) => kind === "error").length;
  const others = data.findings.length - errors;
  const parts = [errors ? counted(errors, "error") : "", others ? counted(others, errors ? "other finding" : "finding") : ""];
  return `${parts.filter((part) => part).join(" and ")}.`;
}

function article(finding) {
  const likely = finding.confidence === "likely" ? ", likely" : "";
  const kind = element("span", { class: `kind ${finding.kind}` }, finding.kind + likely);
  return element("article", {},
    element("h2", {}, `${finding.place || data.program}: ${finding.rule}`, kind),
    element("p", {}, finding.what),
    finding.source.length ? element("div", { class: "source" }, finding.source.map(line(finding))) : null,
    element("p", { class: "fix" }, `Fix: ${finding.fix}`),
    element("p", {}, costs(finding)));
}

function line(finding) {
  return ([number, text]) =>
    element("code", { class: number === finding.line ? "at" : null }, element("i", {}, String(number)), text.trimEnd());
}

function costs(finding) {
  const each = data.cards
    .filter(({ gpu }) => gpu in finding.seconds_per_step)
    .map(({ gpu, name }) => `${duration(Math.max(0, finding.seconds_per_step[gpu]))} on ${name}`);
  if (each.length) return `Costs per ${finding.per || data.unit}: ${each.join(", ")}.`;
  return finding.bytes ? `Takes ${bytes(finding.bytes)}.` : "";
}

function small() {
  if (!data.small.length) return element("p", {});
  const places = data.small.map(({ place, rule }) => `${place} (${rule})`);
  return element("p", { class: "note" }, `Small findings: ${[...new Set(places)].join(", ")}.`);
}

function note(text) {
  return element("p", { class: "note" }, text);
}

function timeline(card) {
  const times = `${duration(card.now)} now, ${duration(card.fixed)} after all fixes`;
  return element("section", {}, element("h2", {}, card.name), element("p", {}, `A ${data.unit}: ${times}.`), stepOverTime(card));
}
