// Tables of scores: methods by tasks, each number with its interval; column titles sort.

const FULL_TINT = 20; // points at which a cell has its full colour

function tint(cell, score) {
  if (score.d === undefined) return;
  if (score.d < 0) cell.classList.add("down");
  cell.style.setProperty("--heat", Math.min(1, Math.abs(score.d) / FULL_TINT).toFixed(3));
}

function mark(table, score) {
  const sign = score.sure ? MARKS[score.sure][score.d < 0 ? 1 : 0] : "";
  const said = score.sure ? hidden(` ${score.d < 0 ? "below" : "above"} ${table.reference}: ${WORDS[score.sure]}.`) : null;
  return [make("span", { class: "mark", "aria-hidden": "true" }, sign), said].filter(Boolean);
}

const gap = (...words) => make("span", { class: "gap" }, ...words);

// The content of one cell.
function entry(table, row, column) {
  const score = scoresOf(table, row)[column.place];
  const cell = make("td", { class: column.average ? "average" : null });
  if (column.starts) cell.classList.add("first");
  if (score.status === "failed") cell.append(gap(`failed (${score.errors.join(", ")})`));
  else if (score.mean === undefined) cell.append(column.average ? gap("incomplete") : gap("—", hidden(shown.calibrate === "none" ? "not run" : "not run, or without a prior")));
  else if (isDifference() && row.reference) cell.append(gap("reference"));
  else if (isDifference() && score.d === undefined) cell.append(gap("—", hidden("no comparison")));
  else {
    tint(cell, score);
    cell.append(...(isDifference() ? difference(table, score) : accuracy(table, row, score)));
  }
  return cell;
}

const difference = (table, score) =>
  [make("span", { class: "value" }, signed(score.d)), ...mark(table, score), make("span", { class: "ci" }, signedRange(score.dci))];

function accuracy(table, row, score) {
  const place = ["", " best", " second"][score.rank || 0];
  const part = score.status === "partial" ? make("span", { class: "spread" }, ` (${score.seeds}/${row.seeds})`) : null;
  return [make("span", { class: "value" + place }, percent(score.mean)), part, ...mark(table, score), score.ci ? make("span", { class: "ci" }, range(score.ci)) : null].filter(Boolean);
}

const sortName = () => shown.sort.replace(/^-/, "");

// What a row is sorted by.
function sortValue(table) {
  const name = sortName();
  const place = placeOf(table, name);
  return (row) => {
    if (name === "method") return row.name.toLowerCase();
    if (name === "collapse") return row.collapse === null ? undefined : row.collapse;
    if (name in DATA.costs) return (row.costs[name] || [])[0];
    if (place < 0) return undefined; // a column of another table, or none
    const score = scoresOf(table, row)[place];
    return isDifference() ? (row.reference ? 0 : score.d) : score.mean;
  };
}

// What has no value comes last, whichever way the others go.
function inOrder(rows, value) {
  const way = shown.sort.startsWith("-") ? -1 : 1;
  if (!shown.sort) return rows;
  return rows.slice().sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    return a < b ? -way : a > b ? way : 0;
  });
}

// A title that sorts, by its column's name: accuracies with the most first, at first, all else with the least.
function sortingHead(name, words, attributes) {
  const arrow = make("span", { class: "arrow", "aria-hidden": "true" });
  const cell = make("th", { scope: "col", ...attributes }, make("button", { type: "button", onclick: () => {
    const first = name === "method" || name === "collapse" || name in DATA.costs ? name : `-${name}`;
    const turned = shown.sort.startsWith("-") ? name : `-${name}`;
    shown.sort = sortName() === name ? turned : first;
    for (const refresh of refreshers) refresh();
    keepAddress();
    say(`Sorted by ${words}, ${shown.sort.startsWith("-") ? "descending" : "ascending"}.`);
  } }, breakable(words), arrow));
  const show = () => {
    const active = sortName() === name;
    const down = shown.sort.startsWith("-");
    if (active) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
    arrow.textContent = active ? (down ? "↓" : "↑") : "";
  };
  return { cell, show };
}

function methodButton(table, row) {
  return make("button", { class: "link", type: "button", "aria-haspopup": "dialog", onclick: () => showDetail(table, row) }, breakable(row.name));
}

