// "Try it": a stored, pasted or generated series, its request, and the response as a plot and as a table.

import { address, getJson, modelPath } from "./api.js";
import { advance, areDays, firstOf2024, parseTime, stepsBetween, timeText } from "./calendar.js";
import { choiceField, copyButton, count, el, Failure, field, fold, inputField, instead, number, percent, Problem, table } from "./dom.js";
import { Bars } from "./figures.js";
import { featureLines, Plot, Plots, withForecast } from "./plot.js";
import { generator, observedFeatures, readSeries, scalesOf, seriesText, SHAPES } from "./series.js";

const MAX_TABLE_ROWS = 1000;
const MAX_STEPS = 100_000;
const MAX_FILE_BYTES = 5_000_000;

/** The section for one version; `facts` are the parameters of its metadata. */
export function attemptView(name, version, facts) {
  if (facts.task !== "predict-next") return new Attempt(name, version, facts).form;
  const path = el("code", `POST /${modelPath(name, version)}/infer`);
  return el("p.note", "This model answers at every step: see the live stream below, or send it whole sequences with ", path, ".");
}

class Attempt {
  constructor(name, version, facts) {
    Object.assign(this, { name, version, facts, names: observedFeatures(facts), example: null, generatedStart: null, seed: 0 });
    this.isForecast = facts.task === "forecast";
    this.statics = this.isForecast ? (facts.static ?? []) : [];
    this.futures = this.isForecast ? (facts.future ?? []).filter((each) => this.names.includes(each)) : [];
    this.problem = new Problem();
    this.summary = el("p.lead", { role: "status" });
    this.figure = el("div.figure", { hidden: true });
    this.button = el("button.primary", { type: "submit" }, this.isForecast ? "Forecast" : "Classify");
    const lines = this.names.length > 1 ? `one line for each step: ${this.names.join(", ")}` : "numbers in any lines";
    const hint = `JSON, CSV, or ${lines}. null, NaN or an empty cell is a missing value. A column ds holds the time of each row. A file may be dropped here.`;
    // The time that was filled in for one series is wrong for the next.
    const text = el("textarea", { name: "series", rows: 7, spellcheck: false, autocomplete: "off", oninput: () => this.dropGeneratedStart() });
    const file = { type: "file", accept: ".csv,.tsv,.txt,.json", onchange: ({ target }) => this.readFile(target.files[0]) };
    const source = fold("Open a file, or generate a series", el("div.fields", inputField("File", "file", file)), this.generatorFields());
    source.open = !facts.example;
    this.form = el(
      "form.attempt",
      {
        noValidate: true,
        onsubmit: instead(() => this.answer()),
        ondragover: instead(() => {}),
        ondrop: instead(({ dataTransfer }) => this.readFile(dataTransfer.files[0])),
      },
      el(
        "div",
        field(`Series of ${this.names.join(", ")}`, text, hint, "div.field.wide"),
        el("div.fields", this.isForecast ? this.forecastFields() : inputField("Number of classes", "top_k", { type: "number", min: 1, max: facts.labels.length }, "empty: all")),
        el("div.actions", this.button, copyButton("Copy as curl", () => this.curl())),
        source,
      ),
      el("div.answer", this.problem.element, this.summary, this.figure),
    );
    if (facts.example) this.answerExample();
  }

  forecastFields() {
    const { horizon, calendar, frequency } = this.facts;
    const start = calendar === null ? "optional; a column ds fills it in" : "required: the calendar features are computed from it; a column ds fills it in";
    return [
      inputField("Horizon", "horizon", { type: "number", value: horizon, min: 1, max: horizon }, `at most ${horizon}`),
      inputField("Time of the first value", "start", { placeholder: "2024-01-01" }, start),
      inputField("Frequency", "frequency", { value: frequency, placeholder: "D, H, W, 15min" }),
      ...this.statics.map((name) => inputField(name, `static ${name}`, { type: "number", step: "any" }, "does not change")),
      ...this.futures.map((name) => inputField(`${name}, ahead`, `future ${name}`, { placeholder: "0, 0, 1" }, "numbers of the steps ahead")),
    ];
  }

