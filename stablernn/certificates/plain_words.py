"""The content of a certificate in the words of a user: how far a wrong value moves an output, and how long it lasts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from stablernn.data.table.frequency import parse_frequency
from stablernn.errors import UnknownNameError

_MOST = 1e6
"""A bound from here on is formatted by its order of magnitude."""
_MOST_TIMES = 10.0
"""A bound of more than so many times the error is of no use: few values lie further from the mean."""
_MOST_PROBABILITY = 0.5
"""A change of a probability beyond this turns any answer into another, and a bound on it is of no use."""
_MOST_SAMPLES = 100_000
"""Samples beyond which nobody waits for an error to be forgotten, where the length of the data is not known."""
_UNITS = (
    ("year", 31_557_600_000_000_000),
    ("week", 604_800_000_000_000),
    ("day", 86_400_000_000_000),
    ("hour", 3_600_000_000_000),
    ("minute", 60_000_000_000),
    ("second", 1_000_000_000),
    ("millisecond", 1_000_000),
)
"""Units of time in nanoseconds."""


def states_anything(bounds: Mapping[str, Any]) -> bool:
    """Return whether bounds of :func:`stablernn.certificates.stored_certificate.wrong_sample_bounds` bound anything."""
    has_effect = any(effect["output_change"] is not None for effect in bounds["effects"])
    return has_effect or bounds["forgotten_after"] is not None


def describe_guarantee(
    bounds: Mapping[str, Any], *, frequency: str | None = None, longest: int | None = None
) -> list[str]:
    """Return what is proved of a wrong raw value, in one or two sentences.

    Args:
        bounds: As :func:`stablernn.certificates.stored_certificate.wrong_sample_bounds` returns them.
        frequency: Alias of the time grid, in whose units times are; None for samples.
        longest: Samples of the longest training sequence: what is forgotten later is of no use. None if not known.
    """
    if not states_anything(bounds) and bounds["reason"] is None:
        return [f"Nothing is proved of how far a wrong value moves a {bounds['output']}, nor that it is forgotten."]
    unit = "regular" if bounds["irregular_time"] else frequency
    sentences = [_describe_effects(bounds, unit)]
    samples = bounds["forgotten_after"]
    if samples is None:
        return sentences
    duration = format_duration(samples, unit)
    if samples > (_MOST_SAMPLES if longest is None else longest):
        scale = "a time of no use" if longest is None else "longer than the data"
        return [*sentences, f"That it is forgotten is proved only after {duration}, {scale}."]
    share = f"less than {100 * bounds['forgotten_share']:g} %"
    if bounds["reason"] is not None:
        # Of a scaling by recent values there is no bound in units of the error.
        effect = f"it moves a {bounds['output']} by {share} of the recent change of the series"
    elif _is_probability(bounds):
        effect = f"it moves no {bounds['output']} by more than {bounds['forgotten_share']:g}"
    else:
        effect = f"{share} of the error is left in a {bounds['output']}"
    last = "the last wrong token" if bounds["unit"] == "tokens" else "the last wrong or missing value"
    return [*sentences, f"It is forgotten {duration} after {last}: from then on {effect}."]


def _describe_effects(bounds: Mapping[str, Any], unit: str | None) -> str:
    """Return the sentence about a single wrong value and missing ones that repeat it."""
    output, is_token = bounds["output"], bounds["unit"] == "tokens"
    if bounds["reason"] is not None:
        return f"How far a wrong value moves a {output} is not bounded, since {bounds['reason']}."
    limit = _MOST_PROBABILITY if _is_probability(bounds) else _MOST_TIMES * (bounds["error"] or 1.0)
    noun, error = "a wrong token", ""
    if not is_token:
        size = "one standard deviation" if bounds["error"] is None else format_size(bounds["error"], ROUND_FLOOR)
        noun, error = "a value", f" that is wrong by {size}"
    scope = "As long as values stay within the certified range, " if bounds["within_range"] else ""
    # Of no use is what does not exclude anything; it is counted as if there were no bound.
    changes = {
        effect["missing_after"]: effect["output_change"]
        for effect in bounds["effects"]
        if effect["output_change"] is not None and effect["output_change"] <= limit
    }
    if 0 not in changes:
        sentence = f"{scope}no useful bound is proved of how far {noun}{error} moves a {output}"
        return f"{sentence[0].upper()}{sentence[1:]}."
    counted = bounds["counted_samples"]
    period = "" if counted is None else f" of the next {format_duration(counted, unit)}"
    sizes = {gap: _format_change(change, bounds) for gap, change in changes.items()}
    sentence = f"{scope}{noun}{error} moves no {output}{period} by more than {sizes.pop(0)}"
    sentence = sentence[0].upper() + sentence[1:]
    if is_token:
        return f"{sentence}, and any number of them by no more than {sizes[None]}." if sizes else f"{sentence}."
    if not sizes:
        return f"{sentence}, as long as the value after it is not missing."
    gap, size = (None, sizes[None]) if None in sizes else max(sizes.items())
    number = "any number of" if gap is None else f"up to {gap}"
    return f"{sentence}, or {size} if {number} missing values after it repeat it."


def _is_probability(bounds: Mapping[str, Any]) -> bool:
    return str(bounds["output"]).endswith("probability")


def _format_change(change: float, bounds: Mapping[str, Any]) -> str:
    in_scales = bounds["unit"] == "scales" and not _is_probability(bounds)
    return format_size(change) + (" standard deviations" if in_scales else "")


def format_duration(samples: int, frequency: str | None) -> str:
    """Return the time of so many samples, rounded up, such as ``9 hours`` or ``2.9 years``.

    Args:
        samples: Their number.
        frequency: Alias of the time grid; ``regular`` for irregular time, None for none.
    """
    if frequency == "regular":
        return f"the time of {_count(samples, 'regular step')}"
    try:
        grid = None if frequency is None else parse_frequency(frequency)
    except UnknownNameError:
        # A later release may have trained the model.
        grid = None
    if grid is None:
        return _count(samples, "sample")
    if grid.kind == "index":
        return _count(samples * grid.step, "step")
    if grid.kind == "business":
        return _count(samples * grid.step, "working day")
    if grid.kind != "fixed":
        months = samples * grid.step
        return _count(months, "month") if months < 24 else f"{format_size(months / 12)} years"
    length = samples * grid.step
    for unit, nanoseconds in _UNITS:
        # Weeks are for what is measured once a week.
        if length >= 2 * nanoseconds and not (unit == "week" and grid.step % nanoseconds):
            return f"{format_size(length / nanoseconds)} {unit}s"
    return _count(max(1, math.ceil(length / _UNITS[-1][1])), _UNITS[-1][0])


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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
