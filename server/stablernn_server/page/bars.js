// Probabilities of classes as bars in a list; the numbers stand beside them, so that the bars are for the eye alone.

import { el, number } from "./dom.js";

const SHOWN = 10;

/** A list of bars, drawn again by `draw([[label, probability], ...])`. */
export class Bars {
  constructor(label) {
    this.list = el("ol", { class: "bars", "aria-label": label });
    this.more = el("p", { class: "note" });
    this.element = el("div", {}, this.list, this.more);
  }

  /** Draws the most probable classes; `sorted` false keeps the order, which a stream needs so that bars do not jump. */
  draw(pairs, sorted = true) {
    const order = sorted || pairs.length > SHOWN ? [...pairs].sort((one, other) => other[1] - one[1]) : pairs;
    const best = Math.max(...pairs.map(([, share]) => share));
    const rows = order.slice(0, SHOWN).map(([label, share]) => {
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
    this.more.textContent = order.length > SHOWN ? `and ${order.length - SHOWN} less probable ones` : "";
  }
}

export function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${number(Number((100 * share).toFixed(1)), 4)} %`;
}
