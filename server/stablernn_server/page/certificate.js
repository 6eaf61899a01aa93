// What a version's stability certificate says, in words and figures.

import { count, el, number, some, table } from "./dom.js";

const MEANT = {
  contracting: "Two states under one input approach",
  "non-expansive": "No step drives two states under one input apart.",
  bounded: "No input drives the state out of a known ball; two states under one input may part.",
  none: "No rate, and no bound of all states, is proved of these weights.",
};

/** The kind as a badge has room for it. */
export function kindOf(certificate) {
  if (certificate === null || certificate === undefined) return "no certificate";
  // Versions of before the kind was withdrawn are stored with it; the server answers `none` and names what is stored.
  if (certificate.stored_kind !== undefined) return `${certificate.kind} (stored as ${certificate.stored_kind}; withdrawn)`;
  return certificate.kind === "none" ? "nothing proved" : certificate.kind;
}

export function isProved(certificate) {
  return ["contracting", "non-expansive", "bounded"].includes(certificate?.kind);
}

/** One sentence, or two. */
export function certificateSentence(certificate) {
  if (certificate === null || certificate === undefined) return "No certificate was computed for this version.";
  const meant = MEANT[certificate.kind];
  if (meant === undefined) return `Its certificate is of the kind “${certificate.kind}”, which this page does not know.`;
  if (certificate.kind !== "contracting") return meant;
  const irregular = certificate.time?.steps === "irregular";
  // Of several layers a single step does not always bring states nearer.
  const when = irregular || certificate.step_rate === certificate.contraction_rate ? "" : " in the end";
  const time = irregular ? "over the time of a regular step" : "a step";
  return `${meant},${when} by the factor ${number(certificate.contraction_rate, 6)} ${time} or faster, whatever the input.`;
}

/** The section of a model's page. */
export function certificateView(certificate, guard) {
  const parts = [el("p", { class: "lead" }, el("span", { class: `kind ${isProved(certificate) ? "proved" : ""}` }, kindOf(certificate)), " ", certificateSentence(certificate))];
  if (certificate === null || certificate === undefined) return parts;
  const facts = factsOf(certificate, guard);
  parts.push(el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  parts.push(...conditionsView("What the proof rests on", certificate.hypotheses ?? []));
  parts.push(...conditionsView("What papers ask for", certificate.conditions ?? []));
  return parts;
}

function factsOf(certificate, guard) {
  const facts = [];
  const add = (name, value) => facts.push([name, value]);
  const norm = certificate.norm === null || certificate.norm === undefined ? "" : `, in the norm ${certificate.norm}`;
  if (typeof certificate.contraction_rate === "number") {
    const name = ["contracting", "non-expansive"].includes(certificate.kind) ? "Contraction rate" : "Distances grow by at most";
    add(name, `${number(certificate.contraction_rate, 6)} a step${norm}`);
  }
  for (const ball of certificate.state_balls ?? []) {
    const around = ball.centre ? ` around ${number(ball.centre)}` : "";
    add(`Ball of ${ball.state}`, `${ball.norm} norm at most ${number(ball.radius)}${around}`);
  }
  const forgotten = certificate.forgetting?.steps;
  if (typeof forgotten === "number") add("Forgets its start", `to ${number(100 * certificate.forgetting.share)} % within ${count(forgotten, "step")}`);
  const gain = certificate.gains?.input_to_output;
  if (typeof gain === "number") add("Input to output", `gain at most ${number(gain)}`);
  if (certificate.states?.length) add("Proved of", some(certificate.states));
  if (guard?.states?.length) add("Watched by the server", `${some(guard.states)}; ${count(guard.exits, "exit")} so far`);
  return facts;
}

function conditionsView(title, conditions) {
  if (conditions.length === 0) return [];
  // Only conditions of papers say what they are about, and not those of versions from before it was stored.
  const subjects = conditions.some((condition) => condition.of !== undefined);
  const rows = conditions.map(({ name, value, bound, holds, of }) => [
    name,
    value,
    bound,
    el("span", { class: holds ? "holds" : "fails" }, holds ? "✓ yes" : "✗ no"),
    ...(subjects ? [of ?? ""] : []),
  ]);
  const head = ["Condition", "Value", "At most", "Holds", ...(subjects ? ["Of"] : [])];
  return [el("details", {}, el("summary", {}, title), table(title, head, rows))];
}
