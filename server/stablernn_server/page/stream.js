// The live stream: generated samples over a WebSocket at a given rate, and the latest output of the model.

import { address, getJson, modelPath, subprotocols } from "./api.js";
import { bandsOf } from "./attempt.js";
import { advance, firstOf2024, timeText } from "./calendar.js";
import { choice, count, el, field, number, numberIn, numberInput, observedFeatures, Problem, scalesOf, SHAPES, table } from "./dom.js";
import { Bars, percent } from "./figures.js";
import { Plot, Plots } from "./plot.js";
import { generator } from "./series.js";

const SHOWN_SAMPLES = 120;
const DRAW_EVERY_MS = 100;
const ANNOUNCE_EVERY_MS = 10000;
const MAX_UNANSWERED = 16;

/** The section for one version; `facts` are the parameters of its metadata. */
export class Stream {
  constructor(name, version, facts) {
    Object.assign(this, { name, version, facts, socket: null, timer: null, drawing: null });
    this.names = observedFeatures(facts);
    this.shape = field("Samples", choice(SHAPES));
    this.rate = field("Per second", numberInput(20, { min: 1, max: 100 }));
    this.period = field("Period", numberInput(24, { min: 2 }));
    this.button = el("button", { type: "button", class: "primary", onclick: () => (this.socket === null ? this.start() : this.stop("Stopped")) }, "Start");
    this.problem = new Problem();
    this.state = el("p", { class: "lead" }, "Not running.");
    this.status = el("p", { class: "hidden", role: "status" });
    this.plot = facts.task === "forecast" ? new Plot() : new Plots();
    this.bars = new Bars("Output so far");
    this.table = el("details", { ontoggle: () => this.drawTable() }, el("summary", {}, "Output so far as a table"), el("div", {}));
    this.figure = el("div", { class: "figure", hidden: true }, el("div", { class: this.hasBars() ? "two" : "" }, this.plot.element, this.hasBars() ? this.bars.element : null), this.table);
    this.element = el(
      "div",
      { class: "stream" },
      el("div", { class: "fields" }, this.shape.element, this.rate.element, this.period.element, el("div", { class: "field end" }, this.button)),
      this.problem.element,
      this.state,
      this.status,
      this.figure,
    );
  }

  hasBars() {
    return this.facts.task === "classify" || ["categorical", "bernoulli"].includes(this.facts.output);
  }

  async start() {
    this.problem.clear();
    Object.assign(this, { step: 0, sent: 0, samples: [], dropped: 0, output: null, ratio: null, changed: false });
    this.button.textContent = "Stop";
    this.announce("Connecting.");
    const url = address(`v1/stream?model=${encodeURIComponent(`${this.name}:${this.version}`)}`);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    this.socket = "asking";
    try {
      // A browser does not tell why a WebSocket was refused: this request fails with the reason, or asks for the token.
      await getJson(modelPath(this.name, this.version));
    } catch (error) {
      this.fail(error);
      return;
    }
    if (this.socket !== "asking") return;
    const socket = new WebSocket(url, subprotocols());
    this.socket = socket;
    socket.addEventListener("message", ({ data }) => this.receive(JSON.parse(data)));
    socket.addEventListener("close", ({ reason }) => {
      if (this.socket !== socket) return;
      const sentence = this.step > 0 ? `The server closed the stream at step ${this.step}` : "The server did not open the stream";
      this.fail(new Error(reason ? `${sentence}: ${reason}` : `${sentence}.`));
    });
  }

  receive(message) {
    if (message.error !== undefined) this.fail({ message: message.error, status: message.status, code: message.code });
    else if (message.closing) this.stop("The server is shutting down; the stream ended");
    else if (message.sample_shape !== undefined) this.begin(message);
    else if (message.outputs !== undefined) this.take(message);
  }

