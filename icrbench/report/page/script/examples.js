// Two methods on the same test questions, example by example.

const PAGE = 20; // examples shown at a time
const FIRST = 35; // option 0 is "#", see examples.py
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
    const gain = (set) => { const score = best && best.scores[placeOf(table, set.task)]; return (score && score.d) || 0; };
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

function startExamples() {
  if (!DATA.examples.length) return;
  byId("examples").hidden = byId("to-examples").hidden = false;
  const tables = [...new Set(DATA.examples.map((set) => set.table))];
  pair.table.replaceChildren(...tables.map((place) => option(place, DATA.tables[place].title)));
  pair.addEventListener("submit", (event) => event.preventDefault());
  pair.addEventListener("change", (event) => fillPair({ table: "table", task: "task" }[event.target.name] || "cells"));
  fillPair("table");
}
