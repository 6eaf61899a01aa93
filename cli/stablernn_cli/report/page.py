"""The page of a certificate document: one HTML file without external resources, to be read and printed.

``page.html.j2`` has its structure. Templates escape every value; only the style sheet and the cells made here with
``Markup.format``, which escapes too, are markup.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from stablernn_cli.errors import UsageError
from stablernn_cli.report.claims import claimed_radius, scope_text
from stablernn_cli.report.document import Report
from stablernn_registry.certificates import format_kind_and_radius, format_lower, format_upper, input_ranges

_PROGRESS = logging.getLogger("stablernn.progress")

SUFFIXES = (".html", ".json")
_SCALING_TEXTS = {
    "standard": "where 1 is one standard deviation of a feature in the training data",
    "none": "which is not scaled",
    "window": "scaled by the mean and the spread of the last observed values",
    "context": "where 1 is the mean absolute seasonal change of the last steps of the series",
    "tokens": "where each token is a vector of its own",
}
_NO = Markup('<span class="no">{}</span>')
_DIGEST = Markup('<span class="digest">{}</span>')
_SHOWN_DIGITS = 19
"""Characters of a digest in the foot of a page: ``sha256:`` and 12 digits."""

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


def render(report: Report) -> str:
    """Return the page of a certificate document."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("stablernn_cli.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else plain_text(value),
    )
    environment.filters |= {
        "at_least": lower_bound,
        "at_most": upper_bound,
        "quoted": shlex.quote,
        "radius": claimed_radius,
        "scope": scope_text,
    }
    environment.tests["a_number"] = _is_number
    document = report.document
    return environment.get_template("page.html.j2").render(
        document=document,
        model=document["model"],
        images=report.images,
        front=list(_front_rows(document)),
        prose=PROSE,
        # Our own constants and hexadecimal digits: a style sheet is no text to be escaped.
        style=Markup(STYLE + PAGE % _foot(document["model"])),
        bounded_kind=_bounded_kind,
        check_rows=_check_rows,
        claim_rows=_claim_rows,
        clause_table=_clause_table,
        comparison_rows=_comparison_rows,
        condition_table=_condition_table,
        input_unit=_input_unit,
        method_rows=_method_rows,
        policy_text=_policy_text,
        range_rows=_range_rows,
        report_rows=_report_rows,
        score_table=_score_table,
    )


class NumberText(str):
    """A number that is text already, and is laid out as a number."""

    __slots__ = ()


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


def _is_number(value: object) -> bool:
    # A bool is an int, and printed as a word.
    return isinstance(value, int | float | NumberText) and not isinstance(value, bool)


def _foot(model: Mapping[str, Any]) -> str:
    """Return the first digits of the weights' digest, which are hexadecimal and so safe in a style sheet."""
    digest = str(model["weights"] or "")
    return f"{digest[:_SHOWN_DIGITS]}..." if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else "unknown"


