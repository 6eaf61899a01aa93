// The live stream: generated samples over a WebSocket at a given rate, and the latest output of the model.

import { address, getJson, modelPath, subprotocols } from "./api.js";
import { advance, firstOf2024, timeText } from "./calendar.js";
import { choiceField, count, el, Failure, fold, inputField, instead, percent, Problem, table } from "./dom.js";
import { Bars } from "./figures.js";
import { featureLines, Plot, Plots, withForecast } from "./plot.js";
import { generator, observedFeatures, scalesOf, SHAPES } from "./series.js";

const SHOWN_SAMPLES = 120;
const DRAW_EVERY_MS = 100;
const ANNOUNCE_EVERY_MS = 10000;
const MAX_UNANSWERED = 16;

/** The section for one version; `facts` are the parameters of its metadata. */
export class Stream {
  constructor(name, version, facts) {
    Object.assign(this, { name, version, facts, socket: null, timers: [] });
    this.names = observedFeatures(facts);
    this.isForecast = facts.task === "forecast";
    this.hasBars = facts.task === "classify" || ["categorical", "bernoulli"].includes(facts.output);
    this.button = el("button.primary", "Start");
    this.problem = new Problem();
    this.state = el("p.lead", "Not running.");
    this.status = el("p.hidden", { role: "status" });
    this.plot = this.isForecast ? new Plot() : new Plots();
    this.bars = new Bars("Output so far");
    this.table = fold("Output so far as a table", el("div"));
    this.table.ontoggle = () => this.drawTable();
    const plots = this.hasBars ? el("div.two", this.plot.element, this.bars.element) : this.plot.element;
    this.figure = el("div.figure", { hidden: true }, plots, this.table);
    this.form = el(
      "form.fields",
      { noValidate: true, onsubmit: instead(() => (this.socket === null ? this.start() : this.stop("Stopped"))) },
      choiceField("Samples", "shape", SHAPES),
      inputField("Per second", "rate", { type: "number", value: 20, min: 1, max: 100 }),
      inputField("Period", "period", { type: "number", value: 24, min: 2 }),
      el("div.field.end", this.button),
    );
    this.element = el("div.stream", this.form, this.problem.element, this.state, this.status, this.figure);
  }

