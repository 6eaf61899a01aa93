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
    """A complex matrix W, ``(N, N)``, that multiplies states ``[Re | Im]``, ``(batch, 2 N)``.

    States are real numbers, because elementwise operations of complex tensors with real ones are not vectorized.
    """

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors that W is built from; autograd leads from here to the parameters."""
        ...

    def replace(self, tensors: Sequence[Tensor]) -> StructuredProduct:
        """Return the product with other values of :attr:`tensors`."""
        ...

    def apply(self, h: Tensor, drive: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Return W h + drive, in a given tensor if there is one."""
        ...

    def backward(self, h: Tensor, g: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the gradient by what W was applied to, and the gradients by :attr:`tensors`.

        Args:
            h: What W was applied to.
            g: The gradient by the results.
        """
        ...


@dataclass(frozen=True, eq=False)
class KroneckerProduct:
    """The Kronecker product of two complex matrices, ``(a, a)`` and ``(b, b)``, in real numbers.

    A state is a grid ``(2, a, b)``. The right matrix is applied to its rows and gives real and imaginary parts of the
    matrix separately; the left one adds them up with the signs of a complex product, so that nothing but two real
    matrix products is computed.

    Attributes:
        left: The one that acts on the slower index, ``(2 a, 4 a)``: rows are the part of the result and its index,
            columns the part of the state, its index and the part of the right matrix.
        right: Real and imaginary part of the one that acts on the faster index, transposed, ``(b, 2 b)``.
    """

    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, factors: Sequence[Tensor]) -> KroneckerProduct:
        """Return the product of any number of complex factors, multiplied to two of about the same size."""
        sizes = [len(factor) for factor in factors]
        # Both sizes together are the cost of a state.
        split = min(
            range(1, len(sizes) + 1), key=lambda split: math.prod(sizes[:split]) + math.prod(sizes[split:]), default=1
        )
        right = kronecker(factors[split:]) if split < len(sizes) else torch.ones_like(factors[0][:1, :1])
        return cls(_combining(kronecker(factors[:split])), torch.cat([right.real.mT, right.imag.mT], dim=1))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.left, self.right

    def replace(self, tensors: Sequence[Tensor]) -> KroneckerProduct:
        return KroneckerProduct(*tensors)

    def apply(self, h: Tensor, drive: Tensor, *, out: Tensor | None = None) -> Tensor:
        products = self._right_products(h)
        grids, shape = self._repeated(self.left, products), (len(products), *self._grid)
        # As a batch: one product with all grids would put every grid into another order first.
        result = torch.baddbmm(drive.reshape(shape), grids, products, out=None if out is None else out.view(shape))
        return result.view(h.shape)

    def backward(self, h: Tensor, g: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        grids = g.reshape(-1, *self._grid)
        of_left = torch.bmm(grids, self._right_products(h).mT).sum(dim=0)
        of_products = torch.bmm(self._repeated(self.left.mT, grids), grids).view(-1, self.right.shape[1])
        of_right = h.reshape(-1, len(self.right)).mT @ of_products
        return (of_products @ self.right.mT).view(h.shape), (of_left, of_right)

    @property
    def _grid(self) -> tuple[int, int]:
        return len(self.left), len(self.right)

    def _right_products(self, h: Tensor) -> Tensor:
        """Return the rows of each grid, multiplied by both parts of the right matrix, ``(states, 4 a, b)``."""
        columns = len(self.right)
        return (h.reshape(-1, columns) @ self.right).view(-1, self.left.shape[1], columns)

    @staticmethod
    def _repeated(matrix: Tensor, grids: Tensor) -> Tensor:
        return matrix.expand(len(grids), *matrix.shape)


def _combining(matrix: Tensor) -> Tensor:
    """Return a complex matrix as :attr:`KroneckerProduct.left`."""
    re, im = matrix.real, matrix.imag
    # With Y = h R^T: Re Y = (Re h, Re R) - (Im h, Im R), Im Y = (Re h, Im R) + (Im h, Re R), and then left @ Y.
    of_real = torch.stack([torch.stack([re, -im], dim=-1), torch.stack([-im, -re], dim=-1)], dim=1)
    of_imaginary = torch.stack([torch.stack([im, re], dim=-1), torch.stack([re, -im], dim=-1)], dim=1)
    return torch.cat([of_real, of_imaginary]).flatten(1)


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

    def apply(self, h: Tensor, drive: Tensor, *, out: Tensor | None = None) -> Tensor:
        *_, y = self._factors(_as_complex(h))
        return torch.add(_as_real(y * self._diagonals[2]), drive, out=out)

    def backward(self, h: Tensor, g: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        d1, d2, d3 = self._conjugate_diagonals
        r1, r2 = self._reflections
        y0 = _as_complex(h)
        y1, y2, y3, y4 = self._factors(y0)
        g4 = _as_complex(g) * d3
        g3 = torch.fft.fft(r2.apply(g4), norm="ortho") * d2
        g2 = g3.index_select(-1, self._inverse_permutation)
        g1 = torch.fft.ifft(r1.apply(g2), norm="ortho") * d1
        # Of an angle: the imaginary part of the gradient times the conjugate, before or after its diagonal.
        angles = [_cross(g1, y0), _cross(g3, y2), _cross(g4, y4)]
        normals = [r1.gradient(y1, g2), r2.gradient(y3, g4)]
        return _as_real(g1), (torch.stack(angles), torch.stack(normals))

    def _factors(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the states before R1, before D2, before R2 and before D3."""
        d1, d2, _ = self._diagonals
        r1, r2 = self._reflections
        y1 = torch.fft.fft(h * d1, norm="ortho")
        y2 = r1.apply(y1).index_select(-1, self.permutation)
        y3 = torch.fft.ifft(y2 * d2, norm="ortho")
        return y1, y2, y3, r2.apply(y3)

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
        normal: v.
        row: The conjugate of v.
        factor: ``2 / |v|^2``.
    """

    normal: Tensor
    row: Tensor
    factor: Tensor

    @classmethod
    def of(cls, normal: Tensor) -> _Reflection:
        row = normal.conj().resolve_conj()
        return cls(normal, row, 2 / (normal * row).real.sum())

    def apply(self, h: Tensor) -> Tensor:
        """Return the reflection of each row of ``(batch, N)``."""
        return torch.addr(h, h @ self.row, self.factor * self.normal, alpha=-1)

    def gradient(self, h: Tensor, g: Tensor) -> Tensor:
        """Return the gradient by the normal, from what is reflected and the gradient by the results."""
        of_states, of_gradients = (h @ self.row).conj(), (g @ self.row).conj()
        # By v in the product with each row, by v as the direction, and by its length.
        products = of_gradients @ h + of_states @ g
        length = self.factor * (of_states.conj() * of_gradients).real.sum()
        return self.factor * (length * self.normal - products)


def _cross(g: Tensor, h: Tensor) -> Tensor:
    """Return the imaginary part of ``g conj(h)``, added up over the batch."""
    return (g.imag * h.real - g.real * h.imag).sum(dim=0)


def _as_complex(h: Tensor) -> Tensor:
    """Return ``[Re | Im]``, ``(..., 2 N)``, as complex numbers."""
    return torch.complex(*h.chunk(2, dim=-1))


def _as_real(z: Tensor) -> Tensor:
    """Return complex numbers as ``[Re | Im]``."""
    return torch.cat([z.real, z.imag], dim=-1)
