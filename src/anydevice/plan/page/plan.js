// The page: one section for each card that was asked about.

const data = embedded();
byId("title").textContent = data.program;
byId("lead").textContent = lead();
if (data.cards.length > 1) byId("cards").append(sideBySide(data.cards));
byId("cards").append(...data.cards.map(section));
byId("foot").textContent = `Made ${data.made} by anydevice ${data.version}. Bytes are what PyTorch's allocator would take on these GPUs; times are predictions.`;

function lead() {
  const fitting = data.cards.filter((card) => card.fits).map((card) => card.name);
  const names = fitting.length ? `It fits ${fitting.join(", ")}.` : "It fits none of these GPUs.";
  const steps = data.cards[0] ? `The first ${counted(data.cards[0].steps, "step")} of the program, run on hollow GPUs. ` : "";
  return steps + names;
}

function section(card) {
  const verdict = element("span", { class: card.fits ? "verdict" : "verdict no" }, card.fits ? "fits" : "does not fit");
  return element("section", {},
    element("h2", {}, card.name, verdict),
    element("dl", { class: "tiles" }, tiles(card)),
    element("div", { class: "cards" },
      boxed("Memory over the steps", memoryOverSteps(card), "The allocator rounds sizes up and caches what was freed, so the device's bytes are higher."),
      card.step ? boxed("One step", stepOverTime(card), "Predicted. The host launches kernels ahead of the GPU; where it waits, or where a stream is empty, time is lost.") : null,
      boxed("What holds the memory at the peak", bars(card.holding.filter(([, size]) => size > 0), bytes, shade), "", true),
      card.time ? boxed("Where the GPU's time goes", bars(card.time.ops, duration), "Predicted, by op.", true) : null,
      card.modules.length ? boxed("Activations, by module", bars(card.modules, bytes, () => shade("activations")), "Kept for the backward pass at the peak.", true) : null,
      boxed("Largest blocks at the peak", largestBlocks(card.blocks), "", true)));
}

/** The cards' figures in columns, each with its best one in bold. */
function sideBySide(cards) {
  const rows = [
    ["fits", (card) => card.verdict],
    ["memory", (card) => bytes(card.memory)],
    ["device bytes", (card) => bytes(card.device), (card) => card.device],
    ["to spare", (card) => (card.margin < 0 ? `${bytes(-card.margin)} too little` : bytes(card.margin)), (card) => -card.margin],
    ["largest batch", (card) => (card.largest ? number(card.largest) : UNSET), (card) => -(card.largest ?? 0)],
    ["time per step", (card) => (card.time ? duration(card.time.seconds) : UNSET), (card) => card.time?.seconds ?? Infinity],
    ["samples per second", (card) => (card.time?.samples_per_second ? number(card.time.samples_per_second, 3) : UNSET), (card) => -(card.time?.samples_per_second ?? 0)],
  ].filter(([, text]) => cards.some((card) => text(card) !== UNSET));
  const best = (order) => order && Math.min(...cards.map(order));
  return element("section", {}, element("div", { class: "card" }, element("div", { class: "scroll" }, element("table", { class: "wide" },
    element("thead", {}, element("tr", {}, element("th", {}), cards.map((card) => element("th", { class: "number" }, card.name)))),
    element("tbody", {}, rows.map(([name, text, order]) => element("tr", {}, element("td", {}, name),
      cards.map((card) => element("td", { class: "number" }, order && order(card) === best(order) && cards.length > 1 ? element("b", {}, text(card)) : text(card))))))))));
}

function tiles(card) {
  const { time } = card;
  const rows = [tile("device bytes", bytes(card.device), `of ${bytes(card.memory)}`), tile("allocated at the peak", bytes(card.allocated))];
  if (card.largest) rows.push(tile("largest batch that fits", number(card.largest)));
  if (!time) return rows;
  rows.push(tile("time per step", duration(time.seconds), `${duration(time.low)} to ${duration(time.high)}`));
  if (time.samples_per_second) rows.push(tile("samples per second", number(time.samples_per_second, 3)));
  const waits = [["launches", time.waits_for_launches], ["transfers", time.waits_for_transfers], ["data", time.waits_for_data]];
  const worth = waits.filter(([, share]) => share >= 0.005);
  rows.push(tile("waiting", worth.length ? worth.map(([what, share]) => `${(100 * share).toFixed(0)}%`).join(" · ") : "0%", worth.length ? `for ${worth.map(([what]) => what).join(" · ")}` : "for launches, transfers and data"));
  return rows;
}
