// Parser of the text format of Prometheus, as far as rates and quantiles need it.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Returns the samples of a text: `{name, labels, value}`. */
export function parseMetrics(text) {
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
export function quantile(buckets, share) {
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
