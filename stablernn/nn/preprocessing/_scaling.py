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

from stablernn.bounds.intervals import Box
from stablernn.errors import ConfigError, DataError

_FLAT_SHARE = 1e-4
"""Deviation below which a window counts as flat, as a share of its level."""
_ROUNDING = 2.0**-20
"""More than the share of a value and of the mean by which float32 rounds their scaled difference."""
_SMALLEST_DEVIATION = 1e-8
"""The same at level zero, as a share of the training data's deviation."""


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

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the first layer's channels from one raw sample ``(batch, F)``, and the next state.

        :class:`stablernn.export.input_stage.InputStage` does the same in graphs.
        """
        (last_value,) = state
        observed = ~torch.isnan(x)
        last_value = torch.where(observed, (x - self.mean) / self.scale, last_value)
        return self._channels(last_value, observed), (last_value,)

    def sequence(self, x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run :meth:`step` over ``(batch, time, F)``; where ``valid`` (batch, time) is false the state is held."""
        scaled, observed = self.filled(x, state, valid)
        return self._channels(scaled, observed), (scaled[:, -1],)

    def filled(self, x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None) -> tuple[Tensor, Tensor]:
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

    def patch(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
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
        self, x: Tensor, state: tuple[Tensor, ...], stride: int, patch_counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
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

    def anchor(self, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
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
                f"leaves out its mean in training, {mean[feature]:g}. Give the range in the units of the data, not of "
                "scaled values."
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

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
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

    def sequence(self, x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs = []
        for time in range(x.shape[1]):
            scaled, next_state = self.step(x[:, time], state)
            if valid is not None:
                is_valid = valid[:, time, None]
                next_state = tuple(torch.where(is_valid, new, old) for new, old in zip(next_state, state, strict=True))
            state = next_state
            outputs.append(scaled)
        return torch.stack(outputs, dim=1), state

    def anchor(self, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
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