  begin(ready) {
    // A model of patches answers when one is full.
    this.patch = ready.patch_stride;
    this.isText = ready.sample_shape.length === 0;
    this.next = sampler(ready, this.facts, this.shape.control.value, numberIn(this.period.control) ?? 24);
    const rate = Math.min(100, Math.max(1, numberIn(this.rate.control) ?? 20));
    const times = this.facts.calendar === null ? "" : ` Their times are generated, starting at ${timeText(this.timeOf(1))}.`;
    const answers = this.patch > 1 ? ` The model answers after every ${this.patch} of them.` : "";
    this.announce(`Streaming ${rate} samples per second.${answers}${times}`);
    this.figure.hidden = false;
    this.timer = setInterval(() => this.send(), 1000 / rate);
    this.drawing = setInterval(() => this.draw(), DRAW_EVERY_MS);
    this.announcing = setInterval(() => this.announce(this.state.textContent), ANNOUNCE_EVERY_MS);
  }

  send() {
    // Wait for a server that is slower than the rate.
    if (this.sent - this.step >= MAX_UNANSWERED || this.socket.readyState !== WebSocket.OPEN) return;
    const sample = this.next();
    const request = { values: this.isText ? sample[0] : sample };
    if (this.facts.head === "recursive") request.horizon = this.facts.horizon;
    if (this.facts.calendar !== null) request.time = new Date(this.timeOf(this.sent + 1)).toISOString();
    this.sent += 1;
    this.samples.push(sample);
    this.socket.send(JSON.stringify(request));
  }

  /** Returns the generated time of a sample, for models with calendar features. */
  timeOf(sample) {
    const { frequency } = this.facts;
    return advance(firstOf2024(frequency), sample - 1, frequency);
  }

  take({ step, outputs, states = [] }) {
    this.step = step;
    if (outputs.length === 0) return;
    this.output = outputs.at(-1);
    const ratios = states.map(({ ratio }) => ratio).filter((ratio) => typeof ratio === "number");
    this.ratio = ratios.length > 0 ? Math.max(...ratios) : null;
    this.changed = true;
  }

  draw() {
    if (!this.changed) return;
    this.changed = false;
    const answered = this.step - (this.step % this.patch);
    const excess = Math.max(0, answered - SHOWN_SAMPLES - this.dropped);
    this.samples.splice(0, excess);
    this.dropped += excess;
    const samples = this.samples.slice(0, answered - this.dropped);
    const start = answered - samples.length + 1;
    const column = (feature) => samples.map((sample) => sample[feature] ?? null);
    const target = this.facts.targets?.[0];
    const shown = this.facts.task === "forecast" ? [Math.max(0, this.names.indexOf(target))] : this.names.slice(0, 6).map((_, feature) => feature);
    const isText = samples[0]?.length === 1 && this.names.length > 1 && this.facts.output !== "real";
    const lines = (isText ? [0] : shown).map((feature, index) => ({
      name: isText ? "symbol" : this.names[feature],
      values: column(feature),
      start,
      kind: this.facts.task === "forecast" ? "observed" : `series-${index}`,
    }));
    const ahead = this.hasBars() ? null : aheadOf(this.output, this.facts, answered + 1);
    this.plot.draw({
      label: `The last ${count(samples.length, "sample")} of the stream${ahead === null ? "" : " and the forecast of the model"}.`,
      xLabel: this.facts.calendar === null ? "sample" : "time (UTC), generated",
      timeOf: this.facts.calendar === null ? null : (sample) => this.timeOf(sample),
      yLabel: lines[0].name,
      divider: ahead === null ? null : answered + 0.5,
      lines: ahead === null ? lines : [...lines, { name: "forecast", values: ahead.mean, start: answered + 1, kind: "forecast" }],
      bands: ahead?.bands ?? [],
    });
    if (this.hasBars()) this.bars.draw(sharesOf(this.output, this.facts), false);
    this.state.textContent = this.sentence();
    this.drawTable();
  }

