// The API docs: every route of /openapi.json with its parameters, bodies, an example and a command to copy. JSON schemas
// become tables of fields.

import { address, getJson, startToken, token } from "./api.js";
import { byId, copyButton, count, el, fold, Problem, table } from "./dom.js";

const MAX_DEPTH = 4;
let openapi = null;

/** The schema that a reference names, or the schema itself. */
function resolve(schema) {
  const { $ref: reference } = schema ?? {};
  return reference === undefined ? schema : openapi.components.schemas[nameOf(reference)];
}

function nameOf(reference) {
  return reference.split("/").at(-1);
}

/** The type in a few words: "array of number or null". */
function typeOf(schema = {}, depth = 0) {
  const { $ref: reference, enum: values, anyOf, oneOf, type, items } = schema;
  if (reference !== undefined) return nameOf(reference);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (values !== undefined) return values.map((value) => JSON.stringify(value)).join(" or ");
  const options = anyOf ?? oneOf;
  if (options !== undefined) return [...new Set(options.map((option) => typeOf(option, depth)))].join(" or ");
  if (type === "array") return depth >= MAX_DEPTH ? type : `array of ${typeOf(items, depth + 1)}`;
  return type ?? "anything";
}

/** The fields of a schema as a table, and below it those of the schemas that it references; text if it has no fields. */
function schemaView(schema, title, seen = new Set()) {
  const { properties, required = [] } = resolve(schema) ?? {};
  seen.add(schema?.$ref);
  if (properties === undefined) return el("p.note", `${title}: ${typeOf(schema)}`);
  const rows = Object.entries(properties).map(([name, property]) => {
    const { default: standard = null, description, $ref: reference } = property;
    const optional = standard === null ? "no" : `no: ${JSON.stringify(standard)}`;
    const meaning = description ?? (reference ? (resolve(property)?.description ?? "").split("\n")[0] : "");
    return [el("code", name), typeOf(property), required.includes(name) ? "yes" : optional, prose(meaning)];
  });
  const below = new Set(referencesIn(Object.values(properties)));
  return [
    table(title, ["Field", "Type", "Required", "Meaning"], rows, "div.scrolling.schema"),
    ...[...below].map((reference) => {
      const referenced = { $ref: reference };
      if (seen.has(reference) || resolve(referenced)?.properties === undefined) return null;
      return fold(nameOf(reference), schemaView(referenced, nameOf(reference), seen));
    }),
  ];
}

function referencesIn(schema) {
  if (schema === null || typeof schema !== "object") return [];
  return Object.entries(schema).flatMap(([key, value]) => (key === "$ref" ? [value] : referencesIn(value)));
}

