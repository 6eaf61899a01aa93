"""Functions from free parameters to the matrices that a step uses. Matrices act on columns: the product is ``K @ h``.

Docstrings name the paper and the equation. The properties that each parametrization promises are tested in
``tests/cells/guarantees/``.
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

OrthogonalMap = Literal["exp", "cayley"]
ORTHOGONAL_MAPS: tuple[OrthogonalMap, ...] = ("exp", "cayley")
"""Maps from skew matrices to orthogonal ones, and from skew-Hermitian to unitary ones."""


def _identity(like: Tensor) -> Tensor:
    """Return the identity in the size, precision and place of a square matrix."""
    return torch.eye(len(like), dtype=like.dtype, device=like.device)


def skew_size(size: int) -> int:
    """Return the number of free parameters of a skew-symmetric ``(size, size)`` matrix."""
    return size * (size - 1) // 2


def skew(free: Tensor, size: int) -> Tensor:
    """Return the skew-symmetric matrix whose strict upper triangle, read row by row, is ``free``.

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
    r"""Draw initial free numbers for :func:`skew`.

    ``henaff`` and ``cayley`` make A block-diagonal, with blocks ``[[0, s], [-s, 0]]`` and for odd sizes a last row and
    column of zeros. ``henaff`` draws s from U(-pi, pi), so that exp(A) rotates the planes by any angle; a copy of that
    code in the non-normal RNN draws from U(-pi, 0). ``cayley`` takes ``s = -tan(u / 2)`` with u from U(0, pi/2): the
    Cayley transform then rotates them by up to a quarter of a full turn, and exp(A) by up to one radian. ``haar``
    makes exp(A) a rotation drawn uniformly from SO(size): A is the real logarithm of one.

    Args:
        kind: ``henaff``, ``cayley`` or ``haar``.
        size: Rows of the matrix.
    """
    rows, columns = torch.triu_indices(size, size, offset=1)
    if kind == "haar":
        return _log_of_random_rotation(size)[rows, columns].to(torch.get_default_dtype())
    angles = torch.empty(size // 2)
    s = angles.uniform_(-math.pi, math.pi) if kind == "henaff" else -torch.tan(angles.uniform_(0, math.pi / 2) / 2)
    free = torch.zeros(skew_size(size))
    # The entries (0, 1), (2, 3), ...: one for each 2 x 2 block.
    free[(rows % 2 == 0) & (columns == rows + 1)] = s
    return free


def _log_of_random_rotation(size: int) -> Tensor:
    """Return the real logarithm of a rotation that is uniform over SO(size), in float64."""
    q, r = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))
    # The signs make the factorization unique, and Q then has the Haar measure on O(size).
    rotation = q * torch.sign(r.diagonal())
    # A reflection has no real logarithm; with one row negated it is a rotation.
    if torch.linalg.det(rotation) < 0:
        rotation[0] = -rotation[0]
    values, vectors = torch.linalg.eig(rotation)
    logarithm: Tensor = ((vectors * (1j * values.angle())) @ torch.linalg.inv(vectors)).real
    # Skew up to rounding only.
    return (logarithm - logarithm.T) / 2


def exponential(generator: Tensor) -> Tensor:
    """Return the matrix exponential: orthogonal if ``generator`` is skew (exponential RNN), unitary if skew-Hermitian.

    Scaling and squaring of the Taylor polynomial of degree 16, in double precision: squaring in single precision can
    leave ``Q.T @ Q - I`` above 1e-5. Its gradient takes two products for each product here. The gradient of
    ``torch.linalg.matrix_exp`` is the exponential of a matrix of twice the size and takes three times as long in all.
    """
    precise = generator.to(torch.promote_types(generator.dtype, torch.float64))
    # Halved until the largest column sum is below 1, so that the remainder of the series is about 1 / 17!.
    squarings = max(0, math.frexp(float(precise.detach().abs().sum(dim=0).max()))[1])
    first = precise * math.ldexp(1.0, -squarings)
    second = first @ first
    third, fourth = second @ first, second @ second
    identity = _identity(precise)
    # Horner's scheme in the fourth power (Paterson and Stockmeyer): 6 products instead of 15.
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
    r"""Return the Cayley transform :math:`(I + A)^{-1}(I - A)`, orthogonal if A is skew (scaled Cayley RNN).

    No such matrix has an eigenvalue -1; the RNN's scaling by signs compensates for that. Near an eigenvalue -1, A is
    large and the equations are ill-conditioned. They are therefore solved in double precision.
    """
    precise = generator.to(torch.promote_types(generator.dtype, torch.float64))
    identity = _identity(precise)
    transformed: Tensor = torch.linalg.solve(identity + precise, identity - precise)
    return transformed.to(generator.dtype)


