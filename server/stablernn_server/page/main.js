// Assembly of the page: the list, the model in the address, and the current load of the server.

import { ApiError, getJson, modelPath, startToken } from "./api.js";
import { byId, el, Problem } from "./dom.js";
import { Load } from "./figures.js";
import { isServed, isShown, ModelList, ModelView, readModels, unloadedView } from "./models.js";

const list = new ModelList();
const problem = new Problem();
const load = new Load((current) => view?.refresh(current));
// null until the list was read for the first time.
let models = null;
let view = null;
let openCount = 0;

/** Returns the name and version in the address: `#/name` or `#/name/version`. */
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
  const main = byId("model");
  const target = route();
  const name = target.name || models.find(isServed)?.name || "";
  const openNumber = ++openCount;
  view?.stop();
  view = null;
  problem.clear();
  list.mark(name);
  if (name === "") {
    const sentence = models.length === 0 ? "No model is served here yet." : "None of the models is loaded.";
    main.replaceChildren(el("div", { class: "empty" }, el("h2", {}, sentence), el("p", {}, "Publish one with ", el("code", {}, "stablernn export"), " and serve it with ", el("code", {}, "stablernn serve"), ".")));
    return;
  }
  const model = models.find((entry) => entry.name === name);
  // Show a version that was just loaded, whatever the address was before.
  const loaded = async (version) => {
    const address = version === null ? `#/${encodeURIComponent(name)}` : `#/${encodeURIComponent(name)}/${version}`;
    history.replaceState(null, "", address);
    await readAll();
  };
  if (model !== undefined && !isShown(model, target.version)) {
    main.replaceChildren(unloadedView(name, target.version, model.versions, loaded));
    document.title = `${name} · stablernn`;
    if (focus) byId("model-title").focus();
    return;
  }
  try {
    const metadata = await getJson(modelPath(name, target.version));
    if (openNumber !== openCount) return;
    view = new ModelView(metadata, model?.versions ?? [], loaded);
    main.replaceChildren(view.element);
    document.title = `${name} · stablernn`;
    view.refresh(load);
    if (focus) byId("model-title").focus();
  } catch (error) {
    if (openNumber !== openCount) return;
    if (!(error instanceof ApiError)) throw error;
    main.replaceChildren(problem.element);
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
  const container = byId("list-problem");
  container.replaceChildren();
  try {
    models = await readModels();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const listProblem = new Problem();
    listProblem.show(error);
    container.replaceChildren(listProblem.element, el("button", { type: "button", onclick: start }, "Try again"));
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
  // The address names the model that is shown: the link must not change it.
  event.preventDefault();
  byId("model").focus();
});
// While the list is read for the first time, `readAll` will open what the address names by then.
addEventListener("hashchange", () => models && open(true));
start();