/** Text with the words between backticks set as code. */
function prose(text = "") {
  return el("span", text.split(/``?([^`]+)``?/).map((part, index) => (index % 2 === 1 ? el("code", part) : part)));
}

/** Every route as `{id, method, path, tag, ...operation}`. */
function routes() {
  return Object.entries(openapi.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({
      id: `${method}${path.replaceAll(/[^\w]+/g, "-")}`,
      method: method.toUpperCase(),
      path,
      tag: operation.tags?.[0] ?? "other",
      parameters: [],
      responses: {},
      ...operation,
      body: operation.requestBody?.content ?? {},
    })),
  );
}

function routeView(route) {
  const { id, description, summary = "", parameters, responses, body } = route;
  return el(
    "section.card.route",
    { id, "aria-labelledby": `${id}-title`, tabIndex: -1 },
    el("h3", { id: `${id}-title` }, methodAndPath(route, "code")),
    (description ?? summary).split(/\n\n+/).map((paragraph) => el("p.lead", prose(paragraph))),
    parametersView(parameters),
    Object.entries(body).map(([type, { schema }]) => [el("h4", "Body, ", el("code", type)), schemaView(schema, "Body")].flat()),
    responsesView(responses),
    curlView(route),
  );
}

/** The method, and the path with a possible line break after each slash. */
function methodAndPath({ method, path }, tag) {
  const parts = path.split(/(?<=\/)/).flatMap((part) => [part, el("wbr")]);
  return [el(`span.method.${method.toLowerCase()}`, method), " ", el(tag, parts)];
}

function parametersView(parameters) {
  if (parameters.length === 0) return null;
  const rows = parameters.map(({ name, in: where, required, schema, description }) => [
    el("code", name),
    where,
    typeOf(schema),
    required ? "yes" : "no",
    description ?? schema?.description ?? "",
  ]);
  const columns = rows.some((row) => row[4] !== "") ? 5 : 4;
  const heads = ["Name", "In", "Type", "Required", "Meaning"].slice(0, columns);
  return el("div", el("h4", "Parameters"), table("Parameters", heads, rows.map((row) => row.with(4, prose(row[4])).slice(0, columns))));
}

function responsesView(responses) {
  const row = ([status, { description = "", content = {} }]) => {
    const types = Object.entries(content).map(([type, { schema }]) => (type === "application/json" && schema ? typeOf(schema) : type));
    return [status, description, types.join(" or ") || "no body"];
  };
  const [good, bad] = [true, false].map((isGood) => Object.entries(responses).filter(([status]) => status < "4" === isGood));
  const schema = good[0]?.[1].content?.["application/json"]?.schema;
  const view = (title, rows) => table(title, ["Status", "When", "Body"], rows.map(row));
  return [
    el("h4", "Responses"),
    view("Responses", good),
    schema && fold("Fields of the response", schemaView(schema, "Response")),
    bad.length === 0 ? null : fold(`Errors: ${bad.map(([status]) => status).join(", ")}`, view("Errors", bad)),
  ];
}

function curlView({ method, path, parameters, body }) {
  const examples = Object.fromEntries(parameters.map(({ name, schema }) => [name, schema?.examples?.[0]]));
  const filled = path.slice(1).replace(/\{(\w+)\}/g, (_, name) => examples[name] ?? name.toUpperCase());
  const parts = [`curl -s${method === "GET" ? "" : ` -X ${method}`} '${decodeURI(address(filled))}'`];
  if (token() !== null) parts.push('-H "Authorization: Bearer $TOKEN"');
  const json = body["application/json"];
  if (json !== undefined) {
    const example = resolve(json.schema)?.examples?.[0] ?? {};
    parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(example).replaceAll("'", "'\\''")}'`);
  }
  const text = parts.join(" \\\n  ");
  return el("div.curl", el("pre", { tabIndex: 0, "aria-label": "Command" }, el("code", text)), copyButton("Copy", () => text));
}

function draw(query) {
  const words = query.toLowerCase().split(/\s+/);
  const matching = routes().filter(({ method, path, tag, description = "" }) => {
    const text = `${method} ${path} ${tag} ${description}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const tags = [...new Set(matching.map(({ tag }) => tag))].map((tag) => [tag, matching.filter((route) => route.tag === tag)]);
  const link = (route) => el("li", el("a", { href: `#${route.id}` }, methodAndPath(route, "span")));
  byId("route-count").textContent = count(matching.length, "route");
  byId("routes").replaceChildren(...tags.map(([tag, members]) => el("li", el("h2", tag), el("ul", members.map(link)))));
  byId("docs").replaceChildren(...tags.flatMap(([tag, members]) => [el("h2.tag", tag), ...members.map(routeView)]));
}

async function start() {
  const problem = new Problem();
  byId("docs").replaceChildren(problem.element);
  await problem.during(async () => {
    openapi = await getJson("openapi.json");
    byId("server-version").textContent = openapi.info.version;
    draw(byId("route-search").value);
    // The target of the address did not exist yet when the browser looked for it.
    if (location.hash !== "") byId(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  });
}

startToken(start);
byId("route-search").oninput = ({ target }) => openapi !== null && draw(target.value);
start();
