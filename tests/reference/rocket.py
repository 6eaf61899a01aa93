"""MiniRocket (Dempster, Schmidt, Webb, KDD 2021) and Hydra (DMKD 2023), causal, one share for each feature.

    Q(x)   = x rounded to a multiple of 1/256, within -64 to 64
    D(x)   = Q(x)(t) - Q(x)(t - 1), 0 at the first sample
    p_f(t) = number of hits at steps s <= t, over t

The first G = ceil(F / 168) groups of 84 features each have thresholds:
    a_f(t) = sum_j w_{k, j} sum_{c in C_g} Q(x_c)(t - d_g (8 - j)),  k = f mod 84, g = floor(f / 84), j = 0 .. 8
    w_k    = -1, but 2 at the k-th of the 84 choices of three of nine taps, in lexicographic order
    hit    = a_f(s) > b_f;  b_f half way between two multiples of 1/256
The other features are of contests of 14 each, seven that win and seven that lose:
    a_k(t) = sum_j W_{g, j, k} sum_{c in C_g} Q(x_c)(t - d_g (8 - j)),  k = 0 .. 6; D in place of Q in every second
    hit    = a_k(s) is the largest of the seven; for the last seven features, the least
Of n groups, and of n contests:
    d_g    = floor(2^e_g), e_g evenly from 0 to log2((memory - 1) / 8)

What comes before the first sample is zero. The number of steps is halved when it reaches 2^22, and with it that of
hits. A batch holds one state per row.
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
    """Shares (B, T, F), steps (B, T, 1) and the last memory - 1 samples and differences (B, T, (memory - 1) 2 m) of x
    (B, T, m).

    With b of the features that have one, W (contests, 9, 7) and the channels of each group and contest, C (G, m) of 0
    and 1. With more channels than groups and contests the sums of each one's channels are kept, G in place of m.
    """
    Q, sets, W = (256 * x).round().clamp(-(2**14), 2**14) / 256, params["C"], params["W"]
    if x.shape[2] > len(sets):
        Q, sets = Q @ sets.T, torch.eye(len(sets), dtype=x.dtype)
    history, m = history0.view(len(x), memory - 1, -1), Q.shape[2]
    D = torch.diff(torch.cat([history[:, -1:, :m], Q], dim=1), dim=1)
    D[steps0[:, 0] == 0, 0] = 0
    samples = torch.cat([history, torch.cat([Q, D], dim=2)], dim=1)
    thresholds = ((256 * params["b"].detach()).floor() + 0.5) / 256
    groups, contests = len(sets) - len(W), len(W)

    def taps(t: int, part: slice, number: int, d: int) -> list[Tensor]:
        return [samples[:, t + memory - 1 - d * (8 - j), part] @ sets[number] for j in range(9)]

    hits, steps = (share0 * steps0).round(), steps0
    shares, counts, histories = [], [], []
    for t in range(x.shape[1]):
        now = []
        for f, threshold in enumerate(thresholds):
            read = taps(t, slice(m), f // 84, distance(f // 84, groups, memory))
            now.append(sum(w * tap for w, tap in zip(kernel(f % 84), read, strict=True)) > threshold)
        for contest in range(contests):
            part = slice(m, 2 * m) if contest % 2 else slice(m)
            read = taps(t, part, groups + contest, distance(contest, contests, memory))
            a = sum(w * tap[:, None] for w, tap in zip(W[contest], read, strict=True))
            now += [*(a == a.max(dim=1, keepdim=True).values).T, *(a == a.min(dim=1, keepdim=True).values).T]
        hits = hits + torch.stack(now[: share0.shape[1]], dim=1).to(x.dtype)
        shares.append(hits / (steps + 1))
        steps = steps + 1
        is_full = steps >= 2**22
        steps, hits = torch.where(is_full, steps / 2, steps), torch.where(is_full, (hits / 2).round(), hits)
        counts.append(steps)
        histories.append(samples[:, t + 1 : t + memory].flatten(1))
    return torch.stack(shares, dim=1), torch.stack(counts, dim=1), torch.stack(histories, dim=1)
