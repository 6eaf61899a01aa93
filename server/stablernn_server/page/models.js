// The list of models, served or only in the repository, with a search over it; and the page of one version, with its stability
// certificate in words and numbers.

import { ApiError, getJson, modelPath, post, postJson } from "./api.js";
import { attemptView } from "./attempt.js";
import { byId, copyButton, count, el, factList, fold, number, observedFeatures, Problem, some, table, upperBound } from "./dom.js";
import { LoadView, metricsView } from "./figures.js";
import { Stream } from "./stream.js";

/** Reads names and versions, from the repository index if the server has one, else from the list of served names. */
export async function readModels() {
  let index;
  try {
    index = await postJson("v2/repository/index", {});
  } catch (error) {
    if (!(error instanceof ApiError) || ![404, 405].includes(error.status)) throw error;
    const names = await getJson("v1/timeseries/models");
    index = names.map((name) => ({ name, version: null, state: "READY", reason: "" }));
  }
  const models = new Map();
  for (const { name, version = null, state = "READY", reason = "" } of index) {
    if (!models.has(name)) models.set(name, { name, versions: [] });
    models.get(name).versions.push({ version, state, reason });
  }
  return [...models.values()].sort((a, b) => a.name.localeCompare(b.name));
}

export function isServed({ versions }) {
  return versions.some(({ state }) => state === "READY");
}

/** Returns whether the address of a model shows a served version: the one in the address, or any if it has none. */
export function isShown({ versions }, version) {
  return versions.some((entry) => entry.state === "READY" && (version === null || entry.version === null || entry.version === version));
}

/** Makes the server load a version of its repository. */
async function loadVersion(name, version) {
  await post(`v2/repository/models/${encodeURIComponent(version === null ? name : `${name}:${version}`)}/load`);
}

/** Draws the list, and requests the details of a model when its row first becomes visible. */
export class ModelList {
  constructor() {
    this.list = byId("model-list");
    this.search = byId("model-search");
    this.status = byId("model-count");
    this.rows = new Map();
    this.facts = new Map();
    this.search.addEventListener("input", () => this.filter());
    this.observer = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting) this.describe(target.dataset.model);
      }
    });
  }

  draw(models) {
    this.observer.disconnect();
    this.rows.clear();
    for (const model of models) {
      const detail = el("span", { class: "detail" }, isServed(model) ? "…" : "not loaded");
      const kind = el("span", { class: "kind", hidden: true });
      const link = el("a", { href: `#/${encodeURIComponent(model.name)}` }, el("span", { class: "name" }, model.name), detail, kind);
      const item = el("li", {}, link);
      item.dataset.model = model.name;
      this.rows.set(model.name, { item, link, detail, kind, served: isServed(model) });
      if (isServed(model)) this.observer.observe(item);
    }
    this.list.replaceChildren(...[...this.rows.values()].map(({ item }) => item));
    this.facts.clear();
    this.filter();
  }

  async describe(name) {
    if (this.facts.has(name)) return;
    const row = this.rows.get(name);
    this.facts.set(name, "");
    try {
      const { versions, parameters } = await getJson(modelPath(name), { quiet: true });
      row.detail.textContent = [parameters.task, parameters.cell, ...(versions.length > 1 ? [count(versions.length, "version")] : [])].join(" · ");
      row.kind.textContent = kindOf(parameters.certificate);
      row.kind.classList.toggle("proved", isProved(parameters.certificate));
      row.kind.hidden = false;
      this.facts.set(name, `${parameters.task} ${parameters.cell} ${row.kind.textContent} ${parameters.aliases.join(" ")}`);
    } catch (error) {
      row.detail.textContent = error.message;
    }
  }

  /** Shows the models whose name, task, cell, certificate or alias contains every word of the search. */
  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const [name, { item }] of this.rows) {
      const text = `${name} ${this.facts.get(name) ?? ""}`.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      shown += item.hidden ? 0 : 1;
    }
    const all = this.rows.size;
    this.status.textContent = shown === all ? count(all, "model") : `${shown} of ${count(all, "model")}`;
  }

  mark(name) {
    for (const [rowName, { link }] of this.rows) {
      if (rowName === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    // Only the list scrolls: the page stays where it is.
    const item = this.rows.get(name)?.item;
    if (item === undefined) return;
    const [box, row] = [this.list.getBoundingClientRect(), item.getBoundingClientRect()];
    if (row.top < box.top || row.bottom > box.bottom) this.list.scrollTop += row.top - box.top - (box.height - row.height) / 2;
  }
}

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
  return factList(pairs, digest);
}

function noStreams() {
  return el("p", { class: "note" }, "This model cannot stream: it resamples each sequence over its whole length, which is known after the last sample only.");
}

const MEANING = {
  contracting: "Two states under the same input approach each other",
  "non-expansive": "No step increases the distance of two states under the same input.",
  bounded: "No input drives the state beyond its bound; two states under the same input may diverge.",
  none: "No contraction rate and no bound on the states is proved for these weights.",
};

