"""Exponential smoothing: a bank of discounted regressions (Brown 1963) with damped trends, one channel after another.

    s_j    = T_j less the mean of all T,  T_j = S_j / W_j, 0 before a time of the season was seen
    ring   = the last m values, 0 where missing;  d = y - mean of those observed
    S_j, W_j <- (1 - g) S_j + g d, (1 - g) W_j + g             from step m + 1 on; at step m all j at once, with g / 2
    M_i, Y_i = sums over observed steps of a^n age^i, a^n age^i (y - s), where n counts the observed steps since
    state  : M_0, mean(age), M_0 var(age) and mean(z), M_0 cov(age, z), by the weights above; T_j, W_j
    slope  = (mean(z) mean(age) - mean(z age)) / (var(age) + 1 / (2 M_0))
    level  = mean(z) + slope mean(age), without the second term for members that have no trend
    y_h    = level + c (phi + .. + phi^h) slope + s_{t + h}
    w_k    ~ exp(-N log(E_k / N + 1e-6)),   E_k, N <- .995 E_k + abs(y - y_1), .995 N + 1 from the second value on

A batch holds one state per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

TRENDS = [(None, 0.0, 1.0), (7, 0.5, 1.0), (7, 1.0, 1.0), (5, 1.0, 0.9), (5, 1.0, 0.98), (3, 1.0, 0.85)]


def terms(T: Tensor, m: int) -> Tensor:
    """s, (1 + G, m)."""
    return torch.cat([T.new_zeros(1, m), T - T.mean(dim=1, keepdim=True)])[: None if m > 1 else 1]


def raw(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """M and Y of the state."""
    M0, age, V = A
    mean, C = B
    return torch.stack([M0, M0 * age, V + M0 * age**2]), torch.stack([M0 * mean, C + M0 * age * mean])


def central(M: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """The state of M and Y."""
    age, mean = M[1] / M[0], Y[0] / M[0]
    return torch.stack([M[0], age, M[2] - M[1] * age]), torch.stack([mean, Y[1] - M[1] * mean])


def members(A: Tensor, B: Tensor) -> list[tuple[Tensor, Tensor, int, int]]:
    """Level, slope, trend and seasonal term of each member, in the order of E."""
    found = []
    for trend, (place, _, _) in enumerate(TRENDS):
        for g in range(B.shape[1]):
            for a in range(A.shape[1]):
                slope = A.new_zeros(()) if place is None else -B[1, g, place] / (A[2, place] + 0.5)
                found.append((B[0, g, a] + slope * A[1, a], slope, trend, g))
    return found


def forecasts(A: Tensor, B: Tensor, s: Tensor, H: int) -> Tensor:
    """y_h of each member, (members, H)."""
    rows = []
    for level, slope, trend, g in members(A, B):
        _, c, phi = TRENDS[trend]
        steps = torch.tensor([c * sum(phi**i for i in range(1, h + 1)) for h in range(1, H + 1)], dtype=s.dtype)
        rows.append(level + steps * slope + s[g, torch.arange(H) % s.shape[1]])
    return torch.stack(rows)


def channel(a: Tensor, gains: Tensor, y: Tensor, state: list[Tensor], H: int) -> list[Tensor]:
    """The state of one channel of one row after a value."""
    _, ring, T, O, A, B, E, count = state
    m, is_observed = len(ring), not bool(torch.isnan(y))
    s, flag = terms(T, m), torch.ones_like(O[0, :1]) * is_observed
    y = y if is_observed else torch.zeros_like(y)
    if is_observed and A[0, 0] > 0:
        E = torch.cat([0.995 * E[:-1] + (y - forecasts(A, B, s, 1)[:, 0]).abs(), 0.995 * E[-1:] + 1])
    if is_observed:
        M, Y = raw(A, B)
        M = torch.stack([a * M[0] + 1, a * (M[1] + M[0]), a * (M[2] + 2 * M[1] + M[0])])
        A, B = central(M, torch.stack([a * Y[0] + (y - s[:, 0])[:, None], a * (Y[1] + Y[0])]))
    else:
        A = torch.stack([A[0], (A[1] + 1).clamp_max(1000), A[2]])
    count = count + 1 if count > 0 else count + flag
    count = count.clamp_max(m + 1)
    ring, seen = torch.cat([ring[1:], y[None]]), torch.cat([O[0, 1:], flag])
    if len(gains):
        d = (ring - ring.sum() / seen.sum().clamp_min(1)) * seen
        T, W = torch.roll(T, -1, 1), torch.roll(O[1:], -1, 1)
        if count == m:
            T, W = d.expand_as(T), 0.5 * gains[:, None] * seen
        elif count > m and is_observed:
            last = (1 - gains) * W[:, -1] + gains
            T = torch.cat([T[:, :-1], (((1 - gains) * (T * W)[:, -1] + gains * d[-1]) / last)[:, None]], dim=1)
            W = torch.cat([W[:, :-1], last[:, None]], dim=1)
        O = torch.cat([seen[None], W])
    s = terms(T, m)
    weights = torch.softmax(-E[-1] * torch.log(E[:-1] / E[-1].clamp_min(1) + 1e-6), dim=0)
    return [weights @ forecasts(A, B, s, H), ring, T, O, A, B, E, count]


def sequence(params: dict[str, Tensor], x: Tensor, *state0: Tensor, season: int, hidden: int) -> tuple[Tensor, ...]:
    """Every tensor of the state after each step, (B, T, size), of x (B, T, F)."""
    a, gains = params["c"][:8].sigmoid(), params["c"][8:].sigmoid()[: 3 if season > 1 else 0]
    B, T, F = x.shape
    G = len(gains)
    shapes = [(hidden,), (season,), (max(1, G), season), (1 + G, season), (3, 8), (2, 1 + G, 8), (-1,), (1,)]
    rows: list[list[list[Tensor]]] = []
    for b in range(B):
        states = [
            [tensor[b].view(F, -1)[f].view(shape) for tensor, shape in zip(state0, shapes, strict=True)]
            for f in range(F)
        ]
        steps = []
        for t in range(T):
            states = [channel(a, gains, x[b, t, f], states[f], hidden) for f in range(F)]
            steps.append([torch.cat([states[f][i].flatten() for f in range(F)]) for i in range(8)])
        rows.append(steps)
    return tuple(torch.stack([torch.stack([step[i] for step in steps]) for steps in rows]) for i in range(8))