def nearest_orthogonal(matrix: Tensor) -> Tensor:
    """Return the orthogonal or unitary matrix nearest to one that is so up to rounding.

    One step of Newton's method, which reduces an error of 1e-6 to 1e-12.
    """
    adjoint = matrix.mH if matrix.is_complex() else matrix.T
    return 1.5 * matrix - 0.5 * matrix @ (adjoint @ matrix)


def reflections(vectors: Tensor) -> Tensor:
    r"""Return the product of Householder reflections :math:`H(u_0) H(u_1) \cdots H(u_{n-1})` (spectral RNN).

    :math:`H(u) = I - 2 u u^\top / \lVert u \rVert^2`. In the compact form used here the product is
    :math:`I - U^\top S^{-1} U`, where U holds the unit vectors in its rows and S is half the identity plus the strict
    upper triangle of :math:`U U^\top`.

    Args:
        vectors: ``(n, size)``: row k is :math:`u_k`, of any length; its entries before k are ignored.

    Returns:
        ``(size, size)``, orthogonal.
    """
    size = vectors.shape[1]
    unit = nn.functional.normalize(torch.triu(vectors), dim=1)
    products = unit @ unit.T
    s = _identity(products) / 2 + torch.triu(products, diagonal=1)
    solved: Tensor = torch.linalg.solve_triangular(s, unit, upper=True)
    return torch.eye(size, dtype=unit.dtype, device=unit.device) - unit.T @ solved


def symmetric_skew(free: Tensor, skew_weight: float, damping: float) -> Tensor:
    r"""Return a blend of the symmetric and the skew part of a matrix, minus damping (Lipschitz RNN, eq. 6).

    .. math:: (1-\beta)(M + M^\top) + \beta (M - M^\top) - \gamma I = M + (1 - 2\beta) M^\top - \gamma I

    Its symmetric part has eigenvalues in
    :math:`[(1-\beta)\lambda_{min}(M+M^\top) - \gamma,\; (1-\beta)\lambda_{max}(M+M^\top) - \gamma]` (proposition 1).

    Args:
        free: The free matrix M, ``(size, size)``.
        skew_weight: beta; 1 is purely skew-symmetric, 0.5 leaves M as it is.
        damping: gamma, subtracted from the diagonal.
    """
    return free + (1 - 2 * skew_weight) * free.T - damping * _identity(free)


