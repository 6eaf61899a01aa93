"""What `stablernn eval --stability` adds: what is proved of a model, and beside it what is observed on a split."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.options import Split
from stablernn_cli.output import Output, figure, plain
from stablernn_cli.records import keep
from stablernn_cli.targets import Target, is_run, open_weights

if TYPE_CHECKING:
    from stablernn.data import ClassificationData, ForecastData
    from stablernn.data.step_data import StepData

_SHOWN_EXPONENTS = 5


def observed(
    output: Output, text: str, target: Target, data: ClassificationData | ForecastData | StepData, split: Split
) -> dict[str, Any]:
    """``stability``, of a run the ``plots`` that were written into it, of a version its ``records``.

    Args:
        output: Is told where the report is kept.
        text: TARGET as the user gave it.
        target: The same, opened.
        data: What it is observed on.
        split: Of the data.
    """
    from stablernn.dynamics.plots import draw_observed
    from stablernn.dynamics.report import observe
    from stablernn.export.weights import weights_digest

    model = open_weights(target.name)[1]
    found = observe(model, data, split, labels=target.labels or None if data.task == "classify" else None)
    document: dict[str, Any] = {"stability": found.document()}
    title = f"{data.name}, {split}"
    if is_run(text):
        document["plots"] = [str(path) for path in draw_observed(Path(text) / "plots", found, title)]
        return document
    with tempfile.TemporaryDirectory(prefix="stablernn-eval-") as name:
        folder = Path(name)
        report = {"weights": weights_digest(model), "data": data.name, "split": split, **document["stability"]}
        (folder / "stability.json").write_text(json.dumps(plain(report), indent=2) + "\n", encoding="utf-8")
        draw_observed(folder / "plots", found, title)
        document["records"] = keep(output, target.name, "stability", folder)
    return document


def show(output: Output, document: Mapping[str, Any]) -> None:
    """Both parts for people, the proved one first."""
    certificate, empirical = document["stability"]["certificate"], document["stability"]["empirical"]
    output.text()
    output.facts(_proved(certificate), title="Proved")
    output.text()
    sequences = empirical["sequences"]
    noun = "sequence" if sequences == 1 else "sequences"
    title = f"Observed on {sequences} {noun} of the {document['split']} split, {empirical['steps']:,} steps"
    jacobian = _jacobian(empirical["jacobian"], certificate)
    output.facts(jacobian | _lyapunov(empirical["lyapunov"]) | _gradients(empirical["gradients"]), title=title)


def _proved(certificate: Mapping[str, Any]) -> dict[str, object]:
    from stablernn_registry.documents.certificates import describe_certificate

    facts = {
        "kind": describe_certificate(certificate),
        "norm": certificate["norm"],
        "contraction rate": certificate["contraction_rate"],
        "gain, input to output": certificate["gains"]["input_to_output"],
    }
    return {word: value for word, value in facts.items() if value is not None}


def _jacobian(found: Mapping[str, Any] | None, certificate: Mapping[str, Any]) -> dict[str, object]:
    if found is None:
        return {"Jacobian": "not decomposed, the state is too long"}
    proved = {one["name"].removesuffix("contraction rate").strip(): one["value"] for one in certificate["hypotheses"]}
    radius, largest, smallest = (
        found[name] for name in ("spectral_radius", "largest_singular_value", "smallest_singular_value")
    )
    facts: dict[str, object] = {
        f"{row['layer']} largest factor of a step".strip(): f"{figure(row['factor'])} in {row['norm']} "
        f"(proved: at most {figure(proved[row['layer']])})"
        for row in found["largest_factors"]
    }
    facts |= {
        "spectral radius": f"{figure(radius['mean'])} on average, up to {figure(radius['most'])}",
        "outside the unit circle": f"{found['share_outside']:.1%} of the eigenvalues",
        "mean modulus": found["mean_modulus"],
        "singular values": f"{figure(smallest['least'])} to {figure(largest['most'])}",
        "departure from normality": f"{figure(found['departure_from_normality']['mean'])} (Henrici)",
    }
    real = found["continuous_real_part"]
    if real is not None:
        facts["real part of the flow"] = f"{figure(real['least'])} to {figure(real['most'])} a unit of time"
    return facts


def _lyapunov(found: Mapping[str, Any]) -> dict[str, object]:
    pairs = list(zip(found["exponents"], found["standard_error"], strict=True))
    shown = ", ".join(
        "-inf" if exponent is None else figure(exponent) + ("" if error is None else f" +- {error:.1g}")
        for exponent, error in pairs[:_SHOWN_EXPONENTS]
    )
    more = f", ... ({len(pairs)})" if len(pairs) > _SHOWN_EXPONENTS else ""
    return {
        "Lyapunov exponents": f"{shown}{more} a step",
        "Kaplan-Yorke dimension": found["kaplan_yorke"],
        "entropy rate": found["entropy_rate"],
    }


def _gradients(found: Mapping[str, Any]) -> dict[str, object]:
    def spread(name: str) -> str:
        low, middle, high = found[name].values()
        return f"{figure(middle)} ({figure(low)} to {figure(high)})"

    if not found["sequences"]:
        return {"gradients": "no loss at the end of these sequences"}
    return {
        "gradient, slope of its log": spread("slope"),
        "gradient, first over last": spread("first_over_last"),
        "gradient, least over most": spread("least_over_most"),
    }
