// The page of one version of one model.

import { ApiError, getJson, modelPath } from "./api.js";
import { attemptView } from "./attempt.js";
import { certificateView } from "./certificate.js";
import { copyButton, count, el, some } from "./dom.js";
import { observedFeatures, Problem } from "./fields.js";
import { LoadView, metricsView } from "./figures.js";
import { loadVersion } from "./models.js";
import { Stream } from "./stream.js";

// With more versions than this, the aliases of each are not requested.
const MAX_VERSIONS = 12;

/** The view of a version: `element` to show, `refresh(load)` for the current load, and `stop()` before it is removed. */
export class ModelView {
  /** `others` are the versions that the repository holds, as `{version, state, reason}`; `loaded(version)` is called after one was loaded. */
  constructor({ name, versions, parameters: facts }, others, loaded) {
    this.name = name;
    this.version = facts.version;
    this.load = new LoadView();
    this.stream = new Stream(name, facts.version, facts);
    this.element = el(
      "article",
      {},
      el("header", { class: "title" }, el("h2", { id: "model-title", tabIndex: -1 }, name), versionLinks(name, versions, others, facts, loaded)),
      el("p", { class: "lead" }, sentence(facts)),
      section("Try it", attemptView(name, facts.version, facts)),
      section("Live stream", facts.resample_steps == null ? this.stream.element : noStreams()),
      el(
        "div",
        { class: "two" },
        section("Stability certificate", certificateView(facts.certificate, facts.state_guard)),
        section("Now", this.load.element),
      ),
      section("Metrics", metricsView(facts.metrics)),
      factsView(facts),
    );
  }

  refresh(load) {
    this.load.show(load, this.name, this.version);
  }

  stop() {
    this.stream.stop("");
  }
}

function section(title, content) {
  const id = `section-${title.toLowerCase().replaceAll(" ", "-")}`;
  return el("section", { class: "card", "aria-labelledby": id }, el("h3", { id }, title), content);
}

/** The page of a model of the repository of which no version, or not the `requested` one, is loaded. */
export function unloadedView(name, requested, versions, loaded) {
  const entries = versions.filter(({ version, state }) => state !== "READY" && (requested === null || version === requested));
  const title = requested === null ? name : `${name}, version ${requested}`;
  return el(
    "article",
    {},
    el("header", { class: "title" }, el("h2", { id: "model-title", tabIndex: -1 }, title)),
    el("p", { class: "lead" }, "In the repository, but not loaded: the server does not serve it yet."),
    el("ul", { class: "versions", "aria-label": "Versions that are not loaded" }, unloadedItems(name, entries, loaded)),
  );
}

/** The newest versions, each with a button, and the number of older ones. */
function unloadedItems(name, entries, loaded) {
  const newest = [...entries].sort((a, b) => Number(b.version) - Number(a.version)).slice(0, MAX_VERSIONS);
  const older = entries.length - newest.length;
  const items = newest.map(({ version, reason }) => {
    const problem = new Problem();
    const label = version === null ? "Load" : `Load version ${version}`;
    const button = el("button", { type: "button" }, label);
    button.addEventListener("click", async () => {
      problem.clear();
      button.disabled = true;
      button.textContent = "Loading…";
      try {
        await loadVersion(name, version);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        problem.show(error);
        button.disabled = false;
        button.textContent = label;
        return;
      }
      await loaded(version);
    });
    return el("li", { class: "note" }, button, reason && reason !== "not loaded" ? ` ${reason}` : "", problem.element);
  });
  return older === 0 ? items : [...items, el("li", { class: "note" }, `and ${count(older, "older version")}`)];
}

function versionLinks(name, versions, others, facts, loaded) {
  const items = versions.map((version) => {
    const current = version === facts.version;
    const link = el("a", { href: `#/${encodeURIComponent(name)}/${version}`, "aria-current": current ? "true" : null }, `version ${version}`);
    const item = el("li", {}, link);
    if (current) item.append(...marks(facts.aliases));
    else if (versions.length <= MAX_VERSIONS) addMarks(item, name, version);
    return item;
  });
  const closed = others.filter(({ version, state }) => version !== null && state !== "READY" && !versions.includes(version));
  return el("ul", { class: "versions", "aria-label": "Versions" }, items, unloadedItems(name, closed, loaded));
}

function marks(aliases) {
  return aliases.map((alias) => el("span", { class: "alias" }, `@${alias}`));
}

/** Adds the aliases of a version that is not the one shown; none if the request fails. */
async function addMarks(item, name, version) {
  try {
    const { parameters } = await getJson(modelPath(name, version), { quiet: true });
    item.append(...marks(parameters.aliases));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

function sentence(facts) {
  // The server computes the features of the calendar.
  const features = observedFeatures(facts);
  const inputs = features.length === 1 ? `a series of ${features[0]}` : `series of ${count(features.length, "feature")}`;
  if (facts.task === "classify") return `Classifies ${inputs} into ${count(facts.labels.length, "class", "classes")}: ${some(facts.labels, 10)}.`;
  if (facts.task === "forecast") {
    const on = facts.frequency ? ` (${facts.frequency})` : "";
    return `Forecasts ${some(facts.targets)} for ${count(facts.horizon, "step")}${on} ahead from ${inputs}.`;
  }
  const prediction = { categorical: "the next of", bernoulli: "which are on among", real: "the next values of" }[facts.output] ?? "the next of";
  return `Predicts at every step ${prediction} ${some(facts.labels ?? facts.targets ?? [])}.`;
}

function factsView(facts) {
  const pairs = [
    ["Task", facts.task],
    ["Cell", facts.cell],
    ["Features", some(facts.features, 8)],
    ["Context", facts.context_length === null ? null : count(facts.context_length, "step")],
    ["Quantiles", facts.quantiles === null ? null : facts.quantiles.join(", ")],
    ["Runs on", facts.device === undefined ? null : `${facts.engine}, ${facts.device}`],
  ].filter(([, value]) => value !== null);
  const digest = el("div", {}, el("dt", {}, "Digest"), el("dd", { class: "digest" }, el("code", { title: facts.digest }, facts.digest.slice(0, 19)), copyButton("Copy", () => facts.digest)));
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))), digest);
}

function noStreams() {
  return el("p", { class: "note" }, "This model cannot stream: it resamples each sequence over its whole length, which is known after the last sample only.");
}
