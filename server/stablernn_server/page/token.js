// The bearer token: requested when the server needs one, stored until the tab is closed.

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

/** Returns how often the user was asked for a token and entered none. */
export function timesRefused() {
  return refusals;
}

/** Asks for a token, once for all requests that need it. Resolves to false if none was entered. */
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