def vector_field(free: Tensor, size: int, *, divergence_free: bool = False) -> Tensor:
    r"""Return the linear operator of a latent vector field: ``S - diag(S 1)`` with ``S`` skew (lvfRNN, eq. 9).

    Rows sum to zero, and ``D + D.T == diag(div)`` with ``div = 2 diag(D)``. The divergences themselves sum to zero:
    none is positive only if all are zero and D is skew. With ``divergence_free`` the diagonal is left out:
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
    """Draw initial free numbers for :func:`vector_field`: the skew part of a random doubly stochastic matrix.

    Entries are uniform on [0, 1] with a zero diagonal; rows and columns are normalized in turn (Sinkhorn) until both
    sums are within ``tolerance`` of one. The tolerance is not published; it is our choice.
    """
    v = torch.rand(size, size).fill_diagonal_(0)
    # Convergence is linear; the limit only keeps a pathological draw from looping forever.
    for _ in range(10_000 if size > 1 else 0):
        v = v / v.sum(dim=1, keepdim=True)
        v = v / v.sum(dim=0, keepdim=True)
        if (v.sum(dim=1) - 1).abs().max() <= tolerance:
            break
    s = (v.T - v) / 2
    rows, columns = torch.triu_indices(size, size, offset=1)
    return s[rows, columns]


def cayley_propagator(operator: Tensor, step_size: float) -> Tensor:
    r"""Implicit midpoint propagator :math:`(I - \tfrac{dt}{2} D)^{-1}(I + \tfrac{dt}{2} D)` (lvfRNN, eq. 16).

    It is orthogonal if D is skew; its norm is at most one for all step sizes iff the symmetric part of D is negative
    semidefinite. It is the Cayley transform of -dt/2 D, solved in double precision.
    """
    return cayley(operator.to(torch.promote_types(operator.dtype, torch.float64)) * (-step_size / 2)).to(operator.dtype)


def phase(angle: Tensor) -> Tensor:
    """Return the complex number ``exp(i angle)``."""
    return torch.complex(torch.cos(angle), torch.sin(angle))


def real_form(matrix: Tensor) -> Tensor:
    """Return the real matrix ``[[Re, -Im], [Im, Re]]``: it acts on ``[Re h | Im h]`` as the complex one does on h.

    The real form of a product is the product of the real forms; that of a unitary matrix is orthogonal.
    """
    re, im = matrix.real, matrix.imag
    return torch.cat([torch.cat([re, -im], dim=1), torch.cat([im, re], dim=1)])


def reflect(matrix: Tensor, normal: Tensor) -> Tensor:
    r"""Return the reflection :math:`(I - 2 v v^H / \|v\|^2) M` of a real or complex matrix.

    Args:
        matrix: M, ``(size, columns)``.
        normal: v, ``(size,)``, not zero; its length does not matter.
    """
    squared = (normal * normal.conj()).real.sum()
    return matrix - torch.outer(normal * (2 / squared), normal.conj() @ matrix)


def neighbor_pairs(size: int, layers: int) -> Tensor:
    """Return partners for :func:`rotate`: layers pair the units (0, 1), (2, 3), .. and (1, 2), (3, 4), .. in turn.

    Returns:
        ``(layers, size)``: the index of each unit's partner, or of the unit itself if it has none.
    """
    index, layer = torch.arange(size), torch.arange(layers)[:, None]
    partners = torch.where((index - layer) % 2 == 0, index + 1, index - 1)
    # The units at the ends may have no neighbor on that side.
    return torch.where((partners < 0) | (partners >= size), index, partners)


def butterfly_pairs(size: int) -> Tensor:
    """Return partners for :func:`rotate` as in a fast Fourier transform: layer k pairs indices that differ in bit k.

    Args:
        size: A power of two.

    Returns:
        ``(log2(size), size)``: the partner of each unit.
    """
    layer = torch.arange(size.bit_length() - 1)[:, None]
    return torch.arange(size) ^ (1 << layer)


def count_pairs(partners: Tensor) -> int:
    """Return the number of pairs in the layers of :func:`rotate`: the number of angles of each kind."""
    return int((partners > torch.arange(partners.shape[1], device=partners.device)).sum())


def rotate(matrix: Tensor, partners: Tensor, theta: Tensor, phi: Tensor | None = None) -> Tensor:
    r"""Apply layers of 2 x 2 rotations to the columns of a matrix, one layer after the other (EURNN).

    .. math:: h_i \leftarrow \cos\theta\, h_i - e^{i\varphi} \sin\theta\, h_j, \quad
        h_j \leftarrow \sin\theta\, h_i + e^{i\varphi} \cos\theta\, h_j

    Args:
        matrix: ``(size, columns)``; complex if there is a ``phi``.
        partners: The partner of each unit in each layer, ``(layers, size)``.
        theta: One angle for each pair, layer after layer, pairs in ascending order of their first unit.
        phi: The same for the second kind of angle; zeros when omitted.
    """
    index = torch.arange(partners.shape[1], device=partners.device)
    first, second = partners > index, partners < index
    # (layers, size): index of the angle of each unit, counted at the first unit of each pair.
    angle_index = (first.flatten().cumsum(0) - 1).reshape(partners.shape)
    angle_index = torch.where(second, angle_index.gather(1, partners), angle_index)
    # A unit without a partner is rotated by an angle of 0, which is appended to the others.
    angle_index = torch.where(first | second, angle_index, len(theta))
    theta = torch.cat([theta, theta.new_zeros(1)])[angle_index]
    cosine, sine = torch.cos(theta), torch.sin(theta)
    if phi is None:
        self_factor, partner_factor = cosine, torch.where(second, sine, -sine)
    else:
        rotation = phase(torch.cat([phi, phi.new_zeros(1)])[angle_index])
        self_factor = torch.where(second, rotation, 1) * cosine
        partner_factor = torch.where(second, 1, -rotation) * sine
    for layer, partner in enumerate(partners):
        partner_rows = matrix.index_select(0, partner)
        matrix = self_factor[layer, :, None] * matrix + partner_factor[layer, :, None] * partner_rows
    return matrix


def kronecker(factors: Sequence[Tensor]) -> Tensor:
    """Return the Kronecker product of real or complex matrices; the first one acts on the slowest index."""
    return reduce(torch.kron, factors)


def skew_hermitian(free: Tensor) -> Tensor:
    r"""Return a complex skew-Hermitian matrix, :math:`A^H = -A`, of ``size^2`` real parameters.

    .. math:: A_{jk} = M_{jk} + i M_{kj} \text{ for } j < k, \quad A_{jj} = i \sqrt{2} M_{jj}

    With the square root all coordinates have the same length, :math:`\|A\|_F^2 = 2 \|M\|_F^2`: a gradient step on M is
    then one on A in the Frobenius metric.

    Args:
        free: M, ``(size, size)``.
    """
    upper, lower = free.triu(1), free.tril(-1)
    return torch.complex(upper - upper.T, lower + lower.T + 2**0.5 * torch.diag(free.diagonal()))


def haar_unitary(size: int) -> Tensor:
    """Draw a complex unitary matrix, uniform over the group."""
    q, r = torch.linalg.qr(torch.randn(size, size, dtype=torch.complex128))
    # A positive diagonal of R makes the factorization unique, and Q then has the Haar measure.
    diagonal = r.diagonal()
    unitary: Tensor = q * (diagonal / diagonal.abs())
    return unitary


def skew_spectrum(operator: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the real form of a skew operator's eigenbasis, for functions of the operator without their matrix.

    i D is Hermitian, so :math:`D = -i\, V \mathrm{diag}(w) V^H` with a unitary :math:`V = A + i B`. For a function f
    with :math:`f(-i w) = c - i s` and a real h, :math:`f(D) h = A r + B q` with :math:`r = c A^\top h - s B^\top h` and
    :math:`q = s A^\top h + c B^\top h`.

    It has no gradient: that of an eigenvector grows without bound as two eigenvalues meet.

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
    """Return the real modReLU ``sign(z) max(|z| + b, 0)``, with ``sign(0) = 0``.

    It is 1-Lipschitz for ``bias <= 0``. For ``bias > 0`` it jumps at zero and has no Lipschitz constant.
    """
    return torch.sign(z) * torch.relu(z.abs() + bias)


def complex_modrelu(z: Tensor, bias: Tensor, offset: float = 1e-5) -> Tensor:
    r"""Return the complex modReLU :math:`z \max(|z| + b, 0) / (|z| + \delta)`.

    The modulus is :math:`|z| = \sqrt{re^2 + im^2 + 10^{-10}}`. The function is 1-Lipschitz for ``bias <= offset``; a
    larger bias stretches numbers near zero, by up to ``(bias + 1e-5) / (offset + 1e-5)``.

    Args:
        z: Complex numbers as ``[Re | Im]``, ``(..., 2 size)``.
        bias: b, ``(size,)``.
        offset: delta, which keeps the quotient finite at zero.
    """
    re, im = z.chunk(2, dim=-1)
    # The same root in units of 1/1000, since the ONNX exporter drops a summand that is a constant below 1e-8.
    modulus = 1e-3 * torch.sqrt(1e6 * (re.square() + im.square()) + 1e-4)
    scale = torch.relu(modulus + bias) / (modulus + offset)
    return z * torch.cat([scale, scale], dim=-1)
