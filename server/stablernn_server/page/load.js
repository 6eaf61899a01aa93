// What the server does now: /metrics every two seconds while the page is seen, as rates by model and version.

import { ApiError, getText } from "./api.js";
import { parseMetrics, quantile } from "./prometheus.js";

const EVERY_MS = 2000;
const KEPT = 31;
const TOTALS = { stablernn_requests_total: "requests", stablernn_steps_total: "steps" };
const NOTHING = { requests: 0, steps: 0, ratio: null, buckets: new Map() };
const LEVELS = { stablernn_pending_requests: "pending", stablernn_sessions: "sessions", stablernn_streams: "streams" };

/** Polls until the page is gone; `changed(load)` is called after each answer. */
export class Load {
  constructor(changed) {
    this.changed = changed;
    this.moments = [];
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
    // A rate over the time in which nobody looked would not be one of now.
    this.moments = [];
  }

  async poll() {
    this.timer = setTimeout(() => this.poll(), EVERY_MS);
    try {
      const text = await getText("metrics", { quiet: true });
      if (this.timer === null) return;
      this.moments.push({ time: performance.now() / 1000, ...read(parseMetrics(text)) });
      this.moments = this.moments.slice(-KEPT);
      this.problem = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.moments = [];
      this.problem = error.message;
      if (error.status === 404) {
        this.problem = "This server has no /metrics, so it does not say what it does now.";
        this.isOver = true;
        this.pause();
      }
    }
    this.changed(this);
  }

  /** Rates of a version, and what waits in the whole server; null until there are two moments to compare. */
  of(name, version) {
    if (this.moments.length < 2) return null;
    const series = this.moments.map(({ time, models }) => ({ time, ...(models.get(keyOf(name, version)) ?? NOTHING) }));
    const [before, now, first] = [series.at(-2), series.at(-1), series[0]];
    const rate = (key, from, to) => Math.max(0, to[key] - from[key]) / (to.time - from.time);
    const waits = [...now.buckets].map(([bound, value]) => [bound, value - (first.buckets.get(bound) ?? 0)]);
    return {
      requests: rate("requests", before, now),
      steps: rate("steps", before, now),
      ratio: now.ratio,
      levels: this.moments.at(-1).levels,
      median: quantile(waits, 0.5),
      slow: quantile(waits, 0.99),
      seconds: now.time - first.time,
      history: series.slice(1).map((moment, place) => rate("requests", series[place], moment)),
    };
  }
}

function keyOf(name, version) {
  return JSON.stringify([name, version]);
}

/** Whether a route computes; those that only tell about a model, as this page asks for, are no load. */
function isWork(route) {
  return route === undefined || route.startsWith("/v1/") || route.endsWith("/infer");
}

/** Sums of the samples: of each version under `models`, of the server under `levels`. */
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
