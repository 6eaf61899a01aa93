// The API docs: every route of /openapi.json with its parameters, bodies, an example and a command to copy. JSON schemas
// become tables of fields, and examples.

import { address, ApiError, getJson, startToken, token } from "./api.js";
import { byId, copyButton, count, el, fold, Problem, table } from "./dom.js";

const MAX_DEPTH = 4;

/** The schema that a reference names, or the schema itself. */
function resolve(document_, schema) {
  const name = schema?.$ref?.replace("#/components/schemas/", "");
  return name === undefined ? schema : document_.components.schemas[name];
}

/** The type in a few words: "array of number or null". */
function typeOf(document_, schema, depth = 0) {
  if (schema?.$ref !== undefined) return schema.$ref.split("/").at(-1);
  if (schema?.const !== undefined) return JSON.stringify(schema.const);
  if (schema?.enum !== undefined) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const options = schema?.anyOf ?? schema?.oneOf;
  if (options !== undefined) return [...new Set(options.map((option) => typeOf(document_, option, depth)))].join(" or ");
  if (schema?.type === "array") return depth >= MAX_DEPTH ? "array" : `array of ${typeOf(document_, schema.items ?? {}, depth + 1)}`;
  return schema?.type ?? "anything";
}

/** The fields of a schema as a table, and below it those of the schemas that it references; text if it has no fields. */
function schemaView(document_, schema, title, seen = new Set()) {
  const whole = resolve(document_, schema);
  if (schema?.$ref !== undefined) seen.add(schema.$ref);
  if (whole?.properties === undefined) return [el("p", { class: "note" }, `${title}: ${typeOf(document_, schema)}`)];
  const required = new Set(whole.required ?? []);
  const rows = Object.entries(whole.properties).map(([name, field]) => [
    el("code", {}, name),
    typeOf(document_, field),
    required.has(name) ? "yes" : defaultOf(field),
    prose(descriptionOf(document_, field)),
  ]);
  const below = Object.values(whole.properties)
    .flatMap(referencesIn)
    .filter((reference) => !seen.has(reference) && resolve(document_, { $ref: reference })?.properties !== undefined);
  return [
    table(title, ["Field", "Type", "Required", "Meaning"], rows, "schema"),
    ...[...new Set(below)].flatMap((reference) => {
      if (seen.has(reference)) return [];
      const name = reference.split("/").at(-1);
      return [fold(name, schemaView(document_, { $ref: reference }, name, seen))];
    }),
  ];
}

function defaultOf(field) {
  return field.default === undefined || field.default === null ? "no" : `no: ${JSON.stringify(field.default)}`;
}

function descriptionOf(document_, field) {
  return field.description ?? (field.$ref === undefined ? "" : (resolve(document_, field)?.description ?? "").split("\n")[0]);
}

function referencesIn(schema) {
  if (schema === null || typeof schema !== "object") return [];
  return Object.entries(schema).flatMap(([key, value]) => (key === "$ref" ? [value] : referencesIn(value)));
}

/** Returns the example of a schema, or one built from its fields. */
function exampleOf(document_, schema, depth = 0) {
  const whole = resolve(document_, schema);
  if (whole === undefined || depth > 2 * MAX_DEPTH) return null;
  const example = whole.example ?? whole.examples?.[0] ?? whole.const ?? whole.enum?.[0] ?? whole.default;
  if (example !== undefined) return example;
  const options = whole.anyOf ?? whole.oneOf;
  if (options !== undefined) return exampleOf(document_, options[0], depth + 1);
  if (whole.type === "object") {
    const fields = Object.entries(whole.properties ?? {});
    return Object.fromEntries(fields.map(([name, field]) => [name, exampleOf(document_, field, depth + 1)]));
  }
  if (whole.type === "array") return [exampleOf(document_, whole.items ?? {}, depth + 1)];
  return { string: "text", integer: whole.minimum ?? 1, number: 0.5, boolean: true }[whole.type] ?? null;
}

/** Text with the words between backticks set as code. */
function prose(text) {
  const parts = text.split(/``?([^`]+)``?/);
  return el("span", {}, parts.map((part, index) => (index % 2 === 1 ? el("code", {}, part) : part)));
}

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
    schema === undefined ? null : fold("Fields of the response", schemaView(document_, schema, "Response")),
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
