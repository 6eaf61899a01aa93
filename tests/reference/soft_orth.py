"""RNN with a soft orthogonality constraint (Vorontsov, Trabelsi, Kadoury, Pal, ICML 2017).

    h_t = tanh(W h_{t-1} + U x_t + b)

Form (a), penalty: W is free, and lam ||W^T W - I||_F^2 is added to the loss (nothing in the recurrence). Form (b),
factored, with a trained h_0 for sequences that have not started:

    W = P diag(s) Q^T,  s = 1 + 2 mg (sigmoid(p) - 1/2),  P = exp(A_P),  Q = exp(A_Q),  A skew

P and Q are the paper's U and V, renamed because U is the input's matrix here; the margin is mg, and without bound
(inf) the singular values are s = 1 + p. Vectors are columns in the formula; a batch holds one state per row, so
``W h`` reads ``h @ W.T`` below.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.pieces import exponential, skew


def penalty(W: Tensor) -> Tensor:
    """||W^T W - I||_F^2, the sum of squares."""
    return ((W.T @ W - torch.eye(W.shape[0], dtype=W.dtype)) ** 2).sum()


def singular_values(p: Tensor, margin: float) -> Tensor:
    """s (N), within 1 - mg and 1 + mg."""
    return 1 + p if math.isinf(margin) else 1 + 2 * margin * (torch.sigmoid(p) - 0.5)


def recurrent_matrix(params: dict[str, Tensor], margin: float) -> Tensor:
    """W (N, N) of form (b)."""
    P, Q = exponential(skew(params["A_P"])), exponential(skew(params["A_Q"]))
    return P @ torch.diag(singular_values(params["p"], margin)) @ Q.T


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    hidden0: Tensor,
    started0: Tensor | None = None,
    *,
    form: str = "penalty",
    margin: float = 0.01,
) -> Tensor | tuple[Tensor, Tensor]:
    """All states (B, T, N) of x (B, T, m); in the factored form also the marks (B, T, 1) that a sequence has started.

    With U (N, m), b (N). Penalty: W (N, N). Factored: A_P and A_Q (N, N), of which the entries above the diagonal
    count, p (N) and h_0 (N); where started0 (B, 1) is 0, h_0 replaces the row of hidden0.
    """
    U, b = params["U"], params["b"]
    if form == "penalty":
        W, h = params["W"], hidden0
    else:
        assert form == "factored"
        assert started0 is not None
        W, h = recurrent_matrix(params, margin), torch.where(started0 == 0, params["h_0"], hidden0)
    states = []
    for t in range(x.shape[1]):
        h = torch.tanh(h @ W.T + x[:, t] @ U.T + b)
        states.append(h)
    hidden = torch.stack(states, dim=1)
    return hidden if form == "penalty" else (hidden, torch.ones(x.shape[0], x.shape[1], 1, dtype=x.dtype))
