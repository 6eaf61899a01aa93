"""The page of a certificate document: one HTML file without external resources, to be read and printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from stablernn_cli.report.claims import claimed_radius, scope_text
from stablernn_cli.report.document import Report
from stablernn_cli.report.figures import Image
from stablernn_cli.report.html_operation import operation_section
from stablernn_cli.report.html_parts import (
    NOT_PROVED,
    Markup,
    badge,
    bullets,
    element,
    escape,
    facts,
    join,
    lower_bound,
    paragraphs,
    plain_text,
    table,
    upper_bound,
)
from stablernn_cli.report.prose import PROSE
from stablernn_cli.report.style import PAGE, STYLE
from stablernn_registry.documents.certificates import format_kind_and_radius, input_ranges

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
