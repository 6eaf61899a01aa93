"""Scaling by what the last so many steps show: their mean, and how much a season differs from the one before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from stablernn.errors import ConfigError, DataError
from stablernn.nn.preprocessing._scaling import Scaling

_FLOOR = 0.05
"""Least scale, as a share of the training data's: a flat stretch must not blow its noise up."""
_LIMIT = 8.0
"""Scaled values beyond this reach the layers as this: one spike must not throw the state away."""
_ROUNDING = 2.0**-22
"""Share of a series' largest value up to which a change is what float32 leaves of none: a perfect season repeats."""
_SMALLEST = 0.1
"""Where the logarithm is cut off below, as a share of the smallest training value."""


class ContextScaling(Scaling):
    """Distance from the mean of the last ``window`` steps, in units of their mean absolute seasonal change.

    The last ``window`` values themselves are part of the state, so the statistics are those of the steps before any
    forecast and nothing else, however long a stream is; a linear skip reads them from there. A missing value repeats
    the last observed one and steps before the first observed one do not count. Until a whole season has been seen, the
    standard deviation stands in for the seasonal change.

    The layers also see, for each step or patch, the logarithm of the scale and how far the mean has moved.

    Args:
        size: Features, F.
        window: Steps that are remembered, 2 or more.
        season: Steps of a season, less than ``window``.
        log: Whether values are replaced by their logarithms, for positive series whose level differs by factors.
        mask_channel: As in :class:`Scaling`.
    """

    kind = "context"
    extras_per_feature = 2
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
        """Take the unit, the median over series of their mean seasonal change, and the level.

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
                    "positive values only; set model.log=false."
                )
            self.floor.copy_(torch.from_numpy(_SMALLEST * np.where(np.isfinite(smallest), smallest, 1.0)))
            chunks = [np.log(chunk) for chunk in chunks]
        super().fit(chunks)
        changes = np.full((len(chunks), self.size), np.nan)
        for row, chunk in zip(changes, chunks, strict=True):
            steps = np.abs(chunk[self.season :] - chunk[: -self.season])
            seen = ~np.isnan(steps)
            count = seen.sum(axis=0)
            change = np.where(seen, steps, 0).sum(axis=0) / count.clip(1)
            largest = np.fmax.reduce(np.abs(chunk), axis=0, initial=0)
            row[:] = np.where(change > _ROUNDING * largest, change, np.nan)
        for feature in range(self.size):
            known = changes[:, feature][~np.isnan(changes[:, feature])]
            if len(known):
                self.scale[feature] = float(np.median(known))

    def transform(self, values: Tensor, features: Sequence[int] | None = None) -> Tensor:
        if not self.log:
            return values
        return _log(torch.maximum(values, self.floor if features is None else self.floor[list(features)]))

    def inverse(self, values: Tensor) -> Tensor:
        return torch.exp(values.double()).to(values.dtype) if self.log else values

    def patch(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        stored, count, before = state
        known = count > 0
        values = stored.reshape(-1, self.window, self.size)
        scaled, observed = self._scaled(x)
        held, filled = values[:, -1], []
        for sample, seen in zip(scaled.unbind(dim=1), observed.unbind(dim=1), strict=True):
            held = torch.where(seen, sample, held)
            count = torch.where(seen | (count > 0), torch.clamp(count + 1, max=self.window), count)
            filled.append(held)
        fresh = torch.stack(filled, dim=1)
        values = torch.cat([values, fresh], dim=1)[:, -self.window :]
        mean, deviation = self._statistics(values, count)
        extras = self._extras(mean, before, deviation, known)
        recent = (fresh - mean[:, None]) / deviation[:, None]
        return self._channels(self._limited(recent), observed), extras, (values.flatten(1), count, mean)

    def patches(
        self, x: Tensor, state: tuple[Tensor, ...], stride: int, groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        stored, count, before = state
        scaled, observed = self._scaled(x)
        past = stored.reshape(-1, self.window, self.size)
        time = torch.arange(x.shape[1], device=x.device)[:, None].expand_as(x)
        latest = torch.where(observed, time, -1).cummax(dim=1).values
        held = torch.where(latest < 0, past[:, -1:], scaled.gather(1, latest.clamp_min(0)))
        real = (latest >= 0) | (count[:, None] > 0)
        values = torch.cat([past, held], dim=1)
        counts = torch.clamp(count[:, None] + real.cumsum(dim=1), max=self.window)[:, stride - 1 :: stride]
        counted = torch.cat([self._counted(count), real], dim=1)
        ends = torch.arange(stride, x.shape[1] + 1, stride, device=x.device) + self.window
        # Counted from the first value there is: running sums of squares would lose a small spread far from zero.
        first = held.gather(1, real.long().argmax(dim=1, keepdim=True)).double()
        precise = values.double() - first
        total = _running(precise * counted)
        squares = _running(precise**2 * counted)
        changes = (precise[:, self.season :] - precise[:, : -self.season]).abs() * counted[:, : -self.season]
        changed = _running(torch.cat([changes.new_zeros(len(x), self.season, self.size), changes], dim=1))
        steps = counts.double().clamp_min(1)
        distance = (total[:, ends] - total[:, ends - self.window]) / steps
        spread = _root((squares[:, ends] - squares[:, ends - self.window]) / steps - distance**2)
        pairs = counts.double() - self.season
        change = (changed[:, ends] - changed[:, ends - self.window + self.season]) / pairs.clamp_min(1)
        means = torch.where(counts > 0, first + distance, 0.0).to(x.dtype)
        deviation = (torch.where(pairs > 0, change, spread) + _FLOOR).to(x.dtype)
        every_count = torch.cat([count[:, None], counts], dim=1)
        every_mean = torch.cat([before[:, None], means], dim=1)
        extras = self._extras(means, every_mean[:, :-1], deviation, every_count[:, :-1] > 0)
        grouped = values[:, self.window :].reshape(len(x), -1, stride, self.size)
        recent = (grouped - means[:, :, None]) / deviation[:, :, None]
        done = torch.full_like(count[:, 0], counts.shape[1]).long() if groups is None else groups
        row = torch.arange(len(x), device=x.device)
        window = (done * stride)[:, None] + torch.arange(self.window, device=x.device)
        following = (values[row[:, None], window].flatten(1), every_count[row, done], every_mean[row, done])
        return self._channels(self._limited(recent.flatten(1, 2)), observed), extras, following

    def anchor(self, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        stored, count, _ = state
        mean, deviation = self._statistics(stored.reshape(-1, self.window, self.size), count)
        return self.mean + self.scale * mean, self.scale * deviation

    def context(self, state: tuple[Tensor, ...]) -> Tensor:
        """The remembered values, scaled as a forecast is, ``(batch, window, F)``; 0 where none was observed yet."""
        stored, count, _ = state
        values = stored.reshape(-1, self.window, self.size)
        mean, deviation = self._statistics(values, count)
        return torch.where(self._counted(count), (values - mean[:, None]) / deviation[:, None], 0.0)

    def _scaled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Raw samples in training units, and which were observed; what stands for the others means nothing."""
        observed = ~torch.isnan(x)
        return (self.transform(torch.where(observed, x, self.floor)) - self.mean) / self.scale, observed

    def _counted(self, count: Tensor) -> Tensor:
        place = torch.arange(self.window, device=count.device, dtype=count.dtype)
        return place[None, :, None] >= self.window - count[:, None]

    def _statistics(self, values: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and scale of the counted values, ``(batch, F)``."""
        # Summed in float64: how ONNX Runtime adds up float32 depends on the size of the batch.
        counted, seen = self._counted(count), count.double()
        steps = seen.clamp_min(1)
        precise = values.double()
        mean = torch.where(counted, precise, 0.0).sum(dim=1) / steps
        distance = torch.where(counted, precise - mean[:, None], 0.0)
        spread = _root((distance * distance).sum(dim=1) / steps)
        changes = (precise[:, self.season :] - precise[:, : -self.season]).abs()
        change = torch.where(counted[:, : -self.season], changes, 0.0).sum(dim=1) / (seen - self.season).clamp_min(1)
        deviation = torch.where(seen > self.season, change, spread) + _FLOOR
        return mean.to(values.dtype), deviation.to(values.dtype)

    @staticmethod
    def _extras(mean: Tensor, before: Tensor, deviation: Tensor, known: Tensor) -> Tensor:
        """The scale's logarithm, and how far the mean moved from ``before``, where that is ``known``."""
        moved = torch.where(known, ((mean - before) / deviation).clamp(-_LIMIT, _LIMIT), 0.0)
        return torch.cat([_log(deviation), moved], dim=-1)

    @staticmethod
    def _limited(scaled: Tensor) -> Tensor:
        return scaled.clamp(-_LIMIT, _LIMIT)


def _log(values: Tensor) -> Tensor:
    # ONNX Runtime's logarithm of float32 depends in its last bit on where in the batch a value stands.
    return torch.log(values.double()).to(values.dtype)


def _root(values: Tensor) -> Tensor:
    """The square root, 0 where a value is not positive, with a gradient of 0 there."""
    # The root's own gradient at 0 is infinite, and stays NaN where only the result is masked: infinity times 0.
    flat = values <= 0
    return torch.where(flat, 0.0, torch.sqrt(torch.where(flat, 1.0, values)))


def _running(values: Tensor) -> Tensor:
    """Sums of the first k of ``(batch, time, F)``, k from 0 to time."""
    return torch.cat([values.new_zeros(len(values), 1, values.shape[2]), values.cumsum(dim=1)], dim=1)
