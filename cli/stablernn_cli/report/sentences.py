"""Sentences for a control engineer, computed from a certificate: forgetting, gains, gaps, balls, rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablernn_registry.documents.certificates import format_input_ranges, input_ranges
from stablernn_registry.documents.rounding import format_upper

_SCALING_TEXTS = {
    "standard": "where 1 is one standard deviation of a feature in the training data",
    "none": "which is not scaled",
    "window": "scaled by the mean and the spread of the last observed values",
    "context": "where 1 is the mean absolute seasonal change of the last steps of the series",
    "tokens": "where each token is a vector of its own",
}


def input_unit(facts: Mapping[str, Any]) -> str:
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


def scope_text(entry: Mapping[str, Any]) -> str:
    """Return the inputs of which a certificate is, as the beginning of a sentence."""
    ranges = input_ranges({"inputs": entry["range"]})
    return "For all inputs" if ranges is None else f"For inputs {format_input_ranges(ranges)}"


def summary_sentences(entry: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return what a certificate proves, in sentences; one sentence if it proves nothing.

    Args:
        entry: Certificate as a document has it, see :func:`stablernn_cli.report.claims.certificate_entry`.
        facts: Facts of the model, for units.
    """
    if entry.get("equals_all_inputs"):
        return [f"{scope_text(entry)}, the same bounds hold as for all inputs, and no smaller ones are proved."]
    # Every number comes from a claim of section A, where its exact meaning stands.
    values = {claim["id"]: claim["value"] for claim in entry["claims"]}
    unit = "steps" if entry["time"]["steps"] == "regular" else "regular steps of time"
    is_resampled = facts.get("resample_steps") is not None
    if is_resampled:
        unit = "steps of the resampled sequence"
    # Steps of a resampled sequence are no fixed number of samples.
    is_patched = facts["patch_stride"] > 1 and not is_resampled
    sentences = [_kind_sentence(entry, unit)]
    # Without contraction an error need not fade, and is counted for a limited time.
    period = "" if entry["kind"] == "contracting" else " within 100,000 steps"
    steps = values["forgetting_1_percent"]
    # A resampled sequence may end before it has forgotten.
    if steps is not None and not (is_resampled and steps > facts["resample_steps"]):
        sentences.append(
            f"A disturbance of its state by 1 moves no output by more than 0.01 after {steps:,} {unit}"
            + (f" ({steps * facts['patch_stride']:,} samples)." if is_patched else ".")
        )
    if values.get("gap_1") is not None:
        sentences.append(
            "One wrong input, by 1 unit, moves no later output of the layers by more than "
            f"{format_upper(values['gap_1'], 3)}{period}; units are those of {input_unit(facts)}."
        )
    if values.get("gap_100") is not None and not is_resampled:
        sentences.append(
            "A gap of 100 steps, each wrong by 1 unit, moves no output by more than "
            f"{format_upper(values['gap_100'], 3)}{period}."
        )
    gain = values["gain_input_to_output"]
    if gain is not None:
        sentences.append(
            "An error of 1 unit at every step, for any length of time, moves no output by more than "
            f"{format_upper(gain, 3)}."
        )
    balls = [claim for claim in entry["claims"] if claim["id"].startswith("state_ball_") and claim["proved"]]
    if balls:
        # One sentence: an ensemble of LSTM layers has a dozen.
        radii = ", ".join(
            f"{ball['id'].removeprefix('state_ball_')} {format_upper(ball['value'], 4)} ({ball['norm']})"
            for ball in balls
        )
        sentences.append(f"From the zero state, no input drives a state further from the origin than: {radii}.")
    return sentences


def claimed_radius(entry: Mapping[str, Any]) -> float | None:
    """Return the radius of the largest ball that a state stays in; None if no ball is proved.

    Args:
        entry: Certificate as a document has it, see :func:`stablernn_cli.report.claims.certificate_entry`.
    """
    balls = [claim["value"] for claim in entry["claims"] if claim["id"].startswith("state_ball_")]
    return max(balls, default=None)


def _kind_sentence(entry: Mapping[str, Any], unit: str) -> str:
    scope, rate = scope_text(entry), entry["contraction_rate"]
    if entry["kind"] == "contracting":
        time = unit.replace("steps", "step")
        # A stack of layers reaches its rate only after some steps.
        qualifier = "in the end " if entry["layers"] > 1 else ""
        return (
            f"{scope}, the model is contracting: two trajectories under one input approach each other {qualifier}by "
            f"the factor {format_upper(rate, 6)} per {time}, or faster, in the norm {entry['norm']}."
        )
    if entry["kind"] == "non-expansive":
        return (
            f"{scope}, the model is non-expansive: no step drives two trajectories under one input apart, but for at "
            f"most {format_upper(entry['rounding_slack'], 2)} of their distance."
        )
    radius = claimed_radius(entry)
    if entry["kind"] == "bounded" and radius is not None:
        return (
            f"{scope}, the state is bounded, within a radius of {format_upper(radius, 4)}. Contraction is "
            "not proved: two trajectories under one input may move apart within these bounds."
        )
    return f"{scope}, neither contraction nor a bound on the whole state is proved."
