"""Norms of float64 matrices as bounds: each is on the safe side of what rounding can have done to it.

LAPACK's singular values and eigenvalues are those of a matrix that differs from the given one by a small multiple of
``n u norm``; the multiple here is 8, several times what is seen in practice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

UNIT = float(np.finfo(np.float64).eps)


def slack(*matrices: npt.NDArray[Any]) -> float:
    """How far a computed singular value or eigenvalue of a product of matrices can be off."""
    total, longest = 1.0, 1
    for matrix in matrices:
        with np.errstate(over="ignore"):
            total *= float(np.linalg.norm(matrix))
        longest = max(longest, *matrix.shape)
    return 8 * longest * UNIT * total


def norm_above(matrix: npt.NDArray[Any]) -> float:
    """At least the largest singular value."""
    if not matrix.size:
        return 0.0
    return float(np.linalg.norm(matrix, 2)) + slack(matrix)


def smallest_below(matrix: Matrix) -> float:
    """At most the smallest singular value; 0 where it cannot be told from 0."""
    if not matrix.size:
        return 0.0
    return max(0.0, float(np.linalg.svd(matrix, compute_uv=False)[-1]) - slack(matrix))


def log_norm_above(matrix: Matrix) -> float:
    """At least the largest eigenvalue of the symmetric part, the logarithmic norm of the 2-norm."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1]) + slack(matrix)


def row_sum_above(matrix: Matrix) -> float:
    """At least the largest row sum of absolute values, the norm that goes with the largest coordinate."""
    if not matrix.size:
        return 0.0
    return float(np.abs(matrix).sum(axis=1).max()) * (1 + int(matrix.shape[1]) * UNIT)


def norm_above_rows(matrix: Matrix) -> float:
    """At least the largest 2-norm of a row: how much a largest coordinate moves for an input of 2-norm 1."""
    if not matrix.size:
        return 0.0
    return float(row_norms(matrix).max())


def row_norms(matrix: Matrix) -> Matrix:
    """At least the 2-norm of each row."""
    norms: Matrix = np.linalg.norm(matrix, axis=1) * (1 + matrix.shape[1] * UNIT)
    return norms


def as_float32(form: Matrix) -> Matrix:
    """The nearest numbers of float32: any will do for a metric, and these are short to write down."""
    rounded: Matrix = form.astype(np.float32).astype(np.float64)
    return rounded
