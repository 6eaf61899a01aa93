"""The page of a certificate document: one HTML file without external resources, to be read and printed."""

from __future__ import annotations

import html
import json
import logging
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn_cli.errors import UsageError
from stablernn_cli.report.claims import claimed_radius, scope_text
from stablernn_cli.report.document import Image, Report
from stablernn_registry.documents.certificates import format_kind_and_radius, input_ranges
from stablernn_registry.documents.rounding import format_lower, format_upper

_SCALING_TEXTS = {
    "standard": "where 1 is one standard deviation of a feature in the training data",
    "none": "which is not scaled",
    "window": "scaled by the mean and the spread of the last observed values",
    "context": "where 1 is the mean absolute seasonal change of the last steps of the series",
    "tokens": "where each token is a vector of its own",
}
_SHOWN_DIGITS = 19
"""Characters of a digest in the foot of a page: ``sha256:`` and 12 digits."""

_CONDITION_DIGITS = 8
"""Digits of conditions. The limit of a contracting rate is 1 - 2.4e-7: with fewer digits, a value that is rounded up
could exceed a limit that is rounded down, though the condition holds."""


def render(report: Report) -> str:
    """Return the page of a certificate document."""
    document = report.document
    title = f"Stability certificate of {document['model']['ref']}"
    # What is claimed, what the words mean, why it holds, what was seen, who released it, and what it is good for.
    sections = [
        _front(document),
        element("h2", "How to read this document", class_="page"),
        *(element("p", element("strong", f"{term}. "), text) for term, text in PROSE),
        _proved_section(document),
        _observed_section(document, report.images),
        operation_section(document),
        _clause_section(document),
    ]
    # Only a checked digest goes into the style sheet, where escaping for HTML does not help.
    style = STYLE + PAGE % _foot(document["model"])
    head = join(
        Markup('<meta charset="utf-8">'),
        # The page loads nothing and runs nothing, whatever a name or a note may contain.
        Markup(
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
            "style-src 'unsafe-inline'\">"
        ),
        Markup('<meta name="viewport" content="width=device-width">'),
        element("title", title),
        # Our own constants and hexadecimal digits: a style sheet is no text to be escaped.
        Markup(f"<style>{style}</style>"),
    )
    body = element("body", *sections)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n{body}\n</html>\n'


def _foot(model: Mapping[str, Any]) -> str:
    """Return the first digits of the weights' digest, which are hexadecimal and so safe in a style sheet."""
    digest = str(model["weights"] or "")
    return f"{digest[:_SHOWN_DIGITS]}..." if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else "unknown"


def _front(document: Mapping[str, Any]) -> Markup:
    model, code = document["model"], document["code"]
    is_version = model["source"] == "version"
    training, training_code = model["training_data"], model["training_code"]
    size = f"{model['layers']} layer(s) of {model['units']} units, {model['parameters']:,} parameters"
    rows: dict[str, object] = {
        "model": model["ref"],
        "digest": _code_text(model["digest"]) if is_version else "none: a run directory is not published",
        "weights": _code_text(model["weights"]),
        "intended use": Markup(paragraphs(model["intended_use"]["text"])),
        "task": model["task"],
        "inputs": ", ".join(model["features"]),
        "outputs": ", ".join(model["labels"] or model["targets"]),
        "cell": f"{model['cell']}: {model['cell_title']}. {model['paper']}",
        "size": size + (f", {model['members']} members of an ensemble" if model["members"] > 1 else ""),
        "training data": _joined(training["name"], training["fingerprint"]),
        "trained by": _joined("stablernn", training_code["stablernn"], training_code["commit"]),
        "published" if is_version else "trained": model["created"],
        "released as": _released(document["history"]),
        "counted in operation": _counted(document["violations"]),
        "certificate computed": f"{document['created']} by stablernn {code['stablernn']}, commit "
        f"{code['commit'] or 'unknown'}, Python {code['python']}, numpy {code['packages']['numpy']}, torch "
        f"{code['packages']['torch']}; {code['arithmetic']}",
    }
    # The page begins with the answer; numbers and proofs follow in section A.
    summaries = [bullets(summary["sentences"]) for summary in document["summary"]]
    return element(
        "section",
        element("h1", "Stability certificate"),
        element(
            "p",
            element("strong", "No claim of conformity with any standard or law. "),
            "Section D names the requirements to which this document can contribute evidence.",
            class_="box",
        ),
        facts(rows),
        element("h3", badge("proved"), "In short"),
        element("div", *summaries, class_="part is-proved"),
        element("h3", "What it covers, and what it does not"),
        element("p", document["covers"]),
        element("p", "It does not cover:"),
        bullets(document["does_not_cover"]),
        class_="front",
    )


