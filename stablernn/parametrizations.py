"""Free parameters in, the matrices that a step uses out. All matrices act on columns: the product is ``K @ h``.

Sources are given as the paper and the equation; what each parametrization promises is tested in
``tests/cells/test_guarantee.py`` and in ``test_guarantee_orthogonal.py``, ``test_guarantee_unitary.py`` and
``test_guarantee_lvf.py`` beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

SkewInit = Literal["henaff", "cayley", "haar"]
SKEW_INITS: tuple[SkewInit, ...] = ("henaff", "cayley", "haar")


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


def initial_skew(kind: SkewInit, size: int) -> Tensor:
    r"""Initial free numbers of :func:`skew`.

    ``henaff`` and ``cayley`` make A block-diagonal, with blocks ``[[0, s], [-s, 0]]`` and for odd sizes a last row and
    column of zeros. ``henaff`` draws s from U(-pi, pi), so that exp(A) turns the planes by any angle; a copy of that
    code in the non-normal RNN draws from U(-pi, 0). ``cayley`` takes ``s = -tan(u / 2)`` with u from U(0, pi/2), by
    which the Cayley transform turns them by up to a quarter of a full turn and exp(A) by up to one radian. ``haar``
    makes exp(A) a rotation drawn uniformly from SO(size): A is the real logarithm of one.

    Args:
        kind: Which of the three.
        size: Rows of the matrix.
    """
    rows, columns = torch.triu_indices(size, size, offset=1)
    if kind == "haar":
        return _log_of_random_rotation(size)[rows, columns].to(torch.get_default_dtype())
    angles = torch.empty(size // 2)
    s = angles.uniform_(-math.pi, math.pi) if kind == "henaff" else -torch.tan(angles.uniform_(0, math.pi / 2) / 2)
    free = torch.zeros(skew_size(size))
    free[(rows % 2 == 0) & (columns == rows + 1)] = s
    return free


def _log_of_random_rotation(size: int) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))
    # The signs make the factorization unique, and Q then has the Haar measure on O(size).
    rotation = q * torch.sign(r.diagonal())
    if torch.linalg.det(rotation) < 0:
        rotation[0] = -rotation[0]
    values, vectors = torch.linalg.eig(rotation)
    logarithm: Tensor = ((vectors * (1j * values.angle())) @ torch.linalg.inv(vectors)).real
    return (logarithm - logarithm.T) / 2


def exponential(generator: Tensor) -> Tensor:
    """Matrix exponential, orthogonal where ``generator`` is skew (exponential RNN), unitary where skew-Hermitian.

    Scaling and squaring of the Taylor polynomial of degree 16, in double precision: squaring in single precision can
    leave ``Q.T @ Q - I`` above 1e-5. Its gradient takes two products for each product here, where that of
    ``torch.linalg.matrix_exp`` is the exponential of a matrix of twice the size and takes three times as long in all.
    """
    exact = generator.to(torch.promote_types(generator.dtype, torch.float64))
    # Halved so often that the largest column sum is below 1, the rest of the series is 1 / 17!.
    squarings = max(0, math.frexp(float(exact.detach().abs().sum(dim=0).max()))[1])
    first = exact * math.ldexp(1.0, -squarings)
    second = first @ first
    third, fourth = second @ first, second @ second
    identity = torch.eye(len(exact), dtype=exact.dtype, device=exact.device)
    total = fourth / math.factorial(16)
    for k in (12, 8, 4, 0):
        c = [1 / math.factorial(k + power) for power in range(4)]
        total = total + c[0] * identity + c[1] * first + c[2] * second + c[3] * third
        if k:
            total = total @ fourth
    for _ in range(squarings):
        total = total @ total
    return total.to(generator.dtype)


def cayley(generator: Tensor) -> Tensor:
    r"""Cayley transform :math:`(I + A)^{-1}(I - A)`, orthogonal where A is skew (scaled Cayley RNN).

    No such matrix has an eigenvalue -1, which is what the RNN's scaling by signs makes up for; near one, A is large,
    and the equations are ill-conditioned. They are therefore solved in double precision.
    """
    exact = generator.to(torch.promote_types(generator.dtype, torch.float64))
    identity = torch.eye(len(exact), dtype=exact.dtype, device=exact.device)
    transformed: Tensor = torch.linalg.solve(identity + exact, identity - exact)
    return transformed.to(generator.dtype)


def reflections(vectors: Tensor) -> Tensor:
    r"""Product of Householder reflections :math:`H(u_0) H(u_1) \cdots H(u_{n-1})` (spectral RNN).

    :math:`H(u) = I - 2 u u^\top / \lVert u \rVert^2`. In the compact form used here the product is
    :math:`I - U^\top S^{-1} U`, where U holds the unit vectors in its rows and S is half the identity plus the strict
    upper triangle of :math:`U U^\top`.

    Args:
        vectors: ``(n, size)``: row k is :math:`u_k`, of any length, of which only the entries k, k + 1, ... count.

    Returns:
        ``(size, size)``, orthogonal.
    """
    count, size = vectors.shape
    unit = nn.functional.normalize(torch.triu(vectors), dim=1)
    half = torch.eye(count, dtype=unit.dtype, device=unit.device) / 2
    s = half + torch.triu(unit @ unit.T, diagonal=1)
    identity = torch.eye(size, dtype=unit.dtype, device=unit.device)
    solved: Tensor = torch.linalg.solve_triangular(s, unit, upper=True)
    return identity - unit.T @ solved


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
    semi-definite. It is the Cayley transform of -dt/2 D, solved in double precision.
    """
    return cayley(operator.to(torch.promote_types(operator.dtype, torch.float64)) * (-step_size / 2)).to(operator.dtype)


