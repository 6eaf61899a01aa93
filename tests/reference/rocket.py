"""MiniRocket (Dempster, Schmidt, Webb, KDD 2021), causal, one share for each feature.

    Q(x)   = x rounded to a multiple of 1/256, within -64 to 64
    a_f(t) = sum_j w_{k, j} sum_{c in C_g} Q(x_c)(t - d_g (8 - j)),  k = f mod 84, g = floor(f / 84), j = 0 .. 8
    w_k    = -1, but 2 at the k-th of the 84 choices of three of nine taps, in lexicographic order
    d_g    = floor(2^e_g), e_g evenly from 0 to log2((memory - 1) / 8)
    p_f(t) = number of steps s <= t with a_f(s) > b_f, over t;  b_f half way between two multiples of 1/256

Samples before the first are zeros. The number of steps is halved when it reaches 2^22, and with it that of steps with
a_f > b_f. A batch holds one state per row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def kernel(number: int) -> list[float]:
    """w_k of the k-th choice."""
    choices = [{a, b, c} for a in range(9) for b in range(a + 1, 9) for c in range(b + 1, 9)]
    return [2.0 if tap in choices[number] else -1.0 for tap in range(9)]


def distance(group: int, groups: int, memory: int) -> int:
    """d_g."""
    exponent = 0.0 if groups == 1 else math.log2((memory - 1) / 8) * group / (groups - 1)
    return math.floor(2**exponent + 1e-9)


def sequence(
    params: dict[str, Tensor], x: Tensor, share0: Tensor, steps0: Tensor, history0: Tensor, *, memory: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Shares (B, T, F), steps (B, T, 1) and the last memory - 1 samples (B, T, (memory - 1) m) of x (B, T, m).

    With b (F) and the channels of each group, C (G, m) of 0 and 1. With more channels than groups the sums of each
    group's channels are kept, G in place of m.
    """
    Q, sets = (256 * x).round().clamp(-(2**14), 2**14) / 256, params["C"]
    if x.shape[2] > len(sets):
        Q, sets = Q @ sets.T, torch.eye(len(sets), dtype=x.dtype)
    samples = torch.cat([history0.view(len(x), -1, Q.shape[2]), Q], dim=1)
    thresholds = ((256 * params["b"].detach()).floor() + 0.5) / 256
    hits, steps = (share0 * steps0).round(), steps0
    shares, counts, histories = [], [], []
    for t in range(x.shape[1]):
        hits_now = []
        for feature, threshold in enumerate(thresholds):
            group = feature // 84
            d, C = distance(group, len(sets), memory), sets[group]
            taps = [samples[:, t + memory - 1 - d * (8 - j)] @ C for j in range(9)]
            a = sum(weight * tap for weight, tap in zip(kernel(feature % 84), taps, strict=True))
            hits_now.append((a > threshold).to(x.dtype))
        hits = hits + torch.stack(hits_now, dim=1)
        shares.append(hits / (steps + 1))
        steps = steps + 1
        is_full = steps >= 2**22
        steps, hits = torch.where(is_full, steps / 2, steps), torch.where(is_full, (hits / 2).round(), hits)
        counts.append(steps)
        histories.append(samples[:, t + 1 : t + memory].flatten(1))
    return torch.stack(shares, dim=1), torch.stack(counts, dim=1), torch.stack(histories, dim=1)
