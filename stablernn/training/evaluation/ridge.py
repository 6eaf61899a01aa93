"""Ridge regression in closed form, with the penalty selected by leave-one-out."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

ALPHAS = np.logspace(-3, 3, 10)
"""Penalties that leave-one-out selects from: those of ROCKET's classifier (Dempster, Petitjean, Webb, 2020)."""


class RidgeRegression:
    """Linear least squares of several outputs with a penalty on the squared coefficients, not on the intercept.

    Columns are standardized first. The leave-one-out residual of a row is that of the whole fit over 1 - leverage, so
    that all penalties together take one decomposition (Rifkin, Lippert, "Notes on regularized least squares", MIT
    2007).

    Args:
        x: (samples, columns), finite.
        targets: (samples, outputs), finite.
        weights: (samples,), weight of each row's squared residual, greater than 0; None: all weigh the same.

    Attributes:
        alpha: The penalty with the least (weighted) mean squared leave-one-out residual.
        left_out: (samples, outputs), the prediction of each row by the fit to all others.
    """

    def __init__(self, x: Float64Array, targets: Float64Array, weights: Float64Array | None = None) -> None:
        shares = np.full(len(x), 1 / len(x)) if weights is None else weights / weights.sum()
        self._mean = x.mean(axis=0) if weights is None else shares @ x
        deviation = x.std(axis=0) if weights is None else np.sqrt(shares @ (x - self._mean) ** 2)
        # The rounding of a weighted mean of equal numbers is no deviation.
        least = 0.0 if weights is None else 1e-12 * np.abs(self._mean)
        self._scale = np.where(deviation > least, deviation, 1.0)
        # A row that weighs w is a row times the root of w in least squares.
        roots = np.sqrt(len(x) * shares)[:, None]
        z = roots * (x - self._mean) / self._scale
        # Columns of z have mean 0, so that the mean of the targets is the intercept.
        self._intercept = shares @ targets
        left, squares, right = _decompose(z)
        projections = left.T @ (roots * (targets - self._intercept))
        best = math.inf
        self.alpha = float(ALPHAS[0])
        self.left_out = np.zeros_like(targets)
        # The weight's share of all is the intercept's share of the leverage.
        leverages = left**2 @ (squares[:, None] / (squares[:, None] + ALPHAS)) + shares[:, None]
        for alpha, leverage in zip(ALPHAS, leverages.T, strict=True):
            shrunk = squares / (squares + alpha)
            fitted = left @ (shrunk[:, None] * projections) / roots + self._intercept
            residuals = (targets - fitted) / (1 - leverage)[:, None]
            error = float(np.mean(shares @ residuals**2))
            if error < best:
                best, self.alpha, self.left_out = error, float(alpha), targets - residuals
        self._coefficients = right @ ((np.sqrt(squares) / (squares + self.alpha))[:, None] * projections)

    def outputs(self, x: Float64Array) -> Float64Array:
        """Return the predicted targets of rows, (samples, outputs)."""
        outputs: Float64Array = (x - self._mean) / self._scale @ self._coefficients + self._intercept
        return outputs

    def linear_map(self) -> tuple[Float64Array, Float64Array]:
        """Return weight (outputs, columns) and bias (outputs,) of the same map of columns that are not standardized."""
        weight = (self._coefficients / self._scale[:, None]).T
        return weight, self._intercept - weight @ self._mean


class Ridge(RidgeRegression):
    """Least squares on -1 and 1 for each class, the penalty selected by leave-one-out and the intercept not penalized.

    On standardized columns this is scikit-learn's ``RidgeClassifierCV``.

    Args:
        x: (samples, columns).
        y: int (samples,), the classes.

    Attributes:
        classes: The classes of ``y``, ascending.
    """

    def __init__(self, x: Float64Array, y: npt.NDArray[np.int64]) -> None:
        self.classes = np.unique(y)
        # Two classes could do with one column: the mean squared error of both would be the same.
        super().__init__(x, np.where(y[:, None] == self.classes, 1.0, -1.0))

    def scores(self, x: Float64Array) -> Float64Array:
        """Return the decision values, (samples, classes); the highest one is that of the predicted class."""
        return self.outputs(x)

    def predict(self, x: Float64Array) -> npt.NDArray[np.int64]:
        """Return the class of each row."""
        classes: npt.NDArray[np.int64] = self.classes[self.scores(x).argmax(axis=1)]
        return classes


def _decompose(z: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return left singular vectors, squared singular values and right singular vectors of a matrix."""
    rows, columns = z.shape
    # The smaller of the two Gram matrices has all nonzero singular values, and is the cheaper one to decompose.
    squares, vectors = np.linalg.eigh(z @ z.T if rows <= columns else z.T @ z)
    # Directions below rounding are noise; dividing by their singular values would amplify it.
    is_significant = squares > max(rows, columns) * np.finfo(np.float64).eps * squares.max(initial=0.0)
    squares, vectors = squares[is_significant], vectors[:, is_significant]
    if rows <= columns:
        return vectors, squares, z.T @ vectors / np.sqrt(squares)
    return z @ vectors / np.sqrt(squares), squares, vectors
