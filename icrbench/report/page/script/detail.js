// The dialog of one method: what it is, what it costs, every number, and where they come from.

function showDetail(table, row) {
  const dialog = byId("detail");
  const close = make("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Close");
  const failed = [...new Set(row.scores.flatMap((score) => score.errors || []))].map((number) => `failed (${number}): ${table.errors[number - 1]}`);
  const own = new Map(row.detail.provenance);
  const provenance = table.provenance.map(([name, value]) => [name, own.has(name) ? own.get(name) : value]).filter(([, value]) => value);
  dialog.replaceChildren(
    make("header", {}, make("h2", { id: "detail-title" }, breakable(row.name)), close),
    make("div", { class: "body" },
      aboutMethod(row),
      make("p", { class: "quiet" }, table.title),
      row.name === row.label ? null : make("p", {}, "In commands: ", make("code", {}, row.label)),
      failed.length ? make("ul", { class: "notes" }, failed.map((text) => make("li", {}, text))) : null,
      make("h3", {}, "Cost and seeds"), pairs(row.detail.facts),
      make("p", { class: "legend" }, "Do not compare methods by these times: methods that leave the same states alone share them, so the first to score pays for the others, and a fit that finds states of another on disk takes less."),
      hyperparametersOf(row), everyDifference(table, row), everyNumber(table, row), calibratedNumbers(table, row), sharesOf(row),
      make("h3", {}, "Where it comes from"), pairs(provenance, "long")));
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
  dialog.onclose = () => { shown.open = ""; keepAddress(); };
  shown.open = `${DATA.tables.indexOf(table)} ${row.label}`;
  keepAddress();
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function aboutMethod(row) {
  const { words, paper, link } = DATA.methods[row.method] || {};
  const source = link ? make("a", { href: link, rel: "noreferrer" }, paper) : null;
  return words || source ? make("p", { class: "about" }, words || "", source ? [" Paper: ", source, "."] : null) : null;
}

// The method that the address asks for.
function showAskedDetail() {
  const [place, ...label] = shown.open.split(" ");
  const table = DATA.tables[place];
  const row = table && table.rows.find((each) => each.label === label.join(" "));
  if (row) showDetail(table, row);
  else if (byId("detail").open) byId("detail").close();
}

// As the answers are, whatever the tables show.
const scoredColumns = (table, row) => table.columns.map((column, place) => ({
  title: column.average && column.role ? `${table.roles[column.role]}, average` : column.title, average: column.average, score: row.scores[place], place }));
const plainTable = (title, words, heads, lines) => [
  make("h3", {}, title),
  scrolling(title, make("table", { class: "plain" },
    make("caption", {}, make("span", {}, words)),
    make("thead", {}, make("tr", {}, heads.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, lines.map(([name, ...texts]) => make("tr", {}, make("th", { scope: "row" }, name), texts.map((text) => make("td", {}, text || "")))))))];
const written = (value, how) => (value === undefined ? "" : how(value));

function hyperparametersOf(row) {
  const { hyperparameters, changed } = row.detail;
  const list = Object.entries(hyperparameters);
  return [
    make("h3", {}, "Hyperparameters"),
    list.length ? pairs(list, "", changed) : make("p", {}, "None."),
    changed.length ? make("p", { class: "legend" }, `In bold: other than in the plain row of this method (${changed.join(", ")}).`) : null];
}

function everyDifference(table, row) {
  const drawn = scoredColumns(table, row).filter(({ score }) => score.d !== undefined);
  const items = drawn.map(({ title, score }) => ({ name: make("span", {}, breakable(title)), value: score.d, ends: score.dci, sure: score.sure }));
  return items.length ? [make("h3", {}, `Difference to ${table.reference}`), forest(items, true, `Difference to ${table.reference} by task`)] : [];
}

function everyNumber(table, row) {
  const mean = ({ average, score }) => {
    if (score.mean === undefined) return score.status === "failed" ? "failed" : average ? "incomplete" : "not run";
    return percent(score.mean) + (score.status === "partial" ? ` (${score.seeds}/${row.seeds})` : "");
  };
  const line = (column) => {
    const { score } = column;
    return [column.title, mean(column), written(score.ci, range), written(score.std, percent), written(score.d, signed), written(score.dci, signedRange), score.p, written(score.n, (n) => n.toLocaleString("en"))];
  };
  return plainTable("Every number", "Accuracy in %; SD over seeds; difference in points; p corrected by Holm's method, intervals not corrected.",
    ["Task", "Accuracy", "95 %", "SD", `vs ${table.reference}`, "95 %", "p", "Test rows"], scoredColumns(table, row).map(line));
}

function calibratedNumbers(table, row) {
  const kinds = Object.entries(table.views).filter(([name]) => name.endsWith(" accuracy")).map(([name, view]) => [name.split(" ")[0], view.scores[row.label]]);
  const line = ({ title, score, place }) =>
    [title, written(score.mean, percent), ...kinds.flatMap(([, scores]) => [written(scores[place].mean, percent), written(scores[place].d, signed)])];
  return kinds.length ? plainTable("Calibrated", `Accuracy in % as answered and calibrated, and the difference to ${table.reference} with both calibrated.`,
    ["Task", "As answered", ...kinds.flatMap(([kind]) => [kind, `vs ${table.reference}, ${kind}`])], scoredColumns(table, row).map(line)) : [];
}

function sharesOf(row) {
  const { shares } = row.detail;
  return shares.length ? [make("h3", {}, "How often each option is answered"), make("p", { class: "legend" }, "In brackets: how often it is right."), pairs(shares, "long")] : [];
}
