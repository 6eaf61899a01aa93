"""Resampling of whole sequences to a fixed number of samples, with their length as a further channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import Box
from stablernn.errors import ConfigError

_MARGIN = 1e-3


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
