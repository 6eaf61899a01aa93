"""A checker of rates that shares no code with the package: it takes matrices, and decides by them alone.

A step ``h <- F h + G w``, ``w = f(V h + D w + input)`` contracts by ``r`` in the norm ``|T e|`` if multipliers ``L``,
not negative and equal within each group of coordinates on which ``f`` acts together, make the matrix of
:func:`inequality` positive semidefinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[Any]


def inequality(F: Matrix, G: Matrix, V: Matrix, D: Matrix, T: Matrix, L: Matrix, r: Any) -> Matrix:
    """Return the matrix, of floats or of fractions, whichever its arguments hold."""
    form, weights = T.T @ T, np.diag(L)
    corner = 2 * weights - weights @ D - D.T @ weights - G.T @ form @ G
    side = -F.T @ form @ G - V.T @ weights
    return np.block([[r * r * form - F.T @ form @ F, side], [side.T, corner]])


def holds_in_float64(matrix: Matrix) -> bool:
    """Return whether no eigenvalue is negative by more than rounding, the diagonal scaled to ones."""
    scale = np.sqrt(np.maximum(np.diagonal(matrix), 1e-300))
    return bool(np.linalg.eigvalsh(matrix / scale / scale[:, None])[0] >= -1e-9)


def holds_exactly(matrix: Matrix) -> bool:
    """Return whether a matrix of fractions is positive semidefinite: no pivot of its elimination is negative."""
    rest = [list(row) for row in matrix]
    for pivot_row in range(len(rest)):
        pivot = rest[pivot_row][pivot_row]
        below = range(pivot_row + 1, len(rest))
        if pivot < 0 or (pivot == 0 and any(rest[pivot_row][column] for column in below)):
            return False
        for row in below:
            factor = rest[row][pivot_row] / pivot if pivot else Fraction(0)
            for column in below if factor else ():
                rest[row][column] -= factor * rest[pivot_row][column]
    return True


def exact(matrix: Matrix) -> Matrix:
    """Return the numbers of a float64 array as fractions."""
    fractions = np.array([Fraction(float(number)) for number in matrix.ravel()], dtype=object)
    return fractions.reshape(matrix.shape)


def are_allowed(L: Sequence[float], groups: Sequence[int]) -> bool:
    """Return whether no multiplier is negative, and those of each group are the same."""
    of_group: dict[int, float] = {}
    return all(l >= 0 and of_group.setdefault(group, l) == l for l, group in zip(L, groups, strict=True))