def _released(history: Mapping[str, Any] | None) -> str:
    if history is None:
        return "not published"
    aliases = ", ".join(history["aliases"])
    return f"{aliases} (section C)" if aliases else "no alias points to this version (section C)"


def _counted(violations: Mapping[str, Any]) -> str:
    """Return the counts in short; section C says what they cover."""
    if not violations["read"]:
        return "no server was asked"
    counts = [
        f"{violations[key]:,} {text}"
        for key, text in (
            ("states_outside_ball", "states outside their ball"),
            ("samples_outside_range", "samples outside the range"),
        )
        # None where there is nothing to compare with.
        if violations[key] is not None
    ]
    return f"{', '.join(counts) or 'nothing is compared'} (section C)"


def _proved_section(document: Mapping[str, Any]) -> Markup:
    parts = [element("h2", "A. ", badge("proved"), "Claims, hypotheses and methods", class_="page")]
    parts += [_certificate(entry, document["model"]) for entry in document["proved"]]
    stored = document["stored_certificate"]
    if stored is not None:
        agreement = "The kinds agree." if stored["kinds_agree"] else "THE KINDS DIFFER: do not rely on either."
        stated, computed = (
            f"{_bounded_text(stored[f'{prefix}kind'], stored[f'{prefix}radius'])}, contraction rate "
            f"{_text(upper_bound(stored[f'{prefix}contraction_rate']))}"
            for prefix in ("", "computed_")
        )
        parts.append(
            join(
                element("h3", "Certificate stored with the version"),
                element(
                    "p",
                    f"Stored: {stated}. Computed for this document from the weights: {computed}. {agreement} A search "
                    "for norms can end at slightly different rates on another machine; this command verifies the "
                    "stored norms: ",
                    element("code", stored["verify"]),
                ),
            )
        )
    return element("section", *parts)


def _input_unit(facts: Mapping[str, Any]) -> str:
    """Return the unit of the layers' input in words.

    Args:
        facts: Facts of the model, see :mod:`stablernn_cli.report.model_facts`.
    """
    samples = "samples" if facts.get("resample_steps") is None else "resampled samples"
    patches = f", and a step reads a patch of {facts['patch_size']} {samples}" if facts["patch_size"] > 1 else ""
    # A linear map and a GELU come between the scaling and the layers, with or without convolutions.
    if facts["embedding"]:
        return f"the layers' input, which is a learned embedding of the scaled samples{patches}"
    scaling = str(facts["scaling"])
    text = _SCALING_TEXTS.get(scaling, f"after the model's own scaling ('{scaling}')")
    return f"the layers' input, {text}{patches}"


def _bounded_text(kind: str, radius: float | None) -> str:
    """Return a kind, ``bounded`` with the radius of the largest ball where it is known."""
    return format_kind_and_radius({"kind": kind, "radius": radius})


