"""Safe bounds on norms of float64 matrices: each covers what rounding can have done to the computed value.

LAPACK's singular values and eigenvalues are those of a matrix that differs from the given one by a small multiple of
``n u norm``; the multiple here is 8, several times what is seen in practice.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

EPSILON = float(np.finfo(np.float64).eps)
_SMALLEST_NORMAL = float(np.finfo(np.float64).tiny)
_SQUARES_UNDERFLOW = 1e-140
"""A Frobenius norm below this may have lost the squares of its entries."""


def rounding_error_bound(*matrices: npt.NDArray[Any]) -> float:
    """Bound the error of a computed singular value or eigenvalue of a product of matrices, underflow included."""
    norm_product, longest = 1.0, 1
    for matrix in matrices:
        # The Frobenius norm is at least the 2-norm; of huge weights it overflows to infinity, a true bound as well.
        with np.errstate(over="ignore"):
            norm = float(np.linalg.norm(matrix))
        if norm < _SQUARES_UNDERFLOW:
            norm = math.sqrt(matrix.size) * float(np.abs(matrix).max(initial=0.0))
        if not norm:
            # Zeros make a product that is exact.
            return 0.0
        norm_product *= norm
        longest = max(longest, *matrix.shape)
    # Where products of entries underflow, their error is no longer relative to the norms.
    underflow = longest**2 * _SMALLEST_NORMAL if len(matrices) > 1 else 0.0
    return 8 * longest * EPSILON * norm_product + underflow


def norm_upper_bound(matrix: npt.NDArray[Any]) -> float:
    """Return at least the largest singular value."""
    if not matrix.size:
        return 0.0
    return float(np.linalg.norm(matrix, 2)) + rounding_error_bound(matrix)


def product_norm_upper_bound(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """Return at least the largest singular value of a product, which can be much smaller than its computed error."""
    return norm_upper_bound(first @ second) + rounding_error_bound(first, second)


def smallest_singular_value_lower_bound(matrix: Matrix) -> float:
    """Return at most the smallest singular value; 0 if rounding cannot tell it from 0."""
    if not matrix.size:
        return 0.0
    return max(0.0, float(np.linalg.svd(matrix, compute_uv=False)[-1]) - rounding_error_bound(matrix))


def log_norm_upper_bound(matrix: Matrix) -> float:
    """Return at least the largest eigenvalue of the symmetric part, the logarithmic norm of the 2-norm."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1]) + rounding_error_bound(matrix)


def infinity_norm_upper_bound(matrix: Matrix) -> float:
    """Return at least the largest sum of moduli in a row: the norm of the matrix as a map of infinity norms."""
    if not matrix.size:
        return 0.0
    return float(np.abs(matrix).sum(axis=1).max()) * (1 + int(matrix.shape[1]) * EPSILON)


def row_norm_upper_bound(matrix: Matrix) -> float:
    """Return at least the largest 2-norm of a row: the infinity norm of the image of an input of 2-norm 1."""
    if not matrix.size:
        return 0.0
    return float(row_norms(matrix).max())


def row_norms(matrix: Matrix) -> Matrix:
    """Return at least the 2-norm of each row."""
    norms: Matrix = np.linalg.norm(matrix, axis=1) * (1 + matrix.shape[1] * EPSILON)
    return norms


def inverse_norm_upper_bound(matrix: Matrix) -> float:
    """Return at least the norm of the inverse."""
    return 1 / max(smallest_singular_value_lower_bound(matrix), EPSILON * norm_upper_bound(matrix))


def inverse_error_factor(matrix: Matrix) -> float:
    """Return the factor by which the norm of a product with the computed inverse can be too small."""
    return 1 + 8 * len(matrix) * EPSILON * norm_upper_bound(matrix) * inverse_norm_upper_bound(matrix)


def similar_norm_upper_bound(matrix: Matrix, metric: Matrix) -> float:
    """Return at least the norm of ``T F T^-1``: the rate of a linear step in the norm of a metric."""
    product_norm = product_norm_upper_bound(metric @ matrix, np.linalg.inv(metric))
    # The error of the first product is multiplied by the inverse.
    error = rounding_error_bound(metric, matrix) * inverse_norm_upper_bound(metric)
    return product_norm * inverse_error_factor(metric) + error


def round_to_float32(form: Matrix) -> Matrix:
    """Round to the nearest float32 numbers: any numbers will do for a metric, and these are short to write down."""
    rounded: Matrix = form.astype(np.float32).astype(np.float64)
    return rounded
