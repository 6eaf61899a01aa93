"""Ranges of raw inputs that a certificate is restricted to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn.errors import ConfigError

TRAINING_RANGE_FACTOR = 1.5
"""By how much the default range is wider than that of the training data, about its middle: half of the width is left
for new data, at either end a quarter."""


@dataclass(frozen=True)
class InputRange:
    """The raw values that each feature takes, in the units of the data.

    Attributes:
        lower: Of each feature, or one number for all.
        upper: Of each feature, or one number for all.

    Raises:
        ConfigError: If a bound is not finite, or no number lies between two.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        for low, high in zip(self.lower, self.upper, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ConfigError(
                    "A range of inputs goes from one finite number to a larger one, such as -3:3 (or 3 for short), got "
                    f"{low:g}:{high:g}."
                )

    @classmethod
    def parse(cls, text: str) -> InputRange:
        """Return the range that a text states: ``R`` for -R to R or ``LOW:HIGH``, one for all features or a list.

        Raises:
            ConfigError: If it states none.
        """
        return cls.of([_parsed(part) for part in text.split(",")])

    @classmethod
    def of(cls, within: float | Sequence[float | Sequence[float]]) -> InputRange:
        """Return a range.

        Args:
            within: ``R`` for values from -R to R, or a sequence with one entry for each feature (or one for all), each
                of them ``R`` or a pair of the smallest and the largest value.

        Raises:
            ConfigError: If a number is not finite, an ``R`` not greater than 0, or a pair not in order.
        """
        pairs = [_pair(entry) for entry in ([within] if isinstance(within, int | float | np.number) else within)]
        if not pairs:
            raise ConfigError("A range of inputs is one number R, or one entry for each feature, got none.")
        return cls(tuple(low for low, _ in pairs), tuple(high for _, high in pairs))

    @classmethod
    def around_training(cls, lower: Sequence[float], upper: Sequence[float]) -> InputRange:
        """Return the range of the training data, ``TRAINING_RANGE_FACTOR`` times as wide about its middle.

        Args:
            lower: Smallest value of each feature.
            upper: Largest value. A feature that never changes gets 1 at either side, as scaling takes 1 for its
                deviation, or a millionth of its value if that is more.
        """
        pairs = []
        for low, high in zip(lower, upper, strict=True):
            half = TRAINING_RANGE_FACTOR * (high - low) / 2 or max(1.0, 1e-6 * abs(low))
            pairs.append(((low + high) / 2 - half, (low + high) / 2 + half))
        return cls.of(pairs)

    @classmethod
    def from_document(cls, document: Any) -> InputRange | None:
        """Return the range of a certificate's document; None if it is of all inputs, or damaged."""
        try:
            return cls(tuple(map(float, document["lower"])), tuple(map(float, document["upper"])))
        except (KeyError, TypeError, ValueError):
            return None

    def document(self) -> Mapping[str, list[float]]:
        """Return the range as JSON types."""
        return {"lower": list(self.lower), "upper": list(self.upper)}

    def for_features(self, count: int) -> InputRange:
        """Return the range with a bound for each of ``count`` features.

        Raises:
            ConfigError: If it has those of another number.
        """
        if len(self.lower) == count:
            return self
        if len(self.lower) == 1:
            return InputRange(self.lower * count, self.upper * count)
        raise ConfigError(
            f"The model reads {count} feature{'' if count == 1 else 's'}, got ranges of inputs for {len(self.lower)}. "
            "Give one for all features, or one for each."
        )


def training_range(data: Mapping[str, Any]) -> InputRange | None:
    """Return the default range of a run, from the values that it was trained on.

    Args:
        data: Content of its ``data.json``.

    Returns:
        The range; None for tokens, for ``scaling: window``, and for runs from before the values were stored.
    """
    values_range = data.get("input_range")
    return None if values_range is None else InputRange.around_training(values_range["lower"], values_range["upper"])


def _pair(entry: Any) -> tuple[float, float]:
    """Return the smallest and the largest value that ``R`` or a pair states."""
    if isinstance(entry, int | float | np.number):
        radius = float(entry)
        # Negated, so that NaN is refused.
        if not (radius > 0 and math.isfinite(radius)):
            raise ConfigError(
                "Inputs stay within a finite number greater than 0, in the units of the data, got "
                f"{radius:g}. For values that are not around 0 give LOW:HIGH."
            )
        return -radius, radius
    try:
        low, high = entry
        return float(low), float(high)
    except (TypeError, ValueError):
        raise ConfigError(
            f"The range of a feature is a number R or a pair of its smallest and its largest value, got {entry!r}."
        ) from None


def _parsed(text: str) -> float | tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        return (float(low), float(high)) if colon else float(low)
    except ValueError:
        raise ConfigError(
            "Inputs stay within a number R (from -R to R) or a range LOW:HIGH, one for all features or one for each, "
            f"separated by commas, got '{text}'."
        ) from None
