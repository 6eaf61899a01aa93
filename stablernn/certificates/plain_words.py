"""The content of a certificate in the words of a user, with units: what is remembered, and how far errors reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

_MOST = 1e6
"""A bound beyond this excludes nothing that a user would fear, and is left out."""
_LEAST_RADIUS = 1e-3
"""A radius below this, in standard deviations of the data, is of no use, and is left out."""
_COUNTED_STEPS = 100_000
"""Steps for which a certificate bounds what a state that need not fade can do."""


def describe_guarantee(
    certificate: Mapping[str, Any],
    *,
    radius: float | None = None,
    sequences: int = 0,
    embedding_gain: float | None = None,
) -> list[str]:
    """Return what a certificate proves as sentences about the model, without the full stop; none if it proves nothing.

    The size of an error is its 2-norm over all channels of a step. A step is one of the layers, which read several
    samples at once if the model has patches. Of a model that resamples complete sequences they are steps of the
    resampled sequence, and so are its inputs.

    Args:
        certificate: A document of :meth:`stablernn.certificates.certificate.Certificate.document`, or the one under its
            key ``bounded_inputs``, which has fewer keys.
        radius: Median over validation sequences of the certified radius; None if none is proved.
        sequences: Number of sequences that the median is of.
        embedding_gain: Factor by which the embedding of the model can enlarge a change of the scaled values, 1 without
            one: errors of inputs are then those of the scaled values. None: they are of the inputs of the layers.
    """
    clauses: list[str] = []
    time = certificate.get("time") or {}
    if certificate["kind"] == "contracting":
        clauses += _forgetting(certificate.get("forgetting") or {}, time)
    elif certificate["kind"] == "non-expansive":
        clauses += _growth(certificate)
    elif certificate["kind"] == "bounded":
        clauses += _balls(certificate["state_balls"])
    if certificate["kind"] in ("contracting", "non-expansive"):
        clauses += _input_errors(certificate, embedding_gain)
    if radius is not None and radius >= _LEAST_RADIUS:
        clauses.append(
            f"half of {sequences:,} validation sequences keep their answer under every perturbation smaller than "
            f"{format_size(radius, ROUND_FLOOR)}"
        )
    return clauses


def _forgetting(forgetting: Mapping[str, Any], time: Mapping[str, Any]) -> list[str]:
    """Return the clause about the memory of a disturbance."""
    # Certificates from before this key bound the effect by a share of another bound only.
    steps = forgetting.get("steps_from_distance_1")
    resample_steps = time.get("resample_steps")
    if resample_steps is not None and (steps is None or steps > resample_steps):
        # A resampled sequence ends before it has forgotten.
        return []
    if steps is None:
        return ["it forgets every disturbance of its state"]
    duration = _count(steps) if time.get("steps") != "irregular" else f"the time of {_count(steps, 'regular step')}"
    if resample_steps is not None:
        duration += " of the resampled sequence"
    limit = f"{forgetting['share']:g}"
    return [f"it forgets: a disturbance of its state by 1 moves no output by more than {limit} after {duration}"]


def _growth(certificate: Mapping[str, Any]) -> list[str]:
    """Return the clause about a disturbance that need not fade, whose rate rounding may leave slightly above 1."""
    growth = max(1.0, certificate["contraction_rate"] or 1.0) ** _COUNTED_STEPS
    # Rounded up to a tenth of a percent.
    percent = math.ceil(1000 * (growth - 1)) / 10
    size = "" if certificate["norm"] == "l2" else f" in the norm '{certificate['norm']}'"
    if not percent:
        return [f"it never enlarges a disturbance of its state{size}"]
    return [f"it enlarges a disturbance of its state{size} by no more than {percent:g} % in {_COUNTED_STEPS:,} steps"]


def _input_errors(certificate: Mapping[str, Any], embedding_gain: float | None) -> list[str]:
    """Return the clauses about inputs that are wrong in one step, and in every step."""
    clauses = []
    # One raw sample may reach several of a resampled sequence.
    is_resampled = (certificate.get("time") or {}).get("resample_steps") is not None
    subject, factor = "a resampled input" if is_resampled else "an input", embedding_gain
    if factor is None:
        subject, factor = "an input of the layers", 1.0
    period = "" if certificate["kind"] == "contracting" else f" of the next {_COUNTED_STEPS:,}"
    single = next((gap["output_error"] for gap in certificate.get("gaps", ()) if gap["steps"] == 1), None)
    lasting = certificate["gains"]["input_to_output"]
    if single is not None and factor * single < _MOST:
        limit = format_size(factor * single)
        clauses.append(f"{subject} that is wrong by 1 in one step moves no later output{period} by more than {limit}")
    if lasting is not None and factor * lasting < _MOST:
        alone = f"{subject} that is wrong by 1 in every step moves no output by more"
        start = "in every step by no more" if clauses else alone
        clauses.append(f"{start} than {format_size(factor * lasting)}")
    # The second continues the sentence of the first.
    return [", and ".join(clauses)] if clauses else []


def _balls(balls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the clause about the size of the state: of its norm, or of each number if some ball is in another norm."""
    if not balls:
        return []
    largest = largest_radius(balls)
    if not largest < _MOST:
        return []
    if all(ball["norm"] == "l2" for ball in balls):
        return [f"it keeps the norm of every layer's state within {format_size(largest)}"]
    # No number exceeds the 2-norm.
    return [f"it keeps every number of its state within {format_size(largest)}"]


def largest_radius(balls: Iterable[Mapping[str, Any]]) -> float:
    """Return the largest radius of the balls in a document of a certificate, of which there is at least one."""
    return float(max(ball["radius"] for ball in balls))


def format_size(value: float, rounding: str = ROUND_CEILING) -> str:
    """Return a bound with two significant digits, or as a whole number from 100 to a million.

    It is rounded to the side where it still holds: an upper bound up, a radius down.
    """
    number = Decimal(value)
    if number == 0:
        return "0"
    exponent = number.adjusted() - 1
    # Of a bound beyond a million only the order of magnitude matters.
    rounded = number.quantize(Decimal(1).scaleb(min(0, exponent) if value < _MOST else exponent), rounding)
    is_plain = Decimal("0.001") <= rounded < Decimal(_MOST)
    return f"{rounded.normalize():,f}" if is_plain else f"{float(rounded):.2g}"


def _count(number: int, noun: str = "step") -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
