// The API docs: every route of /openapi.json with its parameters, bodies, an example and a command to copy.

import { address, ApiError, getJson } from "./api.js";
import { byId, copyButton, count, el, table } from "./dom.js";
import { Problem } from "./fields.js";
import { exampleOf, prose, schemaView, typeOf } from "./schema.js";
import { startToken, token } from "./token.js";

let document_ = null;

/** Every route as `{id, method, path, operation, tag}`. */
function routes() {
  return Object.entries(document_.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({
      id: `${method}${path.replaceAll(/[^\w]+/g, "-")}`,
      method: method.toUpperCase(),
      path,
      operation,
      tag: operation.tags?.[0] ?? "other",
    })),
  );
}

function routeView({ id, method, path, operation }) {
  const body = operation.requestBody?.content ?? {};
  return el(
    "section",
    { class: "card route", id, "aria-labelledby": `${id}-title`, tabIndex: -1 },
    el("h3", { id: `${id}-title` }, el("span", { class: `method ${method.toLowerCase()}` }, method), " ", el("code", {}, breakable(path))),
    ...(operation.description ?? operation.summary ?? "").split(/\n\n+/).map((paragraph) => el("p", { class: "lead" }, prose(paragraph))),
    parametersView(operation.parameters ?? []),
    ...Object.entries(body).flatMap(([type, { schema }]) => [el("h4", {}, "Body, ", el("code", {}, type)), ...schemaView(document_, schema ?? {}, "Body")]),
    ...answersView(operation.responses ?? {}),
    curlView(method, path, operation, body),
  );
}

/** A path with a possible line break after each slash. */
function breakable(path) {
  return path.split(/(?<=\/)/).flatMap((part) => [part, el("wbr")]);
}

function parametersView(parameters) {
  if (parameters.length === 0) return null;
  const rows = parameters.map(({ name, in: location_, required, schema, description }) => [
    el("code", {}, name),
    location_,
    typeOf(document_, schema),
    required ? "yes" : "no",
    prose(description ?? schema?.description ?? ""),
  ]);
  const heads = ["Name", "In", "Type", "Required", "Meaning"];
  const columns = parameters.some(({ description, schema }) => description ?? schema?.description) ? heads.length : heads.length - 1;
  return el("div", {}, el("h4", {}, "Parameters"), table("Parameters", heads.slice(0, columns), rows.map((row) => row.slice(0, columns))));
}

function answersView(responses) {
  const row = ([status, { description, content }]) => {
    const types = Object.entries(content ?? {}).map(([type, { schema }]) => (type === "application/json" && schema !== undefined ? typeOf(document_, schema) : type));
    return [status, description ?? "", types.join(" or ") || "no body"];
  };
  const all = Object.entries(responses);
  const [good, bad] = [all.filter(([status]) => status < "4"), all.filter(([status]) => status >= "4")];
  const heads = ["Status", "When", "Body"];
  const schema = good[0]?.[1].content?.["application/json"]?.schema;
  return [
    el("h4", {}, "Responses"),
    table("Responses", heads, good.map(row)),
    schema === undefined ? null : el("details", {}, el("summary", {}, "Fields of the response"), schemaView(document_, schema, "Response")),
    bad.length === 0 ? null : el("details", {}, el("summary", {}, `Errors: ${bad.map(([status]) => status).join(", ")}`), table("Errors", heads, bad.map(row))),
  ];
}

function curlView(method, path, operation, body) {
  const verb = method === "GET" ? "" : ` -X ${method}`;
  const parts = [`curl -s${verb} '${decodeURI(address(pathExample(path, operation)).href)}'`];
  if (token() !== null) parts.push('-H "Authorization: Bearer $TOKEN"');
  const json = body["application/json"];
  if (json !== undefined) {
    const example = json.example ?? exampleOf(document_, json.schema ?? {});
    parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(example).replaceAll("'", "'\\''")}'`);
  }
  const text = parts.join(" \\\n  ");
  return el("div", { class: "curl" }, el("pre", { tabIndex: 0, "aria-label": "Command" }, el("code", {}, text)), copyButton("Copy", () => text));
}

function pathExample(path, operation) {
  const examples = Object.fromEntries((operation.parameters ?? []).map(({ name, schema }) => [name, schema?.examples?.[0] ?? name.toUpperCase()]));
  return path.slice(1).replace(/\{(\w+)\}/g, (_, name) => examples[name] ?? name.toUpperCase());
}

function draw(query) {
  const words = query.toLowerCase().split(/\s+/);
  const matching = routes().filter(({ method, path, operation, tag }) => {
    const text = `${method} ${path} ${tag} ${operation.description ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const tags = [...new Set(matching.map(({ tag }) => tag))];
  const ofTag = (tag) => matching.filter((route) => route.tag === tag);
  byId("route-count").textContent = count(matching.length, "route");
  byId("routes").replaceChildren(
    ...tags.map((tag) =>
      el(
        "li",
        {},
        el("h2", {}, tag),
        el("ul", {}, ofTag(tag).map(({ id, method, path }) => el("li", {}, el("a", { href: `#${id}` }, el("span", { class: `method ${method.toLowerCase()}` }, method), " ", breakable(path))))),
      ),
    ),
  );
  byId("docs").replaceChildren(...tags.flatMap((tag) => [el("h2", { class: "tag" }, tag), ...ofTag(tag).map(routeView)]));
}

async function start() {
  const main = byId("docs");
  try {
    document_ = await getJson("openapi.json");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const problem = new Problem();
    main.replaceChildren(problem.element);
    problem.show(error);
    return;
  }
  byId("server-version").textContent = document_.info.version;
  draw(byId("route-search").value);
  // The target of the address did not exist yet when the browser looked for it.
  if (location.hash !== "") byId(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

startToken(start);
byId("route-search").addEventListener("input", (event) => document_ !== null && draw(event.target.value));
start();
