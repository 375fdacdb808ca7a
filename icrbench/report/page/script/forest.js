// Forest plots: a dot and its interval a line, one scale for all lines.

const MOST_LINES = 40; // of a plot before the reader asks for more

function ticksOf(low, high) {
  const step = [0.5, 1, 2, 5, 10, 20, 50].find((size) => (high - low) / size <= 8) || 100;
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + 1e-9; tick += step) ticks.push(tick);
  return ticks;
}

// items: {name (node), value, ends, sure (absent for plain accuracies)}
function forest(items, differences, label) {
  const ends = items.flatMap((item) => item.ends).concat(differences ? [0] : []);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const margin = Math.max(1, (high - low) * 0.06);
  const place = (value) => `${(100 * (value - low + margin)) / (high - low + 2 * margin)}%`;
  const ticks = ticksOf(low - margin / 2, high + margin / 2);
  const line = (x, kind, top = 0, bottom = "100%") =>
    make("svg:line", { x1: place(x), x2: place(x), y1: top, y2: bottom, class: kind });
  const grid = () => ticks.map((tick) => line(tick, differences && tick === 0 ? "zero" : "grid"));
  const axis = make("li", { class: "axis", "aria-hidden": "true" },
    make("span", { class: "name" }),
    make("span", { class: "plot" }, make("svg:svg", {}, ticks.map((tick) =>
      make("svg:text", { x: place(tick), y: "75%" }, differences && tick ? signed(tick).replace(".0", "") : String(tick))))),
    make("span", { class: "number" }));
  const lines = items.map((item) => {
    const kind = !item.sure ? "flat" : item.sure === "noise" ? "flat" : item.value < 0 ? "down" : "up";
    const bar = make("svg:line", { x1: place(item.ends[0]), x2: place(item.ends[1]), y1: "50%", y2: "50%", class: `bar ${kind}` });
    const full = !item.sure || item.sure === "clear";
    const dot = make("svg:circle", { cx: place(item.value), cy: "50%", r: 5.5, class: `dot ${kind}${full ? "" : " hollow"}` });
    const text = differences
      ? [make("b", {}, signed(item.value)), make("span", { class: "quiet" }, ` ${signedRange(item.ends)} `)]
      : [make("b", {}, percent(item.value)), isMetric() ? null : make("span", { class: "quiet" }, ` ${range(item.ends)}`)];
    return make("li", {},
      make("span", { class: "name" }, item.name),
      make("span", { class: "plot", "aria-hidden": "true" }, make("svg:svg", {}, grid(), bar, dot)),
      make("span", { class: "number" }, text, item.sure ? make("span", { class: "sure" }, WORDS[item.sure]) : null));
  });
  return make("ol", { class: "forest", "aria-label": label }, axis, lines);
}

function methodForest(table) {
  const place = placeOf(table, drawnColumn(table));
  const differences = reference(table) && !isMetric();
  const items = [];
  const without = [];
  for (const row of methodsOf(table)) {
    if (differences && row.reference) continue;
    const score = scoresOf(table, row)[place];
    const [value, ends] = differences ? [score.d, score.dci] : [score.mean, score.ci || [score.mean, score.mean]];
    if (value === undefined) without.push(row.name);
    else items.push({ name: methodButton(table, row), value, ends, sure: score.sure });
  }
  items.sort((one, other) => (lowerIsBetter() ? one.value - other.value : other.value - one.value));
  const label = `${differences ? `Difference to ${table.reference}` : metricTitle()}, ${columnWords(table, table.columns[place])}`;
  const draw = (some) => forest(some, differences, label);
  const parts = items.length ? [draw(items.slice(0, MOST_LINES))] : [];
  if (items.length > MOST_LINES) {
    const all = make("button", { class: "button", type: "button", onclick: () => {
      all.previousElementSibling.replaceWith(draw(items));
      all.remove();
    } }, `Show all ${count(items.length, "method")}, not only the best ${MOST_LINES}`);
    parts.push(all);
  }
  parts.push(make("p", { class: "legend" }, items.length ? forestLegend(table, place, differences) : "Nothing to draw here."));
  if (without.length) parts.push(make("p", { class: "legend" }, `Not drawn, because cells are missing or failed${shown.calibrate === "none" ? "" : ", or have no prior"}: ${without.join(", ")}.`));
  return parts;
}

function forestLegend(table, place, differences) {
  if (isMetric()) return `${metricWords()}; ${lowerIsBetter() ? "lower is better" : "higher is better"}. There are no intervals in this metric.`;
  if (!differences) return `Accuracy in %, with 95 % intervals. There is no ${table.reference} row to compare with.`;
  const base = scoresOf(table, table.rows.find((row) => row.reference))[place].mean;
  const calibrated = shown.calibrate === "none" ? "" : `, both calibrated by ${shown.calibrate}`;
  const zero = base === undefined ? "" : ` 0 is ${table.reference}${calibrated ? ", calibrated" : ""}: ${percent(base)} %.`;
  return `Points of accuracy above or below ${table.reference}${calibrated}, with 95 % intervals.${zero} Filled dot: ${WORDS.clear}; hollow: ${WORDS.weak}, or in grey ${WORDS.noise}.`;
}
