"""Random changes of training sequences: noise, another size, another start, stretches and squeezes in time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_WAVES = 3
"""Half waves over the sequence of which a displacement is made, each as large as its number is small."""
_WARPED = 0.5
"""Share of the sequences that are warped: the others are seen as they are."""


@dataclass(frozen=True)
class Augmentation:
    """A random change of sequences each time they are trained on. Random numbers are torch's, on the CPU.

    Attributes:
        time_warp: Standard deviation of the slowest wave by which half of the sequences are read too early or too late,
            as a share of their length.
        jitter: Standard deviation of the noise on every value, in units of the feature's.
        rescale: Standard deviation of the factor, around 1, on the distance of a sequence from the features' means.
        shift: Largest circular shift, either way, as a share of the length; 0.5 lets a sequence start anywhere.
    """

    time_warp: float = 0.0
    jitter: float = 0.0
    rescale: float = 0.0
    shift: float = 0.0

    def __call__(self, x: Tensor, lengths: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Return changed sequences.

        Args:
            x: ``(batch, time, features)``, NaN where missing.
            lengths: ``(batch,)``; steps beyond them do not matter.
            mean: ``(features,)``, of the training data.
            scale: ``(features,)``, of the training data.
        """
        if self.shift:
            x = _shift(x, lengths, self.shift)
        if self.time_warp:
            x = _warp(x, lengths, self.time_warp)
        if self.rescale:
            # One factor a sequence and feature, (batch, 1, features).
            factor = 1 + self.rescale * torch.randn(len(x), 1, x.shape[2]).to(x)
            x = mean + factor * (x - mean)
        if self.jitter:
            x = x + self.jitter * scale * torch.randn(x.shape).to(x)
        return x


def _shift(x: Tensor, lengths: Tensor, largest: float) -> Tensor:
    """Return each sequence rotated by a random number of steps; what leaves it at one end enters at the other."""
    time = torch.arange(x.shape[1], device=x.device)
    length = lengths[:, None].to(x.device)
    # Uniform from -largest to largest, (batch, 1).
    share = largest * (2 * torch.rand(len(x), 1) - 1)
    steps = (share.to(x) * length).round().long()
    return _read(x, torch.where(time < length, (time + steps) % length, time))


def _warp(x: Tensor, lengths: Tensor, strength: float) -> Tensor:
    """Return each sequence read at times that run now faster, now slower; its beginning and end stay where they are.

    The displacement is a sum of half sine waves with normal amplitudes. Values between two samples are interpolated;
    where one of them is missing the nearer one is taken.
    """
    time = torch.arange(x.shape[1], device=x.device)
    length = lengths[:, None].to(x.dtype)
    # Every wave ends at the last step, not one step after it.
    phase = math.pi * time / (length - 1).clamp_min(1)
    # (batch, time)
    displacement = torch.zeros_like(x[..., 0])
    for wave in range(1, _WAVES + 1):
        amplitude = torch.randn(len(x), 1).to(x) / wave
        displacement = displacement + amplitude * torch.sin(wave * phase)
    displacement = displacement * (torch.rand(len(x), 1) < _WARPED).to(x)
    position = (time + strength * length * displacement).clamp_min(0)
    # Rounding leaves a trace of the waves where they end.
    position = torch.where(time < length - 1, torch.minimum(position, length - 1), length - 1)
    before = position.floor().long()
    after = torch.minimum(before + 1, lengths[:, None] - 1)
    share = (position - before)[..., None]
    warped = _read(x, before) * (1 - share) + _read(x, after) * share
    # Next to a gap the nearer sample stands in, so that gaps are moved and do not grow.
    return torch.where(torch.isnan(warped), _read(x, torch.where(share[..., 0] > 0.5, after, before)), warped)


def _read(x: Tensor, index: Tensor) -> Tensor:
    """Return the samples at these steps, ``(batch, time)``, of each sequence."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
