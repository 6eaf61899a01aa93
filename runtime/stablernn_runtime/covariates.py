"""What a forecast is told beside the observed values: the calendar, what is known in advance, what never changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Manifest
from stablernn_runtime.served_model import ServedModel

Array = NDArray[Any]


def observed_features(manifest: Manifest) -> list[str]:
    """Return the features that a client sends, which are those that do not follow from the time."""
    made = _calendar_features(manifest)
    return [name for name in manifest.features if name not in made]


def _calendar_features(manifest: Manifest) -> list[str]:
    return [channel for period in manifest.calendar or () for channel in period.channels]


class Covariates:
    """The covariates of one model.

    Attributes:
        observed: Features that a client sends; those of the calendar follow from the time.
        made: Features of the calendar, in its order.
        model: The model.
        time_field: Name of the request's field from which the calendar follows.
        future_names: Names that are known ahead, without those of the calendar.
        static_names: Names whose values never change within a series.
    """

    def __init__(self, model: ServedModel, time_field: str = "start_timestamp") -> None:
        """Read what the model takes.

        Args:
            model: The model.
            time_field: What requests call the time that the calendar follows from.
        """
        manifest = model.manifest
        made = _calendar_features(manifest)
        self.observed: list[str] = observed_features(manifest)
        self.model = model
        self.made = made
        self.time_field = time_field
        self.future_names: list[str] = [name for name in manifest.future or () if name not in made]
        self.static_names: list[str] = manifest.static or []

    def waves(self, seconds: Array) -> Array:
        """Sine and cosine of each period, ``(time, 2 * periods)``."""
        waves: list[Array] = []
        for period in self.model.manifest.calendar or ():
            angle = 2 * np.pi * np.mod(seconds - period.phase, period.period) / period.period
            waves += [np.sin(angle), np.cos(angle)]
        return np.stack(waves, axis=1).astype(np.float32)

    def with_waves(self, future: Array, waves: Array) -> Array:
        """What clients say of the steps ahead together with the calendar there, in the order of the model."""
        both, names = np.concatenate([future, waves], axis=-1), [*self.future_names, *self.made]
        found: Array = both[..., [names.index(name) for name in self.model.manifest.future or ()]]
        return found