def _certificate(entry: Mapping[str, Any], model: Mapping[str, Any]) -> Markup:
    kind = _bounded_text(entry["kind"], claimed_radius(entry))
    title = join(element("h3", f"{scope_text(entry)}: {kind}"), _range_table(entry, model))
    # Printed twice, equal tables would be compared number by number.
    if entry.get("equals_all_inputs"):
        text = (
            "Every claim has the same value as for all inputs: see above. No smaller bound is proved within the range."
        )
        return element("div", title, element("p", text), class_="part is-proved")
    claims = [
        [claim["title"], upper_bound(claim["value"]), claim["unit"], claim["norm"] or "", claim["statement"]]
        for claim in entry["claims"]
        if claim["proved"]
    ]
    # In one sentence, so that the numbers that are proved stand together.
    missing = ", ".join(claim["title"] for claim in entry["claims"] if not claim["proved"])
    units = (
        f"Units: input is that of {_input_unit(model)}; output is that of the layers, before the head; state is that "
        "of the state tensor. Norms of inputs and outputs are 2-norms."
    )
    parts: list[object] = [
        title,
        table(("claim", join(badge("proved"), "at most"), "unit", "norm", "meaning"), claims, class_="claims")
        if claims
        else "",
        element("p", units, class_="note"),
        element("p", element("strong", "Not proved: "), f"{missing}.") if missing else "",
        element("p", element("strong", "Assumptions"), class_="lead"),
        bullets(entry["assumptions"]),
    ]
    if entry["hypotheses"]:
        parts += [
            element(
                "p",
                element("strong", "Hypotheses in numbers"),
                f"; rounding slack {_text(upper_bound(entry['rounding_slack']))}",
                class_="lead",
            ),
            _conditions(entry["hypotheses"]),
        ]
    parts += [
        element("p", element("strong", "Method"), class_="lead"),
        table(
            ("method", "reference", "code"),
            [[row["method"], row["reference"], element("code", row["code"])] for row in entry["methods"]],
            class_="methods",
        ),
    ]
    if entry["conditions"]:
        parts += [
            element("p", element("strong", "Conditions from papers"), "; no claim above rests on them", class_="lead"),
            _conditions(entry["conditions"]),
        ]
    return element("div", *parts, class_="part is-proved")


def _range_table(entry: Mapping[str, Any], model: Mapping[str, Any]) -> Markup:
    """Return the range of each input by its name; nothing for all inputs, or one range for all of them."""
    ranges = input_ranges({"inputs": entry["range"]}) or []
    if len(set(ranges)) < 2:
        return Markup("")
    # Of many names only the first are listed.
    names = model["features"] if len(model["features"]) == len(ranges) else map(str, range(len(ranges)))
    # Rounded to the inside: nothing is proved of an input beyond either end.
    rows = [[name, upper_bound(low), lower_bound(high)] for name, (low, high) in zip(names, ranges, strict=True)]
    return table(("input, in the units of the data", "from", "to"), rows)


def _conditions(rows: Sequence[Mapping[str, Any]]) -> Markup:
    # Conditions from papers may be about another object than the step.
    has_subject = any("of" in row for row in rows)
    columns = ["condition", "value", "limit", "slack", "holds", *(["of"] if has_subject else [])]
    cells = [
        [
            row["name"],
            upper_bound(row["value"], _CONDITION_DIGITS),
            lower_bound(row["bound"], _CONDITION_DIGITS),
            lower_bound(row["slack"]),
            "yes" if row["holds"] else element("span", "no", class_="no"),
            *([row.get("of", "")] if has_subject else []),
        ]
        for row in rows
    ]
    return table(columns, cells)


