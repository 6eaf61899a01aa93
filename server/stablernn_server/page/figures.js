// The metrics of a version, class probabilities as bars, and the current load of the server: rates by model and version, from
// /metrics every two seconds while the page is visible. Its parser reads the format of Prometheus as far as they need it.

import { ApiError, getText } from "./api.js";
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

const EVERY_MS = 2000;
const MAX_READINGS = 31;
const TOTALS = { stablernn_requests_total: "requests", stablernn_steps_total: "steps" };
const NOTHING = { requests: 0, steps: 0, ratio: null, buckets: new Map() };
const LEVELS = { stablernn_pending_requests: "pending", stablernn_sessions: "sessions", stablernn_streams: "streams" };

/** Polls until the page is closed; calls `changed(load)` after each response. */
export class Load {
  constructor(changed) {
    this.changed = changed;
    this.readings = [];
    this.problem = null;
    this.timer = null;
    this.isOver = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.start()));
  }

  start() {
    if (this.timer === null && !document.hidden && !this.isOver) this.poll();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    // A rate over the time in which the page was hidden would not be a current one.
    this.readings = [];
  }

  async poll() {
    this.timer = setTimeout(() => this.poll(), EVERY_MS);
    try {
      const text = await getText("metrics", { quiet: true });
      if (this.timer === null) return;
      this.readings.push({ time: performance.now() / 1000, ...read(parseMetrics(text)) });
      this.readings = this.readings.slice(-MAX_READINGS);
      this.problem = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.readings = [];
      this.problem = error.message;
      if (error.status === 404) {
        this.problem = "This server has no /metrics, so that its load is unknown.";
        this.isOver = true;
        this.pause();
      }
    }
    this.changed(this);
  }

  /** Returns the rates of a version and the levels of the whole server; null until there are two readings to compare. */
  of(name, version) {
    if (this.readings.length < 2) return null;
    const series = this.readings.map(({ time, models }) => ({ time, ...(models.get(keyOf(name, version)) ?? NOTHING) }));
    const [previous, current, first] = [series.at(-2), series.at(-1), series[0]];
    const rate = (key, from, to) => Math.max(0, to[key] - from[key]) / (to.time - from.time);
    const waits = [...current.buckets].map(([bound, value]) => [bound, value - (first.buckets.get(bound) ?? 0)]);
    return {
      requests: rate("requests", previous, current),
      steps: rate("steps", previous, current),
      ratio: current.ratio,
      levels: this.readings.at(-1).levels,
      median: quantile(waits, 0.5),
      slow: quantile(waits, 0.99),
      seconds: current.time - first.time,
      history: series.slice(1).map((reading, index) => rate("requests", series[index], reading)),
    };
  }
}

function keyOf(name, version) {
  return JSON.stringify([name, version]);
}

/** Returns whether requests to a route count as load: not those for metadata, which this page makes itself. */
function isWork(route) {
  return route === undefined || route.startsWith("/v1/") || route.endsWith("/infer");
}

/** Returns sums of the samples: by version in `models`, of the server in `levels`. */
function read(samples) {
  const models = new Map();
  const levels = {};
  for (const { name, labels, value } of samples) {
    if (name in LEVELS) levels[LEVELS[name]] = (levels[LEVELS[name]] ?? 0) + value;
    if (labels.model === undefined || labels.version === undefined || !isWork(labels.route)) continue;
    const key = keyOf(labels.model, labels.version);
    if (!models.has(key)) models.set(key, { ...NOTHING, buckets: new Map() });
    const entry = models.get(key);
    if (name in TOTALS) entry[TOTALS[name]] += value;
    else if (name === "stablernn_state_norm_ratio") entry.ratio = value;
    else if (name === "stablernn_request_seconds_bucket") {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      entry.buckets.set(bound, (entry.buckets.get(bound) ?? 0) + value);
    }
  }
  return { models, levels };
}

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Returns the samples of a text: `{name, labels, value}`. */
function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const match = SAMPLE.exec(line);
    if (match === null) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) {
      labels[name] = value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped));
    }
    samples.push({ name: match[1], labels, value: valueOf(match[3]) });
  }
  return samples;
}

function valueOf(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

/** Returns a quantile of the observations, interpolated within its bucket; null without observations.
 *
 * `buckets` are `[upper bound, count up to it]`; a quantile beyond the last finite bound is that bound.
 */
function quantile(buckets, share) {
  const sorted = [...buckets].sort((a, b) => a[0] - b[0]);
  const total = sorted.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let lower = 0;
  let below = 0;
  for (const [bound, upTo] of sorted) {
    if (upTo >= share * total) {
      if (!Number.isFinite(bound)) return lower;
      return lower + ((bound - lower) * (share * total - below)) / Math.max(upTo - below, Number.EPSILON);
    }
    lower = bound;
    below = upTo;
  }
  return lower;
}
