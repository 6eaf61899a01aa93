// Assembly of the page: the list, the model in the address, and the current load of the server.

import { getJson, modelPath, startToken } from "./api.js";
import { byId, el, instead, Problem } from "./dom.js";
import { Load } from "./figures.js";
import { hashOf, isServed, ModelList, ModelView, readModels, unloadedView } from "./models.js";

const list = new ModelList();
const load = new Load((current) => view?.refresh(current));
const problem = new Problem();
const listProblem = new Problem();
const retry = el("button", { type: "button", onclick: start }, "Try again");
// null until the list was read for the first time.
let models = null;
let view = null;
let openCount = 0;

/** Returns the name and version in the address: `#/name` or `#/name/version`. */
function route() {
  const [root, name = "", version] = location.hash.split("/").map(decode);
  return root === "#" ? [name, version || null] : ["", null];
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Shows the model in the address, or the first one that is served. */
async function open(isNavigation) {
  const [routeName, version] = route();
  const name = routeName || models.find((model) => isServed(model))?.name;
  openCount += 1;
  const openNumber = openCount;
  view?.stop();
  view = null;
  list.mark(name);
  const isShown = await problem.during(async () => {
    const element = name ? await elementOf(name, version, openNumber) : emptyView();
    if (openNumber === openCount) byId("model").replaceChildren(element);
  });
  if (openNumber !== openCount) return;
  if (!isShown) byId("model").replaceChildren(problem.element);
  else if (name) document.title = `${name} · stablernn`;
  view?.refresh(load);
  if (isNavigation) byId("model-title")?.focus();
}

function emptyView() {
  const sentence = models.length === 0 ? "No model is served here yet." : "None of the models is loaded.";
  return el("div.empty", el("h2", sentence), el("p", "Publish one with ", el("code", "stablernn export"), " and serve it with ", el("code", "stablernn serve"), "."));
}

async function elementOf(name, version, openNumber) {
  const model = models.find((entry) => entry.name === name);
  // Show a version that was just loaded, whatever the address was before.
  const loaded = async (loadedVersion) => {
    history.replaceState(null, "", hashOf(name, loadedVersion));
    await readAll();
  };
  if (model !== undefined && !isServed(model, version)) return unloadedView(name, version, model.versions, loaded);
  const metadata = await getJson(modelPath(name, version));
  if (openNumber !== openCount) return "";
  view = new ModelView(metadata, model?.versions ?? [], loaded);
  return view.element;
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
    status.className = "server";
    status.textContent = error.status === 503 ? "Not ready" : "No answer";
  }
}

async function readAll() {
  const isRead = await listProblem.during(async () => (models = await readModels()));
  if (!isRead) models = [];
  byId("list-problem").replaceChildren(...(isRead ? [] : [listProblem.element, retry]));
  list.draw(models);
  if (isRead) await open(false);
  else byId("model").replaceChildren();
}

async function start() {
  load.pause();
  await Promise.all([showServer(), readAll()]);
  load.start();
}

startToken(start);
byId("reload").onclick = start;
// The address names the model that is shown: the link must not change it.
byId("skip").onclick = instead(() => byId("model").focus());
// While the list is read for the first time, `readAll` will open what the address names by then.
addEventListener("hashchange", () => models && open(true));
start();
