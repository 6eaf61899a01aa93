// "Try it": a stored, pasted or generated series, its request, and the response as a plot and as a table.

import { address, ApiError, getJson, modelPath, postJson } from "./api.js";
import { advance, areDays, firstOf2024, parseTime, stepsBetween, timeText } from "./calendar.js";
import { choice, copyButton, count, el, field, fold, number, numberIn, numberInput, observedFeatures, Problem, scalesOf, SHAPES, table, textInput } from "./dom.js";
import { Bars, percent } from "./figures.js";
import { Plot, Plots } from "./plot.js";
import { generator, parseSeries, readSeries, SeriesError, seriesText } from "./series.js";

const MAX_TABLE_ROWS = 1000;
const MAX_STEPS = 100_000;
const MAX_FILE_BYTES = 5_000_000;

/** The section for one version; `facts` are the parameters of its metadata. */
export function attemptView(name, version, facts) {
  const form = facts.task === "predict-next" ? null : new Attempt(name, version, facts);
  if (form !== null) return form.element;
  return el(
    "p",
    { class: "note" },
    "This model answers at every step: see the live stream below, or send it whole sequences with ",
    el("code", {}, `POST /${modelPath(name, version)}/infer`),
    ".",
  );
}

class Attempt {
  constructor(name, version, facts) {
    Object.assign(this, { name, version, facts, names: observedFeatures(facts), example: null });
    this.isForecast = facts.task === "forecast";
    this.problem = new Problem();
    this.summary = el("p", { class: "lead", role: "status" });
    this.figure = el("div", { class: "figure", hidden: true });
    this.options = this.isForecast ? this.forecastFields() : this.classifyFields();
    const lines = this.names.length > 1 ? `one line for each step: ${this.names.join(", ")}` : "numbers in any lines";
    this.text = field(`Series of ${this.names.join(", ")}`, el("textarea", { rows: 7, spellcheck: false, autocomplete: "off" }), {
      hint: `JSON, CSV, or ${lines}. null, NaN or an empty cell is a missing value. A column ds holds the time of each row. A file may be dropped here.`,
      wide: true,
    });
    // The time that was filled in for one series is wrong for the next.
    this.text.control.addEventListener("input", () => this.dropGeneratedStart());
    this.file = field("File", el("input", { type: "file", accept: ".csv,.tsv,.txt,.json", onchange: ({ target }) => this.readFile(target.files[0]) }));
    this.element = el(
      "form",
      { class: "attempt", noValidate: true, onsubmit: (event) => this.submit(event), ondragover: (event) => event.preventDefault(), ondrop: (event) => this.drop(event) },
      el(
        "div",
        {},
        this.text.element,
        el("div", { class: "fields" }, this.options.map(({ element }) => element)),
        el(
          "div",
          { class: "actions" },
          (this.button = el("button", { type: "submit", class: "primary" }, this.isForecast ? "Forecast" : "Classify")),
          copyButton("Copy as curl", () => this.curl()),
        ),
        el("details", { open: !facts.example }, el("summary", {}, "Open a file, or generate a series"), el("div", { class: "fields" }, this.file.element), this.generatorFields()),
      ),
      el("div", { class: "answer" }, this.problem.element, this.summary, this.figure),
    );
    if (facts.example) this.answerExample();
  }

  /** Fills in the sample that the version stores, and answers it; does nothing if the user was faster. */
  async answerExample() {
    let example;
    try {
      example = await getJson(`${modelPath(this.name, this.version)}/example`, { quiet: true });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return;
    }
    if (this.text.control.value !== "") return;
    const { series, dt = null, start_timestamp: start = "", static: constants = {}, future = {} } = example.input;
    this.text.control.value = seriesText(series.map((value) => (Array.isArray(value) ? value : [value])));
    this.example = { ...example, dt, text: this.text.control.value };
    if (this.isForecast) {
      if (start !== "") this.setStart(start);
      for (const [name, { control }] of this.statics) control.value = constants[name] ?? "";
      for (const [name, { control }] of this.futures) control.value = (future[name] ?? []).map((value) => value ?? "NaN").join(", ");
    }
    await this.answer();
  }

  /** Returns the stored sample, as long as it stands in the form; else null. */
  shownExample() {
    return this.example?.text === this.text.control.value ? this.example : null;
  }

