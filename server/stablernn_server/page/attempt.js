// "Try it": a pasted or generated series, the request made of it, and the answer as a drawing and as a table.

import { address, modelPath, postJson } from "./api.js";
import { Bars, percent } from "./bars.js";
import { copyButton, count, el, number, table } from "./dom.js";
import { choice, field, numberIn, numberInput, observedFeatures, Problem, scalesOf, SHAPES, textInput } from "./fields.js";
import { Plot } from "./plot.js";
import { generator, parseSeries, seriesText } from "./series.js";

const LONGEST_TABLE = 1000;

/** The section for one version; `facts` are the parameters of its metadata. */
export function attemptView(name, version, facts) {
  const form = facts.task === "predict-next" ? null : new Attempt(name, version, facts);
  if (form !== null) return form.element;
  return el(
    "p",
    { class: "note" },
    "This model answers at every step: see it in the live stream below, or send it whole sequences by ",
    el("code", {}, `POST /${modelPath(name, version)}/infer`),
    ".",
  );
}

class Attempt {
  constructor(name, version, facts) {
    Object.assign(this, { name, version, facts, names: observedFeatures(facts) });
    this.isForecast = facts.task === "forecast";
    this.problem = new Problem();
    this.summary = el("p", { class: "lead", role: "status" });
    this.figure = el("div", { class: "figure", hidden: true });
    this.options = this.isForecast ? this.forecastFields() : this.classifyFields();
    const lines = this.names.length > 1 ? `one line for each step: ${this.names.join(", ")}` : "numbers in any lines";
    this.text = field(`Series of ${this.names.join(", ")}`, el("textarea", { rows: 7, spellcheck: false, autocomplete: "off" }), {
      hint: `JSON, CSV, or ${lines}. null, NaN or an empty cell is a missing value.`,
      wide: true,
    });
    this.element = el(
      "form",
      { class: "attempt", noValidate: true, onsubmit: (event) => this.submit(event) },
      this.generatorFields(),
      this.text.element,
      el("div", { class: "fields" }, this.options.map(({ element }) => element)),
      el(
        "div",
        { class: "actions" },
        (this.button = el("button", { type: "submit", class: "primary" }, this.isForecast ? "Forecast" : "Classify")),
        copyButton("Copy as curl", () => this.curl()),
      ),
      this.problem.element,
      this.summary,
      this.figure,
    );
  }

  generatorFields() {
    const length = this.facts.context_length ?? 64;
    this.shape = field("Generate", choice(SHAPES));
    this.length = field("Steps", numberInput(Math.min(length, 512), { min: 1, max: 100000 }));
    this.period = field("Period", numberInput(Math.max(2, Math.round(Math.min(length, 512) / 4)), { min: 2 }));
    let seed = 0;
    const fill = () => {
      seed += 1;
      const next = generator({ kind: this.shape.control.value, ...scalesOf(this.facts), period: numberIn(this.period.control) ?? 24, seed });
      const steps = Math.min(100000, Math.max(1, numberIn(this.length.control) ?? length));
      this.text.control.value = seriesText(Array.from({ length: steps }, next));
    };
    const button = el("button", { type: "button", onclick: fill }, "Fill in");
    return el("div", { class: "fields" }, this.shape.element, this.length.element, this.period.element, el("div", { class: "field end" }, button));
  }

  classifyFields() {
    this.topK = field("Classes to answer with", numberInput(null, { min: 1, max: this.facts.labels.length }), { hint: "all when empty" });
    return [this.topK];
  }

