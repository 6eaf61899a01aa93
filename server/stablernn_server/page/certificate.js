// The stability certificate of a version, in words and numbers.

import { count, el, number, some, table, upperBound } from "./dom.js";

const MEANING = {
  contracting: "Two states under the same input approach each other",
  "non-expansive": "No step increases the distance of two states under the same input.",
  bounded: "No input drives the state beyond its bound; two states under the same input may diverge.",
  none: "No contraction rate and no bound on the states is proved for these weights.",
};

/** The kind, short enough for a badge. */
export function kindOf(certificate) {
  if (certificate === null || certificate === undefined) return "no certificate";
  // Stored before this kind was withdrawn; the server answers `none` and adds the stored kind.
  if (certificate.stored_kind !== undefined) return `${certificate.kind} (stored as ${certificate.stored_kind}; withdrawn)`;
  if (certificate.kind === "none") return "nothing proved";
  const radius = radiusOf(certificate);
  return certificate.kind === "bounded" && radius !== null ? `bounded within ${upperBound(radius)}` : certificate.kind;
}

/** The radius of the largest ball that a state stays in; null if none is stored. */
function radiusOf(certificate) {
  const radii = (certificate.state_balls ?? []).map((ball) => ball.radius);
  // Another program may have stored a ball without one, which could be the largest.
  return radii.length > 0 && radii.every((radius) => typeof radius === "number") ? Math.max(...radii) : null;
}

export function isProved(certificate) {
  return ["contracting", "non-expansive", "bounded"].includes(certificate?.kind);
}

/** The meaning of the certificate in one or two sentences. */
export function certificateSentence(certificate) {
  if (certificate === null || certificate === undefined) return "No certificate was computed for this version.";
  const meaning = MEANING[certificate.kind];
  if (meaning === undefined) return `Its certificate is of the kind “${certificate.kind}”, which this page does not know.`;
  if (certificate.kind !== "contracting") return meaning;
  const irregular = certificate.time?.steps === "irregular";
  // With several layers, a single step does not always bring states closer.
  const when = irregular || certificate.step_rate === certificate.contraction_rate ? "" : " eventually";
  const resampled = typeof certificate.time?.resample_steps === "number";
  const time = irregular ? "per regular step" : resampled ? "per step of the resampled sequence" : "per step";
  return `${meaning},${when} by a factor of ${upperBound(certificate.contraction_rate, 6)} ${time} or faster, whatever the input.`;
}

/** The certificate's section of the page of a model. */
export function certificateView(certificate, guard) {
  const parts = [el("p", { class: "lead" }, el("span", { class: `kind ${isProved(certificate) ? "proved" : ""}` }, kindOf(certificate)), " ", certificateSentence(certificate))];
  if (certificate === null || certificate === undefined) return parts;
  // Older versions, and those of other programs, have none.
  if (Array.isArray(certificate.in_words)) parts.push(el("p", {}, certificate.in_words.join(" ")));
  const facts = factsOf(certificate, guard);
  const details = [
    el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    ...conditionsView("What the proof rests on", certificate.hypotheses ?? []),
    ...conditionsView("What papers ask for", certificate.conditions ?? []),
  ];
  return [...parts, el("details", {}, el("summary", {}, "Figures and conditions"), details)];
}

function factsOf(certificate, guard) {
  const facts = [];
  const add = (name, value) => facts.push([name, value]);
  const norm = certificate.norm === null || certificate.norm === undefined ? "" : `, in the norm ${certificate.norm}`;
  if (typeof certificate.contraction_rate === "number") {
    const name = ["contracting", "non-expansive"].includes(certificate.kind) ? "Contraction rate" : "Growth of distances";
    add(name, `${upperBound(certificate.contraction_rate, 6)} per step${norm}`);
  }
  for (const ball of certificate.state_balls ?? []) {
    const around = ball.centre ? ` around ${number(ball.centre)}` : "";
    add(`Bound of ${ball.state}`, `${ball.norm} norm at most ${upperBound(ball.radius)}${around}`);
  }
  const settlingSteps = certificate.forgetting?.steps;
  if (typeof settlingSteps === "number") add("Initial state of the layers forgotten", `to ${number(100 * certificate.forgetting.share)} % within ${count(settlingSteps, "step")}`);
  const gain = certificate.gains?.input_to_output;
  if (typeof gain === "number") add("Input to output of the layers", `gain at most ${upperBound(gain)}`);
  if (certificate.states?.length) add("Proved for", some(certificate.states));
  if (guard?.states?.length) add("Checked by the server", `${some(guard.states)}; exceeded ${count(guard.exits, "time")} so far`);
  return facts;
}

function conditionsView(title, conditions) {
  if (conditions.length === 0) return [];
  // Only conditions from papers have a subject, and older versions were stored without it.
  const subjects = conditions.some((condition) => condition.of !== undefined);
  const rows = conditions.map(({ name, value, bound, holds, of }) => [
    name,
    value,
    bound,
    el("span", { class: holds ? "holds" : "fails" }, holds ? "✓ yes" : "✗ no"),
    ...(subjects ? [of ?? ""] : []),
  ]);
  const head = ["Condition", "Value", "At most", "Holds", ...(subjects ? ["Applies to"] : [])];
  return [el("details", {}, el("summary", {}, title), table(title, head, rows))];
}
