// Names in the rankings, which stand in the document already, open their method.

function startRankings() {
  for (const place of document.querySelectorAll(".ranking [data-label]")) {
    const table = DATA.tables[place.closest("[data-table]").dataset.table];
    place.replaceChildren(methodButton(table, table.rows.find((row) => row.label === place.dataset.label)));
  }
}