/** The kind, short enough for a badge. */
function kindOf(certificate) {
  if (certificate === null || certificate === undefined) return "no certificate";
  // Stored before this kind was withdrawn; the server answers `none` and adds the stored kind.
  if (certificate.stored_kind !== undefined) return `${certificate.kind} (stored as ${certificate.stored_kind}; withdrawn)`;
  if (certificate.kind === "none") return "nothing proved";
  const radius = radiusOf(certificate);
  return certificate.kind === "bounded" && radius !== null ? `bounded within ${upperBound(radius)}` : certificate.kind;
}

/** The radius of the largest ball that a state stays in; null if none is stored. */
function radiusOf(certificate) {
  const radii = (certificate.state_balls ?? []).map((ball) => ball.radius);
  // Another program may have stored a ball without one, which could be the largest.
  return radii.length > 0 && radii.every((radius) => typeof radius === "number") ? Math.max(...radii) : null;
}

function isProved(certificate) {
  return ["contracting", "non-expansive", "bounded"].includes(certificate?.kind);
}

/** The meaning of the certificate in one or two sentences. */
function certificateSentence(certificate) {
  if (certificate === null || certificate === undefined) return "No certificate was computed for this version.";
  const meaning = MEANING[certificate.kind];
  if (meaning === undefined) return `Its certificate is of the kind “${certificate.kind}”, which this page does not know.`;
  if (certificate.kind !== "contracting") return meaning;
  const irregular = certificate.time?.steps === "irregular";
  // With several layers, a single step does not always bring states closer.
  const when = irregular || certificate.step_rate === certificate.contraction_rate ? "" : " eventually";
  const resampled = typeof certificate.time?.resample_steps === "number";
  const time = irregular ? "per regular step" : resampled ? "per step of the resampled sequence" : "per step";
  return `${meaning},${when} by a factor of ${upperBound(certificate.contraction_rate, 6)} ${time} or faster, whatever the input.`;
}

/** The certificate's section of the page of a model. */
function certificateView(certificate, guard) {
  const parts = [el("p", { class: "lead" }, el("span", { class: `kind ${isProved(certificate) ? "proved" : ""}` }, kindOf(certificate)), " ", certificateSentence(certificate))];
  if (certificate === null || certificate === undefined) return parts;
  // Older versions, and those of other programs, have none.
  if (Array.isArray(certificate.in_words)) parts.push(el("p", {}, certificate.in_words.join(" ")));
  const facts = factsOf(certificate, guard);
  const details = [
    factList(facts),
    ...conditionsView("What the proof rests on", certificate.hypotheses ?? []),
    ...conditionsView("What papers ask for", certificate.conditions ?? []),
  ];
  return [...parts, fold("Figures and conditions", details)];
}

function factsOf(certificate, guard) {
  const facts = [];
  const add = (name, value) => facts.push([name, value]);
  const norm = certificate.norm === null || certificate.norm === undefined ? "" : `, in the norm ${certificate.norm}`;
  if (typeof certificate.contraction_rate === "number") {
    const name = ["contracting", "non-expansive"].includes(certificate.kind) ? "Contraction rate" : "Growth of distances";
    add(name, `${upperBound(certificate.contraction_rate, 6)} per step${norm}`);
  }
  for (const ball of certificate.state_balls ?? []) {
    const around = ball.centre ? ` around ${number(ball.centre)}` : "";
    add(`Bound of ${ball.state}`, `${ball.norm} norm at most ${upperBound(ball.radius)}${around}`);
  }
  const settlingSteps = certificate.forgetting?.steps;
  if (typeof settlingSteps === "number") add("Initial state of the layers forgotten", `to ${number(100 * certificate.forgetting.share)} % within ${count(settlingSteps, "step")}`);
  const gain = certificate.gains?.input_to_output;
  if (typeof gain === "number") add("Input to output of the layers", `gain at most ${upperBound(gain)}`);
  if (certificate.states?.length) add("Proved for", some(certificate.states));
  if (guard?.states?.length) add("Checked by the server", `${some(guard.states)}; exceeded ${count(guard.exits, "time")} so far`);
  return facts;
}

function conditionsView(title, conditions) {
  if (conditions.length === 0) return [];
  // Only conditions from papers have a subject, and older versions were stored without it.
  const subjects = conditions.some((condition) => condition.of !== undefined);
  const rows = conditions.map(({ name, value, bound, holds, of }) => [
    name,
    value,
    bound,
    el("span", { class: holds ? "holds" : "fails" }, holds ? "✓ yes" : "✗ no"),
    ...(subjects ? [of ?? ""] : []),
  ]);
  const head = ["Condition", "Value", "At most", "Holds", ...(subjects ? ["Applies to"] : [])];
  return [fold(title, table(title, head, rows))];
}
