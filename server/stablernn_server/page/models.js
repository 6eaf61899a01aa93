// The list of models, served or only in the repository, with a search over it; and the page of one version, with its stability
// certificate in words and numbers.

import { getJson, modelPath, send } from "./api.js";
import { attemptView } from "./attempt.js";
import { byId, copyButton, count, el, factList, fold, number, Problem, some, table, upperBound } from "./dom.js";
import { LoadView, metricsView } from "./figures.js";
import { observedFeatures } from "./series.js";
import { Stream } from "./stream.js";

/** Reads names and versions, from the repository index if the server has one, else from the list of served names. */
export async function readModels() {
  const index = await getJson("v2/repository/index", { body: {} }).catch(async (error) => {
    if (![404, 405].includes(error.status)) throw error;
    return (await getJson("v1/timeseries/models")).map((name) => ({ name }));
  });
  const models = new Map();
  for (const { name, version = null, state = "READY", reason = "" } of index) {
    if (!models.has(name)) models.set(name, { name, versions: [] });
    models.get(name).versions.push({ version, state, reason });
  }
  return [...models.values()].sort((a, b) => a.name.localeCompare(b.name));
}

/** Returns whether a version of a model is served, or the one that is asked for. */
export function isServed({ versions }, version = null) {
  return versions.some((entry) => entry.state === "READY" && (version === null || entry.version === null || entry.version === version));
}

/** The part of the address that names a model, or one of its versions. */
export function hashOf(name, version = null) {
  return `#/${encodeURIComponent(name)}${version === null ? "" : `/${version}`}`;
}

/** Draws the list, and requests the details of a model when its row first becomes visible. */
export class ModelList {
  constructor() {
    this.list = byId("model-list");
    this.search = byId("model-search");
    this.rows = new Map();
    this.search.oninput = () => this.filter();
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
      const detail = el("span.detail", isServed(model) ? "…" : "not loaded");
      const kind = el("span.kind", { hidden: true });
      const link = el("a", { href: hashOf(model.name) }, el("span.name", model.name), detail, kind);
      const item = el("li", { "data-model": model.name }, link);
      // `facts` are words that a search finds; null before they were requested.
      this.rows.set(model.name, { item, link, detail, kind, facts: null });
      if (isServed(model)) this.observer.observe(item);
    }
    this.list.replaceChildren(...[...this.rows.values()].map(({ item }) => item));
    this.filter();
  }

  async describe(name) {
    const row = this.rows.get(name);
    if (row.facts !== null) return;
    row.facts = "";
    try {
      const { versions, parameters } = await getJson(modelPath(name), { quiet: true });
      const { task, cell, certificate, aliases } = parameters;
      row.detail.textContent = [task, cell, ...(versions.length > 1 ? [count(versions.length, "version")] : [])].join(" · ");
      row.kind.replaceWith((row.kind = kindBadge(certificate)));
      row.facts = [task, cell, row.kind.textContent, ...aliases].join(" ");
    } catch (error) {
      row.detail.textContent = error.message;
    }
  }

  /** Shows the models whose name, task, cell, certificate or alias contains every word of the search. */
  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/);
    for (const [name, { item, facts }] of this.rows) {
      const text = `${name} ${facts ?? ""}`.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
    }
    const shown = [...this.rows.values()].filter(({ item }) => !item.hidden).length;
    const all = this.rows.size;
    byId("model-count").textContent = (shown === all ? "" : `${shown} of `) + count(all, "model");
  }

  mark(name) {
    for (const [rowName, { link }] of this.rows) link.ariaCurrent = rowName === name ? "page" : null;
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
    const { version, certificate, state_guard: guard } = facts;
    const load = new LoadView();
    const stream = new Stream(name, version, facts);
    const unloaded = others.filter((entry) => entry.version !== null && !versions.includes(entry.version));
    this.refresh = (current) => load.show(current, name, version);
    this.stop = () => stream.stop("");
    this.element = articleOf(
      name,
      el("ul.versions", { "aria-label": "Versions" }, versionItems(name, versions, facts), unloadedItems(name, unloaded, loaded)),
      el("p.lead", sentence(facts)),
      section("Try it", attemptView(name, version, facts)),
      section("Live stream", facts.resample_steps == null ? stream.element : el("p.note", NO_STREAMS)),
      el("div.two", section("Stability certificate", certificateView(certificate, guard)), section("Now", load.element)),
      section("Metrics", metricsView(facts.metrics)),
      factsView(facts),
    );
  }
}

