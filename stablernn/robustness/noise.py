"""Accuracy under random noise on test sequences, at several levels of each kind of noise.

Level 0 is no noise. Noise is added to the raw values, in units of the standard deviation of each feature in training;
only observed values are changed, and padding stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.robustness.settings import DRAWS

Array = npt.NDArray[Any]
Predict = Callable[[Array], Array]
"""From values (samples, time, features) to class numbers (samples,)."""


@dataclass(frozen=True)
class NoiseInput:
    """The sequences to which noise is added.

    Attributes:
        x: Values, float32 (samples, time, features), in raw units, NaN where missing.
        lengths: Sequence lengths, int64 (samples,).
        scale: Unit of the noise, (features,).
        low: Smallest value in training, (features,).
        high: Largest value in training, (features,).
    """

    x: Array
    lengths: Array
    scale: Array
    low: Array
    high: Array

    @property
    def valid(self) -> Array:
        """Mask of steps that are not padding, (samples, time, 1)."""
        valid_steps: Array = np.arange(self.x.shape[1])[None, :, None] < self.lengths[:, None, None]
        return valid_steps


def white(values: NoiseInput, level: float, random: np.random.Generator) -> Array:
    """Add normal noise of standard deviation ``level`` to every value."""
    noise = random.standard_normal(values.x.shape, dtype=np.float32)
    noisy: Array = values.x + np.float32(level) * values.scale.astype(np.float32) * noise
    return noisy


def salt_and_pepper(values: NoiseInput, level: float, random: np.random.Generator) -> Array:
    """Set each value with probability ``level`` to the smallest or the largest of its feature in training."""
    is_replaced = (random.random(values.x.shape) < level) & ~np.isnan(values.x)
    is_salt = random.random(values.x.shape) < 0.5
    return np.where(is_replaced, np.where(is_salt, values.high, values.low), values.x).astype(np.float32)


def missing(values: NoiseInput, level: float, random: np.random.Generator) -> Array:
    """Make all features of each step missing with probability ``level``."""
    is_dropped = random.random(values.x.shape[:2]) < level
    return np.where(is_dropped[..., None], np.float32(np.nan), values.x)


def jitter(values: NoiseInput, level: float, random: np.random.Generator) -> Array:
    """Shift the time of each step by a normal offset of standard deviation ``level`` steps.

    Values are interpolated linearly between samples, and constant before the first and after the last one. Next to a
    missing value the nearer sample is used, so that gaps move but do not grow.
    """
    last = (values.lengths - 1)[:, None]
    # Shifted times in steps, (samples, time).
    times = np.arange(values.x.shape[1]) + level * random.standard_normal(values.x.shape[:2])
    times = np.clip(times, 0, last)
    before = np.floor(times).astype(np.int64)
    after = np.minimum(before + 1, last)
    fraction = (times - before)[..., None].astype(np.float32)
    interpolated = _take_steps(values.x, before) * (1 - fraction) + _take_steps(values.x, after) * fraction
    nearest = _take_steps(values.x, np.where(fraction[..., 0] > 0.5, after, before))
    return np.where(np.isnan(interpolated), nearest, interpolated)


Noise = Callable[[NoiseInput, float, np.random.Generator], Array]
KINDS: dict[str, tuple[Noise, tuple[float, ...]]] = {
    "white": (white, (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)),
    "salt_and_pepper": (salt_and_pepper, (0.02, 0.05, 0.1, 0.2, 0.3)),
    "missing": (missing, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "jitter": (jitter, (0.1, 0.2, 0.5, 1.0, 2.0)),
}
"""Function and levels of each kind of noise; level 0 is always measured too."""


def noise_curve(
    predict: Predict, values: NoiseInput, truth: Array, kind: str, *, draws: int = DRAWS, seed: int = 0
) -> dict[str, list[float]]:
    """Measure the accuracy at each level of one kind of noise.

    Args:
        predict: The classifier.
        values: The sequences.
        truth: True classes, (samples,).
        kind: One of :data:`KINDS`.
        draws: Draws of noise at each level, 2 or more.
        seed: Seed of the noise.

    Returns:
        ``levels``, ``accuracy`` (mean over the draws) and ``standard_error`` of this mean. The first level is 0, which
        needs no draws.
    """
    add_noise, levels = KINDS[kind]
    rows = [(0.0, float((predict(values.x) == truth).mean()), 0.0)]
    for level_index, level in enumerate(levels):
        scores = []
        for draw in range(draws):
            # Independent streams, so that the result of one kind or level does not depend on the others.
            random = np.random.default_rng([seed, list(KINDS).index(kind), level_index, draw])
            noisy = np.where(values.valid, add_noise(values, level, random), values.x)
            scores.append(float((predict(noisy) == truth).mean()))
        rows.append((level, float(np.mean(scores)), float(np.std(scores, ddof=1)) / math.sqrt(draws)))
    names = ("levels", "accuracy", "standard_error")
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _take_steps(x: Array, steps: Array) -> Array:
    # Steps (samples, time) are the same for all features.
    return np.take_along_axis(x, np.broadcast_to(steps[..., None], x.shape), axis=1)