  drop(event) {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file !== undefined) this.readFile(file);
  }

  async readFile(file) {
    if (file.size > MAX_FILE_BYTES) {
      this.problem.show(new SeriesError(`${file.name} has ${count(file.size, "byte")}; the page reads files of at most ${count(MAX_FILE_BYTES, "byte")}. Use stablernn predict for larger ones.`));
      return;
    }
    this.text.control.value = await file.text();
    this.dropGeneratedStart();
    await this.answer();
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
      const steps = Math.min(MAX_STEPS, Math.max(1, numberIn(this.length.control) ?? length));
      this.text.control.value = seriesText(Array.from({ length: steps }, next));
      this.dropGeneratedStart();
      if (this.isForecast && this.facts.calendar !== null && this.start.control.value.trim() === "") {
        this.setStart(firstOf2024(this.facts.frequency));
      }
    };
    const button = el("button", { type: "button", onclick: fill }, "Fill in");
    return el("div", { class: "fields" }, this.shape.element, this.length.element, this.period.element, el("div", { class: "field end" }, button));
  }

  classifyFields() {
    this.topK = field("Number of classes", numberInput(null, { min: 1, max: this.facts.labels.length }), { hint: "empty: all" });
    return [this.topK];
  }

  forecastFields() {
    const { facts } = this;
    this.horizon = field("Horizon", numberInput(facts.horizon, { min: 1, max: facts.horizon }), { hint: `at most ${facts.horizon}` });
    const needed = facts.calendar !== null;
    this.generatedStart = null;
    this.start = field("Time of the first value", textInput("", "2024-01-01"), {
      hint: needed ? "required: the calendar features are computed from it; a column ds fills it in" : "optional; a column ds fills it in",
    });
    this.frequency = field("Frequency", textInput(facts.frequency ?? "", "D, H, W, 15min"));
    this.statics = (facts.static ?? []).map((name) => [name, field(name, numberInput(null, { step: "any" }), { hint: "does not change" })]);
    const calendarFeatures = new Set(facts.features.filter((name) => !this.names.includes(name)));
    this.futures = (facts.future ?? [])
      .filter((name) => !calendarFeatures.has(name))
      .map((name) => [name, field(`${name}, ahead`, textInput("", "0, 0, 1"), { hint: "numbers of the steps ahead" })]);
    return [this.horizon, this.start, this.frequency, ...this.statics.map(([, formField]) => formField), ...this.futures.map(([, formField]) => formField)];
  }

  /** Puts a time into the form that the user did not type. */
  setStart(time) {
    this.generatedStart = new Date(time).toISOString();
    this.start.control.value = this.generatedStart;
  }

  dropGeneratedStart() {
    if (this.isForecast && this.generatedStart !== null && this.start.control.value === this.generatedStart) this.start.control.value = "";
    this.generatedStart = null;
  }

  /** Returns path and body of the request, and a function that gives the time of each step, or null; throws SeriesError. */
  request() {
    const { facts } = this;
    const future = (this.futures ?? []).map(([name]) => name);
    const statics = (this.statics ?? []).map(([name]) => name);
    const stamps = facts.preprocessing?.stamps ?? null;
    const read = readSeries(this.text.control.value, { features: this.names, future, statics, stamps });
    const options = {};
    const dt = this.shownExample()?.dt ?? null;
    const body = (input) => ({ model: `${this.name}:${this.version}`, inputs: [dt === null ? input : { ...input, dt }], options });
    if (!this.isForecast) {
      const topK = numberIn(this.topK.control);
      if (topK !== null) options.top_k = topK;
      const { times } = read;
      return { path: "v1/timeseries/classify", body: body({ series: read.values }), timeOf: times === null ? null : (step) => times[step - 1] ?? times.at(-1) };
    }
    const horizon = numberIn(this.horizon.control);
    if (horizon !== null) options.horizon = horizon;
    const frequency = this.frequency.control.value.trim() || facts.frequency;
    const { values, times } = onGrid(read, frequency);
    if (times !== null && facts.frequency !== null) this.setStart(times[0]);
    const start = this.start.control.value.trim();
    if (start === "" && facts.calendar !== null) {
      const periods = facts.calendar.map(({ name }) => name).join(" and the ");
      throw new SeriesError(`The model needs the position of each step in the ${periods}: enter the time of the first value, or paste a table with a column ds of times.`);
    }
    const input = { series: values };
    if (start !== "") input.start_timestamp = start;
    // Without a frequency, the server uses the model's own, which keeps the day of the month.
    if (this.frequency.control.value.trim() !== (facts.frequency ?? "")) input.frequency = frequency;
    const staticValues = this.statics.map(([name, formField]) => [name, numberIn(formField.control) ?? read.statics[name] ?? null]).filter(([, value]) => value !== null);
    if (staticValues.length > 0) input.static = Object.fromEntries(staticValues);
    const ahead = this.futures.map(([name, formField]) => {
      const text = formField.control.value.trim();
      return [name, text === "" ? read.future[name]?.slice(0, facts.horizon) : parseSeries(text, [name]).values];
    });
    const futureValues = ahead.filter(([, numbers]) => numbers !== undefined);
    if (futureValues.length > 0) input.future = Object.fromEntries(futureValues);
    // A model that was trained without a frequency cannot count steps from a time.
    this.unusedTimes = times !== null && facts.frequency === null;
    const first = parseTime(start);
    const hasTimes = first !== null && advance(first, 1, frequency) !== null;
    return { path: "v1/timeseries/forecast", body: body(input), timeOf: hasTimes ? (step) => advance(first, step - 1, frequency) : null };
  }

  submit(event) {
    event.preventDefault();
    this.answer();
  }

  async answer() {
    if (this.button.disabled) return;
    this.problem.clear();
    this.button.disabled = true;
    this.element.setAttribute("aria-busy", "true");
    try {
      const { path, body, timeOf } = this.request();
      const started = performance.now();
      const answer = await postJson(path, body);
      this.show(body.inputs[0].series, timeOf, answer, performance.now() - started);
    } catch (error) {
      this.summary.textContent = "";
      this.figure.hidden = true;
      this.problem.show(error);
    } finally {
      this.button.disabled = false;
      this.element.removeAttribute("aria-busy");
    }
  }

  show(values, timeOf, answer, elapsed) {
    const content = answer.outputs[0].content[0];
    const columns = this.names.map((_, index) => values.map((row) => (Array.isArray(row) ? row[index] : row) ?? null));
    const outside = answer.states_outside_ball ?? [];
    const warning = outside.length > 0 ? ` Beyond the certified bound: ${outside.join(", ")}.` : "";
    const sentence = this.isForecast ? this.showForecast(columns, timeOf, content) : this.showClasses(columns, timeOf, content);
    const example = this.shownExample();
    const origin = example === null ? "" : `A sample of the ${example.split} split. `;
    const truth = example?.label === undefined ? "" : ` It is of class ${example.label}.`;
    this.summary.textContent = `${origin}${sentence}${truth} Version ${answer.model_version}, ${number(elapsed, 3)} ms round trip.${warning}`;
    this.figure.hidden = false;
  }

  showClasses(columns, timeOf, content) {
    const plot = new Plots();
    const bars = new Bars("Classes by probability");
    const pairs = Object.entries(content.probabilities).sort((a, b) => b[1] - a[1]);
    const steps = columns[0].length;
    const lines = columns.slice(0, 6).map((column, index) => ({ name: this.names[index], values: column, start: 1, kind: `series-${index}` }));
    bars.draw(pairs);
    this.figure.replaceChildren(
      bars.element,
      plot.element,
      numbers("Probabilities as a table", ["Class", "Probability"], pairs.map(([label, share]) => [label, share])),
      numbers("Series as a table", ["Step", ...this.names], columns[0].map((_, step) => [String(step + 1), ...columns.map((column) => column[step] ?? "missing")])),
    );
    plot.draw({ label: `The series of ${count(steps, "step")} that was classified.`, xLabel: timeOf === null ? "step" : "time (UTC)", yLabel: lines.map(({ name }) => name).join(", "), lines, timeOf });
    return `Class ${content.label}, with a probability of ${percent(content.probabilities[content.label])}.`;
  }

  showForecast(columns, timeOf, content) {
    const targets = content.targets.map((target, index) => forecastOf(target, index, content, columns[this.names.indexOf(target)] ?? []));
    const actual = this.shownExample()?.actual ?? [];
    const actualLine = (target) => {
      const values = (actual[targets.indexOf(target)] ?? []).slice(0, target.mean.length);
      return values.length === 0 ? [] : [{ name: "what followed", values, start: target.observed.length + 1, kind: "actual" }];
    };
    const plot = new Plot();
    const draw = (target) =>
      plot.draw({
        label: `${target.name}: ${count(target.observed.length, "observed step")} and the forecast of ${count(target.mean.length, "step")}, from ${number(target.mean[0])} to ${number(target.mean.at(-1))}.`,
        xLabel: timeOf === null ? `step${content.frequency ? ` (${content.frequency})` : ""}` : `time (UTC), steps of ${content.frequency}`,
        yLabel: target.name,
        divider: target.observed.length + 0.5,
        lines: [
          { name: "observed", values: target.observed, start: 1, kind: "observed" },
          ...actualLine(target),
          { name: "forecast", values: target.mean, start: target.observed.length + 1, kind: "forecast" },
        ],
        bands: target.bands,
        timeOf,
      });
    const parts = [plot.element];
    if (targets.length > 1) {
      const picker = field("Show", choice(targets.map(({ name }, index) => [String(index), name])));
      picker.control.addEventListener("change", () => draw(targets[Number(picker.control.value)]));
      parts.unshift(picker.element);
    }
    const times = timeOf === null ? null : targets[0].mean.map((_, step) => timeOf(targets[0].observed.length + step + 1));
    const heads = ["Step ahead", ...(times === null ? [] : ["Time (UTC)"]), ...targets.flatMap(({ name, levels }) => [name, ...levels.map(([level]) => `${name}, ${level}`)])];
    const rows = targets[0].mean.map((_, step) => [
      `+${step + 1}`,
      ...(times === null ? [] : [timeText(times[step], areDays(times))]),
      ...targets.flatMap(({ mean, levels }) => [mean[step], ...levels.map(([, values]) => values[step])]),
    ]);
    this.figure.replaceChildren(...parts, numbers("Forecast as a table", heads, rows));
    draw(targets[0]);
    const from = content.start_timestamp === null ? "" : ` from ${content.start_timestamp}`;
    const unused = this.unusedTimes ? " The times of the rows were not used: the model was trained without a frequency." : "";
    return `Forecast of ${count(targets[0].mean.length, "step")}${from}, based on the last ${count(content.context_used, "step")}.${unused}`;
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

/** Returns the rows as steps of a frequency: a missing row becomes a step without values, as in `predict`.
 *
 * Without times, or if the frequency is not one of the calendar, rows are steps.
 */
function onGrid({ values, times }, frequency) {
  if (times === null) return { values, times };
  const late = times.findIndex((time, index) => index > 0 && time <= times[index - 1]);
  if (late > 0) throw new SeriesError(`The times of the rows must ascend, got ${timeText(times[late])} after ${timeText(times[late - 1])}. Sort the rows, and paste one series at a time.`);
  if (advance(times[0], 1, frequency) === null) return { values, times };
  const positions = times.map((time) => stepsBetween(times[0], time, frequency));
  const offGrid = positions.indexOf(null);
  if (offGrid >= 0) throw new SeriesError(`The model takes steps of ${frequency}, but ${timeText(times[offGrid])} is not a whole number of steps after ${timeText(times[0])}.`);
  const steps = positions.at(-1) + 1;
  if (steps > MAX_STEPS) throw new SeriesError(`The times of the rows span ${steps} steps of ${frequency}; the page takes at most ${MAX_STEPS}.`);
  const empty = Array.isArray(values[0]) ? values[0].map(() => null) : null;
  const filled = Array.from({ length: steps }, () => empty);
  positions.forEach((index, row) => (filled[index] = values[row]));
  return { values: filled, times };
}

/** One target of an answer, with bands between the quantiles that belong together. */
function forecastOf(name, index, content, observed) {
  const column = (values) => values.map((value) => (Array.isArray(value) ? value[index] : value));
  const levels = Object.entries(content.quantiles).map(([level, values]) => [level, column(values)]);
  levels.sort((a, b) => Number(a[0]) - Number(b[0]));
  return { name, observed, mean: column(content.mean_forecast), levels, bands: bandsOf(levels, observed.length + 1) };
}

/** Bands from the outermost pair of quantiles inwards. */
export function bandsOf(levels, start, noun = "quantiles") {
  return Array.from({ length: Math.floor(levels.length / 2) }, (_, index) => {
    const [[low, lower], [high, upper]] = [levels[index], levels[levels.length - 1 - index]];
    return { name: `${noun} ${low} to ${high}`, lower, upper, start, kind: "quantiles" };
  });
}

function numbers(title, heads, rows) {
  const more = rows.length > MAX_TABLE_ROWS ? el("p", { class: "note" }, `The first ${MAX_TABLE_ROWS} of ${rows.length} rows.`) : null;
  return fold(title, more, table(title, heads, rows.slice(0, MAX_TABLE_ROWS)));
}