  forecastFields() {
    const { facts } = this;
    this.horizon = field("Horizon", numberInput(facts.horizon, { min: 1, max: facts.horizon }), { hint: `at most ${facts.horizon}` });
    const needed = facts.calendar !== null;
    this.start = field("Time of the first value", textInput(needed ? "2024-01-01T00:00:00Z" : "", "2024-01-01"), {
      hint: needed ? "the calendar features follow from it" : "may be empty",
    });
    this.frequency = field("Frequency", textInput(facts.frequency ?? "", "D, H, W, 15min"));
    this.statics = (facts.static ?? []).map((name) => [name, field(name, numberInput(null, { step: "any" }), { hint: "does not change" })]);
    const made = new Set(facts.features.filter((name) => !this.names.includes(name)));
    this.futures = (facts.future ?? [])
      .filter((name) => !made.has(name))
      .map((name) => [name, field(`${name}, ahead`, textInput("", "0, 0, 1"), { hint: "numbers of the steps ahead" })]);
    return [this.horizon, this.start, this.frequency, ...this.statics.map(([, one]) => one), ...this.futures.map(([, one]) => one)];
  }

  /** Path and body of the request; throws SeriesError. */
  request() {
    const { values, start } = parseSeries(this.text.control.value, this.names);
    const input = { series: values };
    const options = {};
    const body = { model: `${this.name}:${this.version}`, inputs: [input], options };
    if (!this.isForecast) {
      const topK = numberIn(this.topK.control);
      if (topK !== null) options.top_k = topK;
      return { path: "v1/timeseries/classify", body };
    }
    const horizon = numberIn(this.horizon.control);
    if (horizon !== null) options.horizon = horizon;
    if (start !== null && this.start.control.value.trim() === "" && this.facts.frequency !== null) this.start.control.value = start;
    if (this.start.control.value.trim() !== "") input.start_timestamp = this.start.control.value.trim();
    if (this.frequency.control.value.trim() !== "") input.frequency = this.frequency.control.value.trim();
    const statics = this.statics.map(([name, one]) => [name, numberIn(one.control)]).filter(([, value]) => value !== null);
    if (statics.length > 0) input.static = Object.fromEntries(statics);
    const futures = this.futures.filter(([, one]) => one.control.value.trim() !== "");
    if (futures.length > 0) {
      input.future = Object.fromEntries(futures.map(([name, one]) => [name, parseSeries(one.control.value, [name]).values]));
    }
    return { path: "v1/timeseries/forecast", body };
  }

  async submit(event) {
    event.preventDefault();
    if (this.button.disabled) return;
    this.problem.clear();
    this.button.disabled = true;
    this.element.setAttribute("aria-busy", "true");
    try {
      const { path, body } = this.request();
      const started = performance.now();
      const answer = await postJson(path, body);
      this.show(body.inputs[0].series, answer, performance.now() - started);
    } catch (error) {
      this.summary.textContent = "";
      this.figure.hidden = true;
      this.problem.show(error);
    } finally {
      this.button.disabled = false;
      this.element.removeAttribute("aria-busy");
    }
  }

  show(values, answer, elapsed) {
    const content = answer.outputs[0].content[0];
    const columns = this.names.map((_, place) => values.map((row) => (Array.isArray(row) ? row[place] : row) ?? null));
    const outside = answer.states_outside_ball ?? [];
    const warning = outside.length > 0 ? ` States outside their certified ball: ${outside.join(", ")}.` : "";
    const said = this.isForecast ? this.showForecast(columns, content) : this.showClasses(columns, content);
    this.summary.textContent = `${said} Version ${answer.model_version}, ${number(elapsed, 3)} ms there and back.${warning}`;
    this.figure.hidden = false;
  }

