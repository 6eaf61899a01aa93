"""Products of a recurrent matrix of complex units with states, for engines that run many steps at once.

A product knows the structure of its matrix: a Kronecker product of small factors, or diagonals, Fourier transforms and
reflections, takes ``O(N sqrt(N))`` or ``O(N log N)`` operations where the matrix, multiplied out, takes ``N^2``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stablernn.parametrizations import kronecker, phase


class StructuredProduct(Protocol):
    """A complex matrix W, ``(N, N)``, that multiplies states ``(..., N)``."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors that W is built from; autograd leads from here to the parameters."""
        ...

    def replace(self, tensors: Sequence[Tensor]) -> StructuredProduct:
        """Return the product with other values of :attr:`tensors`."""
        ...

    def apply(self, h: Tensor) -> Tensor:
        """Return W h."""
        ...

    def adjoint(self, g: Tensor) -> Tensor:
        """Return the product of the conjugate transpose of W with g, by which gradients go back."""
        ...

    def gradients(self, h: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients by :attr:`tensors`.

        Args:
            h: What W was applied to.
            g: The gradients by the results.
        """
        ...


@dataclass(frozen=True, eq=False)
class KroneckerProduct:
    """The Kronecker product of two matrices.

    Attributes:
        left: The one that acts on the slower index, complex, ``(a, a)``.
        right: The one that acts on the faster index, complex, ``(b, b)``.
    """

    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, factors: Sequence[Tensor]) -> KroneckerProduct:
        """Return the product of any number of factors, multiplied to two of about the same size."""
        sizes = [len(factor) for factor in factors]
        # Both sizes together are the cost of a state.
        split = min(
            range(1, len(sizes) + 1), key=lambda split: math.prod(sizes[:split]) + math.prod(sizes[split:]), default=1
        )
        right = kronecker(factors[split:]) if split < len(sizes) else torch.ones_like(factors[0][:1, :1])
        return cls(kronecker(factors[:split]), right)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.left, self.right

    def replace(self, tensors: Sequence[Tensor]) -> KroneckerProduct:
        return KroneckerProduct(*tensors)

    def apply(self, h: Tensor) -> Tensor:
        return _multiply_grid(h, self.left, self.right.mT)

    def adjoint(self, g: Tensor) -> Tensor:
        return _multiply_grid(g, *self._conjugates)

    def gradients(self, h: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        rows, columns = len(self.left), len(self.right)
        states, of_results = h.reshape(-1, columns), g.reshape(-1, rows, columns)
        products = (states @ self.right.mT).view_as(of_results)
        of_left = torch.bmm(of_results, products.mH).sum(dim=0)
        adjoint, _ = self._conjugates
        of_products = torch.bmm(adjoint.expand(len(of_results), rows, rows), of_results)
        return of_left, of_products.view(-1, columns).mT @ states.conj()

    @functools.cached_property
    def _conjugates(self) -> tuple[Tensor, Tensor]:
        return self.left.mH.resolve_conj(), self.right.conj().resolve_conj()


@dataclass(frozen=True, eq=False)
class FourierProduct:
    """``D3 R2 F^-1 D2 P R1 F D1``: diagonals, reflections, a permutation and Fourier transforms.

    Attributes:
        phases: The angles of D1, D2 and D3, ``(3, N)``.
        reflections: The normals of R1 and R2, complex, ``(2, N)``.
        permutation: P, as the indices that it reads.
    """

    phases: Tensor
    reflections: Tensor
    permutation: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.phases, self.reflections

    def replace(self, tensors: Sequence[Tensor]) -> FourierProduct:
        phases, reflections = tensors
        return FourierProduct(phases, reflections, self.permutation)

    def apply(self, h: Tensor) -> Tensor:
        d1, d2, d3 = self._diagonals
        r1, r2 = self._reflections
        y = r1.apply(torch.fft.fft(h * d1, norm="ortho"))
        y = torch.fft.ifft(y.index_select(-1, self.permutation) * d2, norm="ortho")
        scaled: Tensor = r2.apply(y) * d3
        return scaled

    def adjoint(self, g: Tensor) -> Tensor:
        d1, d2, d3 = self._conjugate_diagonals
        r1, r2 = self._reflections
        y = torch.fft.fft(r2.apply(g * d3), norm="ortho") * d2
        y = r1.apply(y.index_select(-1, self._inverse_permutation))
        restored: Tensor = torch.fft.ifft(y, norm="ortho") * d1
        return restored

    def gradients(self, h: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        tensors = [tensor.detach().requires_grad_() for tensor in self.tensors]
        with torch.enable_grad():
            results = self.replace(tensors).apply(h)
        return torch.autograd.grad(results, tensors, g)

    @functools.cached_property
    def _diagonals(self) -> Tensor:
        return phase(self.phases)

    @functools.cached_property
    def _conjugate_diagonals(self) -> Tensor:
        return self._diagonals.conj().resolve_conj()

    @functools.cached_property
    def _inverse_permutation(self) -> Tensor:
        return self.permutation.argsort()

    @functools.cached_property
    def _reflections(self) -> tuple[_Reflection, _Reflection]:
        first, second = self.reflections
        return _Reflection.of(first), _Reflection.of(second)


@dataclass(frozen=True, eq=False)
class _Reflection:
    """``I - 2 v v^H / |v|^2``, which is its own adjoint.

    Attributes:
        column: ``2 v / |v|^2``.
        row: The conjugate of v.
    """

    column: Tensor
    row: Tensor

    @classmethod
    def of(cls, normal: Tensor) -> _Reflection:
        row = normal.conj().resolve_conj()
        return cls(2 / (normal * row).real.sum() * normal, row)

    def apply(self, h: Tensor) -> Tensor:
        """Return the reflection of each row of ``(..., N)``."""
        rows = h.reshape(-1, h.shape[-1])
        return torch.addr(rows, rows @ self.row, self.column, alpha=-1).view(h.shape)


def _multiply_grid(h: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ h @ right`` of each state ``(..., a * b)``, as a grid ``(a, b)``."""
    rows, columns = len(left), len(right)
    grid = (h.reshape(-1, columns) @ right).view(-1, rows, columns)
    # As a batch: one product with all grids would put every grid into another order first.
    return torch.bmm(left.expand(len(grid), rows, rows), grid).view(h.shape)
