// Class probabilities as a list of bars; the numbers are next to them, so that screen readers skip the bars.

import { el, number } from "./dom.js";

const MAX_BARS = 10;

/** A list of bars, redrawn by `draw([[label, probability], ...])`. */
export class Bars {
  constructor(label) {
    this.list = el("ol", { class: "bars", "aria-label": label });
    this.more = el("p", { class: "note" });
    this.element = el("div", {}, this.list, this.more);
  }

  /** Draws the most probable classes; with `sorted` false the order is kept, so that the bars of a stream do not jump. */
  draw(pairs, sorted = true) {
    const order = sorted || pairs.length > MAX_BARS ? [...pairs].sort((a, b) => b[1] - a[1]) : pairs;
    const best = Math.max(...pairs.map(([, share]) => share));
    const rows = order.slice(0, MAX_BARS).map(([label, share]) => {
      const bar = el("i", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${100 * share}%`;
      return el(
        "li",
        { class: share === best ? "best" : "" },
        el("span", { class: "label" }, label),
        el("span", { class: "track" }, bar),
        el("span", { class: "share" }, percent(share)),
      );
    });
    this.list.replaceChildren(...rows);
    this.more.textContent = order.length > MAX_BARS ? `and ${order.length - MAX_BARS} less probable ones` : "";
  }
}

export function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${number(Number((100 * share).toFixed(1)), 4)} %`;
}
