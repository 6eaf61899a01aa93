"""Scaling and missing values, as part of the model: raw units go in, and the same arithmetic runs in every graph.

Each scaling is a recurrence of its own. :meth:`Scaling.step` takes one raw sample and a state and is what the exported
step graph holds; :meth:`Scaling.sequence` gives the same numbers for a whole sequence in training.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.errors import ConfigError, DataError, near

# Variance below which a window counts as flat, as a share of the training data's variance: keeps a division finite.
_FLAT = 1e-8


class Scaling(nn.Module):
    """Standard scores by the training data's mean and standard deviation; a missing value repeats the last observed.

    Before the first observed value the mean stands in, which is zero after scaling and therefore the zero state.

    Args:
        size: Features, F.
        mask_channel: Whether F further channels tell which values were observed (1) or filled in (0).
    """

    kind = "standard"
    mean: Tensor
    scale: Tensor

    def __init__(self, size: int, *, mask_channel: bool = False) -> None:
        super().__init__()
        self.size = size
        self.mask_channel = mask_channel
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    @property
    def output_size(self) -> int:
        """Channels that the first layer sees."""
        return self.size * (2 if self.mask_channel else 1)

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
        deviation[deviation <= 1e-12 * np.maximum(np.abs(mean), 1)] = 1
        self.mean.copy_(torch.from_numpy(mean))
        self.scale.copy_(torch.from_numpy(deviation))

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Channels for the first layer from one raw sample ``(batch, F)``, and the next state."""
        (held,) = state
        observed = ~torch.isnan(x)
        held = torch.where(observed, (x - self.mean) / self.scale, held)
        return self._with_mask(held, observed), (held,)

    def sequence(self, x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """:meth:`step` over ``(batch, time, F)``; where ``valid`` (batch, time) is false the state is held."""
        (held,) = state
        observed = ~torch.isnan(x)
        if valid is not None:
            observed = observed & valid[..., None]
        scaled = (x - self.mean) / self.scale
        if not bool(observed.all()):
            time = torch.arange(x.shape[1], device=x.device)[:, None].expand_as(x)
            latest = torch.where(observed, time, -1).cummax(dim=1).values
            scaled = torch.where(latest < 0, held[:, None], scaled.gather(1, latest.clamp_min(0)))
        return self._with_mask(scaled, observed), (scaled[:, -1],)

    def anchor(self, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Where a forecast starts from and what it is measured in: location and scale in raw units, ``(batch, F)``."""
        (held,) = state
        return self.mean + self.scale * held, self.scale.expand_as(held)

    def _with_mask(self, scaled: Tensor, observed: Tensor) -> Tensor:
        return torch.cat([scaled, observed.to(scaled.dtype)], dim=-1) if self.mask_channel else scaled


class WindowScaling(Scaling):
    """Standard scores by running statistics of the sequence itself, causal, for series whose level differs or drifts.

    Mean and variance are those of the observed values so far, up to ``window`` of them; after that they forget
    exponentially with that time constant, so that a long stream looks like a training window. A global scaling is
    applied first, for accuracy in float32.

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
            *super().state_roles(),
            ("observed values", self.size),
            ("running mean", self.size),
            ("running variance", self.size),
        ]

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        held, count, mean, variance = state
        observed = ~torch.isnan(x)
        held = torch.where(observed, (x - self.mean) / self.scale, held)
        grown = torch.clamp(count + 1, max=self.window)
        distance = held - mean
        # The first value is its own mean to the last bit: a division that is off by one ulp would leave a
        # tiny distance, to be divided by the smallest deviation.
        moved = torch.where(count == 0, held, mean + distance / grown)
        spread = variance + (distance * (held - moved) - variance) / grown
        count = torch.where(observed, grown, count)
        mean = torch.where(observed, moved, mean)
        variance = torch.where(observed, spread, variance)
        scaled = (held - mean) / self._deviation(variance)
        return self._with_mask(scaled, observed), (held, count, mean, variance)

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
        held, _, _, variance = state
        return self.mean + self.scale * held, self.scale * self._deviation(variance)

    @staticmethod
    def _deviation(variance: Tensor) -> Tensor:
        # Not `variance + _FLAT`: the ONNX exporter's optimizer takes an addition of 1e-8 for one of zero and drops it.
        return torch.sqrt(torch.clamp(variance, min=_FLAT))


def create_scaling(kind: str, size: int, *, window: int | None, mask_channel: bool) -> Scaling:
    """The scaling called ``standard`` or ``window``.

    Raises:
        ConfigError: If there is no such kind, or ``window`` is missing where it is needed.
    """
    if kind == "standard":
        return Scaling(size, mask_channel=mask_channel)
    if kind != "window":
        raise ConfigError(f"Unknown scaling '{kind}'.{near(kind, ('standard', 'window'))} It is standard or window.")
    if window is None:
        raise ConfigError("The scaling 'window' needs a context length; set task.context_length.")
    return WindowScaling(size, window=window, mask_channel=mask_channel)
