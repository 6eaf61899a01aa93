"""Recipes that a search tries on a task: a few settings each, the first ones most often the best.

They were chosen on the nine classification sets and the forecasting tasks of docs/accuracy.md, their order and length
for many classes on the training files of Adiac and Crop as well; docs/choosing.md says what each of them is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.data.step_data import Data
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.training.settings.closed_form import CLOSED_FORM
from stablernn.training.tasks.classify import PATCHES
from stablernn.training.tasks.forecast import MAX_STEPS, MOST_WINDOWS_A_STEP

SMALL = 1000
"""Training sequences below which a model is trained on all of them, with none held out to choose the epoch by."""
_SHORT_QUANTILE = 0.1
"""Quantile of the lengths that counts as a short sequence."""
_VARIED_LENGTHS = 2.0
"""Length of the longest tenth of the sequences over that of the shortest, above which resampling is tried."""
MANY_WINDOWS = MAX_STEPS * MOST_WINDOWS_A_STEP // 4
"""Training windows of which the recommended steps see each at most four times, so that longer trainings of larger
networks are worth more than members (`python benchmarks/cross_validation.py longer-forecasts`)."""
MOST_EPOCHS = 20
"""Epochs of a training of so many windows, if the budget allows."""
BASELINE_UNITS = 256
"""Units of a layer that is not trained: in five folds of digits 64 get 97.4 % right and 256 get 98.4 %
(`python benchmarks/cross_validation.py closed-form`)."""
RESAMPLE_STEPS = 100
"""Samples of a resampled sequence: four for each of the recurrent steps of the default."""


@dataclass(frozen=True)
class Recipe:
    """Settings to try.

    Attributes:
        name: Name in tables.
        settings: Values by dotted key of the configuration.
        purpose: The data that it is for, in a few words.
        streams: False for a model that needs complete sequences; a search chooses it only where no recipe that streams
            is as good.
        most_epochs: Epochs up to which a larger budget makes the training longer, before it pays for members; None for
            what the task recommends.
    """

    name: str
    settings: Mapping[str, Any]
    purpose: str
    streams: bool = True
    most_epochs: int | None = None


def recipes(data: Data) -> list[Recipe]:
    """Return the recipes for data, in the order in which they are dropped from the end where the budget is small."""
    if isinstance(data, ClassificationData):
        return _classification(data)
    if isinstance(data, ForecastData):
        return _forecasting(data)
    return [
        Recipe("lru", {"model.cell": "lru"}, "the default"),
        Recipe("lstm", {"model.cell": "lstm"}, "text and events, where gates forget at once"),
        Recipe("lipschitz", {"model.cell": "lipschitz"}, "a fast step"),
        Recipe("lru, two layers", {"model.cell": "lru", "model.num_layers": 2}, "much data"),
    ]


def baselines(data: Data) -> list[Recipe]:
    """Return recipes that take no optimizer steps, of which the first that goes with the data is the baseline.

    The layers are random and contracting by construction where samples have no times. More units than a trained network
    has make up for it, except in forecasts, where the linear skip does the work.
    """
    settings: dict[str, Any] = {"training.method": CLOSED_FORM}
    if isinstance(data, ClassificationData):
        # The penalty and the temperature come from leave-one-out, so that a validation split would be idle.
        settings["training.refit"] = True
    if not isinstance(data, ForecastData):
        settings["model.hidden_size"] = BASELINE_UNITS
    # Only the second one takes the time between steps.
    return [
        Recipe(f"{cell}, closed form", {"model.cell": cell, **settings}, "a budget that is too small for a network")
        for cell in ("lru", "lipschitz")
    ]


def _classification(data: ClassificationData) -> list[Recipe]:
    lengths = np.concatenate([data.train.lengths, data.validation.lengths])
    short, longest = float(np.quantile(lengths, _SHORT_QUANTILE)), int(lengths.max())
    stride = max(1, round(longest / PATCHES))
    fine = max(1, min(stride // 2, round(short / PATCHES)))
    lru = {"model.cell": "lru", "training.refit": len(lengths) < SMALL}
    return [
        Recipe("lru", lru, "the default"),
        *_resampled(data, lru, lengths),
        Recipe(
            "lru, unchanged sequences",
            {**lru, "training.time_warp": 0.0, "training.jitter": 0.0, "training.rescale": 0.0},
            "classes that differ in size, speed or by little",
        ),
        Recipe("lru, any start", {**lru, "training.shift": 0.5}, "sequences whose start is arbitrary"),
        Recipe("lipschitz", {**lru, "model.cell": "lipschitz"}, "a fast step"),
        # Without an effect where the stride is 1 already: it is dropped as the same as the first.
        Recipe("lru, short patches", {**lru, "model.patch_stride": fine, "model.patch_size": 4 * fine}, "short shapes"),
        Recipe(
            "lru, long patches",
            {**lru, "model.patch_stride": stride, "model.patch_size": min(longest, 12 * stride)},
            "shapes longer than a sixth of the sequence",
        ),
        Recipe("lru, convolutions", {**lru, "model.conv_layers": 3}, "shapes of 15 samples or less at any place"),
        Recipe("lru, 128 units", {**lru, "model.hidden_size": 128}, "many classes"),
        Recipe("gru", {**lru, "model.cell": "gru"}, "events that overwrite what came before"),
    ]


def _resampled(data: ClassificationData, lru: Mapping[str, Any], lengths: npt.NDArray[np.int64]) -> list[Recipe]:
    """Return the recipe for complete sequences whose lengths vary much; none for any others.

    It comes early, so that a small budget does not leave out the one that is made for such data.
    """
    shortest, longest = np.quantile(lengths, (_SHORT_QUANTILE, 1 - _SHORT_QUANTILE))
    # Samples with times need not be equidistant.
    if longest <= _VARIED_LENGTHS * shortest or data.time_step is not None:
        return []
    return [
        Recipe(
            "lru, resampled",
            {**lru, "model.resample_steps": RESAMPLE_STEPS},
            "complete sequences of very different lengths; cannot stream",
            streams=False,
        )
    ]


def _forecasting(data: ForecastData) -> list[Recipe]:
    lipschitz: dict[str, Any] = {"model.cell": "lipschitz"}
    most_epochs = None
    portfolio = [Recipe("lipschitz", lipschitz, "the default")]
    if len(data.windows("train")) > MANY_WINDOWS:
        lipschitz |= {"model.hidden_size": 128, "training.lr": 0.01}
        most_epochs = MOST_EPOCHS
        portfolio = [
            Recipe("lipschitz, many windows", lipschitz, "the default of many windows", most_epochs=most_epochs)
        ]
    portfolio.append(Recipe("lru", {"model.cell": "lru"}, "long memory"))
    # A context of whole seasons, as the default is.
    for factor in (2, 4):
        length = factor * data.context_length
        portfolio.append(
            Recipe(
                f"lipschitz, context of {length}",
                {**lipschitz, "task.context_length": length},
                "slow changes, and more seasons to average over",
                most_epochs=most_epochs,
            )
        )
    portfolio.append(
        Recipe(
            "lipschitz, without a skip",
            {**lipschitz, "model.skip": "none"},
            "series that no linear map of the context forecasts",
            most_epochs=most_epochs,
        )
    )
    return portfolio