def phase(angle: Tensor) -> Tensor:
    """``exp(i angle)``, complex."""
    return torch.complex(torch.cos(angle), torch.sin(angle))


def real_form(matrix: Tensor) -> Tensor:
    """The real matrix ``[[Re, -Im], [Im, Re]]``, which does to ``[Re h | Im h]`` what a complex one does to h.

    A product of complex matrices is the product of their real forms, and a unitary matrix has an orthogonal one.
    """
    re, im = matrix.real, matrix.imag
    return torch.cat([torch.cat([re, -im], dim=1), torch.cat([im, re], dim=1)])


def reflect(matrix: Tensor, normal: Tensor) -> Tensor:
    r"""The reflection :math:`(I - 2 v v^H / \|v\|^2) M` of a real or complex matrix.

    Args:
        matrix: M, ``(size, columns)``.
        normal: v, ``(size,)``, not zero; its length does not count.
    """
    squared = (normal * normal.conj()).real.sum()
    return matrix - torch.outer(normal * (2 / squared), normal.conj() @ matrix)


def neighbor_pairs(size: int, layers: int) -> Tensor:
    """Partners for :func:`rotate`: layers pair the units (0, 1), (2, 3), .. and (1, 2), (3, 4), .. in turn.

    Returns:
        ``(layers, size)``: the partner of each unit; its own number where it has none.
    """
    index, layer = torch.arange(size), torch.arange(layers)[:, None]
    partners = torch.where((index - layer) % 2 == 0, index + 1, index - 1)
    return torch.where((partners < 0) | (partners >= size), index, partners)


def butterfly_pairs(size: int) -> Tensor:
    """Partners for :func:`rotate` as in a fast Fourier transform: layer k pairs units whose numbers differ in bit k.

    Args:
        size: A power of two.

    Returns:
        ``(log2(size), size)``: the partner of each unit.
    """
    layer = torch.arange(size.bit_length() - 1)[:, None]
    return torch.arange(size) ^ (1 << layer)


def count_pairs(partners: Tensor) -> int:
    """How many pairs, and so how many angles of each kind, the layers of :func:`rotate` have."""
    return int((partners > torch.arange(partners.shape[1], device=partners.device)).sum())


def rotate(matrix: Tensor, partners: Tensor, theta: Tensor, phi: Tensor | None = None) -> Tensor:
    r"""Layers of 2 x 2 rotations, applied to the columns of a matrix one after the other (EURNN).

    .. math:: h_i \leftarrow \cos\theta\, h_i - e^{i\varphi} \sin\theta\, h_j, \quad
        h_j \leftarrow \sin\theta\, h_i + e^{i\varphi} \cos\theta\, h_j

    Args:
        matrix: ``(size, columns)``; complex where ``phi`` is given.
        partners: Which units each layer pairs, ``(layers, size)``.
        theta: One angle a pair, layer after layer, pairs in ascending order of their first unit.
        phi: The same for the second kind of angle; zeros when omitted.
    """
    index = torch.arange(partners.shape[1], device=partners.device)
    first, second = partners > index, partners < index
    number = (first.flatten().cumsum(0) - 1).reshape(partners.shape)
    number = torch.where(second, number.gather(1, partners), number)
    # A unit without a partner turns by no angle, which stands behind the others.
    number = torch.where(first | second, number, len(theta))
    theta = torch.cat([theta, theta.new_zeros(1)])[number]
    cosine, sine = torch.cos(theta), torch.sin(theta)
    if phi is None:
        own, other = cosine, torch.where(second, sine, -sine)
    else:
        turn = phase(torch.cat([phi, phi.new_zeros(1)])[number])
        own, other = torch.where(second, turn, 1) * cosine, torch.where(second, 1, -turn) * sine
    for layer, partner in enumerate(partners):
        matrix = own[layer, :, None] * matrix + other[layer, :, None] * matrix.index_select(0, partner)
    return matrix


