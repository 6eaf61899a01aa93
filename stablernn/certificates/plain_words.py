"""The content of a certificate in the words of a user, with units: what is remembered, and how far errors reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

_MOST = 1e6
"""A bound beyond this excludes nothing that a user would fear, and is left out."""
_LEAST_RADIUS = 1e-3
"""A radius below this, in standard deviations of the data, is of no use, and is left out."""


def describe_guarantee(certificate: Mapping[str, Any], *, radius: float | None = None, sequences: int = 0) -> list[str]:
    """Return what a certificate proves as clauses, without the full stop; none if it proves nothing.

    Inputs are those of the layers, in units of the scaled data, and the size of an error is its 2-norm over all
    channels of a step. A step is one of the layers, which read several samples at once if the model has patches.

    Args:
        certificate: A document of :meth:`stablernn.certificates.certificate.Certificate.document`, or the one under its
            key ``bounded_inputs``, which has fewer keys.
        radius: Median over validation sequences of the certified radius; None if none is proved.
        sequences: Number of sequences that the median is of.
    """
    clauses: list[str] = []
    time = certificate.get("time") or {}
    if certificate["kind"] == "contracting":
        clauses += _forgetting(certificate.get("forgetting") or {}, is_regular=time.get("steps") != "irregular")
    elif certificate["kind"] == "non-expansive":
        clauses.append("never enlarges a disturbance of its state")
    elif certificate["kind"] == "bounded":
        clauses += _balls(certificate["state_balls"])
    if certificate["kind"] in ("contracting", "non-expansive"):
        clauses += _input_errors(certificate)
    if radius is not None and radius >= _LEAST_RADIUS:
        clauses.append(
            f"half of {sequences:,} validation sequences keep their answer under every perturbation smaller than "
            f"{_size(radius, ROUND_FLOOR)}"
        )
    return clauses


def _forgetting(forgetting: Mapping[str, Any], *, is_regular: bool) -> list[str]:
    """Return the clause about the memory of a disturbance."""
    steps = forgetting.get("steps")
    if steps is None:
        return ["forgets every disturbance of its state"]
    duration = _count(steps) if is_regular else f"the time of {_count(steps, 'regular step')}"
    return [f"forgets a disturbance to {100 * forgetting['share']:g} % within {duration}"]


def _input_errors(certificate: Mapping[str, Any]) -> list[str]:
    """Return the clauses about inputs that are wrong in one step, and in every step."""
    clauses = []
    single = next((gap["output_error"] for gap in certificate.get("gaps", ()) if gap["steps"] == 1), None)
    lasting = certificate["gains"]["input_to_output"]
    if single is not None and single < _MOST:
        clauses.append(f"an input that is wrong by 1 in one step moves no later output by more than {_size(single)}")
    if lasting is not None and lasting < _MOST:
        alone = "an input that is wrong by 1 in every step moves no output by more"
        start = "in every step by no more" if clauses else alone
        clauses.append(f"{start} than {_size(lasting)}")
    # The second continues the sentence of the first.
    return [", and ".join(clauses)] if clauses else []


def _balls(balls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the clause about the size of the state, for one number if every ball is one of numbers."""
    if not balls:
        return []
    largest = max(ball["radius"] for ball in balls)
    if not largest < _MOST:
        return []
    if all(ball["norm"] == "linf" for ball in balls):
        return [f"keeps every number of its state within {_size(largest)}"]
    return [f"keeps the norm of every layer's state within {_size(largest)}"]


def _size(value: float, rounding: str = ROUND_CEILING) -> str:
    """Return a bound with two significant digits, or as a whole number from 100 on.

    It is rounded to the side where it still holds: an upper bound up, a radius down.
    """
    number = Decimal(value)
    if number == 0:
        return "0"
    rounded = number.quantize(Decimal(1).scaleb(min(0, number.adjusted() - 1)), rounding)
    return f"{float(rounded):.2g}" if rounded < Decimal("0.001") else f"{rounded.normalize():,f}"


def _count(number: int, noun: str = "step") -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