/** The page of a model of the repository of which no version, or not the `requested` one, is loaded. */
export function unloadedView(name, requested, versions, loaded) {
  const entries = versions.filter(({ version }) => requested === null || version === requested);
  return articleOf(
    requested === null ? name : `${name}, version ${requested}`,
    null,
    el("p.lead", "In the repository, but not loaded: the server does not serve it yet."),
    el("ul.versions", { "aria-label": "Versions that are not loaded" }, unloadedItems(name, entries, loaded)),
  );
}

function articleOf(title, beside, ...content) {
  return el("article", el("header.title", el("h2", { id: "model-title", tabIndex: -1 }, title), beside), content);
}

function section(title, content) {
  const id = `section-${title.toLowerCase().replaceAll(" ", "-")}`;
  return el("section.card", { "aria-labelledby": id }, el("h3", { id }, title), content);
}

/** The newest of the versions that are not loaded, each with a button, and the number of older ones. */
function unloadedItems(name, versions, loaded) {
  const entries = versions.filter(({ state }) => state !== "READY").sort((a, b) => Number(b.version) - Number(a.version));
  const items = entries.slice(0, MAX_VERSIONS).map(({ version, reason }) => {
    const problem = new Problem();
    const label = version === null ? "Load" : `Load version ${version}`;
    const onclick = async () => {
      button.disabled = true;
      button.textContent = "Loading…";
      const path = `v2/repository/models/${encodeURIComponent(version === null ? name : `${name}:${version}`)}/load`;
      const isLoaded = await problem.during(() => send(path, { body: {} }));
      button.disabled = false;
      button.textContent = label;
      if (isLoaded) await loaded(version);
    };
    const button = el("button", { type: "button", onclick }, label);
    return el("li.note", button, reason && reason !== "not loaded" ? ` ${reason}` : null, problem.element);
  });
  const older = entries.length - items.length;
  return older === 0 ? items : [...items, el("li.note", `and ${count(older, "older version")}`)];
}

function versionItems(name, versions, { version: current, aliases }) {
  const marks = (names) => names.map((alias) => el("span.alias", `@${alias}`));
  return versions.map((version) => {
    const isCurrent = version === current;
    const item = el("li", el("a", { href: hashOf(name, version), "aria-current": isCurrent ? "true" : null }, `version ${version}`), isCurrent ? marks(aliases) : null);
    if (!isCurrent && versions.length <= MAX_VERSIONS) {
      getJson(modelPath(name, version), { quiet: true }).then(
        ({ parameters }) => item.append(...marks(parameters.aliases)),
        // Without its aliases, a version is still listed.
        () => {},
      );
    }
    return item;
  });
}

function sentence({ task, labels, targets, horizon, frequency, output, ...facts }) {
  // The server computes the features of the calendar.
  const features = observedFeatures(facts);
  const inputs = features.length === 1 ? `a series of ${features[0]}` : `series of ${count(features.length, "feature")}`;
  if (task === "classify") return `Classifies ${inputs} into ${count(labels.length, "class", "classes")}: ${some(labels, 10)}.`;
  if (task === "forecast") return `Forecasts ${some(targets)} for ${count(horizon, "step")}${frequency ? ` (${frequency})` : ""} ahead from ${inputs}.`;
  const prediction = { bernoulli: "which are on among", real: "the next values of" }[output] ?? "the next of";
  return `Predicts at every step ${prediction} ${some(labels ?? targets ?? [])}.`;
}

function factsView({ task, cell, features, context_length: context, quantiles, device, engine, digest }) {
  return factList("dl.facts", [
    ["Task", task],
    ["Cell", cell],
    ["Features", some(features, 8)],
    ["Context", context && count(context, "step")],
    ["Quantiles", quantiles && quantiles.join(", ")],
    ["Runs on", device === undefined ? null : `${engine}, ${device}`],
    ["Digest", el("dd.digest", el("code", { title: digest }, digest.slice(0, 19)), copyButton("Copy", () => digest))],
  ]);
}

const NO_STREAMS = "This model cannot stream: it resamples each sequence over its whole length, which is known after the last sample only.";

const MEANING = {
  contracting: "Two states under the same input approach each other",
  "non-expansive": "No step increases the distance of two states under the same input.",
  bounded: "No input drives the state beyond its bound; two states under the same input may diverge.",
  none: "No contraction rate and no bound on the states is proved for these weights.",
};

