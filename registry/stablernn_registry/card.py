"""The model card: a README.md that a person reads and whose YAML head other hubs understand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from .manifest import ManifestFields

_PIPELINES = {"classify": "time-series-classification", "forecast": "time-series-forecasting"}


def model_card(fields: ManifestFields, name: str = "model") -> str:
    """Composes the card of a version from what its manifest will say.

    Args:
        fields: The publisher's part of the manifest.
        name: Name of the model, for the title and the examples.

    Returns:
        Markdown with a YAML head; the same fields give the same text.
    """
    parts = [
        _head(fields),
        f"# {_text(name)}\n\n{_summary(fields)}",
        "## Data in and out\n\n" + _inputs(fields),
        "## Figures\n\n" + (_table(("figure", "value"), _flat(fields.metrics)) or "None were given."),
        "## Stability certificate\n\n"
        + (_table(("field", "value"), _flat(fields.certificate or {})) or "None was computed for this version."),
        "## Parity of the exported graphs\n\n"
        + (_table(("difference", "value"), _flat(fields.parity)) or "None was recorded."),
        "## Preprocessing\n\nPart of the graphs; listed for people.\n\n"
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
    cell = f"a recurrent network of `{_text(fields.cell)}` cells"
    if fields.task == "classify":
        return f"Classifies sequences into {len(fields.labels or ())} classes with {cell}."
    if fields.task == "forecast":
        targets = ", ".join(_text(target) for target in fields.targets or ())
        return f"Forecasts {targets} for the next {fields.horizon} steps with {cell}."
    return f"Predicts the next step of a sequence with {cell}."


def _inputs(fields: ManifestFields) -> str:
    rows = [
        ("features", ", ".join(fields.features)),
        ("labels", ", ".join(fields.labels or ())),
        ("targets", ", ".join(fields.targets or ())),
        ("horizon (steps)", fields.horizon),
        ("context length (steps)", fields.context_length),
        ("season (steps)", fields.season),
        ("frequency", fields.frequency),
        ("quantiles", ", ".join(str(level) for level in fields.quantiles or ())),
    ]
    said = [(key, value) for key, value in rows if value not in (None, "")]
    return "Raw units in and out; NaN is a missing value.\n\n" + _table(("field", "value"), said)


def _flat(tree: Mapping[str, object], above: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in tree.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, Mapping):
            rows += _flat(value, path)
        else:
            rows.append((path, value))
    return rows


def _table(head: tuple[str, str], rows: Sequence[tuple[str, object]]) -> str:
    if not rows:
        return ""
    lines = [f"| {head[0]} | {head[1]} |", "| --- | --- |"]
    return "\n".join(lines + [f"| {_text(key)} | {_text(_value(value))} |" for key, value in rows])


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(text: str) -> str:
    # One line, and no character that would end a table cell or start markup: names come from people's files.
    flat = " ".join(text.split())
    return "".join("\\" + char if char in "\\|`<*[" else char for char in flat)
