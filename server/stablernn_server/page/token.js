// The bearer token: asked for when the server wants one, kept until the tab is closed.

import { byId } from "./dom.js";

const KEY = "stablernn-token";
let asking = null;
let refusals = 0;

export function token() {
  return sessionStorage.getItem(KEY);
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
  show();
}

/** How often somebody was asked for a token and gave none. */
export function timesRefused() {
  return refusals;
}

/** Asks for a token, once for all requests that need it. Resolves to false when nobody gave one. */
export function askToken(sentence) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("token-dialog");
    const field = byId("token");
    byId("token-sentence").textContent = sentence;
    field.value = "";
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        const given = dialog.returnValue === "use" ? field.value.trim() : "";
        field.value = "";
        if (given) sessionStorage.setItem(KEY, given);
        else refusals += 1;
        show();
        asking = null;
        resolve(given !== "");
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
  const held = token();
  if (held === null) return ["stablernn"];
  const bytes = new TextEncoder().encode(held);
  const base64 = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return ["stablernn", `bearer.${base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`];
}

/** Connects the dialog and the button that forgets the token. */
export function startToken(changed) {
  const dialog = byId("token-dialog");
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close(byId("token").value.trim() ? "use" : "");
  });
  byId("token-cancel").addEventListener("click", () => dialog.close(""));
  byId("token-forget").addEventListener("click", () => {
    forgetToken();
    changed();
  });
  show();
}

function show() {
  byId("token-forget").hidden = token() === null;
}