def _observed_section(document: Mapping[str, Any], images: Sequence[Image]) -> Markup:
    observed = document["observed"]
    target = shlex.quote(document["model"]["ref"])
    comparison = [
        [
            row["quantity"],
            upper_bound(row["proved_at_most"])
            if row["proved_at_most"] is not None
            else element("span", NOT_PROVED, class_="no"),
            row["largest_observed"],
            row["observed_on"],
        ]
        for row in document["comparison"]
    ]
    # An image in a data URI has no script, and no address that a browser would ask.
    figures = [
        element(
            "figure",
            Markup(f'<img alt="{escape(image.title)}" src="{escape(image.draw())}">'),
            element("figcaption", element("strong", f"{image.title}. "), image.caption),
        )
        for image in images
    ]
    parts = [
        element("h3", "Proved beside observed"),
        element("p", f"Proved bounds are those of section A, {scope_text(document['proved'][-1]).lower()}."),
        table(
            ("quantity", join(badge("proved"), "at most"), join(badge("observed"), "largest"), "observed on"),
            comparison,
        ),
        element("h3", "Figures"),
        *(figures or [element("p", observed["drawn_trajectories"]["note"])]),
        element("h3", badge("observed"), "Scores"),
        _metrics(observed["metrics"]),
        element("h3", badge("observed"), "Stability report on data"),
        _report(observed["stability_report"], f"stablernn eval {target} --stability"),
        element("h3", badge("observed"), "Robustness report"),
        _report(observed["robustness_report"], f"stablernn eval {target} --robustness"),
    ]
    return element(
        "section",
        element("h2", "B. ", badge("observed"), "Measurements, beside what is proved", class_="page"),
        element("div", *parts, class_="part is-observed"),
    )


def _metrics(metrics: object) -> Markup:
    """Return the scores, a row for each and a column for each split."""
    splits = (
        [str(split) for split, scores in metrics.items() if isinstance(scores, Mapping)]
        if isinstance(metrics, Mapping)
        else []
    )
    if not splits or not isinstance(metrics, Mapping):
        return element("p", "None were recorded.")
    # Scores of baselines are nested below the name of the baseline.
    scores = {split: dict(_flatten(metrics[split])) for split in splits}
    # A score that has no value for these data is left out.
    names = list(dict.fromkeys(name for split in splits for name, value in scores[split].items() if value is not None))
    return table(("score", *splits), [[name, *(scores[split].get(name) for split in splits)] for name in names])


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += _flatten(value, f"{name}, ")
        else:
            rows.append((name, value))
    return rows


def _report(report: Mapping[str, Any] | None, command: str) -> Markup:
    """Return a stored report as a table, or how to make one."""
    if report is None:
        return element("p", "None is recorded. ", element("code", command), " measures it.")
    if report["note"] is not None:
        return element("p", f"Recorded {_text(report['recorded'])}, {report['note']}.")
    # Reports have been read already; what is missing in one is None, and left out of the table.
    rows: dict[str, object] = {"recorded": _joined(report["recorded"], report["who"])}
    if "figures" in report:
        rows |= {"sample": report["sample"], **report["figures"]}
    else:
        exponent, error = report["largest_lyapunov_exponent"], report["lyapunov_standard_error"]
        rows |= {
            "data": _joined(report["data"], report["split"]),
            "sequences": report["sequences"],
            "steps": report["steps"],
            "largest spectral radius": report["spectral_radius"],
            "largest Lyapunov exponent, nats per step": None
            if exponent is None
            else f"{exponent:.4g}" + ("" if error is None else f" ± {error:.1g}"),
        }
    return facts(rows)


def _clause_section(document: Mapping[str, Any]) -> Markup:
    # Sources are long addresses: numbered, and listed once below the table.
    sources = list(dict.fromkeys(row["source"] for row in document["clauses"]))
    rows = [
        [
            join(element("strong", row["framework"]), Markup("<br>"), row["clause"] or "text not read, no number"),
            row["topic"],
            row["supports"],
            row["does_not"],
            f"[{sources.index(row['source']) + 1}]",
        ]
        for row in document["clauses"]
    ]
    columns = ("publication", "topic", "this document supports", "it does not cover", "source")
    return element(
        "section",
        element("h2", "D. Relation to published requirements", class_="page"),
        element("p", document["statement"], class_="box"),
        table(columns, rows, class_="clauses"),
        element("ol", *(element("li", source) for source in sources), class_="note"),
        element("h3", "Assessment, to be filled in by the assessor"),
        table(("name and role", "date", "signature"), [["", "", ""]], class_="sign"),
    )


