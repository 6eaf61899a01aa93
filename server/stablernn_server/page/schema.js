// JSON schemas of an OpenAPI document as tables of fields, and examples of them.

import { el, table } from "./dom.js";

const MAX_DEPTH = 4;

/** The schema that a reference names, or the schema itself. */
export function resolve(document_, schema) {
  const name = schema?.$ref?.replace("#/components/schemas/", "");
  return name === undefined ? schema : document_.components.schemas[name];
}

/** The type in a few words: "array of number or null". */
export function typeOf(document_, schema, depth = 0) {
  if (schema?.$ref !== undefined) return schema.$ref.split("/").at(-1);
  if (schema?.const !== undefined) return JSON.stringify(schema.const);
  if (schema?.enum !== undefined) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const options = schema?.anyOf ?? schema?.oneOf;
  if (options !== undefined) return [...new Set(options.map((option) => typeOf(document_, option, depth)))].join(" or ");
  if (schema?.type === "array") return depth >= MAX_DEPTH ? "array" : `array of ${typeOf(document_, schema.items ?? {}, depth + 1)}`;
  return schema?.type ?? "anything";
}

/** The fields of a schema as a table, and below it those of the schemas that it references; text if it has no fields. */
export function schemaView(document_, schema, title, seen = new Set()) {
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
      return [el("details", {}, el("summary", {}, name), schemaView(document_, { $ref: reference }, name, seen))];
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
export function exampleOf(document_, schema, depth = 0) {
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
export function prose(text) {
  const parts = text.split(/``?([^`]+)``?/);
  return el("span", {}, parts.map((part, index) => (index % 2 === 1 ? el("code", {}, part) : part)));
}
