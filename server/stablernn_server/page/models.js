// The list of models, served or only in the repository, and a search over it.

import { ApiError, getJson, modelPath, post, postJson } from "./api.js";
import { isProved, kindOf } from "./certificate.js";
import { byId, count, el } from "./dom.js";

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
export async function loadVersion(name, version) {
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
