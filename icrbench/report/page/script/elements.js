// Elements of the document. All text enters it as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function make(tag, attributes, ...children) {
  const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) element.append(child);
  return element;
}

// Long names may break behind a sign, and before the capitals of "CommonsenseQA".
const breakable = (text) => text.split(/(?<=[:=,/_+])|(?<=[a-z])(?=[A-Z]{2})/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));
const hidden = (text) => make("span", { class: "sr" }, text);
const option = (value, text, selected) => make("option", { value, selected }, text);

function pairs(list, kind, changed = []) {
  return make("dl", { class: `pairs ${kind || ""}` }, list.map(([name, value]) =>
    make("div", { class: changed.includes(name) ? "changed" : null }, make("dt", {}, name), make("dd", {}, String(value)))));
}

// A table too wide for a phone scrolls by itself; a keyboard reaches it.
const scrolling = (label, table) => make("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, table);

function say(text) { byId("status").textContent = text; }
