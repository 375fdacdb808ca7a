// Models side by side: the averages of comparisons that differ in the model alone.

function modelSections() {
  const bySetting = new Map();
  for (const table of DATA.tables.filter((each) => isShown(each) && hasView(each) && methodsOf(each).length)) {
    bySetting.set(table.setting, [...(bySetting.get(table.setting) || []), table]);
  }
  return [...bySetting].filter(([, tables]) => tables.length > 1).map(([setting, tables], number) => modelSection(setting, tables, `models-${number}`));
}

function modelSection(setting, tables, id) {
  const last = (table) => ({ ...table.columns[table.columns.length - 1], place: table.columns.length - 1 });
  const byLabel = tables.map((table) => new Map(methodsOf(table).map((row) => [row.label, row])));
  const labels = new Set(byLabel.flatMap((rows) => [...rows.keys()]));
  const lines = [...labels].map((label) => byLabel.map((rows) => rows.get(label))); // of every table, where it has the row
  const key = (table) => `model ${table.model}`;
  const value = (own) => {
    const which = tables.findIndex((table) => sortName() === key(table));
    if (which < 0 || !own[which]) return which < 0 ? 0 : undefined;
    const score = scoresOf(tables[which], own[which])[last(tables[which]).place];
    return isDifference() ? (own[which].reference ? 0 : score.d) : score.mean;
  };
  const body = make("tbody", {});
  const heads = tables.map((table) => sortingHead(key(table), table.model, {}));
  refreshers.push(() => {
    body.replaceChildren(...inOrder(lines, value).map((own) => {
      const first = own.findIndex(Boolean);
      return make("tr", {},
        make("th", { scope: "row" }, methodButton(tables[first], own[first])),
        own.map((row, which) => (row ? entry(tables[which], row, last(tables[which])) : make("td", {}, gap("—", hidden("not run"))))));
    }));
    for (const head of heads) head.show();
  });
  const alike = new Set(tables.map((table) => table.columns.map((column) => column.name).join())).size === 1;
  const warning = alike ? "" : " The models were run on different tasks, so averages compare within a column alone.";
  const caption = make("caption", {}, make("span", {}, `${scoreWords(tables[0])}: the average of all tasks.${warning}`));
  return make("section", { class: "card", id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, "Models side by side"),
    make("p", { class: "quiet" }, setting),
    scrolling(`Models side by side: ${setting}`, make("table", { class: "scores models" }, caption,
      make("thead", {}, make("tr", {}, make("th", { scope: "col", class: "corner" }, "Method"), heads.map((head) => head.cell))), body)),
    reference(tables[0]) && !isMetric() ? markLegend(tables[0]) : null);
}
