// The data, and what of it is shown: every choice of the reader's is one text in `shown`.

const DATA = JSON.parse(byId("data").textContent);
const WORDS = DATA.words;
const DEFAULTS = { model: "", protocol: "", role: "", method: "", view: "mean", metric: "accuracy", calibrate: "none", sort: "", column: "average", cost: "", open: "" };
const shown = { ...DEFAULTS };
// sort: the name of a column, with a minus before it for "most first". open: a table's number and a row's label.

const isMetric = () => shown.metric !== "accuracy";
const isRaw = () => !isMetric() && shown.calibrate === "none";
const isDifference = () => shown.view === "d" && !isMetric();
const lowerIsBetter = () => DATA.metrics[shown.metric][1];
// A table's accuracies as they are, or one of its views. A view that is not there has no scores.
const viewOf = (table) => table.views[`${shown.calibrate} ${shown.metric}`];
const hasView = (table) => isRaw() || Boolean(viewOf(table));
const scoresOf = (table, row) => (isRaw() ? row.scores : viewOf(table).scores[row.label]);
const metricTitle = () => DATA.metrics[shown.metric][0];
const metricWords = () => metricTitle() + (isMetric() ? ", times 100" : " in %") + (shown.calibrate === "none" ? "" : `, answers calibrated by ${shown.calibrate}`);

const isShown = (table) =>
  (!shown.model || table.model === shown.model) && (!shown.protocol || table.protocol === shown.protocol);
const reference = (table) => table.rows.some((row) => row.reference);

function methodsOf(table) {
  const wanted = shown.method.trim().toLowerCase();
  const view = isRaw() ? null : viewOf(table);
  const rows = view ? view.order.map((label) => table.rows.find((row) => row.label === label)) : table.rows;
  return rows.filter((row) => `${row.name} ${row.label}`.toLowerCase().includes(wanted));
}

const placeOf = (table, name) => table.columns.findIndex((column) => column.name === name);
const columnWords = (table, column) =>
  !column.average ? column.title : `${column.role ? `${table.roles[column.role]}, average` : "Average"} of ${count(column.tasks, "task")}`;

const scoreWords = (table) =>
  isDifference() ? `Difference to ${table.reference} in points${shown.calibrate === "none" ? "" : `, both calibrated by ${shown.calibrate}`}, and below it the 95 % interval`
    : `${metricWords()}${isMetric() ? "" : ", and below it the 95 % interval"}`;

// The average of all tasks first: what the methods are ranked by has to be seen without scrolling sideways.
const columnsOf = (table) =>
  table.columns.map((column, place) => ({ ...column, place }))
    .filter((column) => !shown.role || column.role === shown.role || column.role === null)
    .sort((one, other) => (one.role !== null) - (other.role !== null));

// What plots show: the column chosen, or the average where a table lacks it.
const drawnColumn = (table) => (columnsOf(table).some((column) => column.name === shown.column) ? shown.column : "average");