def kronecker(factors: Sequence[Tensor]) -> Tensor:
    """The Kronecker product of real or complex matrices; the first one acts on the slowest index."""
    return reduce(torch.kron, factors)


def skew_hermitian(free: Tensor) -> Tensor:
    r"""A complex skew-Hermitian matrix, :math:`A^H = -A`, from as many real numbers as it has.

    .. math:: A_{jk} = M_{jk} + i M_{kj} \text{ for } j < k, \quad A_{jj} = i \sqrt{2} M_{jj}

    The root makes all coordinates equally long, :math:`\|A\|_F^2 = 2 \|M\|_F^2`: a gradient step on M is then one on A
    in its own metric.

    Args:
        free: M, ``(size, size)``.
    """
    upper, lower = free.triu(1), free.tril(-1)
    return torch.complex(upper - upper.T, lower + lower.T + 2**0.5 * torch.diag(free.diagonal()))


def haar_unitary(size: int) -> Tensor:
    """A random complex unitary matrix, uniform over the group."""
    q, r = torch.linalg.qr(torch.randn(size, size, dtype=torch.complex128))
    diagonal = r.diagonal()
    unitary: Tensor = q * (diagonal / diagonal.abs())
    return unitary


def skew_spectrum(operator: Tensor) -> tuple[Tensor, Tensor]:
    r"""Real form of a skew operator's eigenbasis, in which functions of it act without building a matrix.

    i D is Hermitian, so :math:`D = -i\, V \mathrm{diag}(w) V^H` with a unitary :math:`V = A + i B`. For a function f
    with :math:`f(-i w) = c - i s` and a real h, :math:`f(D) h = A r + B q` with :math:`r = c A^\top h - s B^\top h` and
    :math:`q = s A^\top h + c B^\top h`.

    No gradient flows through it: that of an eigenvector grows without bound as two eigenvalues meet.

    Args:
        operator: D, ``(size, size)``, skew.

    Returns:
        A transposed over B transposed, ``(2 size, size)``, and the frequencies w, ``(size,)``.
    """
    precise = operator.detach().double()
    frequencies, vectors = torch.linalg.eigh(torch.complex(torch.zeros_like(precise), precise))
    basis = torch.cat([vectors.real.T, vectors.imag.T])
    return basis.to(operator.dtype), frequencies.to(operator.dtype)


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    """Real modReLU ``sign(z) max(|z| + b, 0)``, with ``sign(0) = 0``.

    1-Lipschitz where ``bias <= 0``. Where ``bias > 0`` it jumps at zero and has no Lipschitz constant.
    """
    return torch.sign(z) * torch.relu(z.abs() + bias)


def complex_modrelu(z: Tensor, bias: Tensor, offset: float = 1e-5) -> Tensor:
    r"""Complex modReLU :math:`z \max(|z| + b, 0) / (|z| + \delta)` with :math:`|z| = \sqrt{re^2 + im^2 + 10^{-10}}`.

    1-Lipschitz where ``bias <= offset``; beyond that numbers near zero are stretched, by up to
    ``(bias + 1e-5) / (offset + 1e-5)``.

    Args:
        z: Complex numbers as ``[Re | Im]``, ``(..., 2 size)``.
        bias: b, ``(size,)``.
        offset: delta, which keeps the quotient finite at zero.
    """
    re, im = z.chunk(2, dim=-1)
    # The same root in units of 1/1000: the ONNX exporter takes a sum with a constant below 1e-8 for the other summand.
    modulus = 1e-3 * torch.sqrt(1e6 * (re.square() + im.square()) + 1e-4)
    scale = torch.relu(modulus + bias) / (modulus + offset)
    return z * torch.cat([scale, scale], dim=-1)