// Beside the raw average the calibrated ones: no gain stands without its control.
function calibratedKinds(table) {
  if (!isRaw() || shown.role) return [];
  const last = table.columns.length - 1;
  const kinds = Object.keys(table.views).filter((name) => name.endsWith(" accuracy")).map((name) => name.split(" ")[0]);
  return kinds.filter((kind) => table.rows.some((row) => table.views[`${kind} accuracy`].scores[row.label][last].mean !== undefined));
}

// What stands behind the average of all tasks: [{title, sort (may be absent), cell (of a row)}].
function besideAverage(table) {
  const last = table.columns.length - 1;
  const calibrated = calibratedKinds(table).map((kind) => ({ title: `Average, ${kind}`, cell: (row) => {
    const score = table.views[`${kind} accuracy`].scores[row.label][last];
    return make("td", {}, score.mean === undefined ? gap("—") : [percent(score.mean), make("span", { class: "ci" }, range(score.ci))]);
  } }));
  const hasCollapse = isRaw() && !shown.role && table.rows.some((row) => row.collapse !== null);
  const collapse = { title: "Collapse", sort: "collapse", cell: (row) => make("td", {}, row.collapse === null ? gap("—") : String(row.collapse)) };
  return hasCollapse ? [...calibrated, collapse] : calibrated;
}

// What methods cost: [{title, sort, cell}], of the costs that records say.
function costColumns(table) {
  const known = shown.role ? [] : Object.keys(DATA.costs).filter((name) => table.rows.some((row) => name in row.costs));
  return known.map((name, place) => ({ title: DATA.costs[name], sort: name, starts: !place, cell: (row) =>
    make("td", { class: place ? null : "first" }, name in row.costs ? row.costs[name][1] : gap("—", hidden("not known"))) }));
}

function scoreTable(table) {
  const columns = columnsOf(table);
  columns.forEach((column, place) => { column.starts = !place || columns[place - 1].role !== column.role; });
  const [beside, costs] = [besideAverage(table), costColumns(table)];
  const behind = [...beside, ...costs];
  const body = make("tbody", {});
  const heads = [];
  const refresh = () => {
    body.replaceChildren(...inOrder(methodsOf(table), sortValue(table)).map((row) => make("tr", {},
      make("th", { scope: "row" }, methodButton(table, row), row.seeds > 1 ? make("span", { class: "spread" }, ` ${row.seeds} seeds`) : null),
      columns.flatMap((column) => [entry(table, row, column), ...(column.role === null ? behind.map(({ cell }) => cell(row)) : [])]))));
    for (const head of heads) head.show();
  };
  const head = (name, words, attributes) => {
    heads.push(sortingHead(name, words, attributes));
    return heads[heads.length - 1].cell;
  };
  const groups = [];
  for (const column of columns) {
    if (column.starts) groups.push({ title: column.role ? table.roles[column.role] : `All ${count(column.tasks, "task")}`, span: 0 });
    groups[groups.length - 1].span += 1;
  }
  groups[0].span += beside.length;
  if (costs.length) groups.splice(1, 0, { title: "Cost", span: costs.length });
  const header = make("thead", {},
    make("tr", {}, head("method", "Method", { rowspan: 2, class: "corner" }),
      groups.map((group) => make("th", { class: "group", scope: "colgroup", colspan: group.span }, group.title))),
    make("tr", {},
      columns.flatMap((column) => [
        head(column.name, column.average ? "Average" : column.title, { class: column.starts ? "first" : null }),
        ...(column.role === null ? behind.map(({ title, sort, starts }) => (sort ? head(sort, title, { class: starts ? "first" : null }) : make("th", { scope: "col" }, title))) : [])])));
  refreshers.push(refresh);
  const caption = make("caption", {}, make("span", {}, `${scoreWords(table)}. Column titles sort; until then zero-shot and few-shot stand first, the rest by their average. ` +
    "A method's name opens its cost and hyperparameters."));
  return scrolling(`Scores: ${table.title}`, make("table", { class: "scores" }, caption, header, body));
}

const markLegend = (table) => make("p", { class: "legend" },
  `▲ above, ▼ below ${table.reference}: ${WORDS.clear}. △ ▽: ${WORDS.weak}. Without a mark: ${WORDS.noise}. ` +
  `Blue: above ${table.reference}, orange: below, deeper up to ${FULL_TINT} points.` +
  (shown.view === "mean" ? " Bold: best of a column; underlined: second best." : ""));
