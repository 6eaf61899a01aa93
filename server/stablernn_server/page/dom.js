// Creation of elements and formatting of numbers. Text enters the page as text only: nothing here takes markup.

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
