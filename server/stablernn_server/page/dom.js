// Elements, numbers as text, fields of forms, and boxes for errors. Text enters the page as text only: nothing here takes markup.

const LINE = 90;

/** A failure that the user is told of; `details` are `status`, `code` and `requestId` of a response. */
export class Failure extends Error {
  constructor(sentence, details) {
    super(sentence);
    Object.assign(this, details);
  }
}

/** Creates `tag.class`. Objects among `parts` are its properties, or attributes where it has no such property; the others are its
 * content, of which null and undefined are left out. */
export function el(selector, ...parts) {
  return build(document.createElement(selector.split(".")[0]), selector, parts, (element, name) => name in element);
}

/** An element of a drawing, which has attributes only. */
export function svg(selector, ...parts) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", selector.split(".")[0]), selector, parts, () => false);
}

function build(element, selector, parts, isProperty) {
  for (const part of parts.flat(2)) {
    if (part?.constructor !== Object) element.append(part ?? "");
    else {
      for (const [name, value] of Object.entries(part)) {
        if (isProperty(element, name)) element[name] = value ?? "";
        else if (value !== null) element.setAttribute(name, value);
      }
    }
  }
  const classes = selector.split(".").slice(1);
  if (classes.length > 0) element.classList.add(...classes);
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Returns a handler that does `action` in place of what the browser would do. */
export function instead(action) {
  return (event) => {
    event.preventDefault();
    action(event);
  };
}

/** Formats a number with `digits` significant digits or all of its whole part, with an exponent where that is more readable. */
export function number(value, digits = 4, roundingMode = "halfExpand") {
  if (!Number.isFinite(value)) return { Infinity: "∞", "-Infinity": "−∞" }[value] ?? "–";
  const size = Math.abs(value);
  const style =
    size >= 1e7 || (size > 0 && size < 1e-4)
      ? { notation: "scientific", minimumSignificantDigits: digits - 1, maximumSignificantDigits: digits - 1 }
      : { maximumSignificantDigits: digits, maximumFractionDigits: 0, roundingPriority: "morePrecision", useGrouping: "min2" };
  const text = new Intl.NumberFormat("en", { ...style, roundingMode, signDisplay: "negative" }).format(value);
  return text.replace(/E(?=\d)/, "e+").replace("E", "e").replaceAll("-", "−");
}

/** Formats an upper bound so that the text is an upper bound as well. */
export function upperBound(value, digits = 4) {
  return number(value, digits, "ceil");
}

export function percent(share) {
  return share > 0 && share < 0.0005 ? "< 0.1 %" : `${number(Number((100 * share).toFixed(1)))} %`;
}

/** `count` with its noun: "1 feature", "3 features". */
export function count(amount, noun, plural = `${noun}s`) {
  return `${amount} ${amount === 1 ? noun : plural}`;
}

/** Lists the first of many words, as many as fit on a line: "a, b, c and 4 more". */
export function some(words, limit = 6) {
  let shown = words.slice(0, limit);
  while (shown.length > 1 && shown.join(", ").length > LINE) shown = shown.slice(0, -1);
  const more = words.length - shown.length;
  return shown.join(", ") + (more > 0 ? ` and ${more} more` : "");
}

/** Content that is shown once its title is clicked. */
export function fold(title, ...content) {
  return el("details", el("summary", title), content);
}

/** Names with their values, `[[name, value], ...]`; null is left out. */
export function factList(selector, pairs) {
  return el(selector, pairs.filter(([, value]) => value !== null).map(([name, value]) => el("div", el("dt", name), value instanceof Element ? value : el("dd", value))));
}

/** A table in a group that screen readers announce by its caption; `rows` hold text, numbers or elements, the first cell is the row's head. */
export function table(caption, heads, rows, selector = "div.scrolling") {
  const isNumber = (value) => typeof value === "number";
  const cell = (value, column) =>
    column === 0 ? el("th", { scope: "row" }, value) : el("td", { className: isNumber(value) ? "number" : "" }, isNumber(value) ? number(value) : value);
  const head = (text, column) => el("th", { scope: "col", className: rows.some((row) => isNumber(row[column])) ? "number" : "" }, text);
  return el(
    selector,
    { tabIndex: 0, role: "group", "aria-label": caption },
    el("table", el("thead", el("tr", heads.map(head))), el("tbody", rows.map((row) => el("tr", row.map(cell))))),
  );
}

/** A button that copies the current result of `text()`, and confirms it. */
export function copyButton(label, text) {
  const status = el("span.hidden", { role: "status" });
  const onclick = async () => {
    let outcome = "Copied";
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      outcome = "Copying is not allowed here";
    }
    status.textContent = button.textContent = outcome;
    setTimeout(() => {
      button.textContent = label;
      status.textContent = "";
    }, 2000);
  };
  const button = el("button.quiet", { type: "button", onclick }, label);
  return el("span.copy", button, status);
}

let fieldCount = 0;

/** A labeled control of a form; screen readers read `hint` with it. */
export function field(label, control, hint = null, selector = "div.field") {
  fieldCount += 1;
  control.id ||= `field-${fieldCount}`;
  if (hint !== null) control.setAttribute("aria-describedby", `${control.id}-hint`);
  return el(selector, el("label", { for: control.id }, label), control, hint && el("span.hint", { id: `${control.id}-hint` }, hint));
}

/** A field of text, or of another `type`. */
export function inputField(label, name, properties = {}, hint = null) {
  return field(label, el("input", { name, type: "text", autocomplete: "off", spellcheck: false, ...properties }), hint);
}

/** A field with a choice among `[value, label]` pairs. */
export function choiceField(label, name, pairs) {
  return field(label, el("select", { name }, pairs.map(([value, text]) => el("option", { value }, text))));
}

/** A box for an error; screen readers announce it when it changes. */
export class Problem {
  element = el("div.problem", { role: "alert", hidden: true });

  /** Does `work`, and shows why it failed; resolves to whether it did not. */
  async during(work) {
    this.clear();
    try {
      await work();
      return true;
    } catch (error) {
      this.show(error);
      return false;
    }
  }

  show(error) {
    // What nobody has foreseen belongs to the console too.
    if (!(error instanceof Failure)) reportError(error);
    const { message, status, code, requestId } = error;
    this.element.replaceChildren(el("p", message), status ? el("small", `${status} ${code}`) : "", requestId ? el("small", `Request ${requestId}`) : "");
    this.element.hidden = false;
  }

  clear() {
    this.element.hidden = true;
    this.element.replaceChildren();
  }
}
