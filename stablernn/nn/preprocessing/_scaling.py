"""Scaling and missing values, as part of the model: raw units go in, and the same arithmetic runs in every graph.

Each scaling is a recurrence of its own. :meth:`Scaling.patch` takes the raw samples of one patch and a state and is
what the exported step graph holds; :meth:`Scaling.patches` gives the same numbers for whole sequences in training.
Where samples are scaled one by one, both are made of :meth:`Scaling.step` and :meth:`Scaling.sequence`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.errors import ConfigError, DataError

# Spread below which a window counts as flat, as a share of its level and, at level zero, of the training data's spread.
_FLAT = 1e-4
_NOTHING = 1e-8


class Scaling(nn.Module):
    """Standard scores by the training data's mean and standard deviation; a missing value repeats the last observed.

    Before the first observed value the mean stands in, which is zero after scaling and therefore the zero state.

    Args:
        size: Features, F.
        mask_channel: Whether F further channels tell which values were observed (1) or filled in (0).

    Attributes:
        keep_missing: Whether a missing value stays NaN, for a cell that takes it so.
    """

    kind = "standard"
    extras_per_feature = 0
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
        """Channels that the first layer sees."""
        return self.size * (2 if self.mask_channel else 1)

    @property
    def is_fitted(self) -> bool:
        """True if :meth:`fit` was called, or loaded values differ from those of a new scaling."""
        return self._was_fitted or bool((self.mean != 0).any() or (self.scale != 1).any()) or not self.size

    def mark_fitted(self) -> None:
        """Count the scaling as fitted, whatever its values are."""
        self._was_fitted = True

    def state_roles(self) -> list[tuple[str, int]]:
        """Role and length of each state tensor; all start as zeros."""
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
        # What rounding alone leaves of a constant counts as no spread, in whatever unit it is.
        deviation[deviation <= 1e-12 * np.abs(mean)] = 1
        self.mean.copy_(torch.from_numpy(mean))
        self.scale.copy_(torch.from_numpy(deviation))
        self._was_fitted = True

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Channels for the first layer from one raw sample ``(batch, F)``, and the next state.

        :class:`stablernn.export.input_stage.InputStage` does the same in graphs.
        """
        (held,) = state
        observed = ~torch.isnan(x)
        held = torch.where(observed, (x - self.mean) / self.scale, held)
        return self._channels(held, observed), (held,)

    def sequence(self, x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """:meth:`step` over ``(batch, time, F)``; where ``valid`` (batch, time) is false the state is held."""
        scaled, observed = self.filled(x, state, valid)
        return self._channels(scaled, observed), (scaled[:, -1],)

    def filled(self, x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """The last observed value at each step of ``(batch, time, F)``, scaled, and which ones were observed there."""
        (held,) = state
        observed = ~torch.isnan(x)
        if valid is not None:
            observed = observed & valid[..., None]
        scaled = (x - self.mean) / self.scale
        if not bool(observed.all()):
            time = torch.arange(x.shape[1], device=x.device)[:, None].expand_as(x)
            latest = torch.where(observed, time, -1).cummax(dim=1).values
            scaled = torch.where(latest < 0, held[:, None], scaled.gather(1, latest.clamp_min(0)))
        return scaled, observed

    def patch(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """:meth:`step` over the few samples of one patch ``(batch, stride, F)``, and what else the layers see of it."""
        outputs = []
        for sample in x.unbind(dim=1):
            scaled, state = self.step(sample, state)
            outputs.append(scaled)
        return torch.stack(outputs, dim=1), None, state

    def patches(
        self, x: Tensor, state: tuple[Tensor, ...], stride: int, groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """:meth:`patch` over whole sequences ``(batch, patches * stride, F)``, NaN behind their ends.

        Args:
            x: Raw samples.
            state: As :meth:`patch` takes it.
            stride: Samples of a patch.
            groups: ``(batch,)`` int64, the patches of each sequence, behind which the state is held; all when omitted.
        """
        scaled, state = self.sequence(x, state, None)
        return scaled, None, state

    def transform(self, values: Tensor, features: Sequence[int] | None = None) -> Tensor:
        """Raw values in the units in which forecasts are made, where :meth:`anchor` is linear.

        Args:
            values: ``(..., features)``.
            features: Which features these are; all when omitted.
        """
        return values

    def inverse(self, values: Tensor) -> Tensor:
        """What :meth:`transform` is undone by."""
        return values

    def anchor(self, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Where a forecast starts from and what it is measured in: location and scale, ``(batch, F)``.

        They are in raw units, or in those of :meth:`transform` where it changes them.
        """
        (held,) = state
        return self.mean + self.scale * held, self.scale.expand_as(held)

    def _channels(self, scaled: Tensor, observed: Tensor) -> Tensor:
        if self.keep_missing:
            scaled = torch.where(observed, scaled, torch.nan)
        return torch.cat([scaled, observed.to(scaled.dtype)], dim=-1) if self.mask_channel else scaled


class WindowScaling(Scaling):
    """Standard scores by running statistics of the sequence itself, causal, for series whose level differs or drifts.

    Mean and variance are those of the observed values so far, up to ``window`` of them; after that they forget
    exponentially with that time constant, so that a long stream looks like a training window. They are taken of the
    distance from the sequence's first observed value, which keeps float32 accurate at any level. Of the training data
    only the overall unit is used.

    Args:
        size: Features, F.
        window: Observed values that the statistics remember, 2 or more.
        mask_channel: As in :class:`Scaling`.
    """

    kind = "window"

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

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        held, first, count, mean, variance = state
        observed = ~torch.isnan(x)
        value = x / self.scale
        first = torch.where(observed & (count == 0), value, first)
        held = torch.where(observed, value - first, held)
        grown = torch.clamp(count + 1, max=self.window)
        distance = held - mean
        moved = mean + distance / grown
        spread = variance + (distance * (held - moved) - variance) / grown
        count = torch.where(observed, grown, count)
        mean = torch.where(observed, moved, mean)
        variance = torch.where(observed, spread, variance)
        scaled = (held - mean) / self._deviation(first, variance)
        return self._channels(scaled, observed), (held, first, count, mean, variance)

    def sequence(self, x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs = []
        for time in range(x.shape[1]):
            scaled, following = self.step(x[:, time], state)
            if valid is not None:
                keep = valid[:, time, None]
                following = tuple(torch.where(keep, new, old) for new, old in zip(following, state, strict=True))
            state = following
            outputs.append(scaled)
        return torch.stack(outputs, dim=1), state

    def anchor(self, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        held, first, _, _, variance = state
        return self.scale * (first + held), self.scale * self._deviation(first, variance)

    @staticmethod
    def _deviation(first: Tensor, variance: Tensor) -> Tensor:
        # A flat series has no spread: a share of its level stands in. maximum, not an addition of a small constant: the
        # ONNX exporter's optimizer takes an addition of 1e-8 for one of zero and drops it.
        return torch.maximum(torch.sqrt(torch.relu(variance)), torch.clamp(first.abs() * _FLAT, min=_NOTHING))