def _front_rows(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield names and values of the facts on the front page."""
    model, code = document["model"], document["code"]
    is_version = model["source"] == "version"
    training, training_code = model["training_data"], model["training_code"]
    size = f"{model['layers']} layer(s) of {model['units']} units, {model['parameters']:,} parameters"
    yield from {
        "model": model["ref"],
        "digest": _DIGEST.format(model["digest"]) if is_version else "none: a run directory is not published",
        "weights": _DIGEST.format(plain_text(model["weights"])),
        "intended use": Markup().join(
            Markup("<p>{}</p>").format(text) for text in model["intended_use"]["text"].split("\n\n") if text.strip()
        ),
        "task": model["task"],
        "inputs": ", ".join(model["features"]),
        "outputs": ", ".join(model["labels"] or model["targets"]),
        "cell": f"{model['cell']}: {model['cell_title']}. {model['paper']}",
        "size": size + (f", {model['members']} members of an ensemble" if model["members"] > 1 else ""),
        "training data": _joined(training["name"], training["fingerprint"]),
        "trained by": _joined(training_code["stablernn"] and "stablernn", *training_code.values()) or "not stated",
        "published" if is_version else "trained": model["created"],
        "released as": _released(document["history"]),
        "counted in operation": _counted(document["violations"]),
        "certificate computed": f"{document['created']} by stablernn {code['stablernn']}, commit "
        f"{code['commit'] or 'unknown'}, Python {code['python']}, numpy {code['packages']['numpy']}, torch "
        f"{code['packages']['torch']}; {code['arithmetic']}",
    }.items()


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


def _joined(*texts: object) -> str | None:
    """Join the texts that are there; None if there is none."""
    shown = [str(text) for text in texts if text]
    return ", ".join(shown) if shown else None


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


def _bounded_kind(kind: str, radius: float | None) -> str:
    """Return a kind, ``bounded`` with the radius of the largest ball where it is known."""
    return format_kind_and_radius({"kind": kind, "radius": radius})


def _claim_rows(entry: Mapping[str, Any]) -> list[list[object]]:
    return [
        [claim["title"], upper_bound(claim["value"]), claim["unit"], claim["norm"] or "", claim["statement"]]
        for claim in entry["claims"]
        if claim["proved"]
    ]


def _range_rows(entry: Mapping[str, Any], model: Mapping[str, Any]) -> list[list[object]]:
    """Return the range of each input by its name; nothing for all inputs, or one range for all of them."""
    ranges = input_ranges({"inputs": entry["range"]}) or []
    if len(set(ranges)) < 2:
        return []
    # Of many names only the first are listed.
    names = model["features"] if len(model["features"]) == len(ranges) else map(str, range(len(ranges)))
    # Rounded to the inside: nothing is proved of an input beyond either end.
    return [[name, upper_bound(low), lower_bound(high)] for name, (low, high) in zip(names, ranges, strict=True)]


def _condition_table(conditions: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Return the heads and rows of conditions; those from papers may be about another object than the step.

    The limit of a contracting rate is 1 - 2.4e-7: with fewer than 8 digits, a value that is rounded up could exceed a
    limit that is rounded down, though the condition holds.
    """
    width = 6 if any("of" in condition for condition in conditions) else 5
    rows = [
        [
            condition["name"],
            upper_bound(condition["value"], 8),
            lower_bound(condition["bound"], 8),
            lower_bound(condition["slack"]),
            "yes" if condition["holds"] else _NO.format("no"),
            condition.get("of", ""),
        ]
        for condition in conditions
    ]
    return ["condition", "value", "limit", "slack", "holds", "of"][:width], [row[:width] for row in rows]


def _method_rows(entry: Mapping[str, Any]) -> list[list[object]]:
    code = Markup("<code>{}</code>")
    return [[row["method"], row["reference"], code.format(row["code"])] for row in entry["methods"]]


def _check_rows(move: Mapping[str, Any]) -> list[list[object]]:
    return [
        [check["name"], "passed" if check["ok"] else _NO.format("REFUSED"), check["detail"]] for check in move["checks"]
    ]


def _clause_table(clauses: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Return the sources, which are long addresses and numbered, and the rows, which name them by number."""
    sources = list(dict.fromkeys(clause["source"] for clause in clauses))
    title = Markup("<strong>{}</strong><br>{}")
    rows = [
        [
            title.format(clause["framework"], clause["clause"] or "text not read, no number"),
            *(clause[key] for key in ("topic", "supports", "does_not")),
            f"[{sources.index(clause['source']) + 1}]",
        ]
        for clause in clauses
    ]
    return sources, rows


def _comparison_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[object]]:
    """Return the rows of proved bounds beside observations."""
    return [
        [
            row["quantity"],
            _NO.format("not proved") if row["proved_at_most"] is None else upper_bound(row["proved_at_most"]),
            row["largest_observed"],
            row["observed_on"],
        ]
        for row in rows
    ]


def _score_table(metrics: object) -> tuple[list[str], list[list[object]]]:
    """Return the splits, and a row for each score with its value on each split."""
    # Versions of other programs may have anything for their metrics.
    tree = metrics if isinstance(metrics, Mapping) else {}
    # Scores of baselines are nested below the name of the baseline.
    scores = {str(split): dict(_flatten(values)) for split, values in tree.items() if isinstance(values, Mapping)}
    # A score that has no value for these data is left out.
    names = dict.fromkeys(name for values in scores.values() for name, value in values.items() if value is not None)
    return list(scores), [[name, *(values.get(name) for values in scores.values())] for name in names]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += _flatten(value, f"{name}, ")
        else:
            rows.append((name, value))
    return rows


def _report_rows(report: Mapping[str, Any]) -> list[tuple[str, object]]:
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
    return list(rows.items())


def _policy_text(policy: Mapping[str, Any] | None) -> str:
    if policy is None:
        return "no rules applied to this alias"
    rules = "; ".join(f"{name}: {plain_text(value)}" for name, value in policy["rules"].items())
    return (
        f"line {policy['policy_line']} of the policy, for '{policy['alias']}', set {policy['time']} by "
        f"{policy['who']} ({policy['why']}): {rules or 'no rule'}"
    )
