"""Linear recurrent unit (Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu, De, ICML 2023).

    l   = exp(-exp(nu) + i exp(th)),  |l| = exp(-exp(nu)) < 1
    h_t = l .* h_{t-1} + exp(gm) .* (B x_t)
    y_t = Re(C h_t) + D x_t

h, B and C are complex, and computed as such here; a state is their real numbers side by side, [Re h | Im h]. The paper
has a diagonal D, for as many outputs as inputs: a vector D is that one, a matrix D any linear map of the input to the
outputs, and without D there is no such term. Vectors are columns in the formula; a batch holds one state per row, so
``B x`` reads ``x @ B.T`` below.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def eigenvalues(params: dict[str, Tensor]) -> Tensor:
    """l (N), complex."""
    return torch.exp(torch.complex(-torch.exp(params["nu"]), torch.exp(params["th"])))


def sequence(
    params: dict[str, Tensor], x: Tensor, y0: Tensor, h0: Tensor, *, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    """All outputs (B, T, N) and all hidden states [Re | Im] (B, T, 2N) of x (B, T, m).

    With nu, th and gm (N), B_re and B_im (N, m), C_re and C_im (N, N) and, if any, D (N, m), or (m) where m = N. The
    output before the first step, y0, is not an input of the recurrence: it is there for its place in the state. With
    the activation "gelu" the output is y Phi(y), Phi the normal distribution's: the paper has one in the block around
    its unit.
    """
    l, gain = eigenvalues(params), torch.exp(params["gm"])
    B = torch.complex(params["B_re"], params["B_im"])
    C = torch.complex(params["C_re"], params["C_im"])
    D = params.get("D")
    size = l.shape[0]
    h, outputs, hidden = torch.complex(h0[:, :size], h0[:, size:]), [], []
    for t in range(x.shape[1]):
        u = x[:, t]
        h = l * h + gain * (u.to(B.dtype) @ B.T)
        y = (h @ C.T).real
        if D is not None:
            y = y + (D * u if D.ndim == 1 else u @ D.T)
        if activation == "gelu":
            y = y * (1 + torch.erf(y / math.sqrt(2))) / 2
        outputs.append(y)
        hidden.append(torch.cat([h.real, h.imag], dim=1))
    return torch.stack(outputs, dim=1), torch.stack(hidden, dim=1)
