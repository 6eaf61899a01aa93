"""Noise: what random changes of test sequences make of accuracy, level by level.

Each kind has a level that is 0 for none. Noise is of the raw values, in units of each feature's standard deviation in
training; only values that are observed are changed, and nothing behind a sequence's end.
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
class Values:
    """What noise is put on.

    Attributes:
        x: float32 (samples, time, features), raw units, NaN where missing.
        lengths: int64 (samples,).
        scale: (features,), the unit of noise.
        low: (features,), the smallest value in training.
        high: (features,), the largest one.
    """

    x: Array
    lengths: Array
    scale: Array
    low: Array
    high: Array

    @property
    def real(self) -> Array:
        """Which steps are no padding, (samples, time, 1)."""
        inside: Array = np.arange(self.x.shape[1])[None, :, None] < self.lengths[:, None, None]
        return inside


def white(values: Values, level: float, random: np.random.Generator) -> Array:
    """Normal noise of standard deviation ``level`` on every value."""
    noise = random.standard_normal(values.x.shape, dtype=np.float32)
    noisy: Array = values.x + np.float32(level) * values.scale.astype(np.float32) * noise
    return noisy


def salt_and_pepper(values: Values, level: float, random: np.random.Generator) -> Array:
    """Each value becomes, with probability ``level``, the smallest or the largest of its feature in training."""
    hit = (random.random(values.x.shape) < level) & ~np.isnan(values.x)
    salt = random.random(values.x.shape) < 0.5
    return np.where(hit, np.where(salt, values.high, values.low), values.x).astype(np.float32)


def missing(values: Values, level: float, random: np.random.Generator) -> Array:
    """Each step goes missing, all features of it, with probability ``level``."""
    gone = random.random(values.x.shape[:2]) < level
    return np.where(gone[..., None], np.float32(np.nan), values.x)


def jitter(values: Values, level: float, random: np.random.Generator) -> Array:
    """Each step is read too early or too late, by a normal time of standard deviation ``level`` steps.

    Between two samples a straight line is read, before the first and behind the last one these; beside a missing value
    the nearer sample is taken, so that gaps move and do not grow.
    """
    last = (values.lengths - 1)[:, None]
    place = np.arange(values.x.shape[1]) + level * random.standard_normal(values.x.shape[:2])
    place = np.clip(place, 0, last)
    before = np.floor(place).astype(np.int64)
    after = np.minimum(before + 1, last)
    share = (place - before)[..., None].astype(np.float32)
    read = _at(values.x, before) * (1 - share) + _at(values.x, after) * share
    nearer = _at(values.x, np.where(share[..., 0] > 0.5, after, before))
    return np.where(np.isnan(read), nearer, read)


Noise = Callable[[Values, float, np.random.Generator], Array]
KINDS: dict[str, tuple[Noise, tuple[float, ...]]] = {
    "white": (white, (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)),
    "salt_and_pepper": (salt_and_pepper, (0.02, 0.05, 0.1, 0.2, 0.3)),
    "missing": (missing, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "jitter": (jitter, (0.1, 0.2, 0.5, 1.0, 2.0)),
}
"""Each kind of noise and its levels, beside 0."""


def noise_curve(
    predict: Predict, values: Values, truth: Array, kind: str, *, draws: int = DRAWS, seed: int = 0
) -> dict[str, list[float]]:
    """Accuracy at each level of one kind of noise.

    Args:
        predict: What is scored.
        values: Of the sequences.
        truth: (samples,), their classes.
        kind: One of :data:`KINDS`.
        draws: Of the noise at each level, 2 or more.
        seed: Of the noise.

    Returns:
        ``levels``, ``accuracy``, the mean over the draws, and ``standard_error``, that of this mean; the first level is
        0, which needs no draws.
    """
    change, levels = KINDS[kind]
    rows = [(0.0, float((predict(values.x) == truth).mean()), 0.0)]
    for number, level in enumerate(levels):
        scores = []
        for draw in range(draws):
            random = np.random.default_rng([seed, list(KINDS).index(kind), number, draw])
            noisy = np.where(values.real, change(values, level, random), values.x)
            scores.append(float((predict(noisy) == truth).mean()))
        rows.append((level, float(np.mean(scores)), float(np.std(scores, ddof=1)) / math.sqrt(draws)))
    return {name: [row[place] for row in rows] for place, name in enumerate(("levels", "accuracy", "standard_error"))}


def _at(x: Array, steps: Array) -> Array:
    return np.take_along_axis(x, np.broadcast_to(steps[..., None], x.shape), axis=1)
