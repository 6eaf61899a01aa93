"""Stability certificates as the registry stores them: their order by strength, and their description for people,
with bounds rounded to the side on which they still hold.

Versions and policies that were written before the kind ``local`` was withdrawn still name it. In a certificate it
counts as ``none`` and in a policy as ``bounded``. Stored bytes, and so the hashes over them, stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Literal

Kind = Literal["contracting", "non-expansive", "bounded", "none"]
KINDS: tuple[Kind, ...] = ("contracting", "non-expansive", "bounded", "none")
"""Kinds from the strongest to the weakest."""
WITHDRAWN_KIND = "local"
"""A kind between ``bounded`` and ``none``. It was decided by the differential equation or by single Jacobians, and
neither bounds the step that a model takes."""
REQUIRED_INSTEAD: Kind = "bounded"
"""Kind that a rule with the withdrawn kind requires instead: the weakest kind that is proved."""
WITHDRAWN_SENTENCE = (
    f"The kind '{WITHDRAWN_KIND}' was withdrawn and now means '{REQUIRED_INSTEAD}' (docs/background/stability.md)."
)

_MEANINGS: dict[object, str] = {
    "contracting": "two states under one input approach, {qualifier}by the factor {rate} {time} or faster",
    "non-expansive": "no step drives two states under one input apart",
    "bounded": "no input drives {ball}; two states under one input may part",
    "none": "no rate, and no bound of all its states, is proved",
}


_FIXED_CELLS = ("rocket", "smoothing")
"""Cells without trained weights. Beside the output their states are counts and sums, whose balls say nothing of it."""
_LARGEST = 1e300
_LISTED_RANGES = 6
"""Features whose ranges are listed one by one."""


def is_as_strong(kind: Kind, required_kind: Kind) -> bool:
    """Return whether a kind is at least as strong as the required one."""
    return KINDS.index(kind) <= KINDS.index(required_kind)


def current_certificate(certificate: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a stored certificate as it counts today.

    A certificate of the withdrawn kind gets the kind ``none``, ``holds`` false and ``stored_kind``, the kind in the
    manifest. Every other certificate is returned unchanged.
    """
    if certificate is None:
        return None
    if certificate.get("kind") != WITHDRAWN_KIND:
        return dict(certificate)
    return {**certificate, "kind": "none", "holds": False, "stored_kind": WITHDRAWN_KIND}


def format_kind(certificate: Mapping[str, object]) -> str:
    """Format the kind of a certificate for people, such as ``none (stored as local; withdrawn)``."""
    current = current_certificate(certificate) or {}
    if (current.get("kind"), current.get("stored_kind")) == ("none", WITHDRAWN_KIND):
        return f"none (stored as {WITHDRAWN_KIND}; withdrawn)"
    return str(current.get("kind"))


def format_kind_and_radius(certificate: Mapping[str, object]) -> str:
    """Format the kind of a certificate for people, ``bounded`` with a radius rounded up: ``bounded within 6.724e+09``.

    Without the radius, the kind would not tell a useful bound from one that excludes nothing.

    Args:
        certificate: A stored certificate, or the one in short that a run's ``summary.json`` has.
    """
    radius = state_radius(certificate)
    text = format_kind(certificate)
    return text if text != "bounded" or radius is None else f"{text} within {format_upper(radius, 4)}"


def state_radius(certificate: Mapping[str, object]) -> float | None:
    """Return the radius of the largest ball that a state stays in, or None if none is stored."""
    ball = _largest_ball(certificate)
    if ball is not None:
        return ball[0]
    # In short, a certificate has the largest radius alone.
    numbers = _finite_numbers([certificate.get("radius")])
    return numbers[0] if numbers else None


def describe_certificate(certificate: Mapping[str, object] | None) -> str:
    """Describe a certificate in one sentence, without the full stop."""
    certificate = current_certificate(certificate)
    if certificate is None:
        return "none was computed"
    kind, rate = certificate.get("kind"), certificate.get("contraction_rate")
    rate_text = format_upper(rate, 6) if isinstance(rate, float | int) else "-"
    # In a stack of layers, states may move apart for some steps before they approach.
    steps = certificate.get("time")
    steps = steps if isinstance(steps, Mapping) else {}
    time = "a step" if steps.get("resample_steps") is None else "a step of the resampled sequence"
    is_stack = certificate.get("step_rate") != rate
    if steps.get("steps") == "irregular":
        is_stack, time = _has_layers(certificate), "over the time of a regular step"
    qualifier = "in the end " if is_stack else ""
    ball = _describe_balls(certificate)
    # Any JSON may stand in a manifest that another program wrote.
    meaning = _MEANINGS.get(str(kind), "a kind that this version does not know")
    return f"{format_kind(certificate)}: {meaning.format(rate=rate_text, qualifier=qualifier, time=time, ball=ball)}"