  generatorFields() {
    const steps = Math.min(this.facts.context_length ?? 64, 512);
    return el(
      "div.fields",
      choiceField("Generate", "shape", SHAPES),
      inputField("Steps", "steps", { type: "number", value: steps, min: 1, max: MAX_STEPS }),
      inputField("Period", "period", { type: "number", value: Math.max(2, Math.round(steps / 4)), min: 2 }),
      el("div.field.end", el("button", { type: "button", onclick: () => this.generate(steps) }, "Fill in")),
    );
  }

  generate(steps) {
    const { calendar, frequency } = this.facts;
    this.seed += 1;
    const next = generator({ kind: this.text("shape"), scales: scalesOf(this.facts), period: this.number("period") ?? 24, seed: this.seed });
    this.control("series").value = seriesText(Array.from({ length: Math.min(MAX_STEPS, Math.max(1, this.number("steps") ?? steps)) }, next));
    this.dropGeneratedStart();
    if (this.isForecast && calendar !== null && this.text("start") === "") this.setStart(firstOf2024(frequency));
  }

  control(name) {
    return this.form.elements.namedItem(name);
  }

  text(name) {
    return this.control(name).value.trim();
  }

  /** The number in a field, or undefined when it is empty. */
  number(name) {
    const text = this.text(name);
    return text === "" ? undefined : Number(text);
  }

  /** Fills in the sample that the version stores, and answers it; does nothing if the user was faster. */
  async answerExample() {
    const example = await getJson(`${modelPath(this.name, this.version)}/example`, { quiet: true }).catch(() => null);
    const series = this.control("series");
    if (example === null || series.value !== "") return;
    const { series: values, dt, start_timestamp: start, static: constants = {}, future = {} } = example.input;
    series.value = seriesText(values.map((value) => [value].flat()));
    this.example = { ...example, dt, text: series.value };
    if (this.isForecast && start) this.setStart(start);
    for (const name of this.statics) this.control(`static ${name}`).value = constants[name] ?? "";
    for (const name of this.futures) this.control(`future ${name}`).value = (future[name] ?? []).map((value) => value ?? "NaN").join(", ");
    await this.answer();
  }

  /** Returns the stored sample, as long as it stands in the form; else null. */
  shownExample() {
    return this.example?.text === this.control("series").value ? this.example : null;
  }

  async readFile(file) {
    if (file === undefined) return;
    if (file.size > MAX_FILE_BYTES) {
      const [size, most] = [file.size, MAX_FILE_BYTES].map((bytes) => count(bytes, "byte"));
      this.problem.show(new Failure(`${file.name} has ${size}; the page reads files of at most ${most}. Use stablernn predict for larger ones.`));
      return;
    }
    this.control("series").value = await file.text();
    this.dropGeneratedStart();
    await this.answer();
  }

  /** Puts a time into the form that the user did not type. */
  setStart(time) {
    this.generatedStart = new Date(time).toISOString();
    this.control("start").value = this.generatedStart;
  }

  dropGeneratedStart() {
    const start = this.control("start");
    if (start?.value === this.generatedStart) start.value = "";
    this.generatedStart = null;
  }

  /** Returns path and body of the request, and a function that gives the time of each step, or null; throws Failure. */
  request() {
    const { facts, names, futures, statics } = this;
    const read = readSeries(this.control("series").value, { features: names, future: futures, statics, stamps: facts.preprocessing?.stamps });
    const { input, options, timeOf, note = "" } = this.isForecast ? this.forecastRequest(read) : this.classifyRequest(read);
    const dt = this.shownExample()?.dt ?? undefined;
    const body = { model: `${this.name}:${this.version}`, inputs: [{ ...input, dt }], options };
    return { path: `v1/timeseries/${this.isForecast ? "forecast" : "classify"}`, body, timeOf, note };
  }

  classifyRequest({ values, times }) {
    return { input: { series: values }, options: { top_k: this.number("top_k") }, timeOf: times && ((step) => times[step - 1] ?? times.at(-1)) };
  }

