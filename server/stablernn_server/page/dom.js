// Creation of elements and formatting of numbers. Text enters the page as text only: nothing here takes markup.
// Below: form fields with labels, hints and error messages.

const LINE = 90;
const SVG = "http://www.w3.org/2000/svg";

/** Creates an element with children, leaving out null; names with a dash, `role`, `for` and `list` are set as attributes, others as properties. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.includes("-") || name === "role" || name === "for" || name === "list") element.setAttribute(name, value);
    else if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element of a drawing; every property is an attribute. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Formats a number with at most `digits` significant digits, without an exponent if that is readable. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(Math.max(0, digits - 2)).replace("-", "−");
  const text = size >= 10 ** (digits - 1) ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
  const grouped = size >= 1e4 ? text.replace(/\B(?=(\d{3})+$)/g, ",") : text;
  return grouped.replace("-", "−");
}

/** An upper bound as `number` formats it, rounded up, so that the text is an upper bound as well. */
export function upperBound(value, digits = 4) {
  if (typeof value !== "number" || !Number.isFinite(value) || value === 0) return number(value, digits);
  const size = Math.abs(value);
  const exponent = Math.floor(Math.log10(size));
  // As many digits as `number` shows of this size, so that it has nothing left to round.
  const shown = size >= 1e7 || size < 1e-4 ? digits - 1 : Math.max(digits, exponent + 1);
  const nearest = Number(value.toPrecision(shown));
  // The sum of two floats can be off by a last digit, which rounding to the shown ones removes.
  const rounded = nearest < value ? Number((nearest + 10 ** (exponent - shown + 1)).toPrecision(shown)) : nearest;
  return number(rounded, digits);
}

/** `count` with its noun: "1 feature", "3 features". */
export function count(amount, noun, plural = `${noun}s`) {
  return `${amount} ${amount === 1 ? noun : plural}`;
}

/** Lists the first of many words, as many as fit on a line: "a, b, c and 4 more". */
export function some(words, limit = 6) {
  let shown = Math.min(limit, words.length);
  while (shown > 1 && words.slice(0, shown).join(", ").length > LINE) shown -= 1;
  const more = words.length > shown ? ` and ${words.length - shown} more` : "";
  return words.slice(0, shown).join(", ") + more;
}

/** Content that is shown once its title is clicked. */
export function fold(title, ...content) {
  return el("details", {}, el("summary", {}, title), ...content);
}

/** Names with their values, `[[name, value], ...]`. */
export function factList(pairs, ...more) {
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))), ...more);
}

/** A table in a group that screen readers announce by its caption; `rows` hold text, numbers or elements, the first cell is the row's head. */
export function table(caption, heads, rows, className = "") {
  const cell = (value, column) =>
    column === 0
      ? el("th", { scope: "row" }, value)
      : el("td", { class: typeof value === "number" ? "number" : "" }, typeof value === "number" ? number(value) : value);
  return el(
    "div",
    { class: `scrolling ${className}`, tabIndex: 0, role: "group", "aria-label": caption },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, heads.map((head, column) => el("th", { scope: "col", class: rows.some((row) => typeof row[column] === "number") ? "number" : "" }, head)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))),
    ),
  );
}

/** A button that copies the current result of `text()`, and confirms it. */
export function copyButton(label, text) {
  const button = el("button", { type: "button", class: "quiet" }, label);
  const status = el("span", { class: "hidden", role: "status" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      status.textContent = button.textContent = "Copied";
    } catch {
      status.textContent = button.textContent = "Copying is not allowed here";
    }
    setTimeout(() => {
      button.textContent = label;
      status.textContent = "";
    }, 2000);
  });
  return el("span", { class: "copy" }, button, status);
}

let fieldCount = 0;

/** A labeled control; screen readers read `hint` with it. Returns `{element, control}`. */
export function field(label, control, { hint = null, wide = false } = {}) {
  fieldCount += 1;
  control.id ||= `field-${fieldCount}`;
  const note = hint === null ? null : el("span", { class: "hint", id: `${control.id}-hint` }, hint);
  if (note !== null) control.setAttribute("aria-describedby", note.id);
  return { control, element: el("div", { class: wide ? "field wide" : "field" }, el("label", { for: control.id }, label), control, note) };
}

export function numberInput(value, { min = null, max = null, step = "1" } = {}) {
  return el("input", { type: "number", value: value === null ? "" : String(value), min: min === null ? null : String(min), max: max === null ? null : String(max), step });
}

export function textInput(value = "", placeholder = "") {
  return el("input", { type: "text", value, placeholder, autocomplete: "off", spellcheck: false });
}

/** A choice among `[value, label]` pairs. */
export function choice(pairs) {
  return el("select", {}, pairs.map(([value, label]) => el("option", { value }, label)));
}

/** The number in a field, or null when it is empty. */
export function numberIn(control) {
  return control.value.trim() === "" ? null : Number(control.value);
}

/** A box for an error message; screen readers announce it when it changes. */
export class Problem {
  constructor() {
    this.element = el("div", { class: "problem", role: "alert", hidden: true });
  }

  show(error) {
    const id = error.requestId ? el("small", {}, `Request ${error.requestId}`) : null;
    const code = error.status ? el("small", {}, `${error.status} ${error.code}`) : null;
    this.element.replaceChildren(el("p", {}, error.message), ...[code, id].filter((part) => part !== null));
    this.element.hidden = false;
  }

  clear() {
    this.element.hidden = true;
    this.element.replaceChildren();
  }
}

/** Names of the features that a request must contain: all but those that the server computes from the calendar. */
export function observedFeatures(facts) {
  const calendarFeatures = new Set((facts.calendar ?? []).flatMap(({ name }) => [`calendar_${name}_sin`, `calendar_${name}_cos`]));
  return facts.features.filter((name) => !calendarFeatures.has(name));
}

/** Mean and standard deviation of each observed feature in the training data; 0 and 1 if the server does not know them. */
export function scalesOf(facts) {
  const names = observedFeatures(facts);
  const { mean = [], scale = [] } = facts.preprocessing?.scaling ?? {};
  const pick = (values, fallback) => names.map((name) => values[facts.features.indexOf(name)] ?? fallback);
  return { means: pick(mean, 0), scales: pick(scale, 1) };
}

export const SHAPES = [
  ["sine", "Sine"],
  ["steps", "Steps"],
  ["noise", "Noise"],
];
