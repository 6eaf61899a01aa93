"""Linear state spaces from recorded inputs and outputs, by subspace identification (PBSID).

Chiuso, "The role of vector autoregressive modeling in predictor-based subspace identification", Automatica 2007.
van der Veen, van Wingerden, Bergamasco, Lovera, Verhaegen, "Closed-loop subspace identification methods: an overview",
IET Control Theory & Applications 2013.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stablernn.bounds.linalg import Matrix

SLOWEST_POLE = 0.998
"""Largest modulus of a pole: of an integrator a model is slow, and stable."""
_RIDGE = 1e-6
"""Penalty of the regressions, relative to inputs and outputs of unit variance."""


class StateSpace(NamedTuple):
    """The system x <- A x + B u, y = C x + D u + bias, and its first state in each record."""

    A: Matrix
    B: Matrix
    C: Matrix
    D: Matrix
    bias: Matrix
    starts: Matrix
    """``(records, states)``."""

    def in_coordinates(self, basis: Matrix) -> StateSpace:
        """Return the same system with the state ``basis^-1 x``."""
        inverse = np.asarray(np.linalg.inv(basis), dtype=np.float64)
        return StateSpace(
            inverse @ self.A @ basis, inverse @ self.B, self.C @ basis, self.D, self.bias, self.starts @ inverse.T
        )

    def repeated(self, copies: int) -> StateSpace:
        """Return as many copies side by side under the same input, of which the last one is the output."""
        silent = np.zeros((len(self.C), len(self.A) * (copies - 1)))
        return StateSpace(
            np.asarray(np.kron(np.eye(copies), self.A), dtype=np.float64),
            np.tile(self.B, (copies, 1)),
            np.hstack([silent, self.C]),
            self.D,
            self.bias,
            np.tile(self.starts, copies),
        )


def identify(records: Sequence[tuple[Matrix, Matrix]], order: int, past: int) -> StateSpace:
    """Return a stable state space of records, of any first states.

    Outputs are regressed on past inputs and outputs (a vector autoregression), whose coefficients are the Markov
    parameters of the predictor; states are the leading canonical directions of its predictions, and the system is the
    regression of next states and outputs on states and inputs.

    Args:
        records: Inputs ``(time, inputs)`` and outputs ``(time, outputs)`` in units of their deviations, without missing
            values; records of ``past + 1`` steps or fewer are left out.
        order: Number of states.
        past: Steps of the past that a regression sees; ``past * outputs`` is ``order`` or more.

    Raises:
        ValueError: If no record is long enough.
    """
    parts = [_regressors(u, y, past) for u, y in records if len(u) > past + 1]
    if not parts:
        raise ValueError(f"No record is longer than the {past + 1} steps that an identification of the order needs.")
    histories, inputs, outputs = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    size, count = histories.shape[1], outputs.shape[1]
    coefficients = _regress(np.hstack([histories, inputs]), outputs, _RIDGE)[:, :size]
    # Extended observability times extended controllability: block row i predicts i steps ahead, from what of the past
    # is still seen then.
    predictor = np.zeros((past * count, size))
    channels = size // past
    for step in range(past):
        rows = slice(step * count, (step + 1) * count)
        predictor[rows, step * channels :] = coefficients[:, : size - step * channels]
    covariance = histories.T @ histories / len(histories) + _RIDGE * np.eye(size)
    root = np.linalg.cholesky(covariance)
    _, _, directions = np.linalg.svd(predictor @ root, full_matrices=False)
    projection = np.linalg.solve(root.T, directions[:order].T)
    states = [part[0] @ projection for part in parts]
    x = np.concatenate(states)
    output_map = _regress(np.hstack([x, inputs]), outputs)
    noise = outputs - np.hstack([x, inputs]) @ output_map.T
    # No step leads from the end of a record to the beginning of the next.
    has_next = np.ones(len(x), dtype=bool)
    has_next[np.cumsum([len(part) for part in states]) - 1] = False
    following = np.concatenate([part[1:] for part in states])
    state_map = _regress(np.hstack([x, inputs, noise])[has_next], following)
    width = inputs.shape[1]
    return StateSpace(
        stabilized(state_map[:, :order]),
        state_map[:, order : order + width],
        output_map[:, :order],
        output_map[:, order:],
        np.zeros(count),
        np.zeros((len(records), order)),
    )


def stabilized(matrix: Matrix, largest: float = SLOWEST_POLE) -> Matrix:
    """Return a matrix without eigenvalues of a larger modulus: those that have one are moved towards 0."""
    values, vectors = np.linalg.eig(matrix)
    moduli = np.abs(values)
    if moduli.max() <= largest:
        return matrix
    moved = values * np.minimum(1, largest / np.maximum(moduli, largest))
    return np.real(vectors @ np.diag(moved) @ np.linalg.inv(vectors))


def _regressors(inputs: Matrix, outputs: Matrix, past: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return the past of each step, oldest first, ``(time - past, past * channels)``, its inputs and its outputs."""
    channels = np.hstack([inputs, outputs])
    steps = len(channels) - past
    histories = np.hstack([channels[lag : lag + steps] for lag in range(past)])
    return histories, inputs[past:], outputs[past:]


def _regress(x: Matrix, y: Matrix, ridge: float = 0.0) -> Matrix:
    """Return the coefficients ``(outputs, regressors)`` of least squares."""
    if not ridge:
        return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0].T, dtype=np.float64)
    gram = x.T @ x + ridge * len(x) * np.eye(x.shape[1])
    return np.asarray(np.linalg.solve(gram, x.T @ y).T, dtype=np.float64)
