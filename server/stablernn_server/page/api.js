// Requests to this server, and to no other; a failure becomes an ApiError with the server's own message.

import { askToken, timesRefused, token } from "./token.js";

const ROOT = new URL(".", document.baseURI);

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
    const refusals = timesRefused();
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
    if (token() === sentToken && (timesRefused() > refusals || !(await askToken(error.message)))) throw error;
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
