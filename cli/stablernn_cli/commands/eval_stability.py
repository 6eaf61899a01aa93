"""`stablernn eval --stability`: the certificate of a model, and its observed dynamics on a split."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.options import Split
from stablernn_cli.output import Output, drop_none, figure, plain
from stablernn_cli.records import record_report
from stablernn_cli.targets import Target, is_run, open_weights

if TYPE_CHECKING:
    from stablernn.data.step_data import Data

_MAX_EXPONENTS = 5


def observe_stability(output: Output, text: str, target: Target, data: Data, split: Split) -> dict[str, Any]:
    """Certify and observe a model; plots go into the run, or with the report into a record of the version.

    Args:
        output: Prints where the report is stored.
        text: TARGET as it was typed.
        target: The same, opened.
        data: Data to observe the model on.
        split: Split of the data.

    Returns:
        ``stability``; for a run also ``plots``, for a version ``records``.
    """
    from stablernn.dynamics.plots import draw_report
    from stablernn.dynamics.report import observe_dynamics
    from stablernn.export.weights import weights_digest

    # The torch model, also for a version: Jacobians and gradients need it.
    model = open_weights(target.name)[1]
    observation = observe_dynamics(model, data, split, labels=target.labels or None)
    document: dict[str, Any] = {"stability": observation.document()}
    title = f"{data.name}, {split}"
    # A run's plots are part of it; a version never changes, so its report is attached to it.
    if is_run(text):
        document["plots"] = [str(path) for path in draw_report(Path(text) / "plots", observation, title)]
        return document
    with tempfile.TemporaryDirectory(prefix="stablernn-eval-") as name:
        folder = Path(name)
        # The digest ties the record to the weights that were observed.
        report = {"weights": weights_digest(model), "data": data.name, "split": split, **document["stability"]}
        (folder / "stability.json").write_text(json.dumps(plain(report), indent=2) + "\n", encoding="utf-8")
        draw_report(folder / "plots", observation, title)
        document["records"] = record_report(output, target.name, "stability", folder)
    return document


def show(output: Output, document: Mapping[str, Any]) -> None:
    """Print both parts as text, the certificate first."""
    certificate, empirical = document["stability"]["certificate"], document["stability"]["empirical"]
    output.text()
    output.facts(_certificate_facts(certificate), title="Proved")
    output.text()
    sequences = empirical["sequences"]
    noun = "sequence" if sequences == 1 else "sequences"
    title = f"Observed on {sequences} {noun} of the {document['split']} split, {empirical['steps']:,} steps"
    jacobian = _jacobian_facts(empirical["jacobian"], certificate)
    lyapunov, gradients = _lyapunov_facts(empirical["lyapunov"]), _gradient_facts(empirical["gradients"])
    output.facts(jacobian | lyapunov | gradients, title=title)


def _upper_text(value: float | None) -> str:
    """Return a proved bound rounded up; a dash for one that is not finite."""
    from stablernn_registry.documents.rounding import format_upper

    return "-" if value is None else format_upper(value, 4)


def _certificate_facts(certificate: Mapping[str, Any]) -> dict[str, object]:
    from stablernn_registry.documents.certificates import describe_certificate
    from stablernn_registry.documents.rounding import format_upper

    rate, gain = certificate["contraction_rate"], certificate["gains"]["input_to_output"]
    facts = {
        "kind": describe_certificate(certificate),
        "norm": certificate["norm"],
        "contraction rate": None if rate is None else format_upper(rate, 6),
        "gain, input to output": None if gain is None else format_upper(gain, 4),
    }
    return drop_none(facts)


def _jacobian_facts(spectrum: Mapping[str, Any] | None, certificate: Mapping[str, Any]) -> dict[str, object]:
    if spectrum is None:
        return {"Jacobian": "not decomposed, the state is too long"}
    # Hypotheses are named "layer 0 contraction rate", or without the layer if there is one only.
    proved_rates = {
        hypothesis["name"].removesuffix("contraction rate").strip(): hypothesis["value"]
        for hypothesis in certificate["hypotheses"]
    }
    radius, largest, smallest = (
        spectrum[name] for name in ("spectral_radius", "largest_singular_value", "smallest_singular_value")
    )
    facts: dict[str, object] = {
        f"{row['layer']} largest factor of a step".strip(): f"{figure(row['factor'])} in {row['norm']} "
        f"(proved: at most {_upper_text(proved_rates[row['layer']])})"
        for row in spectrum["largest_factors"]
    }
    facts |= {
        "spectral radius": f"{figure(radius['mean'])} on average, up to {figure(radius['most'])}",
        "outside the unit circle": f"{spectrum['share_outside']:.1%} of the eigenvalues",
        "mean modulus": spectrum["mean_modulus"],
        "singular values": f"{figure(smallest['least'])} to {figure(largest['most'])}",
        "departure from normality": f"{figure(spectrum['departure_from_normality']['mean'])} (Henrici)",
    }
    # Only cells that discretize a differential equation have a flow.
    real_part = spectrum["continuous_real_part"]
    if real_part is not None:
        span = f"{figure(real_part['least'])} to {figure(real_part['most'])}"
        facts["real part of the flow"] = f"{span} a unit of time"
    return facts


def _lyapunov_facts(spectrum: Mapping[str, Any]) -> dict[str, object]:
    # JSON has no infinities: an exponent of minus infinity is None.
    pairs = list(zip(spectrum["exponents"], spectrum["standard_error"], strict=True))
    shown = ", ".join(
        "-inf" if exponent is None else figure(exponent) + ("" if error is None else f" +- {error:.1g}")
        for exponent, error in pairs[:_MAX_EXPONENTS]
    )
    more = f", ... ({len(pairs)})" if len(pairs) > _MAX_EXPONENTS else ""
    return {
        "Lyapunov exponents": f"{shown}{more} a step",
        "Kaplan-Yorke dimension": spectrum["kaplan_yorke"],
        "entropy rate": spectrum["entropy_rate"],
    }


def _gradient_facts(gradients: Mapping[str, Any]) -> dict[str, object]:
    def spread(name: str) -> str:
        # Quantiles over the sequences, in ascending order.
        low, middle, high = gradients[name].values()
        return f"{figure(middle)} ({figure(low)} to {figure(high)})"

    if not gradients["sequences"]:
        return {"gradients": "no loss at the end of these sequences"}
    return {
        "gradient, slope of its log": spread("slope"),
        "gradient, first over last": spread("first_over_last"),
        "gradient, least over most": spread("least_over_most"),
    }
