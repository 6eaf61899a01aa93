"""Interpolation between the samples of sequences, and between sequences, for random changes in training."""

from __future__ import annotations

import torch
from torch import Tensor


def take_steps(x: Tensor, index: Tensor) -> Tensor:
    """Return the samples of ``(batch, time, features)`` at the steps ``(batch, steps)`` of each sequence."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def interpolate(x: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
    """Return sequences read at fractional steps, by linear interpolation.

    Args:
        x: ``(batch, time, features)``, NaN where missing.
        lengths: ``(batch,)``; no step from there on is read.
        position: ``(batch, steps)``, each from 0 to the length less 1.

    Returns:
        ``(batch, steps, features)``. Where one of two neighbors is missing, the nearer of them: gaps are moved and do
        not grow.
    """
    before = position.floor().long()
    after = torch.minimum(before + 1, lengths[:, None] - 1)
    return mix(take_steps(x, before), take_steps(x, after), (position - before)[..., None])


def mix(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Return ``first * (1 - share) + second * share``; where either is NaN, the one with the larger share.

    Args:
        first: Any shape.
        second: The shape of ``first``.
        share: That of ``second``, 0 to 1; broadcast to the others.
    """
    mixed = first * (1 - share) + second * share
    return torch.where(torch.isnan(mixed), torch.where(share > 0.5, second, first), mixed)
