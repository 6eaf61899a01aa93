"""Mixup: training on mixtures of two sequences and, in the same proportion, of their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stablernn.training.batches.interpolation import interpolate, mix
from stablernn.training.batches.transfers import move_like, move_to


class MixedBatch(NamedTuple):
    """A batch of mixtures: each sequence with a partner from the same batch."""

    x: Tensor
    """``(batch, time, features)``, NaN where missing."""
    lengths: Tensor
    """``(batch,)`` int64."""
    partners: Tensor
    """``(batch,)`` int64, the row of each sequence's partner before mixing."""
    weights: Tensor
    """``(batch,)``, the share of each sequence and of its label, 0 to 1; the rest is its partner's."""


@dataclass(frozen=True)
class Mixup:
    """Mix each sequence of a batch with another one (Zhang, Cisse, Dauphin, Lopez-Paz, ICLR 2018).

    Partners are a random permutation of the batch, in which a sequence can be its own. Each pair has a weight of its
    own. The paper's code shares one among all pairs of a batch; in the small batches of our defaults (8 to 32
    sequences) that single draw would decide how hard a whole step is.

    Sequences are mixed step by step. Two of unequal length are first stretched to the mean of their lengths by the same
    weights, so that a mixture lies between the two in length as well, and ends where both end.

    Random numbers are torch's, on the CPU.

    Attributes:
        alpha: Parameter of the symmetric Beta distribution of the weights, greater than 0: near 0 they are 0 or 1, at 1
            uniform, and around one half above.
    """

    alpha: float

    def __call__(self, x: Tensor, lengths: Tensor, *, is_padded: bool = True) -> MixedBatch:
        """Return a batch of mixtures.

        Args:
            x: ``(batch, time, features)``, NaN where missing. Where one of a pair is missing, the sequence with the
                larger weight decides: its value stands alone, or its gap stays.
            lengths: ``(batch,)`` int64; steps beyond them do not matter.
            is_padded: False if all lengths are known to be equal.
        """
        weights = move_like(x, _sample_symmetric_beta(self.alpha, len(x)))
        partners = move_to(x.device, torch.randperm(len(x)))
        other_x, other_lengths, mixed_lengths = x[partners], lengths[partners], lengths
        # Pairs of equal lengths keep theirs: rounding may move the mean, but not by half a step. On a GPU, to look for
        # other pairs would wait for its work, which takes longer than to stretch all.
        if is_padded and (lengths.is_cuda or not torch.equal(lengths, other_lengths)):
            mixed_lengths = (weights * lengths + (1 - weights) * other_lengths).round().long()
            x, other_x = _stretch(x, lengths, mixed_lengths), _stretch(other_x, other_lengths, mixed_lengths)
        mixed = mix(x, other_x, 1 - weights[:, None, None])
        return MixedBatch(mixed, mixed_lengths, partners, weights)


def _sample_symmetric_beta(alpha: float, count: int) -> Tensor:
    """Return samples of Beta(alpha, alpha), ``(count,)``.

    They are ratios of two Gamma samples, whose logarithms are taken from Gamma(alpha + 1) by ``log Gamma(alpha) = log
    Gamma(alpha + 1) + log(U) / alpha`` (Marsaglia and Tsang, ACM TOMS 2000, section 6). Both samples underflow
    otherwise where alpha is small: with 0.001, a quarter of the samples of ``torch.distributions.Beta`` are 0.5.
    """
    gamma = torch.distributions.Gamma(alpha + 1.0, 1.0).sample((2, count))
    # The logarithm of a uniform number is an exponential one with the other sign, and never infinite.
    logarithms = gamma.log() - torch.empty(2, count).exponential_() / alpha
    return torch.sigmoid(logarithms[0] - logarithms[1])


def _stretch(x: Tensor, lengths: Tensor, new_lengths: Tensor) -> Tensor:
    """Return sequences resampled to other lengths; what lies beyond them repeats the last sample.

    Args:
        x: ``(batch, time, features)``.
        lengths: ``(batch,)``.
        new_lengths: ``(batch,)``, at most ``time``.
    """
    time = torch.arange(x.shape[1], device=x.device)
    last, new_last = lengths[:, None].to(x.dtype) - 1, new_lengths[:, None].to(x.dtype) - 1
    # A ratio of equal lengths is exactly 1, which leaves the samples as they are.
    position = time * (last / new_last.clamp_min(1))
    # From the new end on the last sample itself: rounding could leave the position just before it.
    return interpolate(x, lengths, torch.where(time < new_last, torch.minimum(position, last), last))
