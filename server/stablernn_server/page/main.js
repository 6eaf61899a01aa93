// Puts the page together: the list, the model that the address names, and what the server does now.

import { ApiError, getJson } from "./api.js";
import { byId, el } from "./dom.js";
import { Problem } from "./fields.js";
import { Load } from "./load.js";
import { ModelView, unloadedView } from "./model.js";
import { isServed, isShown, ModelList, readModels } from "./models.js";
import { startToken } from "./token.js";

const list = new ModelList();
const problem = new Problem();
const load = new Load((now) => view?.refresh(now));
let models = [];
let view = null;
let asked = 0;

/** The name and version that the address holds: `#/name` or `#/name/version`. */
function route() {
  if (!location.hash.startsWith("#/")) return { name: "", version: null };
  const [name = "", version = null] = location.hash.slice(2).split("/").map(decode);
  return { name, version: version || null };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function open(focus) {
  const place = byId("model");
  const wanted = route();
  const name = wanted.name || models.find(isServed)?.name || "";
  const number = ++asked;
  view?.stop();
  view = null;
  problem.clear();
  list.mark(name);
  if (name === "") {
    const words = models.length === 0 ? "No model is served here yet." : "None of the models is loaded.";
    place.replaceChildren(el("div", { class: "empty" }, el("h2", {}, words), el("p", {}, "Publish one with ", el("code", {}, "stablernn export"), " and serve it with ", el("code", {}, "stablernn serve"), ".")));
    return;
  }
  const model = models.find((entry) => entry.name === name);
  // A version that was just loaded is shown, whichever the address named before.
  const loaded = async (version) => {
    const address = version === null ? `#/${encodeURIComponent(name)}` : `#/${encodeURIComponent(name)}/${version}`;
    history.replaceState(null, "", address);
    await readAll();
  };
  if (model !== undefined && !isShown(model, wanted.version)) {
    place.replaceChildren(unloadedView(name, wanted.version, model.versions, loaded));
    document.title = `${name} · stablernn`;
    if (focus) byId("model-title").focus();
    return;
  }
  try {
    const next = await ModelView.read(name, wanted.version, model?.versions ?? [], loaded);
    if (number !== asked) return;
    view = next;
    place.replaceChildren(view.element);
    document.title = `${name} · stablernn`;
    view.refresh(load);
    if (focus) byId("model-title").focus();
  } catch (error) {
    if (number !== asked) return;
    if (!(error instanceof ApiError)) throw error;
    place.replaceChildren(problem.element);
    problem.show(error);
  }
}

async function showServer() {
  const status = byId("server");
  try {
    const { version } = await getJson("v2");
    byId("server-version").textContent = version;
    await getJson("v2/health/ready", { quiet: true });
    status.className = "server ready";
    status.textContent = "Ready";
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    status.className = "server";
    status.textContent = error.status === 503 ? "Not ready" : "No answer";
  }
}

async function readAll() {
  const place = byId("list-problem");
  place.replaceChildren();
  try {
    models = await readModels();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const wrong = new Problem();
    wrong.show(error);
    place.replaceChildren(wrong.element, el("button", { type: "button", onclick: start }, "Try again"));
    models = [];
    list.draw(models);
    byId("model").replaceChildren();
    return;
  }
  list.draw(models);
  await open(false);
}

async function start() {
  load.pause();
  await Promise.all([showServer(), readAll()]);
  load.start();
}

startToken(start);
byId("reload").addEventListener("click", start);
byId("skip").addEventListener("click", (event) => {
  // The address says which model is shown, so that the link must not change it.
  event.preventDefault();
  byId("model").focus();
});
addEventListener("hashchange", () => open(true));
start();
