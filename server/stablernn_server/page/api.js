// Requests to this server, and to no other. A bearer token is requested when the server needs one, and stored until the tab is
// closed.

import { byId, el, Failure, inputField } from "./dom.js";

const ROOT = new URL(".", document.baseURI);
const KEY = "stablernn-token";
let asking = null;
// How often the user was asked for a token and entered none.
let refusals = 0;

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

/** Returns a response with status 200 to 299, to a POST if there is a `body`; asks for a token if one is needed, unless `quiet`. */
export async function send(path, { body, quiet = false } = {}) {
  for (;;) {
    const sentToken = token();
    const refusalsBefore = refusals;
    const response = await fetch(address(path), {
      method: body ? "POST" : "GET",
      headers: { ...(sentToken && { Authorization: `Bearer ${sentToken}` }), ...(body && { "Content-Type": "application/json" }) },
      body: body && JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
    }).catch(() => {
      throw new Failure("The server cannot be reached; is it still running?");
    });
    if (response.ok) return response;
    const { status, statusText, headers } = response;
    // Not a response of this server, such as a proxy's page: only the status is known.
    const unknown = { error: `The server answered ${`${status} ${statusText}`.trim()} without an error message.`, code: "unknown" };
    const { error, code } = { ...unknown, ...(await response.json().catch(() => null)) };
    // While this request was in flight, another one may have asked for a token, and got one or none.
    const again = status === 401 && !quiet && (token() !== sentToken || (refusals === refusalsBefore && (await askToken(error))));
    if (!again) throw new Failure(error, { status, code, requestId: headers.get("x-request-id") });
  }
}

export function token() {
  return sessionStorage.getItem(KEY);
}

/** Asks for a token, once for all requests that need it. Resolves to false if none was entered. */
function askToken(sentence) {
  asking ??= new Promise((resolve) => {
    const input = inputField("Bearer token", "token", { type: "password", id: "token" }, "Stored in this tab until it is closed.");
    const onclose = () => {
      const entered = dialog.returnValue && byId("token").value.trim();
      dialog.remove();
      if (entered) sessionStorage.setItem(KEY, entered);
      else refusals += 1;
      showForget();
      asking = null;
      resolve(Boolean(entered));
    };
    const dialog = el(
      "dialog",
      { onclose, "aria-labelledby": "token-title" },
      el(
        "form",
        { method: "dialog" },
        el("h2", { id: "token-title" }, "This server needs a token"),
        el("p", sentence),
        input,
        el("div.actions", el("button.primary", { value: "use" }, "Use token"), el("button", "Cancel")),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
    byId("token").focus();
  });
  return asking;
}

/** The subprotocols of a WebSocket, which is how a browser sends a token with one. */
export function subprotocols() {
  const current = token();
  if (current === null) return ["stablernn"];
  const base64 = btoa(String.fromCharCode(...new TextEncoder().encode(current)));
  return ["stablernn", `bearer.${base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`];
}

/** Connects the button that forgets the token. */
export function startToken(changed) {
  byId("token-forget").onclick = () => {
    sessionStorage.removeItem(KEY);
    showForget();
    changed();
  };
  showForget();
}

function showForget() {
  byId("token-forget").hidden = token() === null;
}
