"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const WORDS = DATA.words;
  const ROLES = { id: "In-domain", near_ood: "Near out-of-domain", far_ood: "Far out-of-domain" };
  const MARKS = { clear: ["▲", "▼"], weak: ["△", "▽"], noise: ["", ""] };
  const FULL_TINT = 20; // points at which a cell has its full colour
  const MOST_ENTRIES = 20000; // entries of tables laid out before the reader asks for more
  const MOST_LINES = 40; // of a plot before the reader asks for more
  const PAGE = 20; // examples shown at a time
  const FIRST = 35; // option 0 is "#", see examples.py
  const SVG = "http://www.w3.org/2000/svg";
  const filters = { model: "", protocol: "", role: "", method: "", view: "mean", metric: "accuracy", calibrate: "none" };
  const memory = DATA.tables.map((table) => ({ sort: null, column: "average", open: false }));
  const byId = (id) => document.getElementById(id);

  // All text enters the document as text, never as markup.
  function make(tag, attributes, ...children) {
    const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
    return element;
  }
  // Long names may break behind a sign, and before the capitals of "CommonsenseQA".
  const breakable = (text) => text.split(/(?<=[:=,/_+])|(?<=[a-z])(?=[A-Z]{2})/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));
  const hidden = (text) => make("span", { class: "sr" }, text);
  const percent = (value) => value.toFixed(1);
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(1);
  const range = (ends) => `${percent(ends[0])}–${percent(ends[1])}`;
  const signedRange = (ends) => `[${signed(ends[0])}, ${signed(ends[1])}]`;
  const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many || one + "s"}`;
  const option = (value, text, selected) => make("option", { value, selected }, text);
  // What is shown of a table: its accuracies as they are, or one of its views. A view that is not there has no scores.
  const isRaw = () => filters.metric === "accuracy" && filters.calibrate === "none";
  const viewOf = (table) => table.views[`${filters.calibrate} ${filters.metric}`];
  const scoresOf = (table, row) => (isRaw() ? row.scores : viewOf(table).scores[row.label]);
  const isMetric = () => filters.metric !== "accuracy";
  const metricWords = () => DATA.metrics[filters.metric][0] + (isMetric() ? ", times 100" : " in %") + (filters.calibrate === "none" ? "" : `, answers calibrated by ${filters.calibrate}`);
  const methodsOf = (table) => {
    const wanted = filters.method.trim().toLowerCase();
    const view = isRaw() ? null : viewOf(table);
    const rows = view ? view.order.map((label) => table.rows.find((row) => row.label === label)) : table.rows;
    return rows.filter((row) => `${row.name} ${row.label}`.toLowerCase().includes(wanted));
  };
  const shownTable = (table) =>
    (!filters.model || table.model === filters.model) && (!filters.protocol || table.protocol === filters.protocol);
  const reference = (table) => table.rows.some((row) => row.reference);

  // ---- Forest plots: a dot and its interval a line, one scale for all lines

  function ticksOf(low, high) {
    const step = [0.5, 1, 2, 5, 10, 20, 50].find((size) => (high - low) / size <= 8) || 100;
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + 1e-9; tick += step) ticks.push(tick);
    return ticks;
  }

  // items: {name (node), value, ends, sure (absent for plain accuracies)}
  function forest(items, isDifference, label) {
    const ends = items.flatMap((item) => item.ends).concat(isDifference ? [0] : []);
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    const margin = Math.max(1, (high - low) * 0.06);
    const place = (value) => `${(100 * (value - low + margin)) / (high - low + 2 * margin)}%`;
    const ticks = ticksOf(low - margin / 2, high + margin / 2);
    const line = (x, kind, top = 0, bottom = "100%") =>
      make("svg:line", { x1: place(x), x2: place(x), y1: top, y2: bottom, class: kind });
    const grid = () => ticks.map((tick) => line(tick, isDifference && tick === 0 ? "zero" : "grid"));
    const axis = make("li", { class: "axis", "aria-hidden": "true" },
      make("span", { class: "name" }),
      make("span", { class: "plot" }, make("svg:svg", {}, ticks.map((tick) =>
        make("svg:text", { x: place(tick), y: "75%" }, isDifference && tick ? signed(tick).replace(".0", "") : String(tick))))),
      make("span", { class: "number" }));
    const lines = items.map((item) => {
      const kind = !item.sure ? "flat" : item.sure === "noise" ? "flat" : item.value < 0 ? "down" : "up";
      const bar = make("svg:line", { x1: place(item.ends[0]), x2: place(item.ends[1]), y1: "50%", y2: "50%", class: `bar ${kind}` });
      const full = !item.sure || item.sure === "clear";
      const dot = make("svg:circle", { cx: place(item.value), cy: "50%", r: 5.5, class: `dot ${kind}${full ? "" : " hollow"}` });
      const text = isDifference
        ? [make("b", {}, signed(item.value)), make("span", { class: "quiet" }, ` ${signedRange(item.ends)} `)]
        : [make("b", {}, percent(item.value)), isMetric() ? null : make("span", { class: "quiet" }, ` ${range(item.ends)}`)].filter(Boolean);
      return make("li", {},
        make("span", { class: "name" }, item.name),
        make("span", { class: "plot", "aria-hidden": "true" }, make("svg:svg", {}, grid(), bar, dot)),
        make("span", { class: "number" }, text, item.sure ? make("span", { class: "sure" }, WORDS[item.sure]) : null));
    });
    return make("ol", { class: "forest", "aria-label": label }, axis, lines);
  }

  function methodForest(table, number) {
    const place = table.columns.findIndex((column) => column.name === memory[number].column);
    const isDifference = reference(table) && !isMetric();
    const items = [];
    const without = [];
    for (const row of methodsOf(table)) {
      if (isDifference && row.reference) continue;
      const score = scoresOf(table, row)[place];
      const [value, ends] = isDifference ? [score.d, score.dci] : [score.mean, score.ci || [score.mean, score.mean]];
      const name = methodButton(table, row);
      if (value === undefined) without.push(row.name);
      else items.push({ name, value, ends, sure: score.sure });
    }
    const lower = isMetric() && DATA.metrics[filters.metric][1];
    items.sort((one, other) => (lower ? one.value - other.value : other.value - one.value));
    const where = columnWords(table.columns[place]);
    const label = `${isDifference ? `Difference to ${table.reference}` : DATA.metrics[filters.metric][0]}, ${where}`;
    const draw = (some) => forest(some, isDifference, label);
    const parts = items.length ? [draw(items.slice(0, MOST_LINES))] : [];
    if (items.length > MOST_LINES) {
      const all = make("button", { class: "button", type: "button", onclick: () => {
        all.previousElementSibling.replaceWith(draw(items));
        all.remove();
      } }, `Show all ${count(items.length, "method")}, not only the best ${MOST_LINES}`);
      parts.push(all);
    }
    const base = table.rows.find((row) => row.reference);
    const known = isDifference && scoresOf(table, base)[place].mean;
    const calibrated = filters.calibrate === "none" ? "" : `, both calibrated by ${filters.calibrate}`;
    const zero = isDifference && known !== undefined ? ` 0 is ${table.reference}${calibrated ? ", calibrated" : ""}: ${percent(known)} %.` : "";
    const legend = isDifference
      ? `Points of accuracy above or below ${table.reference}${calibrated}, with 95 % intervals.${zero} Filled dot: ${WORDS.clear}; hollow: ${WORDS.weak}, or in grey ${WORDS.noise}.`
      : isMetric() ? `${metricWords()}; ${lower ? "lower is better" : "higher is better"}. There are no intervals in this metric.`
      : `Accuracy in %, with 95 % intervals. There is no ${table.reference} row to compare with.`;
    parts.push(make("p", { class: "legend" }, items.length ? legend : "Nothing to draw here."));
    if (without.length) parts.push(make("p", { class: "legend" }, `Not drawn, because cells are missing or failed${filters.calibrate === "none" ? "" : ", or have no prior"}: ${without.join(", ")}.`));
    return parts;
  }

  const columnWords = (column) =>
    !column.average ? column.title : column.role ? `${ROLES[column.role]}, average of ${count(column.tasks, "task")}` : `Average of ${count(column.tasks, "task")}`;

  // ---- Tables of scores

  // The average of all tasks first: what the methods are ranked by has to be seen without scrolling sideways.
  const columnsOf = (table) =>
    table.columns.map((column, place) => ({ ...column, place }))
      .filter((column) => !filters.role || column.role === filters.role || column.role === null)
      .sort((one, other) => (one.role !== null) - (other.role !== null));

  function tint(cell, score) {
    if (score.d === undefined) return;
    if (score.d < 0) cell.classList.add("down");
    cell.style.setProperty("--heat", Math.min(1, Math.abs(score.d) / FULL_TINT).toFixed(3));
  }

  function mark(table, score) {
    const sign = score.sure ? MARKS[score.sure][score.d < 0 ? 1 : 0] : "";
    const said = score.sure ? hidden(` ${score.d < 0 ? "below" : "above"} ${table.reference}: ${WORDS[score.sure]}.`) : null;
    return [make("span", { class: "mark", "aria-hidden": "true" }, sign), said];
  }

  function entry(table, row, column) {
    const score = scoresOf(table, row)[column.place];
    const cell = make("td", { class: column.average ? "average" : null });
    if (column.starts) cell.classList.add("first");
    if (score.status === "failed") cell.append(make("span", { class: "gap" }, `failed (${score.errors.join(", ")})`));
    else if (score.mean === undefined) cell.append(column.average ? make("span", { class: "gap" }, "incomplete") : make("span", { class: "gap" }, "—", hidden(filters.calibrate === "none" ? "not run" : "not run, or without a prior")));
    else if (filters.view === "d" && !isMetric()) {
      if (row.reference) cell.append(make("span", { class: "gap" }, "reference"));
      else if (score.d === undefined) cell.append(make("span", { class: "gap" }, "—", hidden("no comparison")));
      else {
        tint(cell, score);
        cell.append(make("span", { class: "value" }, signed(score.d)), ...mark(table, score).filter(Boolean), make("span", { class: "ci" }, signedRange(score.dci)));
      }
    } else {
      tint(cell, score);
      const place = ["", " best", " second"][score.rank || 0];
      const part = score.status === "partial" ? make("span", { class: "spread" }, ` (${score.seeds}/${row.seeds})`) : null;
      cell.append(...[make("span", { class: "value" + place }, percent(score.mean)), part, ...mark(table, score), score.ci ? make("span", { class: "ci" }, range(score.ci)) : null].filter(Boolean));
    }
    return cell;
  }

  function sorted(table, rows, sort) {
    if (!sort) return rows;
    const value = (row) => {
      if (sort.name === "method") return row.name.toLowerCase();
      if (sort.name === "collapse") return row.collapse === null ? undefined : row.collapse;
      const score = scoresOf(table, row)[table.columns.findIndex((column) => column.name === sort.name)];
      return filters.view === "d" && !isMetric() ? (row.reference ? 0 : score.d) : score.mean;
    };
    const way = sort.down ? -1 : 1;
    return rows.slice().sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return a < b ? -way : a > b ? way : 0;
    });
  }

  function methodButton(table, row) {
    return make("button", { class: "link", type: "button", "aria-haspopup": "dialog", onclick: () => showDetail(table, row) }, breakable(row.name));
  }

  function scoreTable(table, number) {
    const columns = columnsOf(table);
    columns.forEach((column, place) => { column.starts = !place || columns[place - 1].role !== column.role; });
    const hasCollapse = isRaw() && table.rows.some((row) => row.collapse !== null) && !filters.role;
    // Beside the raw average the calibrated ones: no gain stands without its control.
    const kinds = isRaw() && !filters.role ? Object.keys(table.views).filter((name) => name.endsWith(" accuracy")).map((name) => name.split(" ")[0]) : [];
    const last = table.columns.length - 1;
    const calibrated = kinds.filter((kind) => table.rows.some((row) => table.views[`${kind} accuracy`].scores[row.label][last].mean !== undefined));
    const besides = (row) => calibrated.map((kind) => {
      const score = table.views[`${kind} accuracy`].scores[row.label][last];
      return make("td", {}, score.mean === undefined ? make("span", { class: "gap" }, "—") : [percent(score.mean), make("span", { class: "ci" }, range(score.ci))]);
    });
    const collapse = (row) => make("td", {}, row.collapse === null ? make("span", { class: "gap" }, "—") : String(row.collapse));
    const body = make("tbody", {});
    const fill = () => body.replaceChildren(...sorted(table, methodsOf(table), memory[number].sort).map((row) =>
      make("tr", {},
        make("th", { scope: "row" }, methodButton(table, row), row.seeds > 1 ? make("span", { class: "spread" }, ` ${row.seeds} seeds`) : null),
        columns.flatMap((column) => [entry(table, row, column), ...(column.role === null ? besides(row) : []), hasCollapse && column.role === null ? collapse(row) : null]))));
    const heads = [];
    const head = (name, words, attributes) => {
      const arrow = make("span", { class: "arrow", "aria-hidden": "true" });
      const cell = make("th", { scope: "col", ...attributes }, make("button", { type: "button", onclick: () => sortBy(name, words) }, breakable(words), arrow));
      heads.push({ name, cell, arrow });
      return cell;
    };
    const showSort = () => {
      const sort = memory[number].sort;
      for (const { name, cell, arrow } of heads) {
        const active = sort && sort.name === name;
        if (active) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
        arrow.textContent = active ? (sort.down ? "↓" : "↑") : "";
      }
    };
    const sortBy = (name, words) => {
      const old = memory[number].sort;
      const first = !(name === "method" || name === "collapse"); // most first for accuracies
      memory[number].sort = { name, down: old && old.name === name ? !old.down : first };
      fill();
      showSort();
      say(`Sorted by ${words}, ${memory[number].sort.down ? "descending" : "ascending"}.`);
    };
    const groups = [];
    for (const column of columns) {
      if (column.starts) groups.push({ title: column.role ? ROLES[column.role] : `All ${count(column.tasks, "task")}`, span: 0 });
      groups[groups.length - 1].span += 1;
    }
    groups[0].span += calibrated.length + (hasCollapse ? 1 : 0);
    const header = make("thead", {},
      make("tr", {}, head("method", "Method", { rowspan: 2, class: "corner" }),
        groups.map((group) => make("th", { class: "group", scope: "colgroup", colspan: group.span }, group.title))),
      make("tr", {},
        columns.flatMap((column) => [
          head(column.name, column.average ? "Average" : column.title, { class: column.starts ? "first" : null }),
          ...(column.role === null ? calibrated.map((kind) => make("th", { scope: "col" }, `Average, ${kind}`)) : []),
          hasCollapse && column.role === null ? head("collapse", "Collapse", {}) : null])));
    fill();
    showSort();
    const what = filters.view === "d" && !isMetric() ? `Difference to ${table.reference} in points${filters.calibrate === "none" ? "" : `, both calibrated by ${filters.calibrate}`}` : metricWords();
    const caption = make("caption", {}, make("span", {}, `${what}${isMetric() ? "" : ", and below it the 95 % interval"}. Column titles sort; until then zero-shot and few-shot stand first, the rest by their average. ` +
      "A method's name opens its cost and hyperparameters."));
    return make("div", { class: "scroll", role: "region", "aria-label": `Scores: ${table.title}`, tabindex: "0" },
      make("table", { class: "scores" }, caption, header, body));
  }

  // ---- One comparable group

  function tableSection(table, number) {
    const title = `title-${number}`;
    const entries = table.rows.length * table.columns.length;
    const section = make("section", { class: "card", id: `table-${number}`, "aria-labelledby": title });
    const content = () => {
      if (!isRaw() && !viewOf(table)) return [make("p", { class: "legend" },
        "This comparison has no such numbers. A calibration needs a prior: where cells could have it, the same icrbench run again adds it. Written answers have one metric and no prior.")];
      const columns = columnsOf(table).filter((column) => column.role || column.name === "average");
      if (!columns.some((column) => column.name === memory[number].column)) memory[number].column = columns[0].name;
      const plot = make("div", {}, methodForest(table, number));
      const choice = make("select", { onchange: (event) => { memory[number].column = event.target.value; plot.replaceChildren(...methodForest(table, number)); } },
        columns.filter((column) => column.average).concat(columns.filter((column) => !column.average))
          .map((column) => option(column.name, columnWords(column), column.name === memory[number].column)));
      return [
        make("div", { class: "sub" },
          make("h3", {}, isMetric() ? DATA.metrics[filters.metric][0] : reference(table) ? `How far from ${table.reference}?` : "Accuracy"),
          make("label", { class: "field" }, "Tasks", choice)),
        plot,
        make("div", { class: "sub" }, make("h3", {}, "Every task")),
        scoreTable(table, number),
        table.errors.length ? make("ul", { class: "notes failed" }, table.errors.map((text, place) => make("li", {}, `failed (${place + 1}): ${text}`))) : null,
        reference(table) && !isMetric() ? make("p", { class: "legend" },
          `▲ above, ▼ below ${table.reference}: ${WORDS.clear}. △ ▽: ${WORDS.weak}. Without a mark: ${WORDS.noise}. ` +
          `Blue: above ${table.reference}, orange: below, deeper up to ${FULL_TINT} points.` +
          (filters.view === "mean" ? " Bold: best of a column; underlined: second best." : "")) : null,
        make("h3", { class: "sr" }, "Notes"),
        isRaw() ? null : make("ul", { class: "notes" }, viewOf(table).notes.map((note) => make("li", {}, note))),
        make("ul", { class: "notes", hidden: !isRaw() }, table.notes.filter((note) => !note.startsWith("failed (")).map((note) => make("li", {}, note))),
        make("details", {}, make("summary", {}, "Command, versions, data"), pairs(table.provenance, "long"))];
    };
    section.append(make("h2", { id: title }, table.title));
    if (budget >= entries || memory[number].open) {
      budget -= entries;
      section.append(...content().filter(Boolean));
    } else {
      const words = `Show this comparison (${count(table.rows.length, "method")}, ${count(entries, "number")})`;
      const button = make("button", { class: "button", type: "button", onclick: () => {
        memory[number].open = true;
        button.remove();
        section.append(...content().filter(Boolean));
      } }, words);
      section.append(button);
    }
    return section;
  }

  let budget = MOST_ENTRIES;

  function showTables() {
    budget = MOST_ENTRIES;
    const sections = [];
    let methods = 0;
    DATA.tables.forEach((table, number) => {
      const visible = shownTable(table) && methodsOf(table).length > 0;
      document.querySelector(`.verdict[data-table="${number}"]`).hidden = !visible;
      if (!visible) return;
      methods += methodsOf(table).length;
      sections.push(tableSection(table, number));
    });
    byId("tables").replaceChildren(...sections);
    say(sections.length
      ? `${count(sections.length, "comparison")} of ${DATA.tables.length}, with ${count(methods, "row")}.`
      : "Nothing fits these filters: clear the name or choose all models and protocols.");
  }

  function say(text) { byId("status").textContent = text; }

  function pairs(list, kind, changed = []) {
    return make("dl", { class: `pairs ${kind || ""}` }, list.map(([name, value]) =>
      make("div", { class: changed.includes(name) ? "changed" : null }, make("dt", {}, name), make("dd", {}, String(value)))));
  }

  // ---- Detail of one method

  function showDetail(table, row) {
    const dialog = byId("detail");
    const tasks = table.columns.map((column, place) => ({ ...column, score: row.scores[place] })); // as they are, whatever is shown
    const drawn = tasks.filter((task) => task.score.d !== undefined);
    const cell = (text) => make("td", {}, text === undefined ? "" : text);
    const line = ({ score, ...column }) => make("tr", {},
      make("th", { scope: "row" }, column.average && column.role ? `${ROLES[column.role]}, average` : column.title),
      cell(score.mean === undefined ? { failed: "failed", missing: column.average ? "incomplete" : "not run" }[score.status] : percent(score.mean) + (score.status === "partial" ? ` (${score.seeds}/${row.seeds})` : "")),
      cell(score.ci && range(score.ci)), cell(score.std === undefined ? undefined : percent(score.std)),
      cell(score.d === undefined ? undefined : signed(score.d)), cell(score.dci && signedRange(score.dci)), cell(score.p),
      cell(score.n === undefined ? undefined : score.n.toLocaleString("en")));
    const failed = [...new Set(row.scores.flatMap((score) => score.errors || []))].map((number) => `failed (${number}): ${table.errors[number - 1]}`);
    const { hyperparameters, changed, facts, provenance, shares } = row.detail;
    const kinds = Object.entries(table.views).filter(([name]) => name.endsWith(" accuracy")).map(([name, view]) => [name.split(" ")[0], view.scores[row.label]]);
    const own = new Map(provenance);
    const close = make("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Close");
    const parts = [
      make("p", { class: "quiet" }, table.title),
      row.name === row.label ? null : make("p", {}, "In commands: ", make("code", {}, row.label)),
      failed.length ? make("ul", { class: "notes" }, failed.map((text) => make("li", {}, text))) : null,
      make("h3", {}, "Cost and seeds"), pairs(facts),
      make("p", { class: "legend" }, "Do not compare methods by these times: methods that leave the same states alone share them, so the first to score pays for the others, and a fit that finds states of another on disk takes less."),
      make("h3", {}, "Hyperparameters"),
      Object.keys(hyperparameters).length
        ? pairs(Object.entries(hyperparameters), "", changed) : make("p", {}, "None."),
      changed.length ? make("p", { class: "legend" }, `In bold: other than in the plain row of this method (${changed.join(", ")}).`) : null,
      drawn.length ? make("h3", {}, `Difference to ${table.reference}`) : null,
      drawn.length ? forest(drawn.map((task) => ({
        name: make("span", {}, breakable(task.average && task.role ? `${ROLES[task.role]}, average` : task.title)), value: task.score.d, ends: task.score.dci, sure: task.score.sure })), true, `Difference to ${table.reference} by task`) : null,
      make("h3", {}, "Every number"),
      make("div", { class: "scroll", role: "region", "aria-label": "Every number", tabindex: "0" },
        make("table", { class: "plain" },
          make("caption", {}, make("span", {}, "Accuracy in %; SD over seeds; difference in points; p corrected by Holm's method, intervals not corrected.")),
          make("thead", {}, make("tr", {}, ["Task", "Accuracy", "95 %", "SD", `vs ${table.reference}`, "95 %", "p", "Test rows"].map((name) => make("th", { scope: "col" }, name)))),
          make("tbody", {}, tasks.map(line)))),
      kinds.length ? make("h3", {}, "Calibrated") : null,
      kinds.length ? make("div", { class: "scroll", role: "region", "aria-label": "Calibrated", tabindex: "0" },
        make("table", { class: "plain" },
          make("caption", {}, make("span", {}, `Accuracy in % as answered and calibrated, and the difference to ${table.reference} with both calibrated.`)),
          make("thead", {}, make("tr", {}, ["Task", "As answered", ...kinds.flatMap(([kind]) => [kind, `vs ${table.reference}, ${kind}`])].map((name) => make("th", { scope: "col" }, name)))),
          make("tbody", {}, tasks.map((task, place) => make("tr", {},
            make("th", { scope: "row" }, task.average && task.role ? `${ROLES[task.role]}, average` : task.title),
            cell(task.score.mean === undefined ? undefined : percent(task.score.mean)),
            kinds.flatMap(([, scores]) => [scores[place].mean, scores[place].d].map((value, which) => cell(value === undefined ? undefined : which ? signed(value) : percent(value))))))))) : null,
      shares.length ? make("h3", {}, "How often each option is answered") : null,
      shares.length ? make("p", { class: "legend" }, "In brackets: how often it is right.") : null,
      shares.length ? pairs(shares, "long") : null,
      make("h3", {}, "Where it comes from"),
      pairs(table.provenance.map(([name, value]) => [name, own.has(name) ? own.get(name) : value]).filter(([, value]) => value), "long")];
    dialog.replaceChildren(
      make("header", {}, make("h2", { id: "detail-title" }, breakable(row.name)), close),
      make("div", { class: "body" }, parts));
    dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
    dialog.showModal();
    dialog.scrollTop = 0;
  }

  // ---- Single examples

  const pair = byId("pair");
  const number = (text, place) => text.charCodeAt(place) - FIRST;
  const optionWord = (set, place) => set.options[place] || (place < 26 ? String.fromCharCode(65 + place) : `option ${place + 1}`);
  const cellWord = (table, cell) => table.rows[cell.row].name + (cell.seed === null ? "" : `, seed ${cell.seed}`);
  const setsOf = (table) => DATA.examples.filter((set) => set.table === table);
  let chosen = null;

  function fillPair(changed) {
    const sets = setsOf(Number(pair.table.value));
    const table = DATA.tables[Number(pair.table.value)];
    const titles = new Map(table.columns.map((column) => [column.name, column.title]));
    const best = table.rows.filter((row) => !row.reference).sort((one, other) => averageOf(other) - averageOf(one))[0];
    if (changed === "table") {
      const old = pair.task.value;
      const gain = (set) => { const score = best && best.scores[table.columns.findIndex((column) => column.name === set.task)]; return (score && score.d) || 0; };
      const preferred = sets.find((set) => set.task === old) || sets.slice().sort((one, other) => gain(other) - gain(one))[0];
      pair.task.replaceChildren(...sets.map((set) => option(set.task, titles.get(set.task), set === preferred)));
    }
    const set = sets.find((one) => one.task === pair.task.value);
    if (changed !== "cells") {
      const order = (cell) => [cell.row, cell.seed === null ? -1 : cell.seed];
      const cells = set.cells.slice().sort((one, other) => order(one)[0] - order(other)[0] || order(one)[1] - order(other)[1]);
      const words = cells.map((cell) => cellWord(table, cell));
      const first = words.includes(chosen && chosen.a) ? words.indexOf(chosen.a) : Math.max(0, cells.findIndex((cell) => table.rows[cell.row].reference));
      const wanted = best ? cells.findIndex((cell) => table.rows[cell.row] === best) : -1;
      const second = words.includes(chosen && chosen.b) ? words.indexOf(chosen.b) : wanted >= 0 ? wanted : cells.length - 1;
      pair.a.replaceChildren(...cells.map((cell, place) => option(set.cells.indexOf(cell), words[place], place === first)));
      pair.b.replaceChildren(...cells.map((cell, place) => option(set.cells.indexOf(cell), words[place], place === second)));
    }
    const [a, b] = [set.cells[Number(pair.a.value)], set.cells[Number(pair.b.value)]];
    chosen = { a: cellWord(table, a), b: cellWord(table, b) };
    showPair(table, set, a, b);
  }

  function averageOf(row) {
    const mean = row.scores[row.scores.length - 1].mean;
    return mean === undefined ? -1 : mean;
  }

  function unpackLogits(cell) {
    if (cell.logits === null) return null;
    const bytes = Uint8Array.from(atob(cell.logits), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const starts = [0];
    for (let place = 0; place < cell.counts.length; place += 1) starts.push(starts[place] + number(cell.counts, place));
    return (place) => Array.from({ length: starts[place + 1] - starts[place] }, (_, n) => view.getInt16(2 * (starts[place] + n), true) / 100);
  }

  function showPair(table, set, a, b) {
    const [start, rests] = set.ids;
    const id = start + rests[0];
    const kinds = { both: [], a: [], b: [], neither: [] };
    for (let place = 0; place < rests.length; place += 1) {
      const gold = set.gold[place];
      const [right, other] = [a.predictions[place] === gold, b.predictions[place] === gold];
      kinds[right ? (other ? "both" : "a") : other ? "b" : "neither"].push(place);
    }
    const differ = kinds.a.concat(kinds.b).sort((one, other) => one - other);
    const lists = { differ, a: kinds.a, b: kinds.b, neither: kinds.neither, both: kinds.both };
    const names = { differ: "One right, one wrong", a: "Only A right", b: "Only B right", neither: "Both wrong", both: "Both right" };
    const [nameA, nameB] = [cellWord(table, a), cellWord(table, b)];
    const countCell = (list, kind) => make("td", { class: kind, "data-count": list.length }, list.length.toLocaleString("en"));
    const grid = make("table", { class: "plain mcnemar" },
      make("caption", {}, `Questions by who is right, ${count(rests.length, "question")} in all`),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, hidden("A and B")), make("th", { scope: "col" }, "B right"), make("th", { scope: "col" }, "B wrong"))),
      make("tbody", {},
        make("tr", {}, make("th", { scope: "row" }, "A right"), countCell(kinds.both), countCell(kinds.a, "differ")),
        make("tr", {}, make("th", { scope: "row" }, "A wrong"), countCell(kinds.b, "differ"), countCell(kinds.neither))));
    const sentence = a === b
      ? "A and B are the same: choose another method for one of them."
      : `On ${count(differ.length, "question")} of ${rests.length.toLocaleString("en")} exactly one of the two is right: ` +
        `${nameB} (B) on ${kinds.b.length.toLocaleString("en")}, ${nameA} (A) on ${kinds.a.length.toLocaleString("en")}. ` +
        "If the two were equally good, these would split about evenly.";
    const left = set.total - set.cells.length;
    const limits = [
      left ? `To keep the page small it holds ${set.cells.length} of ${count(set.total, "result")} for this task; the rest is in the results folder.` : null,
      a.logits && b.logits ? null : "To keep the page small the option logits of this pair are left out; they are in the results folder."];
    const logits = { a: unpackLogits(a), b: unpackLogits(b) };
    const body = make("tbody", { role: "rowgroup" });
    const more = make("button", { class: "button", type: "button" });
    const answer = (cell, side, place) => {
      const own = number(cell.predictions, place);
      const right = own === number(set.gold, place);
      const numbers = logits[side] && make("div", { class: "logits" }, logits[side](place).map((value, which) =>
        make("span", {}, `${optionWord(set, which)} ${value.toFixed(2).replace("-", "−")}`)));
      return make("td", { role: "cell", "data-name": side.toUpperCase() },
        make("span", { class: `answer ${right ? "right" : "wrong"}` }, make("span", { "aria-hidden": "true" }, right ? "✓ " : "✗ "), optionWord(set, own), hidden(right ? " (right)" : " (wrong)")), numbers);
    };
    const extend = (list) => {
      const from = body.childElementCount;
      body.append(...list.slice(from, from + PAGE).map((place) => make("tr", { role: "row" },
        make("th", { scope: "row", role: "rowheader" }, make("span", { class: "code" }, start + rests[place])),
        make("td", { role: "cell", "data-name": "Right answer" }, optionWord(set, number(set.gold, place))),
        answer(a, "a", place), answer(b, "b", place))));
      const rest = list.length - body.childElementCount;
      more.hidden = rest === 0;
      more.textContent = `Show ${Math.min(PAGE, rest)} more of ${rest.toLocaleString("en")}`;
    };
    const none = make("p", { class: "legend" }, "No such question.");
    const show = (which) => {
      body.replaceChildren();
      none.hidden = lists[which].length > 0;
      more.onclick = () => extend(lists[which]);
      extend(lists[which]);
    };
    const which = make("select", { name: "which", onchange: (event) => show(event.target.value) },
      Object.keys(names).map((kind) => option(kind, `${names[kind]} (${lists[kind].length.toLocaleString("en")})`)));
    const columns = ["Question", "Right answer", `A: ${nameA}`, `B: ${nameB}`];
    byId("pair-result").replaceChildren(
      make("div", { class: "counts" }, grid, make("p", {}, sentence)),
      ...limits.filter(Boolean).map((text) => make("p", { class: "warning" }, text)),
      make("div", { class: "sub" }, make("label", { class: "field" }, "Questions", which)),
      make("div", { class: "scroll", role: "region", "aria-label": "Questions", tabindex: "0" },
        make("table", { class: "plain rows", role: "table" },
          make("caption", {}, make("span", {}, "Answers, and the logit of every option (the highest is the answer). Results hold no texts: " +
            `${id} is row ${id.split("/").pop()} of the test data, counted from 0.`)),
          make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, columns.map((name) => make("th", { scope: "col", class: "left", role: "columnheader" }, name)))),
          body)),
      none,
      make("p", { class: "more" }, more));
    show("differ");
  }

  // ---- Start

  function startTheme() {
    const select = byId("theme");
    const apply = (value) => { if (value) document.documentElement.dataset.theme = value; else delete document.documentElement.dataset.theme; };
    try { select.value = localStorage.getItem("icrbench-theme") || ""; } catch { /* storage may be closed to files */ }
    apply(select.value);
    select.addEventListener("change", () => {
      apply(select.value);
      try { localStorage.setItem("icrbench-theme", select.value); } catch { /* the choice then lasts as long as the page */ }
    });
  }

  function startFilters() {
    const form = byId("filters");
    let waiting = 0;
    form.addEventListener("submit", (event) => event.preventDefault());
    const update = (event) => {
      if (filters[event.target.name] === event.target.value) return; // leaving a field changes nothing
      filters[event.target.name] = event.target.value;
      if (event.target.name === "role") {
        for (const [place, table] of DATA.tables.entries()) memory[place].column = table.columns.some((column) => column.name === filters.role) ? filters.role : "average";
      }
      form.querySelector("fieldset").disabled = isMetric();
      clearTimeout(waiting);
      waiting = setTimeout(showTables, event.type === "input" ? 150 : 0);
    };
    form.addEventListener("change", update);
    form.elements.namedItem("method").addEventListener("input", update);
    for (const name of Object.keys(filters)) if (form.elements[name]) filters[name] = form.elements[name].value;
    form.querySelector("fieldset").disabled = isMetric();
    showTables();
  }

  function startExamples() {
    if (!DATA.examples.length) return;
    byId("examples").hidden = byId("to-examples").hidden = false;
    const tables = [...new Set(DATA.examples.map((set) => set.table))];
    pair.table.replaceChildren(...tables.map((place) => option(place, DATA.tables[place].title)));
    pair.addEventListener("submit", (event) => event.preventDefault());
    pair.addEventListener("change", (event) => fillPair({ table: "table", task: "task" }[event.target.name] || "cells"));
    fillPair("table");
  }

  startTheme();
  if (!DATA.tables.length) return;
  startFilters();
  startExamples();
})();