def _text(value: object) -> str:
    return plain_text(value)


def _code_text(value: object) -> Markup:
    return element("span", value, class_="digest")


def _joined(*texts: object) -> str | None:
    """Join the texts that are there; None if there is none."""
    shown = [str(text) for text in texts if text]
    return ", ".join(shown) if shown else None


def operation_section(document: Mapping[str, Any]) -> Markup:
    """Return the section."""
    history = document["history"]
    return element(
        "section",
        element("h2", "C. Release and operation"),
        element("h3", "Publication and promotion"),
        _no_history() if history is None else _history(history),
        element("h3", badge("observed"), "Violations counted in operation"),
        _violations(document["violations"]),
    )


def _no_history() -> Markup:
    return element("p", "None: a run directory is not published, so it has no digest, no promotion and no records.")


def _history(history: Mapping[str, Any]) -> Markup:
    published, aliases = history["published"], history["aliases"]
    text = (
        "Publication is not in the log."
        if published is None
        else (
            f"Published {published['time']} by {published['who']}"
            + (f": {published['why']}" if published["why"] else "")
            + f" (line {published['log_line']} of the log)."
        )
    )
    now = (
        f"Aliases that point to this version now: {', '.join(aliases)}."
        if aliases
        else ("No alias points to this version now.")
    )
    # Moves away from the version are listed as well: they end its release.
    moves = history["moves"]
    if not moves:
        return element("p", f"{text} {now} No alias was ever moved to it.")
    return join(element("p", f"{text} {now}"), *(_move(move) for move in moves))


def _move(move: Mapping[str, Any]) -> Markup:
    policy = move["policy"]
    origin = "" if move["from"] is None else f" from version {move['from']}"
    # Moves from before there was a policy have no checks.
    rows: dict[str, object] = {
        "move": f"{move['alias']}{origin} to version {move['to']} ({move['action']}, line {move['log_line']})",
        "when": move["time"],
        "who": move["who"],
        "why": move["why"] or "no reason was given",
        "forced": "yes: the policy or a check refused, and the move was forced" if move["forced"] else None,
        "policy": _policy_text(policy) if move["checks"] or policy else None,
    }
    checks = [
        [check["name"], "passed" if check["ok"] else element("span", "REFUSED", class_="no"), check["detail"]]
        for check in move["checks"]
    ]
    return join(facts(rows), table(("check before the move", "result", "detail"), checks) if checks else "")


def _policy_text(policy: Mapping[str, Any] | None) -> str:
    if policy is None:
        return "no rules applied to this alias"
    rules = "; ".join(f"{name}: {plain_text(value)}" for name, value in policy["rules"].items())
    return (
        f"line {policy['policy_line']} of the policy, for '{policy['alias']}', set {policy['time']} by "
        f"{policy['who']} ({policy['why']}): {rules or 'no rule'}"
    )


def _violations(violations: Mapping[str, Any]) -> Markup:
    if not violations["read"]:
        return element("p", violations["note"])
    no_ball = "not counted: the version has no certified ball"
    no_range = "not counted: the version has no certified range"
    states, samples = violations["states_outside_ball"], violations["samples_outside_range"]
    return join(
        facts(
            {
                "states outside their ball": no_ball if states is None else states,
                "samples outside the range": no_range if samples is None else samples,
                "sequences and steps run": violations["sequences_and_steps_run"],
                "read from": f"{violations['url']}, {violations['time']}",
                "scope": violations["scope"],
            }
        ),
        element(
            "p",
            "A state outside its ball contradicts the certificate and must be investigated. A sample outside the range "
            "contradicts nothing: the certificate within the range does not apply to its sequence.",
            class_="note",
        ),
    )


NOT_PROVED = "not proved"