/** The kind of a certificate as a badge. */
function kindBadge(certificate) {
  const isProved = ["contracting", "non-expansive", "bounded"].includes(certificate?.kind);
  return el(isProved ? "span.kind.proved" : "span.kind", kindOf(certificate ?? null));
}

function kindOf(certificate) {
  if (certificate === null) return "no certificate";
  const { kind, cell, stored_kind: stored, state_balls: balls = [] } = certificate;
  // Stored before this kind was withdrawn; the server answers `none` and adds the stored kind.
  if (stored !== undefined) return `${kind} (stored as ${stored}; withdrawn)`;
  if (kind === "none") return "nothing proved";
  // Beside the output, the states of a cell without trained weights are counts and sums.
  const shown = ["rocket", "smoothing"].includes(cell) ? (balls ?? []).slice(0, 1) : (balls ?? []);
  const radii = shown.map(({ radius }) => radius);
  // Another program may have stored a ball without a radius, which could be the largest.
  const isKnown = kind === "bounded" && radii.length > 0 && radii.every((radius) => typeof radius === "number");
  return isKnown ? `bounded within ${upperBound(Math.max(...radii))}` : kind;
}

/** The meaning of the certificate in one or two sentences. */
function certificateSentence({ kind, time, step_rate: stepRate, contraction_rate: rate }) {
  const meaning = MEANING[kind];
  if (meaning === undefined) return `Its certificate is of the kind “${kind}”, which this page does not know.`;
  if (kind !== "contracting") return meaning;
  const isIrregular = time?.steps === "irregular";
  // With several layers, a single step does not always bring states closer.
  const when = isIrregular || stepRate === rate ? "" : " eventually";
  const resampled = typeof time?.resample_steps === "number" ? "step of the resampled sequence" : "step";
  return `${meaning},${when} by a factor of ${upperBound(rate, 6)} per ${isIrregular ? "regular step" : resampled} or faster, whatever the input.`;
}

/** The certificate's section of the page of a model. */
function certificateView(certificate, guard) {
  const known = certificate ?? null;
  const lead = el("p.lead", kindBadge(known), " ", known ? certificateSentence(known) : "No certificate was computed for this version.");
  if (known === null) return lead;
  return [
    lead,
    // Older versions, and those of other programs, have none.
    Array.isArray(known.in_words) ? el("p", known.in_words.join(" ")) : null,
    fold(
      "Figures and conditions",
      factList("dl.facts", certificateFacts(known, guard)),
      conditionsView("What the proof rests on", known.hypotheses ?? []),
      conditionsView("What papers ask for", known.conditions ?? []),
    ),
  ];
}

function certificateFacts({ kind, norm, contraction_rate: rate, state_balls: balls, forgetting, gains, states }, guard) {
  const isNumber = (value) => typeof value === "number";
  const gain = gains?.input_to_output;
  return [
    [
      ["contracting", "non-expansive"].includes(kind) ? "Contraction rate" : "Growth of distances",
      isNumber(rate) ? `${upperBound(rate, 6)} per step${norm ? `, in the norm ${norm}` : ""}` : null,
    ],
    ...(balls ?? []).map(({ state, norm: ballNorm, radius, centre }) => [
      `Bound of ${state}`,
      `${ballNorm} norm at most ${upperBound(radius)}${centre ? ` around ${number(centre)}` : ""}`,
    ]),
    [
      "Initial state of the layers forgotten",
      isNumber(forgetting?.steps) ? `to ${number(100 * forgetting.share)} % within ${count(forgetting.steps, "step")}` : null,
    ],
    ["Input to output of the layers", isNumber(gain) ? `gain at most ${upperBound(gain)}` : null],
    ["Proved for", states?.length ? some(states) : null],
    ["Checked by the server", guard?.states?.length ? `${some(guard.states)}; exceeded ${count(guard.exits, "time")} so far` : null],
  ];
}

function conditionsView(title, conditions) {
  if (conditions.length === 0) return null;
  // Only conditions from papers have a subject, and older versions were stored without it.
  const columns = conditions.some(({ of }) => of !== undefined) ? 5 : 4;
  const rows = conditions.map(({ name, value, bound, holds, of = "" }) => [name, value, bound, el(holds ? "span.holds" : "span.fails", holds ? "✓ yes" : "✗ no"), of].slice(0, columns));
  return fold(title, table(title, ["Condition", "Value", "At most", "Holds", "Applies to"].slice(0, columns), rows));
}
