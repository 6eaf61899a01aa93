"""Norms in which a Lur'e system is likely to contract, from which the search for a better one begins.

Nothing here needs to be trusted: :func:`stablernn.bounds.lure.lure_bound` verifies what is proved in each of them.
"""

from __future__ import annotations

import warnings

import numpy as np

from stablernn.bounds.linalg import EPSILON, Matrix
from stablernn.bounds.matrix_inequality import LureMap


def rate_lower_bound(lure_map: LureMap) -> float:
    """Return a rate below which no norm proves one: the largest spectral radius with all slopes at 0, or at 1."""
    inner = lure_map.V if lure_map.D is None else np.linalg.solve(np.eye(len(lure_map.D)) - lure_map.D, lure_map.V)
    jacobians = (lure_map.F, lure_map.F + lure_map.G @ inner)
    return max(float(np.abs(np.linalg.eigvals(jacobian)).max()) for jacobian in jacobians)


def candidate_metrics(lure_map: LureMap) -> list[Matrix]:
    """Return matrices ``T`` worth trying: Lyapunov forms of the middle of the sector, and a diagonal one."""
    # Imported here, since it takes a fifth of a second, and most commands prove nothing.
    from scipy import linalg

    middle = lure_map.F + lure_map.G @ (lure_map.V / 2)
    if lure_map.D is not None:
        inner = np.linalg.solve(np.eye(len(lure_map.D)) - lure_map.D / 2, lure_map.V)
        middle = lure_map.F + lure_map.G @ inner / 2
    metrics: list[Matrix] = []
    radius = float(np.abs(np.linalg.eigvals(middle)).max())
    with warnings.catch_warnings():
        # An inaccurate solution is only a worse candidate, since whatever a metric proves is verified.
        # scipy says so by a LinAlgWarning or, of a nearly singular equation, by a RuntimeWarning.
        warnings.simplefilter("ignore", linalg.LinAlgWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        for margin in (0.1, 0.5):
            # The Lyapunov equation has a positive solution only for a spectral radius below 1.
            scaled = middle / (radius + margin * max(1 - radius, 0.05))
            try:
                form = linalg.solve_discrete_lyapunov(scaled.T, np.eye(len(middle)))
                factor = np.linalg.cholesky((form + form.T) / 2).T
            except np.linalg.LinAlgError:
                # Rounding has left the equation singular, or its solution not positive.
                continue
            metrics.append(factor / np.linalg.norm(factor, 2))
    if lure_map.D is None:
        # By the Perron vectors: sqrt(left / right) is the diagonal scaling of the smallest norm of a matrix of moduli.
        moduli = np.abs(lure_map.F) + np.abs(lure_map.G) @ np.abs(lure_map.V)
        left, right = perron_vector(moduli.T), perron_vector(moduli)
        metrics.append(np.diag(np.sqrt(left / right) / np.sqrt(left / right).max()))
    return metrics


def perron_vector(entries: Matrix) -> Matrix:
    """Return a positive vector close to the Perron vector of a non-negative matrix, its largest entry 1."""
    largest_row_sum = max(float(np.abs(entries).sum(axis=1).max()), EPSILON)
    # Positive entries everywhere, so that the power iteration has one limit, and that is positive.
    shifted = entries / largest_row_sum + np.full_like(entries, 1e-6 / len(entries))
    vector = np.ones(len(entries))
    for _ in range(200):
        image = shifted @ vector + 1e-3 * vector
        vector = image / image.max()
    return np.maximum(vector, 1e-6)