class Markup(str):
    """HTML whose texts are escaped already."""

    __slots__ = ()


class NumberText(str):
    """A number that is text already, and is laid out as a number."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Return a value as HTML: markup as it is, numbers formatted, anything else as escaped text."""
    return value if isinstance(value, Markup) else Markup(html.escape(plain_text(value)))


def plain_text(value: object) -> str:
    """Return a value as text for people; None is a dash."""
    if value is None:
        return "–"
    # Before int, of which bool is a kind.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    # Rules of a policy, and whatever else another program may have stored.
    return json.dumps(value, ensure_ascii=False)


def upper_bound(value: object, digits: int = 6) -> object:
    """Return an upper bound as text that is rounded up; whole numbers, and None, as they are."""
    return NumberText(format_upper(value, digits)) if isinstance(value, float) else value


def lower_bound(value: object, digits: int = 6) -> object:
    """Return a lower bound as text that is rounded down; whole numbers, and None, as they are."""
    return NumberText(format_lower(value, digits)) if isinstance(value, float) else value


def element(tag: str, *content: object, **attributes: str) -> Markup:
    """Return an element; ``class_`` is the attribute ``class``."""
    # Attributes are quoted, so that escaped quotes cannot end them.
    names = "".join(f' {name.rstrip("_")}="{html.escape(value)}"' for name, value in attributes.items())
    return Markup(f"<{tag}{names}>{join(*content)}</{tag}>")


def join(*content: object) -> Markup:
    """Return several contents one after the other."""
    return Markup("".join(map(escape, content)))


def badge(kind: str) -> Markup:
    """Return the label ``PROVED`` or ``OBSERVED``, which differ in text, border and shade."""
    return element("span", kind.upper(), class_=f"badge {kind}")


def table(columns: Sequence[object], rows: Sequence[Sequence[object]], class_: str = "") -> Markup:
    """Return a table whose header is repeated on every printed page."""
    # Browsers repeat a thead on every page of a print.
    head = element("thead", element("tr", *(element("th", column) for column in columns)))
    body = element("tbody", *(element("tr", *map(_cell, row)) for row in rows))
    return element("table", head, body, class_=class_)


def _cell(value: object) -> Markup:
    # Numbers are not broken over lines.
    is_number = isinstance(value, int | float | NumberText) and not isinstance(value, bool)
    return element("td", value, class_="number") if is_number else element("td", value)


def facts(rows: Mapping[str, object]) -> Markup:
    """Return names and values, one pair a row; pairs without a value are left out."""
    # An empty cell would look like a fact that was forgotten.
    shown = [(name, value) for name, value in rows.items() if value is not None and value != ""]
    body = element("tbody", *(element("tr", element("th", name), element("td", value)) for name, value in shown))
    return element("table", body, class_="facts")


def paragraphs(text: str) -> Markup:
    """Return text with its blank lines as the bounds of paragraphs."""
    return join(*(element("p", part) for part in text.split("\n\n") if part.strip()))


def bullets(texts: Sequence[object]) -> Markup:
    """Return a list."""
    return element("ul", *(element("li", text) for text in texts))


