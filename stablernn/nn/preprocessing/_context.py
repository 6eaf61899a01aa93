"""Scaling by the last steps: their mean, and their mean absolute seasonal difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from stablernn.bounds.intervals import Box
from stablernn.errors import ConfigError, DataError
from stablernn.nn.preprocessing._scaling import Scaling
from stablernn.terms import terms
from stablernn.transforms import is_transformed

_SCALE_FLOOR = 0.05
"""Smallest scale, as a share of the training data's: the noise of a flat stretch must not be amplified."""
_CLIP = 8.0
"""Scaled values are clipped to this for the layers: one spike must not overwrite the state."""
_ROUNDING = 2.0**-22
"""Share of a series' largest value up to which a seasonal change is float32 rounding: a perfect season repeats."""
_LOG_FLOOR = 0.1
"""Smallest value that the logarithm is taken of, as a share of the smallest training value."""


class ContextScaling(Scaling):
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
    floor: Tensor

    def __init__(self, size: int, *, window: int, season: int = 1, log: bool = False, mask_channel: bool = False):
        super().__init__(size, mask_channel=mask_channel)
        if window < 2:
            raise ConfigError(f"The scaling 'context' remembers 2 steps or more, got {window}.")
        if not 1 <= season < window:
            raise ConfigError(
                f"The season of the scaling 'context' must be from 1 to {window - 1}, less than the steps that it "
                f"remembers, got {season}."
            )
        self.window = window
        self.season = season
        self.log = log
        self.register_buffer("floor", torch.ones(size))

    def state_roles(self) -> list[tuple[str, int]]:
        return [
            ("last values", self.window * self.size),
            ("steps since the first observed value", self.size),
            ("mean before", self.size),
        ]

    def fit(self, sequences: Iterable[np.ndarray]) -> None:
        """Fit the unit, the median over series of their mean seasonal change, and the level.

        Raises:
            DataError: If a feature has no observed value at all, or ``log`` meets a value that is not positive.
        """
        chunks = [np.asarray(sequence, dtype=np.float64) for sequence in sequences]
        if self.log:
            smallest = np.full(self.size, np.inf)
            for chunk in chunks:
                smallest = np.fmin(smallest, np.fmin.reduce(chunk, axis=0, initial=np.inf))
            if (smallest <= 0).any():
                raise DataError(
                    f"Feature {int(np.argmin(smallest))} goes down to {smallest.min():g}, and logarithms are of "
                    f"positive values only; {terms().set('model.log', False)}."
                )
            self.floor.copy_(torch.from_numpy(_LOG_FLOOR * np.where(np.isfinite(smallest), smallest, 1.0)))
            chunks = [np.log(chunk) for chunk in chunks]
        super().fit(chunks)
        changes = np.full((len(chunks), self.size), np.nan)
        for row, chunk in zip(changes, chunks, strict=True):
            steps = np.abs(chunk[self.season :] - chunk[: -self.season])
            is_observed = ~np.isnan(steps)
            count = is_observed.sum(axis=0)
            change = np.where(is_observed, steps, 0).sum(axis=0) / count.clip(1)
            largest = np.fmax.reduce(np.abs(chunk), axis=0, initial=0)
            # A series whose seasons repeat exactly has no unit, and does not count.
            row[:] = np.where(change > _ROUNDING * largest, change, np.nan)
        for feature in range(self.size):
            feature_changes = changes[:, feature][~np.isnan(changes[:, feature])]
            # Otherwise the standard deviation that the base class has fitted stays.
            if len(feature_changes):
                self.scale[feature] = float(np.median(feature_changes))

    def transform(self, values: Tensor, features: Sequence[int] | None = None) -> Tensor:
        if not self.log:
            return values
        return _log(torch.maximum(values, self.floor if features is None else self.floor[list(features)]))

    def inverse(self, values: Tensor) -> Tensor:
        return torch.exp(values.double()).to(values.dtype) if self.log else values

    def patch(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
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
        self, x: Tensor, state: tuple[Tensor, ...], stride: int, patch_counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
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

    def anchor(self, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        flat_window, count, _ = state
        mean, deviation = self._statistics(flat_window.reshape(-1, self.window, self.size), count)
        return self.mean + self.scale * mean, self.scale * deviation

    def channel_range(self, inputs: Box) -> tuple[Box, Box]:
        lower, upper, mean, scale, floor = (
            np.asarray(values, dtype=np.float64)
            for values in (inputs.lower, inputs.upper, self.mean.cpu(), self.scale.cpu(), self.floor.cpu())
        )
        if self.log:
            lower, upper = np.log(np.maximum(lower, floor)), np.log(np.maximum(upper, floor))
        self._check_holds_mean(Box(lower, upper))
        # Standard deviation and mean seasonal change are at most the distance of the farthest values, each rounded.
        rounding = 8 * _ROUNDING * (np.maximum(np.abs(lower), np.abs(upper)) + np.abs(mean))
        largest = (upper - lower + rounding) / scale + _SCALE_FLOOR
        clipped, margin = Box.around_zero(self.size, _CLIP), 1e-5
        scales = Box(np.full(self.size, math.log(_SCALE_FLOOR) - margin), np.log(largest) + margin)
        return self._with_mask_range(clipped), scales.join(clipped)

    def context(self, state: tuple[Tensor, ...]) -> Tensor:
        """Return the values of the window, scaled as a forecast is, ``(batch, window, F)``; 0 before the first one."""
        return self.anchored_context(state)[2]

    def anchored_context(self, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Return what :meth:`anchor` and :meth:`context` do, with the statistics of the window computed once.

        Returns:
            Location and scale, ``(batch, F)``, and the scaled values of the window, ``(batch, window, F)``.
        """
        flat_window, count, _ = state
        values = flat_window.reshape(-1, self.window, self.size)
        mean, deviation = self._statistics(values, count)
        context = torch.where(self._is_counted(count), (values - mean[:, None]) / deviation[:, None], 0.0)
        return self.mean + self.scale * mean, self.scale * deviation, context

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
