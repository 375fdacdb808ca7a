// One section a comparison: its plot, its table, its notes.

const MOST_ENTRIES = 20000; // entries of tables laid out before the reader asks for more
const opened = new Set(); // tables that the reader asked for, however large
let refreshers = []; // of the tables laid out: each sorts its rows anew

function tableSection(table, number, fits) {
  const title = `title-${number}`;
  const section = make("section", { class: "card", id: `table-${number}`, "aria-labelledby": title }, make("h2", { id: title }, table.title));
  if (fits || opened.has(table)) {
    section.append(...sectionContent(table).filter(Boolean));
    return section;
  }
  const words = `Show this comparison (${count(table.rows.length, "method")}, ${count(entriesOf(table), "number")})`;
  const button = make("button", { class: "button", type: "button", onclick: () => {
    opened.add(table);
    button.remove();
    section.append(...sectionContent(table).filter(Boolean));
    for (const refresh of refreshers) refresh();
  } }, words);
  section.append(button);
  return section;
}

const entriesOf = (table) => table.rows.length * table.columns.length;

function sectionContent(table) {
  if (!hasView(table)) return [make("p", { class: "legend" },
    "This comparison has no such numbers. A calibration needs a prior: where cells could have it, the same icrbench run again adds it. Written answers have one metric and no prior.")];
  const notes = table.notes.filter((note) => !note.startsWith("failed ("));
  const list = (kind, texts) => make("ul", { class: `notes ${kind}` }, texts.map((text) => make("li", {}, text)));
  return [
    ...plotted(table),
    make("div", { class: "sub" }, make("h3", {}, "Every task")),
    scoreTable(table),
    table.errors.length ? list("failed", table.errors.map((text, place) => `failed (${place + 1}): ${text}`)) : null,
    reference(table) && !isMetric() ? markLegend(table) : null,
    isRaw() ? null : list("", viewOf(table).notes),
    isRaw() && notes.length ? make("details", {}, make("summary", {}, `Notes (${notes.length})`), list("", notes)) : null,
    make("details", {}, make("summary", {}, "Command, versions, data"), pairs(table.provenance, "long"))];
}

// The plots of one column, which the reader chooses.
function plotted(table) {
  const [gains, costs] = [make("div", {}), make("div", {})];
  const withCosts = costsOf(table).length > 0 && pointsOf(table).length > 1;
  const draw = () => {
    gains.replaceChildren(...methodForest(table));
    if (withCosts) costs.replaceChildren(...costPlot(table));
  };
  const choice = (words, name, options) => make("label", { class: "field" }, words, make("select", { onchange: (event) => {
    shown[name] = event.target.value;
    draw();
    keepAddress();
  } }, options));
  const columns = columnsOf(table);
  const tasks = choice("Tasks", "column", columns.filter((column) => column.average).concat(columns.filter((column) => !column.average))
    .map((column) => option(column.name, columnWords(table, column), column.name === drawnColumn(table))));
  const axes = choice("Cost", "cost", costsOf(table).map((name) => option(name, DATA.costs[name], name === drawnCost(table))));
  const panel = (title, field, plot) => make("div", { class: "panel" }, make("div", { class: "sub" }, make("h3", {}, title), field), plot);
  draw();
  return [make("div", { class: "plots" },
    panel(isMetric() ? metricTitle() : reference(table) ? `How far from ${table.reference}?` : "Accuracy", tasks, gains),
    withCosts ? panel(`${metricTitle()} against cost`, axes, costs) : null)];
}

function showTables() {
  let budget = MOST_ENTRIES;
  let methods = 0;
  refreshers = [];
  const sections = [];
  DATA.tables.forEach((table, number) => {
    const visible = isShown(table) && methodsOf(table).length > 0;
    document.querySelector(`.verdict[data-table="${number}"]`).hidden = !visible;
    if (!visible) return;
    methods += methodsOf(table).length;
    const fits = budget >= entriesOf(table);
    if (fits) budget -= entriesOf(table);
    sections.push(tableSection(table, number, fits));
  });
  const models = modelSections();
  byId("to-models").hidden = !models.length;
  byId("models").replaceChildren(...models);
  byId("tables").replaceChildren(...sections);
  for (const refresh of refreshers) refresh();
  keepAddress();
  say(sections.length
    ? `${count(sections.length, "comparison")} of ${DATA.tables.length}, with ${count(methods, "row")}.`
    : "Nothing fits these filters: clear the name or choose all models and protocols.");
}