  async start() {
    Object.assign(this, { step: 0, sent: 0, samples: [], dropped: 0, output: null, ratio: null, hasChanged: false, socket: "asking" });
    this.button.textContent = "Stop";
    this.announce("Connecting.");
    // A browser does not tell why a WebSocket was refused: this request fails with the reason, or asks for the token.
    if (!(await this.problem.during(() => getJson(modelPath(this.name, this.version))))) this.stop("Stopped");
    if (this.socket !== "asking") return;
    const url = address(`v1/stream?model=${encodeURIComponent(`${this.name}:${this.version}`)}`);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, subprotocols());
    this.socket = socket;
    socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    socket.onclose = ({ reason }) => {
      if (this.socket !== socket) return;
      const sentence = this.step > 0 ? `The server closed the stream at step ${this.step}` : "The server did not open the stream";
      this.fail(reason ? `${sentence}: ${reason}` : `${sentence}.`);
    };
  }

  receive(message) {
    if (message.error !== undefined) this.fail(message.error, message);
    else if (message.closing) this.stop("The server is shutting down; the stream ended");
    else if (message.sample_shape !== undefined) this.begin(message);
    else if (message.outputs !== undefined) this.take(message);
  }

  begin({ patch_stride: patch, sample_shape: shape, datatype }) {
    const { calendar, features } = this.facts;
    const [kind, rate, period] = ["shape", "rate", "period"].map((name) => this.form.elements.namedItem(name).value);
    const perSecond = Math.min(100, Math.max(1, Number(rate) || 20));
    const width = shape.at(-1) ?? 1;
    const vocabulary = datatype === "INT64" ? features.length : 0;
    const known = scalesOf(this.facts);
    const scales = vocabulary === 0 && known.length === width ? known : Array(width).fill({ mean: 0, scale: 1 });
    // A model of patches answers when one is full.
    Object.assign(this, { patch, isText: shape.length === 0, next: generator({ kind, scales, period: Number(period) || 24, vocabulary }) });
    const times = calendar === null ? "" : ` Their times are generated, starting at ${timeText(this.timeOf(1))}.`;
    const answers = patch > 1 ? ` The model answers after every ${patch} of them.` : "";
    this.announce(`Streaming ${perSecond} samples per second.${answers}${times}`);
    this.figure.hidden = false;
    this.timers = [
      setInterval(() => this.send(), 1000 / perSecond),
      setInterval(() => this.draw(), DRAW_EVERY_MS),
      setInterval(() => this.announce(this.state.textContent), ANNOUNCE_EVERY_MS),
    ];
  }

  send() {
    // Wait for a server that is slower than the rate.
    if (this.sent - this.step >= MAX_UNANSWERED || this.socket.readyState !== WebSocket.OPEN) return;
    const { head, horizon, calendar } = this.facts;
    const sample = this.next();
    this.sent += 1;
    this.samples.push(sample);
    const request = { values: this.isText ? sample[0] : sample };
    if (head === "recursive") request.horizon = horizon;
    if (calendar !== null) request.time = new Date(this.timeOf(this.sent)).toISOString();
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
    const ratios = states.map(({ ratio }) => ratio).filter((ratio) => typeof ratio === "number");
    Object.assign(this, { output: outputs.at(-1), ratio: ratios.length > 0 ? Math.max(...ratios) : null, hasChanged: true });
  }

  draw() {
    if (!this.hasChanged) return;
    this.hasChanged = false;
    const { targets, calendar, output } = this.facts;
    const answered = this.step - (this.step % this.patch);
    this.dropped += this.samples.splice(0, answered - SHOWN_SAMPLES - this.dropped).length;
    const samples = this.samples.slice(0, answered - this.dropped);
    const start = answered - samples.length + 1;
    const isSymbol = samples[0]?.length === 1 && this.names.length > 1 && output !== "real";
    const target = Math.max(0, this.names.indexOf(targets?.[0]));
    const lines = this.isForecast
      ? [{ name: this.names[target], values: samples.map((sample) => sample[target] ?? null), start, kind: "observed" }]
      : featureLines(isSymbol ? ["symbol"] : this.names, samples, start);
    const ahead = this.hasBars ? null : aheadOf(this.output, this.facts);
    this.plot.draw({
      label: `The last ${count(samples.length, "sample")} of the stream${ahead === null ? "" : " and the forecast of the model"}.`,
      xLabel: calendar === null ? "sample" : "time (UTC), generated",
      timeOf: calendar === null ? null : (sample) => this.timeOf(sample),
      yLabel: lines[0].name,
      ...(ahead === null ? { lines } : withForecast(lines, ahead)),
    });
    if (this.hasBars) this.bars.draw(sharesOf(this.output, this.facts), false);
    this.state.textContent = this.sentence();
    this.drawTable();
  }

  sentence() {
    const ratio = this.ratio === null ? "" : ` The largest state is at ${percent(this.ratio)} of its certified bound.`;
    if (!this.hasBars) return `Step ${this.step}.${ratio}`;
    const [label, share] = sharesOf(this.output, this.facts).reduce((best, pair) => (pair[1] > best[1] ? pair : best));
    return `Step ${this.step}: ${label}, ${percent(share)}.${ratio}`;
  }

  drawTable() {
    if (!this.table.open || !this.output) return;
    const ahead = () => (aheadOf(this.output, this.facts)?.mean ?? []).map((value, index) => [`+${index + 1}`, value]);
    const heads = this.hasBars ? ["Class", "Probability"] : ["Step ahead", this.facts.targets?.[0] ?? "mean"];
    this.table.lastChild.replaceChildren(table("Output so far as a table", heads, this.hasBars ? sharesOf(this.output, this.facts) : ahead()));
  }

  announce(sentence) {
    this.state.textContent = this.status.textContent = sentence;
  }

  /** Ends the stream, and announces `sentence` with the last step unless it is empty. */
  stop(sentence) {
    this.timers.forEach(clearInterval);
    const { socket } = this;
    this.socket = null;
    if (socket instanceof WebSocket) socket.close(1000);
    this.button.textContent = "Start";
    if (!sentence || socket === null) return;
    this.draw();
    this.announce(`${sentence} at step ${this.output ? this.sentence().slice("Step ".length) : `${this.step}.`}`);
  }

  fail(sentence, details) {
    this.stop("Stopped");
    this.problem.show(new Failure(sentence, { status: details?.status, code: details?.code }));
  }
}

/** Returns classes (or binary targets) with their probabilities, in the order of the labels. */
function sharesOf({ probabilities, logits }, { labels, output: kind }) {
  let shares = probabilities?.flat(Infinity);
  if (shares === undefined) {
    const flat = logits.flat(Infinity);
    const top = Math.max(...flat);
    const weights = flat.map((logit) => Math.exp(logit - top));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    shares = kind === "bernoulli" ? flat.map((logit) => 1 / (1 + Math.exp(-logit))) : weights.map((weight) => weight / total);
  }
  return shares.map((share, index) => [labels?.[index] ?? String(index), share]);
}

/** Returns mean and quantiles of the first target over the steps ahead; null before there are any. */
function aheadOf({ mean, quantiles, adaptive_quantiles: adapted }, { targets, quantiles: levels }) {
  if (!mean) return null;
  const every = (numbers, size, place) => numbers.filter((_, index) => index % size === place);
  const ofTarget = (numbers) => every(numbers, targets?.length ?? 1, 0);
  const adaptive = adapted?.flat(Infinity);
  // An unbounded end, which is null, cannot be drawn.
  const isAdaptive = adaptive !== undefined && !adaptive.includes(null);
  const flat = isAdaptive ? adaptive : (quantiles ?? []).flat(Infinity);
  return {
    mean: ofTarget(mean.flat(Infinity)),
    levels: quantiles && levels ? levels.map((level, place) => [level, ofTarget(every(flat, levels.length, place))]) : [],
    noun: isAdaptive ? "adaptive quantiles" : "quantiles",
  };
}
