"""What a forecast is told beside the observed values: the calendar, what is known in advance, what never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Manifest
from stablernn_registry.errors import did_you_mean
from stablernn_server.errors import InputError, cut
from stablernn_server.json_arrays import to_array
from stablernn_server.runtime.onnx_model import OnnxModel
from stablernn_server.schemas.timeseries import SeriesInput
from stablernn_server.timestamps import spacing, times

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
    """

    def __init__(self, model: OnnxModel, time_field: str = "start_timestamp") -> None:
        """Read what the model takes.

        Args:
            model: The model.
            time_field: What requests call the time that the calendar follows from.
        """
        manifest = model.manifest
        made = _calendar_features(manifest)
        self.observed: list[str] = observed_features(manifest)
        self._model = model
        self.made = made
        self._time_field = time_field
        self._future: list[str] = [name for name in manifest.future or () if name not in made]
        self._static: list[str] = manifest.static or []

    def complete(
        self, x: Array, lengths: Array, inputs: Sequence[SeriesInput], observed: Sequence[int], horizon: int
    ) -> tuple[Array, dict[str, Array]]:
        """What the model takes, from what a client sent.

        Args:
            x: The ends of the series, ``(batch, time, len(self.observed))``.
            lengths: Steps of each of these, ``(batch,)``.
            inputs: The inputs that they came from.
            observed: Steps of each series as it came.
            horizon: Steps ahead that were asked for.

        Returns:
            ``x`` with all features, and the further inputs by name.

        Raises:
            InputError: If a name, a number or a time is missing, strange or of the wrong length.
        """
        manifest = self._model.manifest
        further: dict[str, Array] = {}
        rows = [self.static_row(item.static, f"inputs.{place}.static") for place, item in enumerate(inputs)]
        static = np.array(rows, np.float32)
        ahead = [self.future_rows(item.future, f"inputs.{place}.future", horizon) for place, item in enumerate(inputs)]
        future = np.stack(ahead)
        if self._static:
            further["static"] = static
        if self.made:
            x, waves = self._with_calendar(x, lengths, inputs, observed)
            future = self.with_waves(future, waves)
        if manifest.future:
            further["future"] = future
        return x, further

    def _with_calendar(
        self, x: Array, lengths: Array, inputs: Sequence[SeriesInput], observed: Sequence[int]
    ) -> tuple[Array, Array]:
        """``x`` with the features of the calendar, and these at the steps ahead, in the order of the calendar."""
        manifest = self._model.manifest
        steps, features = manifest.horizon or 0, manifest.features
        whole = np.zeros((*x.shape[:2], len(features)), np.float32)
        whole[:, :, [features.index(name) for name in self.observed]] = x
        places = [features.index(name) for name in self.made]
        ahead = np.zeros((len(x), steps, len(places)), np.float32)
        for place, (item, length, total) in enumerate(zip(inputs, lengths.tolist(), observed, strict=True)):
            if item.start_timestamp is None:
                periods = " and the ".join(period.name for period in manifest.calendar or ())
                raise InputError(
                    f"inputs.{place}.start_timestamp is missing: the model '{self._model.name}' is told where in the "
                    f"{periods} each step lies. Give the time of the first value."
                )
            frequency = spacing(item.frequency, manifest.frequency) or ""
            waves = self.waves(times(item.start_timestamp, total - length, length + steps, frequency))
            whole[place, :length, places] = waves[:length].T
            ahead[place] = waves[length:]
        return whole, ahead

    def waves(self, seconds: Array) -> Array:
        """Sine and cosine of each period, ``(time, 2 * periods)``."""
        waves: list[Array] = []
        for period in self._model.manifest.calendar or ():
            angle = 2 * np.pi * np.mod(seconds - period.phase, period.period) / period.period
            waves += [np.sin(angle), np.cos(angle)]
        return np.stack(waves, axis=1).astype(np.float32)

    def static_row(self, static: dict[str, Any] | None, what: str) -> list[float]:
        """The static values of one series in the order of the model, NaN where one is not known.

        Raises:
            InputError: If a name or a number is strange.
        """
        given = self._named(static, what, self._static)
        if not given:
            return [np.nan] * len(self._static)
        values = to_array([given.get(name) for name in self._static], what)
        if values.ndim != 1:
            raise InputError(f"{what} must hold one number, or null, for each name.")
        found: list[float] = self._model.check_values(what, values, self._static).tolist()
        return found

    def future_rows(self, future: dict[str, Any] | None, what: str, horizon: int) -> Array:
        """What a client says of the steps ahead, ``(trained horizon, names)``, NaN where it is not known.

        Args:
            future: Numbers by name.
            what: What to call it in errors.
            horizon: Steps ahead that are asked for.

        Raises:
            InputError: If a name or a number is strange.
        """
        steps = self._model.manifest.horizon or 0
        found = np.full((steps, len(self._future)), np.nan, np.float32)
        for name, values in self._named(future, what, self._future).items():
            where = f"{what}.{name}"
            row = to_array(values, where)
            if row.ndim != 1 or not horizon <= len(row) <= steps:
                wanted = f"{horizon}" if horizon == steps else f"{horizon} to {steps}"
                got = f"{len(row)}" if row.ndim == 1 else f"{row.ndim} levels"
                raise InputError(
                    f"{where} must be a flat array of {wanted} numbers, one for each step ahead, got {got}."
                )
            found[: len(row), self._future.index(name)] = self._model.check_values(where, row[:, None], [name])[:, 0]
        return found

    def with_waves(self, future: Array, waves: Array) -> Array:
        """What clients say of the steps ahead together with the calendar there, in the order of the model."""
        both, names = np.concatenate([future, waves], axis=-1), [*self._future, *self.made]
        found: Array = both[..., [names.index(name) for name in self._model.manifest.future or ()]]
        return found

    def _named(self, given: dict[str, Any] | None, what: str, names: Sequence[str]) -> dict[str, Any]:
        for name in given or {}:
            if name in names:
                continue
            if name in self.made:
                raise InputError(f"{what}.{name} follows from {self._time_field}; leave it out.")
            takes = f"takes {', '.join(names)}" if names else "takes none"
            raise InputError(
                f"{what}: unknown name '{cut(name)}'.{did_you_mean(name, names)} The model '{self._model.name}' "
                f"{takes}."
            )
        return given or {}
