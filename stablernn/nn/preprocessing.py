"""Preprocessing of raw units before the first layer: resampling, scaling, gaps, patches; part of every graph.

Each scaling is a recurrence of its own, with the same arithmetic in every graph. :meth:`Scaling.patch` takes the raw
samples of one patch and a state and is what the exported step graph holds; :meth:`Scaling.patches` gives the same
numbers for whole sequences in training. Where samples are scaled one by one, both are made of :meth:`Scaling.step` and
:meth:`Scaling.sequence`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import Box
from stablernn.errors import ConfigError, DataError, did_you_mean
from stablernn.terms import terms
from stablernn.transforms import is_transformed

_FLAT_SHARE = 1e-4
"""Deviation below which a window counts as flat, as a share of its level."""
_ROUNDING = 2.0**-20
"""More than the share of a value and of the mean by which float32 rounds their scaled difference."""
_SMALLEST_DEVIATION = 1e-8
"""The same at level zero, as a share of the training data's deviation."""
_SCALE_FLOOR = 0.05
"""Smallest scale, as a share of the training data's: the noise of a flat stretch must not be amplified."""
_CLIP = 8.0
"""Scaled values are clipped to this for the layers: one spike must not overwrite the state."""
_SEASON_ROUNDING = 2.0**-22
"""Share of a series' largest value up to which a seasonal change is float32 rounding: a perfect season repeats."""
_LOG_FLOOR = 0.1
"""Smallest value that the logarithm is taken of, as a share of the smallest training value."""
States = tuple[Tensor, ...]
_MARGIN = 1e-3
SCALINGS = ("standard", "none", "log", "window", "context")


