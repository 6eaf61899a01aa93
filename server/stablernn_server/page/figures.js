// The metrics of a version, class probabilities as bars, and the current load of the server: rates by model and version, from
// /metrics every two seconds while the page is visible. Its parser reads the format of Prometheus as far as they need it.

import { send } from "./api.js";
import { el, factList, Failure, fold, number, percent, svg, table } from "./dom.js";

/** Metrics by split, next to those of simple baselines. */
export function metricsView(metrics) {
  const isObject = (value) => typeof value === "object" && value !== null;
  const splits = Object.entries(metrics ?? {}).filter(([, figures]) => isObject(figures));
  if (splits.length === 0) return el("p.note", "There are no metrics for this version.");
  const order = splits.sort(([a], [b]) => Number(b === "test") - Number(a === "test"));
  return order.map(([split, figures], index) => {
    const baselines = Object.entries(figures).filter(([, value]) => isObject(value));
    const words = (name) => name.replaceAll("_", " ");
    const heads = ["Metric", "This version", ...baselines.map(([name]) => words(name))];
    const rows = Object.entries(figures)
      .filter(([, value]) => typeof value === "number" || value === null)
      .map(([name, value]) => [words(name), value ?? NaN, ...baselines.map(([, baseline]) => baseline[name] ?? "")]);
    const view = fold(`${split[0].toUpperCase()}${split.slice(1)} split`, table(`Metrics, ${split} split`, heads, rows));
    view.open = index === 0;
    return view;
  });
}

const MAX_BARS = 10;

/** Class probabilities as a list of bars, next to their numbers, so that screen readers skip the bars. */
export class Bars {
  constructor(label) {
    this.list = el("ol.bars", { "aria-label": label });
    this.more = el("p.note");
    this.element = el("div", this.list, this.more);
  }

  /** Draws the most probable of `[label, probability]`; with `sorted` false the order is kept, so that the bars of a stream do not jump. */
  draw(pairs, sorted = true) {
    const order = sorted || pairs.length > MAX_BARS ? [...pairs].sort((a, b) => b[1] - a[1]) : pairs;
    const best = Math.max(...pairs.map(([, share]) => share));
    const rows = order.slice(0, MAX_BARS).map(([label, share]) => {
      const bar = el("i.bar", { "aria-hidden": "true" });
      bar.style.width = `${100 * share}%`;
      return el("li", { className: share === best ? "best" : "" }, el("span.label", label), el("span.track", bar), el("span.share", percent(share)));
    });
    this.list.replaceChildren(...rows);
    this.more.textContent = order.length > MAX_BARS ? `and ${order.length - MAX_BARS} less probable ones` : "";
  }
}

const TILES = {
  Requests: ({ requests }) => `${number(requests.at(-1), 3)} /s`,
  Steps: ({ steps }) => `${number(steps.at(-1), 3)} /s`,
  p50: ({ quantile }) => duration(quantile(0.5)),
  p99: ({ quantile }) => duration(quantile(0.99)),
  "Largest state, of its bound": ({ ratio }) => (ratio === undefined ? "–" : percent(ratio)),
  "In flight, server": ({ level }) => number(level("pending_requests")),
  "Sessions, server": ({ level }) => number(level("sessions")),
  "Streams, server": ({ level }) => number(level("streams")),
};

