// The metrics of a version, its current load, and class probabilities as bars.

import { el, number, svg, table } from "./dom.js";

/** Metrics by split, next to those of simple baselines. */
export function metricsView(metrics) {
  const splits = Object.entries(metrics ?? {}).filter(([, figures]) => typeof figures === "object" && figures !== null);
  if (splits.length === 0) return [el("p", { class: "note" }, "There are no metrics for this version.")];
  const order = [...splits].sort(([a], [b]) => Number(b === "test") - Number(a === "test"));
  return order.map(([split, figures], index) => {
    const flat = Object.entries(figures).filter(([, value]) => typeof value === "number" || value === null);
    const baselines = Object.entries(figures).filter(([, value]) => typeof value === "object" && value !== null);
    const heads = ["Metric", "This version", ...baselines.map(([name]) => name.replaceAll("_", " "))];
    const rows = flat.map(([name, value]) => [name.replaceAll("_", " "), value ?? NaN, ...baselines.map(([, baseline]) => baseline[name] ?? "")]);
    const title = `${split[0].toUpperCase()}${split.slice(1)} split`;
    return el("details", { open: index === 0 }, el("summary", {}, title), table(`Metrics, ${split} split`, heads, rows));
  });
}

const TILES = [
  ["requests", "Requests", (rates) => `${number(rates.requests, 3)} /s`],
  ["steps", "Steps", (rates) => `${number(rates.steps, 3)} /s`],
  ["median", "p50", (rates) => duration(rates.median)],
  ["slow", "p99", (rates) => duration(rates.slow)],
  ["ratio", "Largest state, of its bound", (rates) => (rates.ratio === null ? "–" : percent(rates.ratio))],
  ["pending", "In flight, server", (rates) => number(rates.levels.pending)],
  ["sessions", "Sessions, server", (rates) => number(rates.levels.sessions)],
  ["streams", "Streams, server", (rates) => number(rates.levels.streams)],
];

/** Tiles whose values are updated with each poll, so that nothing moves. */
export class LoadView {
  constructor() {
    this.values = new Map(TILES.map(([key]) => [key, el("dd", {}, "–")]));
    this.spark = svg("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.note = el("p", { class: "note" }, "Waiting for the first two readings of /metrics.");
    this.element = el(
      "div",
      {},
      el("dl", { class: "tiles" }, TILES.map(([key, name]) => el("div", {}, el("dt", {}, name), this.values.get(key)))),
      this.spark,
      this.note,
    );
  }

  /** Shows the load of a version; `load` is the poller. */
  show(load, name, version) {
    if (load.problem !== null) {
      for (const value of this.values.values()) value.textContent = "–";
      this.spark.replaceChildren();
      this.note.textContent = load.problem;
      return;
    }
    const rates = load.of(name, version);
    if (rates === null) return;
    for (const [key, , text] of TILES) this.values.get(key).textContent = text(rates);
    const top = Math.max(1, ...rates.history);
    const at = (rate, index) => `${((100 * index) / Math.max(1, rates.history.length - 1)).toFixed(1)},${(23 - (22 * rate) / top).toFixed(1)}`;
    this.spark.replaceChildren(svg("polyline", { points: rates.history.map(at).join(" ") }));
    this.note.textContent =
      `Version ${version}, updated every 2 s while this tab is visible; p50 and p99 over the last ${Math.round(rates.seconds)} s. ` +
      `The line shows requests per second, at most ${number(Math.max(...rates.history), 3)}.`;
  }
}

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 1e-3) return `${number(1e6 * seconds, 3)} µs`;
  return seconds < 1 ? `${number(1e3 * seconds, 3)} ms` : `${number(seconds, 3)} s`;
}

const MAX_BARS = 10;

/** Class probabilities as a list of bars, next to their numbers, so that screen readers skip the bars. Redrawn by `draw([[label, probability], ...])`. */
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
