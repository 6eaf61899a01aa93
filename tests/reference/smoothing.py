"""Exponential smoothing: a bank of discounted regressions (Brown 1963) with damped trends, one channel after another.

    s_j    = 0 before a time of the season was seen, else S_j / W_j less the mean of all that were
    ring   = the last m values, 0 where missing;  d = y - mean of those observed
    S_j, W_j <- (1 - g) S_j + g d, (1 - g) W_j + g             from step m + 1 on; at step m all j at once, with g / 2
    M_i, Y_i = sums over observed steps of a^n age^i, a^n age^i (y - s), where n counts the observed steps since
    slope  = (mean(z) mean(age) - mean(z age)) / (var(age) + 1 / (2 M_0)), by the weights above
    level  = mean(z) + slope mean(age), without the second term for members that have no trend
    y_h    = level + c (phi + .. + phi^h) slope + s_{t + h}
    w_k    ~ exp(-N log(E_k / N + 1e-6)),   E_k, N <- .995 E_k + abs(y - y_1), .995 N + 1 from the second value on

A batch holds one state per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

TRENDS = [(None, 0.0, 1.0), (7, 0.5, 1.0), (7, 1.0, 1.0), (5, 1.0, 0.9), (5, 1.0, 0.98), (3, 1.0, 0.85)]


def terms(S: Tensor, W: Tensor) -> Tensor:
    """s, (G, m)."""
    rows = []
    for sums, weights in zip(S, W, strict=True):
        known = [j for j in range(len(weights)) if weights[j] > 0]
        ratios = {j: sums[j] / weights[j] for j in known}
        mean = sum(ratios.values()) / max(1, len(known))
        rows.append(torch.stack([ratios[j] - mean if j in ratios else 0 * sums[j] for j in range(len(sums))]))
    return torch.stack([torch.zeros_like(S[0]) if len(S) else torch.zeros(W.shape[-1], dtype=W.dtype), *rows])


def members(M: Tensor, Y: Tensor) -> list[tuple[Tensor, Tensor, int, int]]:
    """Level, slope, trend and seasonal term of each member, in the order of E."""
    found = []
    for trend, (place, _, _) in enumerate(TRENDS):
        for g in range(Y.shape[1]):
            for a in range(M.shape[1]):
                mass = M[0, a] if M[0, a] > 0 else torch.ones_like(M[0, a])
                slope = torch.zeros_like(mass)
                if place is not None:
                    m = M[0, place] if M[0, place] > 0 else torch.ones_like(mass)
                    age = M[1, place] / m
                    spread = M[2, place] / m - age**2 + 0.5 / m
                    slope = (Y[0, g, place] / m * age - Y[1, g, place] / m) / spread
                found.append((Y[0, g, a] / mass + slope * M[1, a] / mass, slope, trend, g))
    return found


def forecasts(M: Tensor, Y: Tensor, s: Tensor, H: int) -> Tensor:
    """y_h of each member, (members, H)."""
    rows = []
    for level, slope, trend, g in members(M, Y):
        _, c, phi = TRENDS[trend]
        steps = torch.tensor([c * sum(phi**i for i in range(1, h + 1)) for h in range(1, H + 1)], dtype=s.dtype)
        rows.append(level + steps * slope + s[g, torch.arange(H) % s.shape[1]])
    return torch.stack(rows)


def channel(a: Tensor, gains: Tensor, y: Tensor, state: list[Tensor], H: int) -> list[Tensor]:
    """The state of one channel of one row after a value."""
    _, ring, S, O, M, Y, E, count = state
    m, is_observed = len(ring), not bool(torch.isnan(y))
    s, flag = terms(S, O[1:]), torch.ones_like(O[0, :1]) * is_observed
    y = y if is_observed else torch.zeros_like(y)
    if is_observed and M[0, 0] > 0:
        E = torch.cat([0.995 * E[:-1] + (y - forecasts(M, Y, s, 1)[:, 0]).abs(), 0.995 * E[-1:] + 1])
    kept = a if is_observed else torch.ones_like(a)
    M = torch.stack([kept * M[0] + flag, kept * (M[1] + M[0]), kept * (M[2] + 2 * M[1] + M[0])])
    rest = (y - s[:, 0])[:, None] * flag
    Y = torch.stack([kept * Y[0] + rest, kept * (Y[1] + Y[0])])
    count = count + 1 if count > 0 else count + flag
    ring, seen = torch.cat([ring[1:], y[None]]), torch.cat([O[0, 1:], flag])
    if len(gains):
        W = O[1:]
        d = (ring - ring.sum() / seen.sum().clamp_min(1)) * seen
        S, W = torch.roll(S, -1, 1), torch.roll(W, -1, 1)
        if count == m:
            S, W = 0.5 * gains[:, None] * d, 0.5 * gains[:, None] * seen
        elif count > m and is_observed:
            S = torch.cat([S[:, :-1], ((1 - gains) * S[:, -1] + gains * d[-1])[:, None]], dim=1)
            W = torch.cat([W[:, :-1], ((1 - gains) * W[:, -1] + gains)[:, None]], dim=1)
        O = torch.cat([seen[None], W])
    s = terms(S, O[1:])
    weights = torch.softmax(-E[-1] * torch.log(E[:-1] / E[-1].clamp_min(1) + 1e-6), dim=0)
    return [weights @ forecasts(M, Y, s, H), ring, S, O, M, Y, E, count]


def sequence(params: dict[str, Tensor], x: Tensor, *state0: Tensor, season: int, hidden: int) -> tuple[Tensor, ...]:
    """Every tensor of the state after each step, (B, T, size), of x (B, T, F)."""
    a, gains = params["c"][:8].sigmoid(), params["c"][8:].sigmoid()[: 3 if season > 1 else 0]
    B, T, F = x.shape
    G = len(gains)
    shapes = [(hidden,), (season,), (G, season), (1 + G, season), (3, 8), (2, 1 + G, 8), (-1,), (1,)]
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
