// Requests to this server, and to no other; a failure becomes an ApiError with the server's own message. A bearer token is
// requested when the server needs one, and stored until the tab is closed.

import { byId, el } from "./dom.js";

const ROOT = new URL(".", document.baseURI);
const KEY = "stablernn-token";
let asking = null;
// How often the user was asked for a token and entered none.
let refusals = 0;

export class ApiError extends Error {
  constructor(sentence, status, code, requestId) {
    super(sentence);
    this.status = status;
    this.code = code;
    this.requestId = requestId;
  }
}

export function address(path) {
  return new URL(path, ROOT);
}

/** The path of a model, and of one of its versions if one is given. */
export function modelPath(name, version = null) {
  return `v2/models/${encodeURIComponent(name)}${version === null ? "" : `/versions/${encodeURIComponent(version)}`}`;
}

export async function getJson(path, options) {
  return (await send(path, options)).json();
}

export async function getText(path, options) {
  return (await send(path, options)).text();
}

export async function postJson(path, body) {
  return (await send(path, { method: "POST", body: JSON.stringify(body) })).json();
}

/** For responses without a body. */
export async function post(path) {
  await send(path, { method: "POST", body: "{}" });
}

/** Returns a response with status 200 to 299; asks for a token if one is needed, unless `quiet`. */
async function send(path, { method = "GET", body = undefined, quiet = false } = {}) {
  for (;;) {
    const sentToken = token();
    const refusalsBefore = refusals;
    const headers = new Headers();
    if (sentToken !== null) headers.set("Authorization", `Bearer ${sentToken}`);
    if (body !== undefined) headers.set("Content-Type", "application/json");
    let response;
    try {
      response = await fetch(address(path), { method, headers, body, cache: "no-store", credentials: "omit" });
    } catch {
      throw new ApiError("The server cannot be reached; is it still running?", 0, "unreachable", null);
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401 || quiet) throw error;
    // While this request was in flight, another one may have asked for a token, and got one or none.
    if (token() === sentToken && (refusals > refusalsBefore || !(await askToken(error.message)))) throw error;
  }
}

async function errorOf(response) {
  const id = response.headers.get("x-request-id");
  try {
    const { error, code } = JSON.parse(await response.text());
    if (typeof error === "string") return new ApiError(error, response.status, code, id);
  } catch {
    // Not a response of this server, such as a proxy's page: only the status is known.
  }
  const status = `${response.status} ${response.statusText}`.trim();
  return new ApiError(`The server answered ${status} without an error message.`, response.status, "unknown", id);
}

export function token() {
  return sessionStorage.getItem(KEY);
}

/** Asks for a token, once for all requests that need it. Resolves to false if none was entered. */
function askToken(sentence) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("token-dialog");
    const field = byId("token");
    byId("token-sentence").textContent = sentence;
    field.value = "";
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        const entered = dialog.returnValue === "use" ? field.value.trim() : "";
        field.value = "";
        if (entered) sessionStorage.setItem(KEY, entered);
        else refusals += 1;
        show();
        asking = null;
        resolve(entered !== "");
      },
      { once: true },
    );
    dialog.showModal();
    field.focus();
  });
  return asking;
}

/** The subprotocols of a WebSocket, which is how a browser sends a token with one. */
export function subprotocols() {
  const current = token();
  if (current === null) return ["stablernn"];
  const bytes = new TextEncoder().encode(current);
  const base64 = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return ["stablernn", `bearer.${base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`];
}

/** Adds the dialog, and connects the button that forgets the token. */
export function startToken(changed) {
  const submit = (event) => {
    event.preventDefault();
    dialog.close(byId("token").value.trim() ? "use" : "");
  };
  const dialog = el(
    "dialog",
    { id: "token-dialog", "aria-labelledby": "token-title" },
    el(
      "form",
      { onsubmit: submit },
      el("h2", { id: "token-title" }, "This server needs a token"),
      el("p", { id: "token-sentence" }),
      el(
        "div",
        { class: "field" },
        el("label", { for: "token" }, "Bearer token"),
        el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: false, "aria-describedby": "token-hint" }),
        el("span", { class: "hint", id: "token-hint" }, "Stored in this tab until it is closed."),
      ),
      el(
        "div",
        { class: "actions" },
        el("button", { type: "submit", class: "primary" }, "Use token"),
        el("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
      ),
    ),
  );
  document.body.append(dialog);
  byId("token-forget").addEventListener("click", () => {
    sessionStorage.removeItem(KEY);
    show();
    changed();
  });
  show();
}

function show() {
  byId("token-forget").hidden = token() === null;
}
