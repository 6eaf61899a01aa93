// The metrics of a version, and its current load.

import { percent } from "./bars.js";
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

export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 1e-3) return `${number(1e6 * seconds, 3)} µs`;
  return seconds < 1 ? `${number(1e3 * seconds, 3)} ms` : `${number(seconds, 3)} s`;
}
