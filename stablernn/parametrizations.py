"""Free parameters in, the matrices that a step uses out. All matrices act on columns: the product is ``K @ h``.

Sources are given as the paper and the equation; what each parametrization promises is tested in
``tests/cells/test_guarantee.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def skew_size(size: int) -> int:
    """How many free numbers a skew-symmetric ``(size, size)`` matrix has."""
    return size * (size - 1) // 2


def skew(free: Tensor, size: int) -> Tensor:
    """The skew-symmetric matrix whose strict upper triangle, read row by row, is ``free``.

    Args:
        free: The ``size (size - 1) / 2`` free numbers.
        size: Rows of the matrix.

    Returns:
        ``(size, size)`` with ``S.T == -S`` to the last bit.
    """
    rows, columns = torch.triu_indices(size, size, offset=1, device=free.device)
    upper = free.new_zeros(size, size).index_put((rows, columns), free)
    return upper - upper.T


def symmetric_skew(free: Tensor, skew_weight: float, damping: float) -> Tensor:
    r"""Blend of the symmetric and the skew part of a free matrix, shifted to the left (Lipschitz RNN, eq. 6).

    .. math:: (1-\beta)(M + M^\top) + \beta (M - M^\top) - \gamma I = M + (1 - 2\beta) M^\top - \gamma I

    Its symmetric part has eigenvalues in
    :math:`[(1-\beta)\lambda_{min}(M+M^\top) - \gamma,\; (1-\beta)\lambda_{max}(M+M^\top) - \gamma]` (proposition 1).

    Args:
        free: The free matrix M, ``(size, size)``.
        skew_weight: beta; 1 is purely skew-symmetric, 0.5 leaves M as it is.
        damping: gamma, taken off the diagonal.
    """
    return free + (1 - 2 * skew_weight) * free.T - damping * torch.eye(len(free), dtype=free.dtype, device=free.device)


def vector_field(free: Tensor, size: int, *, divergence_free: bool = False) -> Tensor:
    r"""Linear operator of a latent vector field: ``S - diag(S 1)`` with ``S`` skew (lvfRNN, eq. 9).

    Rows sum to zero, and ``D + D.T == diag(div)`` with ``div = 2 diag(D)``. The divergences themselves sum to zero, so
    that none is positive only where all are zero and D is skew. With ``divergence_free`` the diagonal is left out:
    ``D = S`` is skew, and its rows no longer sum to zero. The paper's factor 1/2 and overall sign could not be read;
    they change neither the model class nor the meaning of the time step.

    Args:
        free: The strict upper triangle of S, ``size (size - 1) / 2`` numbers.
        size: Rows of the matrix.
        divergence_free: The hard constraint ``div = 0``.
    """
    s = skew(free, size)
    return s if divergence_free else s - torch.diag(s.sum(dim=1))


def doubly_stochastic_skew(size: int, tolerance: float = 1e-3) -> Tensor:
    """Initial free numbers of :func:`vector_field`: the skew part of a random doubly stochastic matrix.

    Entries are uniform on [0, 1] with a zero diagonal; rows and columns are normalized in turn (Sinkhorn) until both
    sums are within ``tolerance`` of one. The tolerance is not published; it is our choice.
    """
    v = torch.rand(size, size).fill_diagonal_(0)
    # Convergence is linear; the limit only keeps a pathological draw from running for ever.
    for _ in range(10_000 if size > 1 else 0):
        v = v / v.sum(dim=1, keepdim=True)
        v = v / v.sum(dim=0, keepdim=True)
        if (v.sum(dim=1) - 1).abs().max() <= tolerance:
            break
    s = (v.T - v) / 2
    rows, columns = torch.triu_indices(size, size, offset=1)
    return s[rows, columns]


def cayley_propagator(operator: Tensor, step_size: float) -> Tensor:
    r"""Implicit-midpoint propagator :math:`(I - \tfrac{dt}{2} D)^{-1}(I + \tfrac{dt}{2} D)` (lvfRNN, eq. 16).

    Orthogonal when D is skew; its norm is at most one for every step size iff the symmetric part of D is negative
    semi-definite.
    """
    half = (step_size / 2) * operator
    identity = torch.eye(len(operator), dtype=operator.dtype, device=operator.device)
    propagator: Tensor = torch.linalg.solve(identity - half, identity + half)
    return propagator


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    """Real modReLU ``sign(z) max(|z| + b, 0)``, with ``sign(0) = 0``.

    1-Lipschitz where ``bias <= 0``. Where ``bias > 0`` it jumps at zero and has no Lipschitz constant.
    """
    return torch.sign(z) * torch.relu(z.abs() + bias)