/** Tiles whose values are updated with each poll, so that nothing moves. */
export class LoadView {
  constructor() {
    this.values = Object.keys(TILES).map(() => el("dd", "–"));
    this.spark = svg("svg.spark", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.note = el("p.note", "Waiting for the first two readings of /metrics.");
    this.element = el("div", factList("dl.tiles", Object.keys(TILES).map((name, index) => [name, this.values[index]])), this.spark, this.note);
  }

  /** Shows the load of a version; `load` is the poller. */
  show(load, name, version) {
    const rates = load.of(name, version);
    if (rates === null && load.problem === null) return;
    Object.values(TILES).forEach((text, index) => (this.values[index].textContent = rates === null ? "–" : text(rates)));
    const history = rates?.requests ?? [];
    const most = Math.max(...history);
    const at = (rate, index) => `${((100 * index) / Math.max(1, history.length - 1)).toFixed(1)},${(23 - (22 * rate) / Math.max(1, most)).toFixed(1)}`;
    this.spark.replaceChildren(svg("polyline", { points: history.map(at).join(" ") }));
    this.note.textContent =
      load.problem ??
      `Version ${version}, updated every 2 s while this tab is visible; p50 and p99 over the last ${Math.round(rates.seconds)} s. ` +
        `The line shows requests per second, at most ${number(most, 3)}.`;
  }
}

function duration(seconds) {
  if (seconds === null) return "–";
  const [size, unit] = seconds < 1e-3 ? [1e6, "µs"] : seconds < 1 ? [1e3, "ms"] : [1, "s"];
  return `${number(size * seconds, 3)} ${unit}`;
}

const EVERY_MS = 2000;
const MAX_READINGS = 31;

/** Polls until the page is closed; calls `changed(load)` after each response. */
export class Load {
  constructor(changed) {
    Object.assign(this, { changed, readings: [], problem: null, timer: null, isOver: false });
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
      const text = await (await send("metrics", { quiet: true })).text();
      if (this.timer === null) return;
      this.readings = [...this.readings, { time: performance.now() / 1000, sums: sumsOf(text) }].slice(-MAX_READINGS);
      this.problem = null;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.readings = [];
      this.isOver = error.status === 404;
      this.problem = this.isOver ? "This server has no /metrics, so that its load is unknown." : error.message;
      if (this.isOver) this.pause();
    }
    this.changed(this);
  }

  /** Returns the rates of a version and the levels of the whole server; null until there are two readings to compare. */
  of(name, version) {
    if (this.readings.length < 2) return null;
    const [first, last] = [this.readings[0], this.readings.at(-1)];
    const key = (metric, bound) => keyOf(metric, name, version, bound);
    const rates = (metric) =>
      this.readings.slice(1).map(({ time, sums }, index) => {
        const before = this.readings[index];
        return Math.max(0, (sums[key(metric)] ?? 0) - (before.sums[key(metric)] ?? 0)) / (time - before.time);
      });
    const bucket = key("request_seconds_bucket", "");
    const waits = Object.entries(last.sums)
      .filter(([each]) => each.startsWith(bucket))
      .map(([each, value]) => [Number(each.slice(bucket.length).replace("+Inf", "Infinity")), value - (first.sums[each] ?? 0)]);
    return {
      requests: rates("requests_total"),
      steps: rates("steps_total"),
      ratio: last.sums[key("state_norm_ratio")],
      level: (metric) => last.sums[keyOf(metric)],
      quantile: (share) => quantile(waits, share),
      seconds: last.time - first.time,
    };
  }
}

function keyOf(metric, model = "", version = "", bound = "") {
  return [metric, model, version, bound].join("\n");
}

const SAMPLE = /^stablernn_(\w+)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Returns the sums of the samples of a text by metric, model, version and bound; without those of routes for metadata, which this
 * page asks for itself. */
function sumsOf(text) {
  const sums = {};
  for (const line of text.split("\n")) {
    const [, metric, words = "", value] = SAMPLE.exec(line) ?? [];
    if (metric === undefined) continue;
    const labels = Object.fromEntries([...words.matchAll(LABEL)].map(([, name, label]) => [name, label.replace(/\\(.)/g, "$1")]));
    if (labels.route && !/^\/v1\/|\/infer$/.test(labels.route)) continue;
    const key = keyOf(metric, labels.model, labels.version, labels.le);
    sums[key] = (sums[key] ?? 0) + Number(value);
  }
  return sums;
}

/** Returns a quantile of the observations, interpolated within its bucket; null without observations.
 *
 * `buckets` are `[upper bound, count up to it]`; a quantile beyond the last finite bound is that bound.
 */
function quantile(buckets, share) {
  const sorted = buckets.sort((a, b) => a[0] - b[0]);
  const wanted = share * (sorted.at(-1)?.[1] ?? 0);
  if (wanted <= 0) return null;
  const index = sorted.findIndex(([, upTo]) => upTo >= wanted);
  const [[bound, upTo], [lower, below]] = [sorted[index], sorted[index - 1] ?? [0, 0]];
  return Number.isFinite(bound) ? lower + ((bound - lower) * (wanted - below)) / Math.max(upTo - below, Number.EPSILON) : lower;
}