PROSE: tuple[tuple[str, str], ...] = (
    (
        "The model",
        "The model reads a sequence one sample at a time and carries a state from one step to the next: it is a "
        "discrete-time dynamical system, x(t+1) = f(x(t), u(t)), whose parameters were found by training. This "
        "document states what is known of its stability. It keeps two sources of knowledge apart.",
    ),
    (
        "Proved and observed",
        "Proved means that a bound was computed from the weights, by a method whose reference is given, for every "
        "input and every state that its hypotheses admit, including those that nobody has tried. Each hypothesis is "
        "listed with its value, its limit, and the slack between them; a bound with little slack holds just as well, "
        "but a small change of the weights may end it. Observed means that something was measured on particular data: "
        "it may be larger or smaller elsewhere. An observation can refute a proof, never replace one. Throughout the "
        "document, what is proved has a solid orange mark and what is observed a dashed blue one. In figures, proved "
        "bounds are dashed orange lines and observations are blue.",
    ),
    (
        "Contraction",
        "Run the model twice under the same input, from two different states. If the distance of the two states, in a "
        "fixed norm, is multiplied by at most r < 1 in every step, the model is contracting at the rate r. It then "
        "has no memory of its start that does not fade, no limit cycles of its own, and a disturbance of the state "
        "decays as in a stable linear filter, whatever the input does. Non-expansive means r = 1: a disturbance does "
        "not grow, and need not decay. A rate above 1 is no statement of stability. The norm is part of the claim: in "
        "other norms, the distance may rise for some steps before it falls. It is the 2-norm (l2), the largest "
        "coordinate (linf), or one of these after a linear map or weights (weighted).",
    ),
    (
        "Forgetting",
        "The time constant in another form: the number of steps after which the outputs from two states at a distance "
        "of 1, under one input, differ by at most 0.01.",
    ),
    (
        "Ball",
        "An invariant ball is a set around the origin that no input leads the state out of, from the zero state: "
        "bounded-input bounded-state stability with the bound in numbers. The server compares every state that it "
        "computes with its ball; a state outside can only come from rounding, a wrong certificate or a damaged file, "
        "and is counted.",
    ),
    (
        "Gain",
        "If two inputs of the recurrent layers differ by at most 1 at every step, their outputs differ by at most the "
        "gain: an incremental L-infinity (and L2) gain. The effect of wrong inputs bounds the same for a limited "
        "number of steps. Units are those of the layers' input, after the model's own scaling. One wrong value of the "
        "data can be part of several steps; the front page says what it does to the model's output.",
    ),
    (
        "Inputs within a range",
        "For cells with gates, unlimited inputs can hold a gate open or closed, and little can be proved. A second "
        "certificate is therefore for raw inputs within a stated range, the range of the training data and half as "
        "much again, unless another one was requested. It says nothing about inputs outside, which a server counts.",
    ),
    (
        "What this is not",
        "Stability is not accuracy: a contracting model can be wrong. The certificate is of exact arithmetic on the "
        "stored weights. It does not cover rounding in operation, the hardware, or the system in which the model is "
        "used.",
    ),
)
"""Pairs of a term and its explanation."""