  forecastRequest(read) {
    const { facts } = this;
    const typed = this.text("frequency");
    const frequency = typed || facts.frequency;
    const { values, times } = onGrid(read, frequency);
    if (times !== null && facts.frequency !== null) this.setStart(times[0]);
    const start = this.text("start");
    if (start === "" && facts.calendar !== null) {
      const periods = facts.calendar.map(({ name }) => name).join(" and the ");
      throw new Failure(`The model needs the position of each step in the ${periods}: enter the time of the first value, or paste a table with a column ds of times.`);
    }
    const ahead = (name) => {
      const text = this.text(`future ${name}`);
      return text === "" ? read.future[name]?.slice(0, facts.horizon) : readSeries(text, { features: [name] }).values;
    };
    const input = {
      series: values,
      start_timestamp: start || undefined,
      // Without a frequency, the server uses the model's own, which keeps the day of the month.
      frequency: typed === (facts.frequency ?? "") ? undefined : frequency,
      static: given(this.statics, (name) => this.number(`static ${name}`) ?? read.statics[name]),
      future: given(this.futures, ahead),
    };
    const first = parseTime(start);
    const hasTimes = first !== null && advance(first, 1, frequency) !== null;
    return {
      input,
      options: { horizon: this.number("horizon") },
      timeOf: hasTimes ? (step) => advance(first, step - 1, frequency) : null,
      // A model that was trained without a frequency cannot count steps from a time.
      note: times !== null && facts.frequency === null ? " The times of the rows were not used: the model was trained without a frequency." : "",
    };
  }

  async answer() {
    if (this.button.disabled) return;
    this.button.disabled = true;
    this.form.ariaBusy = "true";
    const isAnswered = await this.problem.during(async () => {
      const request = this.request();
      const started = performance.now();
      const answer = await getJson(request.path, { body: request.body });
      this.show(request, answer, performance.now() - started);
    });
    if (!isAnswered) this.summary.textContent = "";
    this.figure.hidden = !isAnswered;
    this.button.disabled = false;
    this.form.ariaBusy = null;
  }

  show({ body, timeOf, note }, answer, elapsed) {
    const rows = body.inputs[0].series.map((value) => [value].flat());
    const content = answer.outputs[0].content[0];
    const sentence = this.isForecast ? this.showForecast(rows, timeOf, content) + note : this.showClasses(rows, timeOf, content);
    const { split, label } = this.shownExample() ?? {};
    const outside = answer.states_outside_ball ?? [];
    this.summary.textContent = [
      split === undefined ? "" : `A sample of the ${split} split. `,
      sentence,
      label === undefined ? "" : ` It is of class ${label}.`,
      ` Version ${answer.model_version}, ${number(elapsed, 3)} ms round trip.`,
      outside.length > 0 ? ` Beyond the certified bound: ${outside.join(", ")}.` : "",
    ].join("");
  }

  showClasses(rows, timeOf, { label, probabilities }) {
    const plot = new Plots();
    const bars = new Bars("Classes by probability");
    const pairs = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
    bars.draw(pairs);
    this.figure.replaceChildren(
      bars.element,
      plot.element,
      numbers("Probabilities as a table", ["Class", "Probability"], pairs),
      numbers("Series as a table", ["Step", ...this.names], rows.map((row, step) => [String(step + 1), ...this.names.map((_, index) => row[index] ?? "missing")])),
    );
    plot.draw({ label: `The series of ${count(rows.length, "step")} that was classified.`, xLabel: timeOf === null ? "step" : "time (UTC)", lines: featureLines(this.names, rows, 1), timeOf });
    return `Class ${label}, with a probability of ${percent(probabilities[label])}.`;
  }

