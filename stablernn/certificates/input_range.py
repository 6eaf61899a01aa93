"""Ranges of raw inputs that a certificate is restricted to, and what they mean for the inputs of the first layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from stablernn.bounds.intervals import Box
from stablernn.cells import StableCell
from stablernn.cells._base import float64
from stablernn.errors import ConfigError
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import SequenceModel


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


def input_size(module: nn.Module) -> int:
    """Return the number of raw features that a cell, layers, an ensemble or a model reads."""
    if isinstance(module, Ensemble):
        return _embeddings(module)[0].in_features if module.embedding else module.first.input_size
    assert isinstance(module, StableCell | StableRNN | SequenceModel)
    return module.input_size


def first_layer_boxes(module: nn.Module, inputs: InputRange) -> list[Box]:
    """Return the ranges of the inputs of each member's first layer.

    Args:
        module: A cell, a :class:`stablernn.StableRNN`, an ensemble or a model.
        inputs: Of every feature.

    Raises:
        ConfigError: If the model's scaling leaves no range.
    """
    # Widened by the rounding of the ends to float32.
    box = Box(np.array(inputs.lower), np.array(inputs.upper)).scaled(1.0)
    if isinstance(module, SequenceModel):
        box = _patch_range(module, box)
        module = module.rnn
    if not isinstance(module, Ensemble):
        return [box]
    if not module.embedding:
        return [box] * len(module)
    return [box.affine(float64(embedding.weight), float64(embedding.bias)).gelu() for embedding in _embeddings(module)]


def _embeddings(ensemble: Ensemble) -> list[nn.Linear]:
    # nn.ModuleList yields nn.Module: this narrows the type.
    return [embedding for embedding in ensemble.embeddings if isinstance(embedding, nn.Linear)]


def _patch_range(model: SequenceModel, inputs: Box) -> Box:
    """Return the range of the channels of a patch, as :class:`stablernn.nn.preprocessing.Patches` orders them."""
    channels, extras = model.scaling.channel_range(inputs)
    # Samples before the first are zero.
    samples = channels.with_zero()
    return Box(
        np.concatenate([np.tile(samples.lower, model.patches.size), extras.lower]),
        np.concatenate([np.tile(samples.upper, model.patches.size), extras.upper]),
    )
