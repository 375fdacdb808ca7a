// What is shown, as a file: made here, so that the page alone is enough. Numbers are rounded as on the page.

// One entry a method and column of every comparison that the filters leave.
function shownNumbers() {
  return DATA.tables.filter((table) => isShown(table) && hasView(table)).flatMap((table) => methodsOf(table).flatMap((row) =>
    columnsOf(table).map((column) => {
      const score = scoresOf(table, row)[column.place];
      const [ends, versus] = [score.ci || [], score.dci || []];
      return {
        comparison: table.title, model: table.model, protocol: table.protocol, method: row.label, name: row.name, seeds: row.seeds,
        column: column.name, is_average: column.average, metric: shown.metric, calibrate: shown.calibrate, status: score.status || "ok",
        value: score.mean, low: ends[0], high: ends[1], sd: score.std, versus: table.reference,
        difference: score.d, difference_low: versus[0], difference_high: versus[1], p_holm: score.p, evidence: WORDS[score.sure], test_rows: score.n,
        ...Object.fromEntries(Object.keys(DATA.costs).map((name) => [name, (row.costs[name] || [])[0]])) };
    })));
}

// A text that a spreadsheet would take for a formula gets an apostrophe before it, as in every csv of a report.
function csvField(value) {
  if (value === undefined) return "";
  const text = typeof value === "string" && /^\s*[=+\-@]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function asCsv(numbers) {
  const names = Object.keys(numbers[0] || {});
  return [names, ...numbers.map((line) => names.map((name) => line[name]))].map((line) => line.map(csvField).join(",") + "\n").join("");
}

function save(name, kind, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  say(`${name} is saved.`);
}

function startDownloads() {
  byId("csv").addEventListener("click", () => save("leaderboard-shown.csv", "text/csv", asCsv(shownNumbers())));
  byId("json").addEventListener("click", () => save("leaderboard-shown.json", "application/json", JSON.stringify(shownNumbers(), null, 1) + "\n"));
}
