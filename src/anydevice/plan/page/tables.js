// Figures, each with a bar: what holds the memory, whose activations, which ops take the time.

function bars(rows, format, colour = () => hue(0)) {
  const most = Math.max(...rows.map(([, figure]) => figure), 1e-30);
  const total = rows.reduce((sum, [, figure]) => sum + figure, 0);
  return element("div", { class: "scroll" }, element("table", { class: "wide" }, element("tbody", {}, rows.map(([name, figure]) =>
    element("tr", {},
      element("td", { class: "name" }, name),
      element("td", { class: "number" }, format(figure)),
      element("td", { class: "number" }, `${((100 * figure) / total).toFixed(0)}%`),
      element("td", { class: "bar" }, element("span", { class: "share" },
        element("i", { css: { width: `${(100 * figure) / most}%`, background: colour(name) } }))))))));
}

function largestBlocks(blocks) {
  const heads = ["bytes", "for", "module", "line"];
  return element("div", { class: "scroll" }, element("table", { class: "wide" },
    element("thead", {}, element("tr", {}, heads.map((head) => element("th", { class: head === "bytes" ? "number" : null }, head)))),
    element("tbody", {}, blocks.map((block) => element("tr", {},
      element("td", { class: "number" }, bytes(block.bytes)),
      element("td", {}, block.category),
      element("td", {}, block.module || UNSET),
      element("td", { class: "where" }, block.where || UNSET))))));
}

function tile(name, figure, note) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, figure, note ? element("small", {}, note) : null));
}

function boxed(title, content, note = "", half = false) {
  return element("div", { class: half ? "card half" : "card" },
    element("div", { class: "head" }, element("h2", {}, title)), content,
    note ? element("p", { class: "note" }, note) : null);
}