  showClasses(columns, content) {
    const plot = new Plot();
    const bars = new Bars("Classes by probability");
    const pairs = Object.entries(content.probabilities).sort((one, other) => other[1] - one[1]);
    const steps = columns[0].length;
    const lines = columns.slice(0, 6).map((column, place) => ({ name: this.names[place], values: column, start: 1, kind: `series-${place}` }));
    bars.draw(pairs);
    this.figure.replaceChildren(
      el("div", { class: "two" }, plot.element, bars.element),
      numbers("Probabilities as a table", ["Class", "Probability"], pairs.map(([label, share]) => [label, share])),
      numbers("Series as a table", ["Step", ...this.names], columns[0].map((_, step) => [String(step + 1), ...columns.map((column) => column[step] ?? "missing")])),
    );
    plot.draw({ label: `The series of ${count(steps, "step")} that was classified.`, xLabel: "step", yLabel: lines.map(({ name }) => name).join(", "), lines });
    return `Class ${content.label}, with a probability of ${percent(content.probabilities[content.label])}.`;
  }

  showForecast(columns, content) {
    const targets = content.targets.map((target, place) => forecastOf(target, place, content, columns[this.names.indexOf(target)] ?? []));
    const plot = new Plot();
    const draw = (target) =>
      plot.draw({
        label: `${target.name}: ${count(target.observed.length, "observed step")} and the forecast of ${count(target.mean.length, "step")}, from ${number(target.mean[0])} to ${number(target.mean.at(-1))}.`,
        xLabel: `step${content.frequency ? ` (${content.frequency})` : ""}`,
        yLabel: target.name,
        divider: target.observed.length + 0.5,
        lines: [
          { name: "observed", values: target.observed, start: 1, kind: "observed" },
          { name: "forecast", values: target.mean, start: target.observed.length + 1, kind: "forecast" },
        ],
        bands: target.bands,
      });
    const parts = [plot.element];
    if (targets.length > 1) {
      const picker = field("Show", choice(targets.map(({ name }, place) => [String(place), name])));
      picker.control.addEventListener("change", () => draw(targets[Number(picker.control.value)]));
      parts.unshift(picker.element);
    }
    const heads = ["Step ahead", ...targets.flatMap(({ name, levels }) => [name, ...levels.map(([level]) => `${name}, ${level}`)])];
    const rows = targets[0].mean.map((_, step) => [`+${step + 1}`, ...targets.flatMap(({ mean, levels }) => [mean[step], ...levels.map(([, values]) => values[step])])]);
    this.figure.replaceChildren(...parts, numbers("Forecast as a table", heads, rows));
    draw(targets[0]);
    const from = content.start_timestamp === null ? "" : ` from ${content.start_timestamp}`;
    return `Forecast of ${count(targets[0].mean.length, "step")}${from}, resting on the last ${count(content.context_used, "step")}.`;
  }

  curl() {
    let request;
    try {
      request = this.request();
    } catch (error) {
      this.problem.show(error);
      throw error;
    }
    const body = JSON.stringify(request.body).replaceAll("'", "'\\''");
    return `curl -s '${address(request.path)}' -H 'Content-Type: application/json' -d '${body}'`;
  }
}

/** One target of an answer, with bands between the quantiles that belong together. */
function forecastOf(name, place, content, observed) {
  const column = (values) => values.map((value) => (Array.isArray(value) ? value[place] : value));
  const levels = Object.entries(content.quantiles).map(([level, values]) => [level, column(values)]);
  levels.sort((one, other) => Number(one[0]) - Number(other[0]));
  return { name, observed, mean: column(content.mean_forecast), levels, bands: bandsOf(levels, observed.length + 1) };
}

/** Bands from the outermost pair of quantiles inwards. */
export function bandsOf(levels, start) {
  return Array.from({ length: Math.floor(levels.length / 2) }, (_, place) => {
    const [[low, lower], [high, upper]] = [levels[place], levels[levels.length - 1 - place]];
    return { name: `quantiles ${low} to ${high}`, lower, upper, start, kind: "quantiles" };
  });
}

function numbers(title, heads, rows) {
  const more = rows.length > LONGEST_TABLE ? el("p", { class: "note" }, `The first ${LONGEST_TABLE} of ${rows.length} rows.`) : null;
  return el("details", {}, el("summary", {}, title), more, table(title, heads, rows.slice(0, LONGEST_TABLE)));
}
