"""The model card: a README.md that a person reads and whose YAML head other hubs understand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from stablernn_registry.certificates import current_certificate, describe_certificate
from stablernn_registry.manifest import ManifestFields
from stablernn_registry.reports import ROBUSTNESS, RobustnessReport

MOST_NAMES = 100

_PIPELINES = {"classify": "time-series-classification", "forecast": "time-series-forecasting"}


def model_card(fields: ManifestFields, name: str = "model", robustness: RobustnessReport | None = None) -> str:
    """Composes the card of a version from what its manifest will say.

    Args:
        fields: The publisher's part of the manifest.
        name: Name of the model, for the title and the examples.
        robustness: What its ``robustness.json`` says; None where it has none.

    Returns:
        Markdown with a YAML head; the same fields give the same text.
    """
    parts = [
        _head(fields),
        f"# {_text(name)}\n\n{_summary(fields)}",
        "## Data in and out\n\n" + _inputs(fields),
        "## Figures\n\n" + (_table(("figure", "value"), _flat(fields.metrics)) or "None were given."),
        "## Stability certificate\n\n" + _certificate(fields),
        *(["## Robustness\n\n" + _robustness(robustness, name)] if fields.task == "classify" else []),
        "## Parity of the exported graphs\n\n"
        + (_table(("difference", "value"), _flat(fields.parity)) or "None was recorded."),
        "## Preprocessing\n\nPart of the graphs, except for the calibration of a recursive head; listed for people.\n\n"
        + (_table(("field", "value"), _flat(fields.preprocessing)) or "None."),
        "## Lineage\n\n" + (_table(("field", "value"), _flat(fields.lineage)) or "None was recorded."),
        f"## Use\n\n    stablernn registry verify {_text(name)}\n    stablernn serve --model {_text(name)}",
    ]
    return "\n\n".join(parts) + "\n"


def _head(fields: ManifestFields) -> str:
    # JSON text is YAML text, and quoting it keeps words such as "no" from becoming something else.
    lines = ["---", "library_name: stablernn"]
    if fields.task in _PIPELINES:
        lines.append(f"pipeline_tag: {_PIPELINES[fields.task]}")
    lines += ["tags:", "- time-series", "- onnx", f"- {json.dumps(fields.cell, ensure_ascii=False)}", "---"]
    return "\n".join(lines)


def _summary(fields: ManifestFields) -> str:
    cell = f"{_networks(fields)} of `{_text(fields.cell)}` cells"
    if fields.task == "classify":
        return f"Classifies sequences into {len(fields.labels or ())} classes with {cell}."
    if fields.task == "forecast":
        targets = ", ".join(_text(target) for target in fields.targets or ())
        return f"Forecasts {targets} for the next {fields.horizon} steps with {cell}."
    predictions = {
        None: "what comes next",
        "categorical": "one of several classes",
        "bernoulli": "which of several binary targets are on",
        "real": "measured values",
    }
    return f"Predicts {predictions[fields.output]} at each step of a sequence with {cell}."


def _networks(fields: ManifestFields) -> str:
    members = _setting(fields, "members")
    if not isinstance(members, int) or members < 2:
        return "a recurrent network"
    return f"{members} recurrent networks, whose answers are averaged,"


def _certificate(fields: ManifestFields) -> str:
    certificate = current_certificate(fields.certificate)
    if not certificate:
        return "None was computed for this version."
    parts = [f"{_text(describe_certificate(certificate))}."]
    plain = {key: value for key, value in certificate.items() if not isinstance(value, list)}
    plain |= {key: value for key, value in certificate.items() if key == "states"}
    parts.append(_table(("field", "value"), _flat(plain)))
    for title, key in (("What the proof rests on", "hypotheses"), ("What papers ask for", "conditions")):
        conditions = certificate.get(key)
        rows = [one for one in conditions if isinstance(one, Mapping)] if isinstance(conditions, list) else []
        if rows:
            head: tuple[str, ...] = ("condition", "value", "at most", "holds")
            table = [[row.get("name"), row.get("value"), row.get("bound"), row.get("holds")] for row in rows]
            if any("of" in row for row in rows):
                head = (*head, "of")
                table = [[*cells, row.get("of", "")] for cells, row in zip(table, rows, strict=True)]
            parts.append(f"{title}:\n\n{_table(head, table)}")
    if _setting(fields, "skip") == "linear":
        parts.append("The certificate covers the recurrent layers only, not the linear skip.")
    return "\n\n".join(parts)


def _robustness(report: RobustnessReport | None, name: str) -> str:
    if report is None:
        return (
            "Not measured before this version was published. "
            f"`stablernn eval {_text(name)} --robustness` measures it and stores the report with the version."
        )
    about = (
        f"Of {_text(report.sample)}. Changes are in standard deviations of each feature: the largest change of a value "
        f"(linf) and the 2-norm of all changes of a sequence (l2). All figures are in `{ROBUSTNESS}`."
    )
    return f"{about}\n\n" + _table(("figure", "value"), list(report.figures().items()))


def _setting(fields: ManifestFields, key: str) -> object:
    """What the configuration of the training run says of the model; None where it does not."""
    tree: object = fields.lineage
    for word in ("config", "model", key):
        tree = tree.get(word) if isinstance(tree, Mapping) else None
    return tree


def _inputs(fields: ManifestFields) -> str:
    rows = [
        ("features", _names(fields.features)),
        ("labels", _names(fields.labels or ())),
        ("targets", ", ".join(fields.targets or ())),
        ("horizon (steps)", fields.horizon),
        ("context length (steps)", fields.context_length),
        ("season (steps)", fields.season),
        ("frequency", fields.frequency),
        ("quantiles", ", ".join(str(level) for level in fields.quantiles or ())),
        ("head", fields.head),
        ("known in advance", ", ".join(fields.future or ())),
        ("static", ", ".join(fields.static or ())),
        ("calendar", ", ".join(period.name for period in fields.calendar or ())),
    ]
    said = [(key, value) for key, value in rows if value not in (None, "")]
    return "Raw units in and out; NaN is a missing value.\n\n" + _table(("field", "value"), said)


def _names(names: Sequence[str]) -> str:
    """The names; of a vocabulary the first and how many there are."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"


def _flat(tree: Mapping[str, object], above: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in tree.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, Mapping):
            rows += _flat(value, path)
        else:
            rows.append((path, value))
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(_text(_value(cell)) for cell in row)} |" for row in rows])


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(text: str) -> str:
    # One line, and no character that would end a table cell or start markup: names come from people's files.
    flat = " ".join(text.split())
    return "".join("\\" + char if char in "\\|`<*[" else char for char in flat)
