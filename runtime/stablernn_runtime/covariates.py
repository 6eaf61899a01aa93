"""Covariates of a forecast: the calendar, values that are known in advance, and values that never change."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Manifest
from stablernn_runtime.served_model import ServedModel

Array = NDArray[Any]


def observed_features(manifest: Manifest) -> list[str]:
    """Return the names of the features that a client sends: those that do not follow from the time."""
    calendar = _calendar_features(manifest)
    return [name for name in manifest.features if name not in calendar]


def _calendar_features(manifest: Manifest) -> list[str]:
    return [channel for period in manifest.calendar or () for channel in period.channels]


class Covariates:
    """The covariates of one model.

    Attributes:
        observed: Names of the features that a client sends; those of the calendar follow from the time.
        calendar_features: Names of the features of the calendar, in its order.
        model: The model.
        time_field: Name of the request's field from which the calendar follows.
        future_names: Names of the values that are known ahead, without those of the calendar.
        static_names: Names of the values that never change within a series.
    """

    def __init__(self, model: ServedModel, time_field: str = "start_timestamp") -> None:
        """Read the names from the manifest.

        Args:
            model: The model.
            time_field: Name of the request's field from which the calendar follows.
        """
        manifest = model.manifest
        calendar = _calendar_features(manifest)
        self.observed: list[str] = observed_features(manifest)
        self.model = model
        self.calendar_features = calendar
        self.time_field = time_field
        self.future_names: list[str] = [name for name in manifest.future or () if name not in calendar]
        self.static_names: list[str] = manifest.static or []

    def calendar_waves(self, seconds: Array) -> Array:
        """Return the features of the calendar: sine and cosine of each of its periods.

        Args:
            seconds: Times in seconds since 1970-01-01T00:00Z, ``(time,)``.

        Returns:
            float32, ``(time, 2 * periods)``, in the order of :attr:`calendar_features`.
        """
        waves: list[Array] = []
        for period in self.model.manifest.calendar or ():
            # The formula that data for training are made by.
            angle = 2 * np.pi * np.mod(seconds - period.phase, period.period) / period.period
            waves += [np.sin(angle), np.cos(angle)]
        return np.stack(waves, axis=1).astype(np.float32)

    def with_calendar(self, future: Array, waves: Array) -> Array:
        """Join the values that clients send of the steps ahead with the calendar there, in the order of the model.

        Args:
            future: Shape ``(..., future_names)``.
            waves: From :meth:`calendar_waves`, ``(..., calendar_features)``.

        Returns:
            Shape ``(..., future)``, the input ``future`` of the graphs.
        """
        # The manifest may list the two kinds in any order.
        both, names = np.concatenate([future, waves], axis=-1), [*self.future_names, *self.calendar_features]
        ordered: Array = both[..., [names.index(name) for name in self.model.manifest.future or ()]]
        return ordered
