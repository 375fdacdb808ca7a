// How numbers are written, as in every other output of a report.

const MARKS = { clear: ["▲", "▼"], weak: ["△", "▽"], noise: ["", ""] };
const percent = (value) => value.toFixed(1);
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(1);
const range = (ends) => `${percent(ends[0])}–${percent(ends[1])}`;
const signedRange = (ends) => `[${signed(ends[0])}, ${signed(ends[1])}]`;
const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many || one + "s"}`;
