"""Kronecker recurrent unit: Jose, Cisse, Fleuret, "Kronecker recurrent units", ICML 2018."""

from __future__ import annotations

import torch
from torch import Tensor

from stablernn.cells._base import check_not_negative, empty_parameter
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._complex import ComplexCell, ComplexNonlinearity
from stablernn.cells._structured_products import KroneckerProduct
from stablernn.parametrizations import haar_unitary, kronecker


@register_cell(
    "kru",
    title="Kronecker recurrent unit",
    paper="Jose, Cisse, Fleuret: Kronecker Recurrent Units (ICML 2018)",
    year=2018,
    guarantee="none: the factors start unitary and a penalty pulls them back",
    family="plain",
    equation=(
        "W = W_1 (x) .. (x) W_F, a Kronecker product of small complex matrices; h <- f(W h + U x), f = modReLU or "
        "softshrink with bias b; loss += penalty_weight sum_f ||W_f^H W_f - I||^2"
    ),
    paper_options={"nonlinearity": "modrelu"},
    paper_source=(
        "factors and form of the penalty. Its weight, the nonlinearity, initial values and all training settings are "
        "our choice: the released code holds the product alone"
    ),
    training={
        "practical": practical(0.005, 80),
        "paper": {"lr": 0.001, "optimizer": "adam"},
    },
)
class KroneckerRNNCell(ComplexCell):
    r"""A recurrent matrix that is the Kronecker product of tiny complex ones, each of them softly unitary.

    .. math:: h_t = f(W h_{t-1} + U x_t), \quad W = W_1 \otimes \cdots \otimes W_F, \quad
        f(z) = \frac{z}{|z| + 10^{-5}} \max(|z| + b, 0)
    .. math:: \text{loss} \mathrel{+}= \lambda \sum_f \|W_f^H W_f - I\|_F^2

    In code: ``weight_hh`` holds the :math:`W_f`, of ``sizes``, one after the other, of each the real part and then the
    imaginary part, row by row; U is ``weight_ih`` as [Re | Im], b is ``bias``, :math:`\lambda` is ``penalty_weight``;
    :math:`|z|` is :math:`\sqrt{re^2 + im^2 + 10^{-10}}`. The factors are complex because the orthogonal group has two
    components, which no gradient connects, and the unitary group is connected.

    Guarantee:
        None by construction. The factors are initially unitary, and the penalty pulls them back; if it is 0, W is
        unitary and with ``softshrink`` (ours, the default) the step is non-expansive. The largest singular value of W
        is the product of those of its factors: a small excess in each of many factors is a large one in W.

    Args:
        input_size: Features per time step.
        hidden_size: Complex units, the product of the factors' sizes.
        factors: Number of factors F, from 1 to the number of prime factors of ``hidden_size``, which is the default:
            2 x 2 factors if the size is a power of two, one dense matrix if it is a prime. The sizes of fewer factors
            are those with the least sum of squares.
        penalty_weight: Weight lambda of the penalty, 0 or more. Our choice; the paper's is not known.
        nonlinearity: ``modrelu`` or ``softshrink`` (ours), which is modReLU with the bias ``-|b|``.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, 2 hidden_size)`` or ``(2 hidden_size,)`` as [Re | Im]; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> KroneckerRNNCell(input_size=3, hidden_size=24).sizes
        (2, 2, 2, 3)

    References:
        The paper. Initial factors are Haar-random, input and bias like those of the unitary evolution RNN: our choice.
        With the bias, pixel MNIST at N = 512 takes 11 858 parameters, without it 11 346, the paper's "11K".
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        factors: int | None = None,
        penalty_weight: float = 0.01,
        nonlinearity: ComplexNonlinearity = "softshrink",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        check_not_negative(self, penalty_weight=penalty_weight)
        # 1 has no prime factors: its matrix is one factor of size 1.
        max_factors = max(1, len(_prime_factors(hidden_size)))
        if factors is not None and not (1 <= factors <= max_factors and factors % 1 == 0):
            raise ValueError(
                f"factors must be a whole number from 1 to {max_factors} for {type(self).__name__} with "
                f"hidden_size={hidden_size}, the number of its prime factors, got {factors}."
            )
        self.factors = max_factors if factors is None else int(factors)
        self.penalty_weight = penalty_weight
        self.sizes = factor_sizes(hidden_size, self.factors)
        self.weight_hh = empty_parameter(sum(2 * size * size for size in self.sizes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        initial_factors = [haar_unitary(size) for size in self.sizes]
        with torch.no_grad():
            self.weight_hh.copy_(torch.cat([part.flatten() for w in initial_factors for part in (w.real, w.imag)]))

    def factor_matrices(self) -> list[Tensor]:
        """Return the complex factors of W, the one that acts on the slowest index first."""
        flat_factors = torch.split(self.weight_hh, [2 * size * size for size in self.sizes])
        # (2, size, size): real and imaginary part
        factors = [flat.view(2, size, size) for flat, size in zip(flat_factors, self.sizes, strict=True)]
        return [torch.complex(re, im) for re, im in factors]

    def complex_matrix(self) -> Tensor:
        return kronecker(self.factor_matrices())

    def structured_product(self) -> KroneckerProduct:
        return KroneckerProduct.of(self.factor_matrices())

    def penalty(self) -> Tensor | None:
        if not self.penalty_weight:
            return None
        total = self.bias.new_zeros(())
        for factor in self.factor_matrices():
            # The squared Frobenius norm of a complex matrix is the sum of squares of both parts.
            excess = torch.view_as_real(factor.mH @ factor - torch.eye(len(factor), device=factor.device))
            total = total + excess.square().sum()
        return self.penalty_weight * total


def factor_sizes(size: int, count: int) -> tuple[int, ...]:
    """Return ``count`` whole numbers with the product ``size`` and the least sum of squares, ascending.

    For a size of 1 the only factor is 1.
    """

    def list_splits(product: int, count: int, minimum: int) -> list[tuple[int, ...]]:
        if count == 1:
            return [(product,)] if product >= minimum else []
        # The first of several ascending factors is at most the count-th root of their product.
        splits = []
        for first in range(minimum, product + 1):
            if first**count > product:
                break
            if product % first == 0:
                splits += [(first, *others) for others in list_splits(product // first, count - 1, first)]
        return splits

    return (1,) if size == 1 else min(list_splits(size, count, 2), key=lambda sizes: sum(s * s for s in sizes))


def _prime_factors(number: int) -> list[int]:
    """Return the prime factors of a number, ascending, each as often as it divides the number."""
    primes, prime = [], 2
    while number > 1:
        while number % prime == 0:
            primes.append(prime)
            number //= prime
        prime += 1
    return primes
