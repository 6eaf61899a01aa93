"""The model card: a README.md for people, with a YAML header that model hubs understand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from stablernn_registry.certificates import current_certificate, describe_bounded_inputs, describe_certificate
from stablernn_registry.manifest import ManifestFields
from stablernn_registry.reports import ROBUSTNESS, RobustnessReport

# A vocabulary can have thousands of names.
MAX_NAMES = 100

_PIPELINES = {"classify": "time-series-classification", "forecast": "time-series-forecasting"}


def model_card(
    fields: ManifestFields,
    name: str = "model",
    robustness: RobustnessReport | None = None,
    intended_use: str | None = None,
) -> str:
    """Compose the model card of a version from the fields of its manifest.

    Args:
        fields: Publisher's part of the manifest.
        name: Name of the model, for the title and the examples.
        robustness: Robustness report of the version, or None.
        intended_use: Intended use, as plain text; None if the publisher states none.

    Returns:
        Markdown with a YAML header; the same fields give the same text.
    """
    parts = [
        _format_front_matter(fields),
        f"# {_escape(name)}\n\n{_summarize(fields)}",
        *([f"## Intended use\n\n{_escape(intended_use)}"] if intended_use else []),
        "## Data in and out\n\n" + _format_data(fields),
        "## Figures\n\n" + (_format_table(("figure", "value"), _flatten(fields.metrics)) or "None were given."),
        "## Stability certificate\n\n" + _format_certificate(fields),
        *(["## Robustness\n\n" + _format_robustness(robustness, name)] if fields.task == "classify" else []),
        "## Parity of the exported graphs\n\n"
        + (_format_table(("difference", "value"), _flatten(fields.parity)) or "None was recorded."),
        "## Preprocessing\n\nPart of the graphs, except for the calibration of a recursive head; listed for people.\n\n"
        + (_format_table(("field", "value"), _flatten(fields.preprocessing)) or "None."),
        "## Lineage\n\n" + (_format_table(("field", "value"), _flatten(fields.lineage)) or "None was recorded."),
        f"## Use\n\n    stablernn registry verify {_escape(name)}\n    stablernn serve --model {_escape(name)}",
    ]
    return "\n\n".join(parts) + "\n"


def _format_front_matter(fields: ManifestFields) -> str:
    # JSON strings are YAML strings, and the quotes keep YAML from reading a name like "no" as a boolean.
    lines = ["---", "library_name: stablernn"]
    if fields.task in _PIPELINES:
        lines.append(f"pipeline_tag: {_PIPELINES[fields.task]}")
    lines += ["tags:", "- time-series", "- onnx", f"- {json.dumps(fields.cell, ensure_ascii=False)}", "---"]
    return "\n".join(lines)


def _summarize(fields: ManifestFields) -> str:
    cell = f"{_describe_networks(fields)} of `{_escape(fields.cell)}` cells"
    if fields.task == "classify":
        return f"Classifies sequences into {len(fields.labels or ())} classes with {cell}."
    if fields.task == "forecast":
        targets = ", ".join(_escape(target) for target in fields.targets or ())
        return f"Forecasts {targets} for the next {fields.horizon} steps with {cell}."
    predictions = {
        None: "what comes next",
        "categorical": "one of several classes",
        "bernoulli": "which of several binary targets are on",
        "real": "measured values",
    }
    return f"Predicts {predictions[fields.output]} at each step of a sequence with {cell}."


def _describe_networks(fields: ManifestFields) -> str:
    members = _model_setting(fields, "members")
    if not isinstance(members, int) or members < 2:
        return "a recurrent network"
    return f"{members} recurrent networks, whose answers are averaged,"


def _format_certificate(fields: ManifestFields) -> str:
    certificate = current_certificate(fields.certificate)
    if not certificate:
        return "None was computed for this version."
    words = certificate.get("in_words")
    # Versions from before there were words, and those of other programs, have none.
    texts = [text for text in words if isinstance(text, str)] if isinstance(words, list) else []
    parts = [_escape(" ".join(texts))] if texts else []
    parts.append(f"{_escape(describe_certificate(certificate))}.")
    bounded = describe_bounded_inputs(certificate)
    if bounded is not None:
        parts.append(f"For inputs of a bounded size, in the units of the data: {_escape(bounded)}.")
    # Lists, apart from "states", have tables of their own below or are too long for a card.
    scalars = {
        key: value
        for key, value in certificate.items()
        if not isinstance(value, list) and key not in ("inputs", "bounded_inputs", "wrong_sample")
    }
    scalars |= {key: value for key, value in certificate.items() if key == "states"}
    parts.append(_format_table(("field", "value"), _flatten(scalars)))
    for title, key in (("What the proof rests on", "hypotheses"), ("What papers ask for", "conditions")):
        conditions = certificate.get(key)
        rows = (
            [condition for condition in conditions if isinstance(condition, Mapping)]
            if isinstance(conditions, list)
            else []
        )
        if rows:
            header: tuple[str, ...] = ("condition", "value", "at most", "holds")
            table = [[row.get("name"), row.get("value"), row.get("bound"), row.get("holds")] for row in rows]
            if any("of" in row for row in rows):
                header = (*header, "of")
                table = [[*cells, row.get("of", "")] for cells, row in zip(table, rows, strict=True)]
            parts.append(f"{title}:\n\n{_format_table(header, table)}")
    if _model_setting(fields, "skip") == "linear":
        parts.append("The certificate covers the recurrent layers only, not the linear skip.")
    return "\n\n".join(parts)


def _format_robustness(report: RobustnessReport | None, name: str) -> str:
    if report is None:
        return (
            "Not measured before this version was published. "
            f"`stablernn eval {_escape(name)} --robustness` measures it and stores the report with the version."
        )
    intro = (
        f"Of {_escape(report.sample)}. Changes are in standard deviations of each feature: the largest change of a "
        f"value (linf) and the 2-norm of all changes of a sequence (l2). All figures are in `{ROBUSTNESS}`."
    )
    return f"{intro}\n\n" + _format_table(("figure", "value"), list(report.figures().items()))


def _model_setting(fields: ManifestFields, key: str) -> object:
    """Return a setting of the model from the configuration of its training run, or None."""
    tree: object = fields.lineage
    for name in ("config", "model", key):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _format_data(fields: ManifestFields) -> str:
    rows = [
        ("features", _format_names(fields.features)),
        ("labels", _format_names(fields.labels or ())),
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
    filled_rows = [(key, value) for key, value in rows if value not in (None, "")]
    return "Raw units in and out; NaN is a missing value.\n\n" + _format_table(("field", "value"), filled_rows)


def _format_names(names: Sequence[str]) -> str:
    """Join names; if there are many, the first ones and the number of the others."""
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMES])} and {len(names) - MAX_NAMES} more"


def _flatten(tree: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            rows += _flatten(value, path)
        else:
            rows.append((path, value))
    return rows


def _format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return "\n".join(lines + [f"| {' | '.join(_escape(_format_value(cell)) for cell in row)} |" for row in rows])


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _escape(text: str) -> str:
    # Names come from users' files: keep them on one line, and escape what would end a table cell or start markup.
    line = " ".join(text.split())
    return "".join("\\" + char if char in "\\|`<*[" else char for char in line)