  sentence() {
    const ratio = this.ratio === null ? "" : ` The largest state is at ${percent(this.ratio)} of its certified bound.`;
    if (!this.hasBars()) return `Step ${this.step}.${ratio}`;
    const [label, share] = sharesOf(this.output, this.facts).reduce((best, pair) => (pair[1] > best[1] ? pair : best));
    return `Step ${this.step}: ${label}, ${percent(share)}.${ratio}`;
  }

  drawTable() {
    if (!this.table.open || !this.output) return;
    const rows = this.hasBars()
      ? sharesOf(this.output, this.facts)
      : (aheadOf(this.output, this.facts, 1)?.mean ?? []).map((value, index) => [`+${index + 1}`, value]);
    const heads = this.hasBars() ? ["Class", "Probability"] : ["Step ahead", this.facts.targets?.[0] ?? "mean"];
    this.table.lastChild.replaceChildren(table("Output so far as a table", heads, rows));
  }

  announce(sentence) {
    this.state.textContent = sentence;
    this.status.textContent = sentence;
  }

  /** Ends the stream, and announces `sentence` with the last step unless it is empty. */
  stop(sentence) {
    for (const timer of [this.timer, this.drawing, this.announcing]) clearInterval(timer);
    const socket = this.socket;
    this.socket = null;
    if (socket instanceof WebSocket) socket.close(1000);
    this.button.textContent = "Start";
    if (sentence && socket !== null) {
      this.draw();
      const position = this.output ? this.sentence().replace(/^Step /, "") : `${this.step}.`;
      this.announce(`${sentence} at step ${position}`);
    }
  }

  fail(error) {
    this.stop("Stopped");
    this.problem.show(error);
  }
}

/** Returns a function for the next sample, as a row of numbers; of text a single one. */
function sampler({ sample_shape: shape, datatype }, facts, kind, period) {
  const vocabulary = datatype === "INT64" ? facts.features.length : 0;
  const width = shape.at(-1) ?? 1;
  const training = scalesOf(facts);
  const fits = vocabulary === 0 && training.means.length === width;
  const means = fits ? training.means : Array(width).fill(0);
  return generator({ kind, means, scales: fits ? training.scales : Array(width).fill(1), period, vocabulary });
}

/** Returns classes (or binary targets) with their probabilities, in the order of the labels. */
function sharesOf(output, { labels, output: kind }) {
  let shares = output.probabilities?.flat(Infinity);
  if (shares === undefined) {
    const logits = output.logits.flat(Infinity);
    const top = Math.max(...logits);
    const weights = logits.map((logit) => (kind === "bernoulli" ? 1 / (1 + Math.exp(-logit)) : Math.exp(logit - top)));
    const total = kind === "bernoulli" ? 1 : weights.reduce((sum, weight) => sum + weight, 0);
    shares = weights.map((weight) => weight / total);
  }
  return shares.map((share, index) => [labels?.[index] ?? String(index), share]);
}

/** Returns mean and bands of the first target over the steps ahead; null before there are any. */
function aheadOf(output, { targets, quantiles }, start) {
  if (!output?.mean) return null;
  const width = targets?.length ?? 1;
  const first = (values) => values.filter((_, index) => index % width === 0);
  const mean = first(output.mean.flat(Infinity));
  if (!output.quantiles || !quantiles) return { mean, bands: [] };
  const adaptive = output.adaptive_quantiles?.flat(Infinity);
  // An unbounded end, which is null, cannot be drawn.
  const isAdaptive = adaptive !== undefined && !adaptive.includes(null);
  const flat = isAdaptive ? adaptive : output.quantiles.flat(Infinity);
  const levels = quantiles.map((level, position) => [String(level), first(flat.filter((_, index) => index % quantiles.length === position))]);
  return { mean, bands: bandsOf(levels, start, isAdaptive ? "adaptive quantiles" : "quantiles") };
}
