"""Training sequences made new: noise, another size, stretched and squeezed in time."""

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
    """How sequences are changed each time they are trained on. Random numbers are torch's, on the CPU.

    Attributes:
        time_warp: Standard deviation of the slowest wave by which half of the sequences are read too early or too late,
            as a share of their length.
        jitter: Standard deviation of the noise on every value, in units of the feature's.
        rescale: Standard deviation of the factor, around 1, on the distance of a sequence from the features' means.
    """

    time_warp: float = 0.0
    jitter: float = 0.0
    rescale: float = 0.0

    def __call__(self, x: Tensor, lengths: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Changed sequences.

        Args:
            x: ``(batch, time, features)``, NaN where missing.
            lengths: ``(batch,)``; what is behind them does not matter.
            mean: ``(features,)``, of the training data.
            scale: ``(features,)``, likewise.
        """
        if self.time_warp:
            x = _warped(x, lengths, self.time_warp)
        if self.rescale:
            factor = 1 + self.rescale * torch.randn(len(x), 1, x.shape[2]).to(x)
            x = mean + factor * (x - mean)
        if self.jitter:
            x = x + self.jitter * scale * torch.randn(x.shape).to(x)
        return x


def _warped(x: Tensor, lengths: Tensor, strength: float) -> Tensor:
    """Each sequence read at times that run now faster, now slower; its beginning and end stay where they are.

    The displacement is a sum of half sine waves with normal amplitudes. Values between two samples are interpolated;
    where one of them is missing the nearer one is taken.
    """
    time = torch.arange(x.shape[1], device=x.device)
    length = lengths[:, None].to(x.dtype)
    # At the last step, not behind it, every wave is through.
    phase = math.pi * time / (length - 1).clamp_min(1)
    displacement = torch.zeros_like(x[..., 0])
    for wave in range(1, _WAVES + 1):
        amplitude = torch.randn(len(x), 1).to(x) / wave
        displacement = displacement + amplitude * torch.sin(wave * phase)
    displacement = displacement * (torch.rand(len(x), 1) < _WARPED).to(x)
    place = (time + strength * length * displacement).clamp_min(0)
    # Rounding leaves a trace of the waves where they end.
    place = torch.where(time < length - 1, torch.minimum(place, length - 1), length - 1)
    before = place.floor().long()
    after = torch.minimum(before + 1, lengths[:, None] - 1)
    share = (place - before)[..., None]
    moved = _read(x, before) * (1 - share) + _read(x, after) * share
    # Beside a gap the nearer sample stands in, so that gaps are moved and do not grow.
    return torch.where(torch.isnan(moved), _read(x, torch.where(share[..., 0] > 0.5, after, before)), moved)


def _read(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
