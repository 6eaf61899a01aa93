// Form fields with labels, hints and error messages.

import { el } from "./dom.js";

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