  showForecast(rows, timeOf, content) {
    const { frequency, start_timestamp: from, context_used: used } = content;
    const targets = this.targetsOf(rows, content);
    const steps = count(targets[0].mean.length, "step");
    const plot = new Plot();
    const draw = ({ name, observed, mean, levels, followed }) =>
      plot.draw({
        label: `${name}: ${count(rows.length, "observed step")} and the forecast of ${steps}, from ${number(mean[0])} to ${number(mean.at(-1))}.`,
        xLabel: timeOf === null ? `step${frequency ? ` (${frequency})` : ""}` : `time (UTC), steps of ${frequency}`,
        yLabel: name,
        ...withForecast([{ name: "observed", values: observed, start: 1, kind: "observed" }], { mean, levels }, followed),
        timeOf,
      });
    const picker = choiceField("Show", "target", targets.map(({ name }, index) => [index, name]));
    picker.onchange = ({ target }) => draw(targets[target.value]);
    this.figure.replaceChildren(...(targets.length > 1 ? [picker] : []), plot.element, forecastTable(targets, timeOf));
    draw(targets[0]);
    return `Forecast of ${steps}${from === null ? "" : ` from ${from}`}, based on the last ${count(used, "step")}.`;
  }

  /** The targets of an answer, each with its name and its values: observed, forecast, and what followed in a stored sample. */
  targetsOf(rows, { targets, mean_forecast: mean, quantiles }) {
    const actual = this.shownExample()?.actual ?? [];
    const levels = Object.entries(quantiles).sort((a, b) => Number(a[0]) - Number(b[0]));
    return targets.map((name, index) => {
      const column = (values) => values.map((value) => [value].flat()[index]);
      return {
        name,
        observed: rows.map((row) => row[this.names.indexOf(name)] ?? null),
        mean: column(mean),
        levels: levels.map(([level, values]) => [level, column(values)]),
        followed: actual[index],
      };
    });
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

/** The values of some names by name, without those that are missing; undefined if there are none. */
function given(names, valueOf) {
  const pairs = names.map((name) => [name, valueOf(name)]).filter(([, value]) => value !== undefined);
  return pairs.length > 0 ? Object.fromEntries(pairs) : undefined;
}

/** Returns the rows as steps of a frequency: a missing row becomes a step without values, as in `predict`.
 *
 * Without times, or if the frequency is not one of the calendar, rows are steps.
 */
function onGrid({ values, times }, frequency) {
  if (times === null) return { values, times };
  const late = times.findIndex((time, index) => time <= times[index - 1]);
  if (late > 0) throw new Failure(`The times of the rows must ascend, got ${timeText(times[late])} after ${timeText(times[late - 1])}. Sort the rows, and paste one series at a time.`);
  if (advance(times[0], 1, frequency) === null) return { values, times };
  const positions = times.map((time) => stepsBetween(times[0], time, frequency));
  const offGrid = positions.indexOf(null);
  if (offGrid >= 0) throw new Failure(`The model takes steps of ${frequency}, but ${timeText(times[offGrid])} is not a whole number of steps after ${timeText(times[0])}.`);
  const steps = positions.at(-1) + 1;
  if (steps > MAX_STEPS) throw new Failure(`The times of the rows span ${steps} steps of ${frequency}; the page takes at most ${MAX_STEPS}.`);
  const filled = Array(steps).fill(Array.isArray(values[0]) ? values[0].map(() => null) : null);
  positions.forEach((index, row) => (filled[index] = values[row]));
  return { values: filled, times };
}

function forecastTable(targets, timeOf) {
  const [{ mean, observed }] = targets;
  const times = timeOf && mean.map((_, step) => timeOf(observed.length + 1 + step));
  const columns = targets.flatMap(({ name, mean: values, levels }) => [[name, values], ...levels.map(([level, numbers]) => [`${name}, ${level}`, numbers])]);
  if (times) columns.unshift(["Time (UTC)", times.map((time) => timeText(time, areDays(times)))]);
  const rows = mean.map((_, step) => [`+${step + 1}`, ...columns.map(([, values]) => values[step])]);
  return numbers("Forecast as a table", ["Step ahead", ...columns.map(([head]) => head)], rows);
}

function numbers(title, heads, rows) {
  const more = rows.length > MAX_TABLE_ROWS ? el("p.note", `The first ${MAX_TABLE_ROWS} of ${rows.length} rows.`) : null;
  return fold(title, more, table(title, heads, rows.slice(0, MAX_TABLE_ROWS)));
}