class Scaling(nn.Module):
    """Standard scores by the training data's mean and standard deviation; a missing value repeats the last observed.

    Before the first observed value the mean is used, which is zero after scaling and therefore the zero state.

    Args:
        size: Features, F.
        mask_channel: Whether F further channels say which values were observed (1) or filled in (0).

    Attributes:
        keep_missing: Whether a missing value stays NaN, for a cell that takes NaN.
    """

    kind = "standard"
    extras_per_feature = 0
    has_channel_range = True
    """False if raw values within a range can have channels of any size, so that :meth:`channel_range` raises."""
    mean: Tensor
    scale: Tensor

    def __init__(self, size: int, *, mask_channel: bool = False) -> None:
        super().__init__()
        self.size = size
        self.mask_channel = mask_channel
        self.keep_missing = False
        self._was_fitted = False
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    @property
    def output_size(self) -> int:
        """Number of input channels of the first layer."""
        return self.size * (2 if self.mask_channel else 1)

    @property
    def is_fitted(self) -> bool:
        """True if :meth:`fit` was called, or loaded values differ from those of a new scaling."""
        return self._was_fitted or bool((self.mean != 0).any() or (self.scale != 1).any()) or not self.size

    def mark_fitted(self) -> None:
        """Count the scaling as fitted, whatever its values are."""
        self._was_fitted = True

    def state_roles(self) -> list[tuple[str, int]]:
        """Return role and length of each state tensor; all start as zeros."""
        return [("last observed value", self.size)]

    def fit(self, sequences: Iterable[np.ndarray]) -> None:
        """Take mean and standard deviation from training sequences, each ``(time, F)`` in raw units, NaN ignored.

        A feature that never changes keeps scale 1.

        Raises:
            DataError: If a feature has no observed value at all.
        """
        count = np.zeros(self.size)
        total = np.zeros(self.size)
        squares = np.zeros(self.size)
        chunks = [np.asarray(sequence, dtype=np.float64) for sequence in sequences]
        for chunk in chunks:
            count += (~np.isnan(chunk)).sum(axis=0)
            total += np.nansum(chunk, axis=0)
        if (count == 0).any():
            raise DataError(
                f"Feature {int(np.argmin(count))} has no observed value in the training split; "
                "drop it or give data where it is observed."
            )
        mean = total / count
        for chunk in chunks:
            squares += np.nansum((chunk - mean) ** 2, axis=0)
        deviation = np.sqrt(squares / count)
        # The deviation that rounding alone leaves of a constant counts as none, in whatever unit it is.
        deviation[deviation <= 1e-12 * np.abs(mean)] = 1
        self.mean.copy_(torch.from_numpy(mean))
        self.scale.copy_(torch.from_numpy(deviation))
        self._was_fitted = True

    def step(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        """Return the first layer's channels from one raw sample ``(batch, F)``, and the next state.

        :class:`stablernn.export.input_stage.InputStage` does the same in graphs.
        """
        (last_value,) = state
        observed = ~torch.isnan(x)
        last_value = torch.where(observed, (x - self.mean) / self.scale, last_value)
        return self._channels(last_value, observed), (last_value,)

    def sequence(self, x: Tensor, state: States, valid: Tensor | None) -> tuple[Tensor, States]:
        """Run :meth:`step` over ``(batch, time, F)``; where ``valid`` (batch, time) is false the state is held."""
        scaled, observed = self.filled(x, state, valid)
        return self._channels(scaled, observed), (scaled[:, -1],)

    def filled(self, x: Tensor, state: States, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the last observed value at each step of ``(batch, time, F)``, scaled, and a mask of observed ones."""
        (last_value,) = state
        observed = ~torch.isnan(x)
        if valid is not None:
            observed = observed & valid[..., None]
        scaled = (x - self.mean) / self.scale
        # On a GPU, to look for gaps would take longer than to fill them.
        if x.is_cuda or not bool(observed.all()):
            time = torch.arange(x.shape[1], device=x.device)[:, None].expand_as(x)
            # The index of the last observed step at each step, -1 before the first.
            latest = torch.where(observed, time, -1).cummax(dim=1).values
            scaled = torch.where(latest < 0, last_value[:, None], scaled.gather(1, latest.clamp_min(0)))
        return scaled, observed

    def patch(self, x: Tensor, state: States) -> tuple[Tensor, Tensor | None, States]:
        """Run :meth:`step` over the samples of one patch ``(batch, stride, F)``.

        Returns:
            The scaled samples, further channels of the patch if the scaling has any, and the next state.
        """
        outputs = []
        for sample in x.unbind(dim=1):
            scaled, state = self.step(sample, state)
            outputs.append(scaled)
        return torch.stack(outputs, dim=1), None, state

    def patches(
        self, x: Tensor, state: States, stride: int, patch_counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, States]:
        """Run :meth:`patch` over whole sequences ``(batch, patches * stride, F)``, NaN after their ends.

        Args:
            x: Raw samples.
            state: As :meth:`patch` takes it.
            stride: Samples of a patch.
            patch_counts: ``(batch,)`` int64, the patches of each sequence, after which the state is held; all when
                omitted.
        """
        scaled, state = self.sequence(x, state, None)
        return scaled, None, state

    def transform(self, values: Tensor, features: Sequence[int] | None = None) -> Tensor:
        """Return raw values in the units in which forecasts are made, where :meth:`anchor` is linear.

        Args:
            values: ``(..., features)``.
            features: Which features these are; all when omitted.
        """
        return values

    def inverse(self, values: Tensor) -> Tensor:
        """Undo :meth:`transform`."""
        return values

    def from_scores(self, scores: np.ndarray, features: Sequence[int]) -> np.ndarray:
        """Return standard scores ``(..., features)`` of these features as raw values in float32."""
        mean, scale = (tensor.double().numpy()[list(features)] for tensor in (self.mean, self.scale))
        return self.inverse(torch.from_numpy(mean + scale * scores)).numpy().astype(np.float32)

    def anchor(self, state: States) -> tuple[Tensor, Tensor]:
        """Return the location from which a forecast starts and its scale, ``(batch, F)``.

        They are in raw units, or in those of :meth:`transform` where it changes them.
        """
        (last_value,) = state
        return self.mean + self.scale * last_value, self.scale.expand_as(last_value)

    def channel_range(self, inputs: Box) -> tuple[Box, Box]:
        """Return the ranges of the channels of a sample, and of the further channels of a patch.

        Args:
            inputs: Of the raw values of each feature, ``(F,)`` intervals.

        Raises:
            ConfigError: If a range leaves out the mean of the training data, or raw values within a range can have
                channels of any size.
        """
        mean, scale = (tensor.detach().cpu().double().numpy() for tensor in (self.mean, self.scale))
        self._check_holds_mean(inputs)
        margin = _ROUNDING * (inputs.modulus + np.abs(mean)) / scale
        # Before the first observed value stands the mean, which is zero.
        scaled = Box((inputs.lower - mean) / scale - margin, (inputs.upper - mean) / scale + margin).with_zero()
        return self._with_mask_range(scaled), Box.around_zero(0, 0.0)

    def _check_holds_mean(self, inputs: Box) -> None:
        """Refuse a range that leaves out the mean of the training data, as one of scaled values often does.

        Args:
            inputs: In the units of :attr:`mean`.
        """
        mean = self.mean.detach().cpu().double().numpy()
        for feature in np.flatnonzero((mean < inputs.lower) | (mean > inputs.upper)).tolist():
            raise ConfigError(
                f"Feature {feature} is to stay within {inputs.lower[feature]:g} to {inputs.upper[feature]:g}, which "
                f"leaves out its mean in training, {mean[feature]:g}. Give a range for each feature in units of the "
                "data, not of scaled values."
            )

    def _with_mask_range(self, scaled: Box) -> Box:
        """Return the range of the first layer's channels, those of the mask among them."""
        return scaled.join(Box(np.zeros(self.size), np.ones(self.size))) if self.mask_channel else scaled

    def _channels(self, scaled: Tensor, observed: Tensor) -> Tensor:
        """Return the first layer's channels of scaled values, with the mask if it is one of them."""
        if self.keep_missing:
            scaled = torch.where(observed, scaled, torch.nan)
        return torch.cat([scaled, observed.to(scaled.dtype)], dim=-1) if self.mask_channel else scaled


class NoScaling(Scaling):
    """Raw values, for data that already are in the units that the layers are to see; a missing one repeats the last.

    Args:
        size: As in :class:`Scaling`.
        mask_channel: As in :class:`Scaling`.
    """

    kind = "none"

    def __init__(self, size: int, *, mask_channel: bool = False) -> None:
        super().__init__(size, mask_channel=mask_channel)
        self.mark_fitted()

    def _check_holds_mean(self, inputs: Box) -> None:
        # Zero is not the mean of the data here.
        pass

    def fit(self, sequences: Iterable[np.ndarray]) -> None:
        """Check that every feature has an observed value; the mean stays 0 and the scale 1.

        Raises:
            DataError: If a feature has none.
        """
        super().fit(sequences)
        self.mean.zero_()
        self.scale.fill_(1)


class LogScaling(Scaling):
    """Standard scores of logarithms, for positive series whose level differs by factors; also the base class of others.

    Args:
        size: As in :class:`Scaling`.
        mask_channel: As in :class:`Scaling`.

    Attributes:
        log: Whether values are replaced by their logarithms.
    """

    kind = "log"
    floor: Tensor
    """Smallest value that the logarithm is taken of, for each feature."""

    def __init__(self, size: int, *, log: bool = True, mask_channel: bool = False) -> None:
        super().__init__(size, mask_channel=mask_channel)
        self.log = log
        self.register_buffer("floor", torch.ones(size))

    def fit(self, sequences: Iterable[np.ndarray]) -> None:
        """Take mean and standard deviation of the logarithms.

        Raises:
            DataError: If a feature has no observed value at all, or a logarithm meets a value that is not positive.
        """
        chunks = [np.asarray(sequence, dtype=np.float64) for sequence in sequences]
        if self.log:
            smallest = np.full(self.size, np.inf)
            for chunk in chunks:
                smallest = np.fmin(smallest, np.fmin.reduce(chunk, axis=0, initial=np.inf))
            if (smallest <= 0).any():
                raise DataError(
                    f"Feature {int(np.argmin(smallest))} goes down to {smallest.min():g}, and logarithms are of "
                    f"positive values only; {self._other_setting()}."
                )
            self.floor.copy_(torch.from_numpy(_LOG_FLOOR * np.where(np.isfinite(smallest), smallest, 1.0)))
            chunks = [np.log(chunk) for chunk in chunks]
        self._fit_transformed(chunks)

    def _other_setting(self) -> str:
        return terms().set("model.scaling", "standard")

    def _fit_transformed(self, chunks: list[np.ndarray]) -> None:
        super().fit(chunks)

    def step(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        return super().step(self._transform_observed(x), state)

    def filled(self, x: Tensor, state: States, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().filled(self._transform_observed(x), state, valid)

    def _transform_observed(self, x: Tensor) -> Tensor:
        # A runtime may take the floor for the larger one of NaN and the floor.
        observed = ~torch.isnan(x)
        return torch.where(observed, self.transform(torch.where(observed, x, self.floor)), torch.nan)

    def transform(self, values: Tensor, features: Sequence[int] | None = None) -> Tensor:
        if not self.log:
            return values
        return _log(torch.maximum(values, self.floor if features is None else self.floor[list(features)]))

    def inverse(self, values: Tensor) -> Tensor:
        return torch.exp(values.double()).to(values.dtype) if self.log else values

    def channel_range(self, inputs: Box) -> tuple[Box, Box]:
        return super().channel_range(self._transformed_range(inputs))

    def _transformed_range(self, inputs: Box) -> Box:
        if not self.log:
            return inputs
        floor = self.floor.cpu().double().numpy()
        return Box(np.log(np.maximum(inputs.lower, floor)), np.log(np.maximum(inputs.upper, floor)))


class WindowScaling(Scaling):
    """Standard scores by running statistics of the sequence itself, causal, for series whose level differs or drifts.

    Mean and variance are those of the observed values so far, up to ``window`` of them; after that they decay
    exponentially with that time constant, so that a long stream looks like a training window. They are taken of the
    distance from the sequence's first observed value, which keeps float32 accurate at any level. Of the training data
    only the overall unit is used.

    Args:
        size: Features, F.
        window: Observed values that the statistics cover, 2 or more.
        mask_channel: As in :class:`Scaling`.
    """

    kind = "window"
    has_channel_range = False

    def __init__(self, size: int, *, window: int, mask_channel: bool = False) -> None:
        super().__init__(size, mask_channel=mask_channel)
        if window < 2:
            raise ConfigError(f"The window of running scaling must be 2 steps or more, got {window}.")
        self.window = window

    def state_roles(self) -> list[tuple[str, int]]:
        return [
            ("last observed value, from the first", self.size),
            ("first observed value", self.size),
            ("observed values", self.size),
            ("running mean", self.size),
            ("running variance", self.size),
        ]

    def step(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        last_value, first, count, mean, variance = state
        observed = ~torch.isnan(x)
        value = x / self.scale
        first = torch.where(observed & (count == 0), value, first)
        last_value = torch.where(observed, value - first, last_value)
        # Welford's update; with the count held at the window it is an exponential moving average.
        next_count = torch.clamp(count + 1, max=self.window)
        distance = last_value - mean
        next_mean = mean + distance / next_count
        next_variance = variance + (distance * (last_value - next_mean) - variance) / next_count
        count = torch.where(observed, next_count, count)
        mean = torch.where(observed, next_mean, mean)
        variance = torch.where(observed, next_variance, variance)
        scaled = (last_value - mean) / self._deviation(first, variance)
        return self._channels(scaled, observed), (last_value, first, count, mean, variance)

    def sequence(self, x: Tensor, state: States, valid: Tensor | None) -> tuple[Tensor, States]:
        outputs = []
        for time in range(x.shape[1]):
            scaled, next_state = self.step(x[:, time], state)
            if valid is not None:
                is_valid = valid[:, time, None]
                next_state = tuple(torch.where(is_valid, new, old) for new, old in zip(next_state, state, strict=True))
            state = next_state
            outputs.append(scaled)
        return torch.stack(outputs, dim=1), state

    def anchor(self, state: States) -> tuple[Tensor, Tensor]:
        last_value, first, _, _, variance = state
        return self.scale * (first + last_value), self.scale * self._deviation(first, variance)

    def channel_range(self, inputs: Box) -> tuple[Box, Box]:
        raise ConfigError(
            "With the scaling 'window', inputs of a bounded size can become channels of any size, after a stretch that "
            "hardly changes. Train with model.scaling=standard or context to certify for a range of inputs."
        )

    @staticmethod
    def _deviation(first: Tensor, variance: Tensor) -> Tensor:
        # A flat series has no deviation: a share of its level is used instead. maximum, not an addition of a small
        # constant: the ONNX exporter's optimizer takes an addition of 1e-8 for one of zero and drops it.
        return torch.maximum(
            torch.sqrt(torch.relu(variance)), torch.clamp(first.abs() * _FLAT_SHARE, min=_SMALLEST_DEVIATION)
        )


class ContextScaling(LogScaling):
    """Distance from the mean of the last ``window`` steps, in units of their mean absolute seasonal change.

    The last ``window`` values themselves are part of the state, so the statistics are those of the steps before any
    forecast and nothing else, however long a stream is; a linear skip reads them from there. A missing value repeats
    the last observed one and steps before the first observed one do not count. Until a whole season has been observed,
    the standard deviation replaces the seasonal change.

    Further channels of each step or patch are the logarithm of the scale and the change of the mean.

    Args:
        size: Features, F.
        window: Steps in the window, 2 or more.
        season: Steps of a season, less than ``window``.
        log: Whether values are replaced by their logarithms, for positive series whose level differs by factors.
        mask_channel: As in :class:`Scaling`.
    """

    kind = "context"
    extras_per_feature = 2
    scale_floor = _SCALE_FLOOR
    clip = _CLIP

    def __init__(self, size: int, *, window: int, season: int = 1, log: bool = False, mask_channel: bool = False):
        super().__init__(size, log=log, mask_channel=mask_channel)
        if window < 2:
            raise ConfigError(f"The scaling 'context' remembers 2 steps or more, got {window}.")
        if not 1 <= season < window:
            raise ConfigError(
                f"The season of the scaling 'context' must be from 1 to {window - 1}, less than the steps that it "
                f"remembers, got {season}."
            )
        self.window = window
        self.season = season

    def state_roles(self) -> list[tuple[str, int]]:
        return [
            ("last values", self.window * self.size),
            ("steps since the first observed value", self.size),
            ("mean before", self.size),
        ]

    def _other_setting(self) -> str:
        return terms().set("model.log", False)

    def _fit_transformed(self, chunks: list[np.ndarray]) -> None:
        """Fit the unit, the median over series of their mean seasonal change, and the level."""
        super()._fit_transformed(chunks)
        changes = np.full((len(chunks), self.size), np.nan)
        for row, chunk in zip(changes, chunks, strict=True):
            steps = np.abs(chunk[self.season :] - chunk[: -self.season])
            is_observed = ~np.isnan(steps)
            count = is_observed.sum(axis=0)
            change = np.where(is_observed, steps, 0).sum(axis=0) / count.clip(1)
            largest = np.fmax.reduce(np.abs(chunk), axis=0, initial=0)
            # A series whose seasons repeat exactly has no unit, and does not count.
            row[:] = np.where(change > _SEASON_ROUNDING * largest, change, np.nan)
        for feature in range(self.size):
            feature_changes = changes[:, feature][~np.isnan(changes[:, feature])]
            # Otherwise the standard deviation that the base class has fitted stays.
            if len(feature_changes):
                self.scale[feature] = float(np.median(feature_changes))

    def patch(self, x: Tensor, state: States) -> tuple[Tensor, Tensor | None, States]:
        flat_window, count, previous_mean = state
        has_previous_mean = count > 0
        values = flat_window.reshape(-1, self.window, self.size)
        scaled, observed = self._scaled(x)
        last_value, filled = values[:, -1], []
        for sample, is_observed in zip(scaled.unbind(dim=1), observed.unbind(dim=1), strict=True):
            last_value = torch.where(is_observed, sample, last_value)
            # Counted from the first observed value on, missing ones among them.
            count = torch.where(is_observed | (count > 0), torch.clamp(count + 1, max=self.window), count)
            filled.append(last_value)
        new_values = torch.stack(filled, dim=1)
        values = torch.cat([values, new_values], dim=1)[:, -self.window :]
        mean, deviation = self._statistics(values, count)
        extras = self._extras(mean, previous_mean, deviation, has_previous_mean)
        channels = (new_values - mean[:, None]) / deviation[:, None]
        return self._channels(self._clipped(channels), observed), extras, (values.flatten(1), count, mean)

    def patches(
        self, x: Tensor, state: States, stride: int, patch_counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, States]:
        flat_window, count, previous_mean = state
        scaled, observed = self._scaled(x)
        window = flat_window.reshape(-1, self.window, self.size)
        ends = None if patch_counts is None else patch_counts * stride
        filled, is_counted = self._fill_missing(scaled, observed, window, count, ends)
        # (batch, window + time, F): the remembered values, then those of this sequence.
        values = torch.cat([window, filled], dim=1)
        counts = torch.clamp(count[:, None] + is_counted.cumsum(dim=1), max=self.window)[:, stride - 1 :: stride]
        all_counted = torch.cat([self._is_counted(count), is_counted], dim=1)
        means, deviation = self._patch_statistics(values, filled, is_counted, all_counted, counts, stride)
        # Of the state before the first patch, and after every patch.
        every_count = torch.cat([count[:, None], counts], dim=1)
        every_mean = torch.cat([previous_mean[:, None], means], dim=1)
        extras = self._extras(means, every_mean[:, :-1], deviation, every_count[:, :-1] > 0)
        grouped = values[:, self.window :].reshape(len(x), -1, stride, self.size)
        channels = (grouped - means[:, :, None]) / deviation[:, :, None]
        num_patches = torch.full_like(count[:, 0], counts.shape[1]).long() if patch_counts is None else patch_counts
        row = torch.arange(len(x), device=x.device)
        # Windows that end with each patch, (batch, patches + 1, F, window), as a view: the one after the last patch is
        # copied as a whole, where an index for each of its values takes four times as long.
        next_window = values.unfold(1, self.window, stride)[row, num_patches].transpose(1, 2).flatten(1)
        next_state = (next_window, every_count[row, num_patches], every_mean[row, num_patches])
        return self._channels(self._clipped(channels.flatten(1, 2)), observed), extras, next_state

    def anchor(self, state: States) -> tuple[Tensor, Tensor]:
        flat_window, count, _ = state
        mean, deviation = self._statistics(flat_window.reshape(-1, self.window, self.size), count)
        return self.mean + self.scale * mean, self.scale * deviation

    def channel_range(self, inputs: Box) -> tuple[Box, Box]:
        values = self._transformed_range(inputs)
        self._check_holds_mean(values)
        lower, upper, mean, scale = (
            np.asarray(each, dtype=np.float64)
            for each in (values.lower, values.upper, self.mean.cpu(), self.scale.cpu())
        )
        # Standard deviation and mean seasonal change are at most the distance of the farthest values, each rounded.
        rounding = 8 * _SEASON_ROUNDING * (np.maximum(np.abs(lower), np.abs(upper)) + np.abs(mean))
        largest = (upper - lower + rounding) / scale + _SCALE_FLOOR
        clipped, margin = Box.around_zero(self.size, _CLIP), 1e-5
        scales = Box(np.full(self.size, math.log(_SCALE_FLOOR) - margin), np.log(largest) + margin)
        return self._with_mask_range(clipped), scales.join(clipped)

    def context(self, state: States) -> Tensor:
        """Return the values of the window, scaled as a forecast is, ``(batch, window, F)``; 0 before the first one."""
        return self.anchored_context(state)[2]

    def anchored_context(self, state: States) -> tuple[Tensor, Tensor, Tensor]:
        """Return what :meth:`anchor` and :meth:`context` do, with the statistics of the window computed once.

        Returns:
            Location and scale, ``(batch, F)``, and the scaled values of the window, ``(batch, window, F)``.
        """
        flat_window, count, _ = state
        values = flat_window.reshape(-1, self.window, self.size)
        mean, deviation = self._statistics(values, count)
        context = torch.where(self._is_counted(count), (values - mean[:, None]) / deviation[:, None], 0.0)
        return self.mean + self.scale * mean, self.scale * deviation, context

    def steady_lowest(self, state: States) -> Tensor:
        """Return the least value in the window, ``(batch, F)`` in raw units; 0 where it lies in the last season.

        A series that falls season by season goes on below it.
        """
        flat_window, count, _ = state
        values = flat_window.reshape(-1, self.window, self.size)
        values = torch.where(self._is_counted(count), values, values[:, -1:])
        before, latest = (part.amin(dim=1) for part in (values[:, : -self.season], values[:, -self.season :]))
        return torch.where(latest > before, self.inverse(self.mean + self.scale * before), 0.0)

    def _scaled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return raw samples in training units, arbitrary for missing ones, and a mask of observed ones."""
        observed = ~torch.isnan(x)
        return (self.transform(torch.where(observed, x, self.floor)) - self.mean) / self.scale, observed

    @staticmethod
    def _fill_missing(
        scaled: Tensor, observed: Tensor, window: Tensor, count: Tensor, ends: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the last observed value at each step, and a mask of the steps from the first one on.

        Both are arbitrary from the ``ends`` of the sequences on, ``(batch,)``.
        """
        if _decides(scaled) and _is_complete(observed, ends):
            return scaled, torch.ones_like(observed)
        time = torch.arange(scaled.shape[1], device=scaled.device)[:, None].expand_as(scaled)
        # The index of the last observed step at each step, -1 before the first.
        latest = torch.where(observed, time, -1).cummax(dim=1).values
        filled = torch.where(latest < 0, window[:, -1:], scaled.gather(1, latest.clamp_min(0)))
        return filled, (latest >= 0) | (count[:, None] > 0)

    def _is_counted(self, count: Tensor) -> Tensor:
        """Return a mask of the values in the window that count, its last ones, ``(batch, window, F)``."""
        index = torch.arange(self.window, device=count.device, dtype=count.dtype)
        return index[None, :, None] >= self.window - count[:, None]

    def _statistics(self, values: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and scale of the counted values, ``(batch, F)``."""
        # Summed in float64: how ONNX Runtime adds up float32 depends on the size of the batch.
        precise = values.double()
        if _decides(values) and bool((count == self.window).all()):
            # Most windows are full, so that all values count.
            mean = precise.sum(dim=1) / self.window
            change = (precise[:, self.season :] - precise[:, : -self.season]).abs().sum(dim=1)
            deviation = change / (self.window - self.season) + _SCALE_FLOOR
            return mean.to(values.dtype), deviation.to(values.dtype)
        is_counted, exact_count = self._is_counted(count), count.double()
        steps = exact_count.clamp_min(1)
        mean = torch.where(is_counted, precise, 0.0).sum(dim=1) / steps
        distance = torch.where(is_counted, precise - mean[:, None], 0.0)
        spread = _root((distance * distance).sum(dim=1) / steps)
        changes = (precise[:, self.season :] - precise[:, : -self.season]).abs()
        change_sum = torch.where(is_counted[:, : -self.season], changes, 0.0).sum(dim=1)
        change = change_sum / (exact_count - self.season).clamp_min(1)
        deviation = torch.where(exact_count > self.season, change, spread) + _SCALE_FLOOR
        return mean.to(values.dtype), deviation.to(values.dtype)

    def _patch_statistics(
        self, values: Tensor, filled: Tensor, is_counted: Tensor, all_counted: Tensor, counts: Tensor, stride: int
    ) -> tuple[Tensor, Tensor]:
        """Return mean and scale of the window at the end of each patch, ``(batch, patches, F)``, by running sums.

        Args:
            values: ``(batch, window + time, F)``, the window before the sequence, and its values.
            filled: ``(batch, time, F)``, the values of the sequence alone.
            is_counted: Which of these count, of the same shape.
            all_counted: Which of ``values`` count, of the same shape.
            counts: ``(batch, patches, F)``, how many values of each window count.
            stride: Samples of a patch.
        """
        # Every sum begins and ends at a multiple of this number of samples.
        block = math.gcd(stride, self.window, self.season)
        ends = torch.arange(stride, filled.shape[1] + 1, stride, device=filled.device) + self.window
        ends, window, season = ends // block, self.window // block, self.season // block
        # Relative to the first value there is: running sums of squares would lose a small spread far from zero.
        uncounted = filled.shape[1] - is_counted.sum(dim=1, keepdim=True)
        first = filled.gather(1, uncounted.clamp_max(filled.shape[1] - 1)).double()
        # Of new sequences nothing before them counts.
        skipped = self.window if _decides(values) and not bool(all_counted[:, self.window - 1].any()) else 0
        precise, all_counted = values[:, skipped:].double() - first, all_counted[:, skipped:]
        # A product with the mask would convert it to float64 first, which takes ten times as long.
        counted_values = torch.where(all_counted, precise, 0.0)
        total = _running_sum(counted_values, block, skipped)
        squares = _running_sum(counted_values * precise, block, skipped)
        changes = (precise[:, self.season :] - precise[:, : -self.season]).abs()
        changes = torch.where(all_counted[:, : -self.season], changes, 0.0)
        no_changes = changes.new_zeros(len(filled), precise.shape[1] - changes.shape[1], self.size)
        change_sum = _running_sum(torch.cat([no_changes, changes], dim=1), block, skipped)
        steps = counts.double().clamp_min(1)
        distance = (total[:, ends] - total[:, ends - window]) / steps
        spread = _root((squares[:, ends] - squares[:, ends - window]) / steps - distance**2)
        pairs = counts.double() - self.season
        change = (change_sum[:, ends] - change_sum[:, ends - window + season]) / pairs.clamp_min(1)
        means = torch.where(counts > 0, first + distance, 0.0).to(filled.dtype)
        return means, (torch.where(pairs > 0, change, spread) + _SCALE_FLOOR).to(filled.dtype)

    @staticmethod
    def _extras(mean: Tensor, previous_mean: Tensor, deviation: Tensor, has_previous_mean: Tensor) -> Tensor:
        """Return the scale's logarithm, and the change of the mean, 0 if there is no previous one."""
        shift = torch.where(has_previous_mean, ((mean - previous_mean) / deviation).clamp(-_CLIP, _CLIP), 0.0)
        return torch.cat([_log(deviation), shift], dim=-1)

    @staticmethod
    def _clipped(scaled: Tensor) -> Tensor:
        return scaled.clamp(-_CLIP, _CLIP)


def _decides(values: Tensor) -> bool:
    """Return whether values may decide which operations run; on a GPU, waiting for them takes longer than these."""
    return not (values.is_cuda or is_transformed())


def _is_complete(observed: Tensor, ends: Tensor | None) -> bool:
    """Return whether all values of a batch ``(batch, time, F)`` are observed, up to the ends of its sequences."""
    if ends is None:
        return bool(observed.all())
    # Nothing is observed after the ends. A sequence without any step has no first value.
    return bool((observed.sum(dim=1) == ends[:, None]).all()) and bool(ends.all())


def _log(values: Tensor) -> Tensor:
    # ONNX Runtime's logarithm of float32 depends in its last bit on where in the batch a value stands.
    return torch.log(values.double()).to(values.dtype)


def _root(values: Tensor) -> Tensor:
    """Return the square root, with value and gradient 0 for a value that is not positive."""
    # The root's own gradient at 0 is infinite, and stays NaN where only the result is masked: infinity times 0.
    flat = values <= 0
    return torch.where(flat, 0.0, torch.sqrt(torch.where(flat, 1.0, values)))


def _running_sum(values: Tensor, block: int, skipped: int) -> Tensor:
    """Return the sums of the first k blocks of ``(batch, time, F)``, k from 0 to ``time / block``.

    Args:
        values: The values after the first ``skipped`` ones.
        block: Values of a block.
        skipped: Number of values before them that are 0, a multiple of ``block``.
    """
    sums = torch.unflatten(values, 1, (-1, block)).sum(dim=2).cumsum(dim=1)
    return torch.cat([sums.new_zeros(len(sums), 1 + skipped // block, sums.shape[2]), sums], dim=1)


class Patches:
    """The last ``size`` scaled samples, concatenated every ``stride`` samples: causal, no patch reads later samples.

    Samples before the first are 0. A sequence whose length is not a multiple of the stride is padded with missing
    samples: after its end or, ``end_aligned``, before its beginning, so that the last patch ends with the last sample.

    Args:
        scaling: The scaling of the samples.
        size: Samples that the layers see at once, 1 or more.
        stride: Samples after which they see the next patch, from 1 to ``size``.
        end_aligned: Whether the last patch of a sequence is the whole one, as a forecast from its end needs it.

    Raises:
        ConfigError: If ``size`` or ``stride`` is out of range.
    """

    def __init__(self, scaling: Scaling, size: int, stride: int, *, end_aligned: bool = False) -> None:
        if size < 1 or not 1 <= stride <= size:
            raise ConfigError(
                f"A patch has 1 sample or more and comes every 1 to patch_size samples, so that none is skipped; got "
                f"patch_size={size} and patch_stride={stride}."
            )
        self.scaling = scaling
        self.size = size
        self.stride = stride
        self.end_aligned = end_aligned and stride > 1
        # Samples that a patch shares with the next.
        self._overlap = size - stride

    @property
    def output_size(self) -> int:
        """Number of input channels of the first layer."""
        return self.size * self.scaling.output_size + self.scaling.extras_per_feature * self.scaling.size

    def state_roles(self) -> list[tuple[str, int]]:
        """Return role and length of each state tensor; all start as zeros."""
        overlap_size = self._overlap * self.scaling.output_size
        overlap = [("samples before the patch", overlap_size)] if self._overlap else []
        return [*self.scaling.state_roles(), *overlap]

    def split(self, state: States) -> tuple[States, States]:
        """Split a state into the scaling's and the overlap of the patches, an empty tuple if there is none."""
        count = len(self.scaling.state_roles())
        return state[:count], state[count:]

    def step(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        """Return the first layer's channels from a patch of raw samples ``(batch, stride, F)``, and the next state."""
        scaling_state, overlap = self.split(state)
        scaled, extras, scaling_state = self.scaling.patch(x, scaling_state)
        if overlap:
            # (batch, size, channels)
            scaled = torch.cat([overlap[0].reshape(-1, self._overlap, self.scaling.output_size), scaled], dim=1)
            overlap = (scaled[:, self.stride :].flatten(1),)
        features = scaled.flatten(1)
        return features if extras is None else torch.cat([features, extras], dim=-1), (*scaling_state, *overlap)

    def sequence(self, x: Tensor, valid: Tensor | None, state: States) -> tuple[Tensor, Tensor | None, States]:
        """Run :meth:`step` over whole sequences.

        Args:
            x: ``(batch, time, F)``, raw units.
            valid: ``(batch, time)``, false after each sequence's end; None if every sample counts.
            state: The state to continue from.

        Returns:
            Channels of each patch, ``(batch, patches, output_size)``; the number of patches of each sequence,
            ``(batch,)``, or None if all count; the state after the last of them.
        """
        if valid is not None:
            # Padding counts as missing.
            x = torch.where(valid[..., None], x, torch.nan)
        x = self._pad_to_patches(x, valid, torch.nan)
        patch_counts = None if valid is None else -(-valid.sum(dim=1) // self.stride)
        scaling_state, overlap = self.split(state)
        scaled, extras, scaling_state = self.scaling.patches(x, scaling_state, self.stride, patch_counts)
        count = x.shape[1] // self.stride
        if overlap:
            scaled = torch.cat([overlap[0].reshape(-1, self._overlap, self.scaling.output_size), scaled], dim=1)
            counts = torch.full((len(x),), count, device=x.device) if patch_counts is None else patch_counts
            # The last samples of the last patch: the prepended overlap shifts indices by its own length.
            last = (counts * self.stride)[:, None] + torch.arange(self._overlap, device=x.device)
            overlap = (scaled[torch.arange(len(x), device=x.device)[:, None], last].flatten(1),)
        # (batch, patches, channels, size) to (batch, patches, size * channels), as step flattens them.
        features = scaled.unfold(1, self.size, self.stride).transpose(2, 3).flatten(2)
        if extras is not None:
            features = torch.cat([features, extras], dim=-1)
        return features, patch_counts, (*scaling_state, *overlap)

    def time(self, dt: Tensor, valid: Tensor | None) -> Tensor:
        """Return the time of each patch ``(batch, patches)``: the mean of its samples', 1 for padding."""
        dt = self._pad_to_patches(dt[..., None], valid, 1.0)[..., 0]
        return dt.reshape(len(dt), -1, self.stride).mean(dim=2)

    @staticmethod
    def mean_time(dt: Tensor) -> Tensor:
        """Return the mean of the times of a patch's samples, ``(batch, 1)``, as :meth:`time` takes it.

        Args:
            dt: ``(batch, stride)``.
        """
        # Summed one by one: ReduceMean of ONNX Runtime has other bits for one row than for the same row in a batch.
        total, *others = dt.unbind(1)
        for time in others:
            total = total + time
        return (total / dt.shape[1])[:, None]

    def _pad_to_patches(self, values: Tensor, valid: Tensor | None, fill: float) -> Tensor:
        """Pad ``(batch, time, channels)`` with ``fill`` to whole patches, at the end or, end-aligned, at the start."""
        time = values.shape[1]
        values = torch.nn.functional.pad(values, (0, 0, 0, -time % self.stride), value=fill)
        if not self.end_aligned:
            return values
        lengths = torch.full((len(values),), time, device=values.device) if valid is None else valid.sum(dim=1)
        # On a GPU, to look for lengths that need a shift would take longer than to shift.
        if not (values.is_cuda or is_transformed() or bool((lengths % self.stride).any())):
            return values
        # Each sequence is shifted to the right by the samples that its first patch lacks; (batch, padded time).
        source = torch.arange(values.shape[1], device=values.device) - (-lengths % self.stride)[:, None]
        shifted = values.gather(1, source.clamp_min(0)[..., None].expand_as(values))
        return torch.where(source[..., None] >= 0, shifted, fill)


class Resampling(nn.Module):
    """Linear interpolation of a sequence at ``steps`` equidistant times, and the logarithm of its length as a channel.

    Sample ``k`` of the result is at ``k (length - 1) / (steps - 1)`` of the original: its first and last samples stay
    where they are, and a sequence of ``steps`` samples is not changed. Between an observed and a missing sample stands
    the observed one, between two missing ones NaN.

    The channel is standardized on the training split. A length outside the range of the training split counts as the
    nearest one in it: further out, nothing was learned of the channel.

    The result depends on the last sample of a sequence from the second step on, so that it cannot be computed of a
    stream.

    Args:
        steps: Samples of each result, 2 or more.

    Raises:
        ConfigError: If ``steps`` is less than 2.
    """

    length_mean: Tensor
    """Mean of the logarithms of the lengths of the training sequences."""
    length_scale: Tensor
    """Their deviation; 1 if all are equal."""
    length_range: Tensor
    """The smallest and the largest length of the training sequences, ``(2,)`` int64; 1 before :meth:`fit`."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        if steps < 2:
            raise ConfigError(f"resample_steps is 2 or more, the first and the last sample at least, got {steps}.")
        self.steps = steps
        self.register_buffer("length_mean", torch.zeros(()))
        self.register_buffer("length_scale", torch.ones(()))
        self.register_buffer("length_range", torch.ones(2, dtype=torch.int64))

    @property
    def is_fitted(self) -> bool:
        """True if :meth:`fit` was called."""
        return bool(self.length_range[1] > 1)

    def fit(self, sequences: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Take mean, deviation and range of the lengths from training sequences, and return these resampled.

        Args:
            sequences: Each ``(time, features)`` in raw units, NaN where missing; those of no samples are left out.
        """
        whole = [np.asarray(values) for values in sequences if len(values)]
        counts = np.array([len(values) for values in whole], dtype=np.int64)
        logarithms = np.log(counts)
        deviation = float(logarithms.std())
        self.length_mean.fill_(float(logarithms.mean()))
        # What rounding leaves of equal lengths counts as none.
        self.length_scale.fill_(deviation if deviation > 1e-9 else 1.0)
        self.length_range.copy_(torch.tensor([int(counts.min()), int(counts.max())]))
        device = self.length_mean.device
        return (self(torch.from_numpy(values)[None].to(device))[0].cpu().numpy() for values in whole)

    def length_scores(self, lengths: Tensor) -> Tensor:
        """Return the channel of lengths of any shape, 1 or more, in the dtype of the buffers."""
        low, high = self.length_range.unbind()
        # In float64, so that an exported table of the scores has the same bits.
        logarithms = torch.log(torch.minimum(torch.maximum(lengths, low), high).double())
        scores = (logarithms - self.length_mean.double()) / self.length_scale.double()
        return scores.to(self.length_mean.dtype)

    def channel_range(self) -> Box:
        """Return the range of the channel of the length, over all lengths."""
        low, high = self.length_scores(self.length_range).cpu().double().numpy()
        # Wider than float32 rounds: the mean that the scaling subtracts, 0 but for rounding, must be in it.
        return Box(np.array([min(low, 0.0) - _MARGIN]), np.array([max(high, 0.0) + _MARGIN]))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return resampled sequences ``(batch, steps, features + 1)`` of ``(batch, time, features)``.

        Args:
            x: Raw samples, NaN where missing.
            lengths: ``(batch,)``, 1 or more; no sample from there on is read. All count when omitted.
        """
        batch, time, features = x.shape
        counts = torch.full((batch,), time) if lengths is None else lengths.clamp(1, time)
        counts = counts.to(x.device)
        # Positions as whole numbers of 1 / (steps - 1) samples, which do not round.
        position = torch.arange(self.steps, device=x.device) * (counts - 1)[:, None]
        before = position // (self.steps - 1)
        remainder = position - before * (self.steps - 1)
        # A sample that is met exactly has no second neighbor, whose gap would not matter.
        after = before + (remainder > 0).long()
        first, second = (x.gather(1, index[..., None].expand(-1, -1, features)) for index in (before, after))
        first, second = torch.where(first.isnan(), second, first), torch.where(second.isnan(), first, second)
        share = remainder.to(x.dtype) / (self.steps - 1)
        values = first + share[..., None] * (second - first)
        channel = self.length_scores(counts).to(x.dtype)[:, None, None].expand(-1, self.steps, 1)
        return torch.cat([values, channel], dim=-1)


def create_resampling(steps: int | None, *, scaling: str, max_dt: float | None) -> Resampling | None:
    """Return the resampling of a model, None for none.

    Args:
        steps: Samples of each resampled sequence.
        scaling: Kind of the scaling behind it.
        max_dt: Longest time between two steps of a model for irregular time.

    Raises:
        ConfigError: If it does not go with the scaling or the time.
    """
    if steps is None:
        return None
    if scaling not in ("standard", "none"):
        raise ConfigError(
            f"resample_steps adds the length of a sequence as a feature that is the same at all steps, of which the "
            f"scaling '{scaling}' would leave nothing; take scaling='standard' or 'none'."
        )
    if max_dt is not None:
        raise ConfigError(
            "resample_steps spreads the samples of a sequence evenly over its length, whatever their times were; leave "
            "out max_dt or resample_steps."
        )
    return Resampling(steps)


def create_scaling(
    kind: str, size: int, *, window: int | None, mask_channel: bool, season: int | None = None, log: bool = False
) -> Scaling:
    """Return the scaling called ``standard``, ``none``, ``log``, ``window`` or ``context``.

    Raises:
        ConfigError: If there is no such kind, or ``window``, ``season`` or ``log`` is missing or not used.
    """
    if kind not in SCALINGS:
        raise ConfigError(f"Unknown scaling '{kind}'.{did_you_mean(kind, SCALINGS)} It is {', '.join(SCALINGS)}.")
    if kind in ("standard", "none", "log") and window is not None:
        raise ConfigError(
            f"A window of {window} steps is only used by the scalings 'window' and 'context', got '{kind}'."
        )
    if kind != "context" and (log or season is not None):
        raise ConfigError(f"A season and logarithms are only used by the scaling 'context', got '{kind}'.")
    if kind == "standard":
        return Scaling(size, mask_channel=mask_channel)
    if kind == "none":
        return NoScaling(size, mask_channel=mask_channel)
    if kind == "log":
        return LogScaling(size, mask_channel=mask_channel)
    if window is None:
        raise ConfigError(f"The scaling '{kind}' needs a context length; set {terms().key('task.context_length')}.")
    if kind == "window":
        return WindowScaling(size, window=window, mask_channel=mask_channel)
    return ContextScaling(
        size, window=window, season=1 if season is None else season, log=log, mask_channel=mask_channel
    )