def describe_bounded_inputs(certificate: Mapping[str, object] | None) -> str | None:
    """Describe what a certificate states of inputs within a range, without the full stop; None if it states nothing."""
    certificate = certificate or {}
    bounded = certificate.get("bounded_inputs")
    if not isinstance(bounded, Mapping):
        # Certificates of schema 1 are from before there were ranges.
        return "none was computed, the certificate is of schema 1" if certificate.get("schema") == 1 else None
    ranges = input_ranges(bounded)
    if ranges is None:
        return "a range that cannot be read"
    return f"{describe_certificate({**bounded, 'cell': certificate.get('cell')})}, {format_input_ranges(ranges)}"


def input_ranges(certificate: Mapping[str, object]) -> list[tuple[float, float]] | None:
    """Return the range of each raw feature that a certificate is for, or None if it is for all inputs or unreadable."""
    inputs = certificate.get("inputs")
    if not isinstance(inputs, Mapping):
        return None
    lower, upper = _finite_numbers(inputs.get("lower")), _finite_numbers(inputs.get("upper"))
    if not lower or len(lower) != len(upper) or any(low >= high for low, high in zip(lower, upper, strict=True)):
        return None
    return list(zip(lower, upper, strict=True))


def _finite_numbers(values: object) -> list[float]:
    """Return the numbers of a list; an empty one if it is none, or has anything else."""
    if not isinstance(values, list):
        return []
    # Compared before it is converted: JSON has whole numbers that are too large for a float. False for NaN.
    numbers = [float(value) for value in values if isinstance(value, int | float) and abs(value) < _LARGEST]
    return numbers if len(numbers) == len(values) else []


def format_input_ranges(ranges: Sequence[tuple[float, float]]) -> str:
    """Format ranges for people, such as ``with every feature within 0 to 16``."""
    # Rounded to the inside: a certificate says nothing of an input beyond either end.
    texts = [f"{format_upper(low, 6)} to {format_lower(high, 6)}" for low, high in ranges]
    if len(set(texts)) == 1:
        return f"with every feature within {texts[0]}"
    shown = ", ".join(texts[:_LISTED_RANGES])
    remaining_count = len(texts) - _LISTED_RANGES
    return f"with features within {shown}" + (f" and {remaining_count} more ranges" if remaining_count > 0 else "")


def _describe_balls(certificate: Mapping[str, object]) -> str:
    """Describe what inputs cannot leave: the ball of the only state, or the largest of those of several states.

    Of a cell without trained weights it is that of the output, the first state.
    """
    name, balls = "the state", certificate.get("state_balls")
    if certificate.get("cell") in _FIXED_CELLS and isinstance(balls, list):
        name, certificate = "the output", {"state_balls": balls[:1]}
    ball = _largest_ball(certificate)
    if ball is None:
        return f"{name} out of a ball, whose radius is not stored"
    radius, norm, count = ball
    text = format_upper(radius, 4) + ("" if norm is None else f" ({norm})")
    return (
        f"{name} out of a ball of radius {text}" if count == 1 else f"a state out of its ball, of radius {text} at most"
    )


def _largest_ball(certificate: Mapping[str, object]) -> tuple[float, str | None, int] | None:
    """Return radius and norm of the largest ball, and the number of balls; None if one of them cannot be read."""
    balls = certificate.get("state_balls")
    balls = balls if isinstance(balls, list) else [certificate.get("state_ball")]
    rows = [ball for ball in balls if isinstance(ball, Mapping)]
    radii = _finite_numbers([row.get("radius") for row in rows])
    # The largest of those that can be read could be smaller than the one that cannot.
    if not radii or len(radii) != len(balls):
        return None
    position = max(range(len(radii)), key=radii.__getitem__)
    norm = rows[position].get("norm")
    return radii[position], norm if isinstance(norm, str) else None, len(radii)


def _has_layers(certificate: Mapping[str, object]) -> bool:
    """Return whether a certificate is of several layers, whose hypotheses are named by layer."""
    hypotheses = certificate.get("hypotheses")
    names = [row.get("name") for row in hypotheses if isinstance(row, Mapping)] if isinstance(hypotheses, list) else []
    return any("layer 1" in str(name) for name in names)


def format_upper(value: float, digits: int) -> str:
    """Return an upper bound with so many significant digits, rounded up, so that what is printed holds as well."""
    return _format_rounded(value, digits, ROUND_CEILING)


def format_lower(value: float, digits: int) -> str:
    """Return a lower bound with so many significant digits, rounded down, so that what is printed holds as well."""
    return _format_rounded(value, digits, ROUND_FLOOR)


def _format_rounded(value: float, digits: int, rounding: str) -> str:
    # Decimal cannot shift the digits of infinity, and zero has none.
    if not value or not math.isfinite(value):
        return f"{value:g}"
    # The shortest decimal that reads back as the same float: 0.1 is printed as it is, and not as 0.100001.
    number = Decimal(repr(float(value)))
    rounded = number.quantize(Decimal(1).scaleb(number.adjusted() - digits + 1), rounding)
    return f"{float(rounded):.{digits}g}"
