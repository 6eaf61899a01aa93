// Builds elements, and writes numbers. Text enters the page as text only: nothing here takes markup.

const LINE = 90;
const SVG = "http://www.w3.org/2000/svg";

/** An element with properties (or, with a dash or in `ATTRIBUTES`, attributes) and children; null children are left out. */
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

/** A number in at most so many significant digits, without an exponent where that can be read. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(Math.max(0, digits - 2)).replace("-", "−");
  const text = size >= 10 ** (digits - 1) ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
  const grouped = size >= 1e4 ? text.replace(/\B(?=(\d{3})+$)/g, ",") : text;
  return grouped.replace("-", "−");
}

/** `count` with its noun: "1 feature", "3 features". */
export function count(amount, noun, plural = `${noun}s`) {
  return `${amount} ${amount === 1 ? noun : plural}`;
}

/** A few of many words, and no more than fill a line: "a, b, c and 4 more". */
export function some(words, limit = 6) {
  let shown = Math.min(limit, words.length);
  while (shown > 1 && words.slice(0, shown).join(", ").length > LINE) shown -= 1;
  const more = words.length > shown ? ` and ${words.length - shown} more` : "";
  return words.slice(0, shown).join(", ") + more;
}

/** A table in a group that screen readers announce by its caption; `rows` hold text, numbers or elements, the first cell is the row's head. */
export function table(caption, heads, rows, className = "") {
  const cell = (value, place) =>
    place === 0
      ? el("th", { scope: "row" }, value)
      : el("td", { class: typeof value === "number" ? "number" : "" }, typeof value === "number" ? number(value) : value);
  return el(
    "div",
    { class: `scrolling ${className}`, tabIndex: 0, role: "group", "aria-label": caption },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: rows.some((row) => typeof row[place] === "number") ? "number" : "" }, head)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))),
    ),
  );
}

/** A button that copies what `text()` says at the time, and says so. */
export function copyButton(label, text) {
  const button = el("button", { type: "button", class: "quiet" }, label);
  const said = el("span", { class: "hidden", role: "status" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      said.textContent = button.textContent = "Copied";
    } catch {
      said.textContent = button.textContent = "Copying is not allowed here";
    }
    setTimeout(() => {
      button.textContent = label;
      said.textContent = "";
    }, 2000);
  });
  return el("span", { class: "copy" }, button, said);
}