STYLE = """
:root { color-scheme: light; }
body { font: 10pt/1.42 "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; color: #111; background: #fff;
  max-width: 178mm; margin: 8mm auto; padding: 0 6mm; }
h1 { font-size: 19pt; margin: 0 0 1mm; }
h2 { font-size: 13.5pt; margin: 8mm 0 2mm; border-bottom: 1.5px solid #111; padding-bottom: 1mm; }
h3 { font-size: 11pt; margin: 5mm 0 1.5mm; }
p { margin: 0 0 2.2mm; }
ul, ol { margin: 0 0 2.2mm; padding-left: 5mm; }
li { margin-bottom: .8mm; }
table { border-collapse: collapse; width: 100%; margin: 1mm 0 3.5mm; font-size: 8.6pt; line-height: 1.32; }
th, td { border: .6pt solid #999; padding: 1mm 1.6mm; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
thead th { background: #f0f0f0; overflow-wrap: normal; }
thead { display: table-header-group; }
tr { break-inside: avoid; }
table.facts th { width: 34mm; background: #f7f7f7; font-weight: 600; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
table.claims th:nth-child(1) { width: 24%; } table.claims th:nth-child(2) { width: 15%; }
table.claims th:nth-child(3) { width: 12%; } table.claims th:nth-child(4) { width: 12%; }
table.methods th:nth-child(2) { width: 42%; } table.methods th:nth-child(3) { width: 24%; }
table.clauses th:nth-child(1) { width: 20%; } table.clauses th:nth-child(5) { width: 8%; }
table.clauses th:nth-child(2), table.clauses th:nth-child(3), table.clauses th:nth-child(4) { width: 24%; }
code, .digest { font-family: "DejaVu Sans Mono", Consolas, monospace; font-size: 8.2pt; overflow-wrap: anywhere; }
.badge { display: inline-block; font-size: 7.5pt; font-weight: 700; letter-spacing: .06em; padding: .2mm 1.4mm;
  margin-right: 1.5mm; vertical-align: 8%; }
.proved { border: 1.5pt solid #8a3c00; color: #8a3c00; background: #fff; }
.observed { border: 1.5pt dashed #00507d; color: #00507d; background: #fff; }
.part { padding-left: 3.2mm; }
.part.is-proved { border-left: 3pt solid #d55e00; }
.part.is-observed { border-left: 3pt dashed #0072b2; }
.box { border: 1pt solid #111; padding: 2mm 3mm; margin: 2mm 0 3.5mm; }
td p:last-child, .box p:last-child, .box ul:last-child { margin-bottom: 0; }
.note { color: #333; font-size: 8.8pt; }
.no { font-weight: 700; }
figure { margin: 2mm 0 4mm; break-inside: avoid; }
figure img { display: block; max-width: 100%; max-height: 100mm; margin: 0 auto 1mm; }
figcaption { font-size: 8.6pt; color: #222; }
.sign td { height: 11mm; width: 33%; }
@media screen { .page { border-top: 1px dashed #bbb; padding-top: 1mm; } }
@media print {
  body { max-width: none; margin: 0; padding: 0; font-size: 9.6pt; }
  h2, h3, .lead { break-after: avoid; }
  table.facts, .sign { break-inside: avoid; }
  .page { break-before: page; }
  .front { font-size: 9pt; }
  .front h3 { margin-top: 3.2mm; }
  .front table.facts th, .front table.facts td { padding: .5mm 1.6mm; }
  .front li { margin-bottom: .3mm; }
  a { color: inherit; text-decoration: none; }
}
"""
PAGE = """
@page { size: A4; margin: 16mm 16mm 18mm;
  @bottom-left { content: "Stability certificate, weights %s"; font: 7.5pt sans-serif; color: #444; }
  @bottom-right { content: counter(page) " / " counter(pages); font: 7.5pt sans-serif; color: #444; }
}
"""
"""The pages of a print; the digest goes into the foot of each."""


_PROGRESS = logging.getLogger("stablernn.progress")

SUFFIXES = (".html", ".json")


def check_path(path: Path) -> None:
    """Refuse a path before the certificate is computed.

    Raises:
        UsageError: If the suffix is neither .html nor .json, or the file cannot be created.
    """
    if path.suffix.lower() not in SUFFIXES:
        hint = " For a PDF, write .html, open it in a browser and print it to a file." if path.suffix else ""
        raise UsageError(f"--report writes a .html or .json file, got '{path}'.{hint or ' Add one of these suffixes.'}")
    # Computing a certificate can take a minute, after which a wrong path would be a bad surprise.
    folder = path.parent
    if path.is_dir() or not folder.is_dir():
        problem = "is a folder" if path.is_dir() else f"cannot be written: '{folder}' is not a folder"
        raise UsageError(f"The file of --report, '{path}', {problem}. Name a file in a folder that exists.")
    if not os.access(folder, os.W_OK):
        raise UsageError(
            f"The file of --report, '{path}', cannot be written: no permission for '{folder}'. Name another folder."
        )


def write_report(path: Path, report: Report) -> None:
    """Write a document, replacing a file of that name.

    Raises:
        stablernn.errors.CheckpointError: If the file cannot be written.
    """
    from stablernn.atomic_files import write_bytes, write_json

    if path.suffix.lower() == ".json":
        write_json(path, report.document)
        return
    # Figures are drawn here, and not for JSON.
    _PROGRESS.info("Drawing the figures ...")
    write_bytes(path, render(report).encode("utf-8"))
