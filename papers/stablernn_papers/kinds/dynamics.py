"""Tables of the trajectories of small systems, with a picture of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import Request
from stablernn_papers.kinds.measured import MeasuredKind
from stablernn_papers.kinds.pendulum import learn_pendulum
from stablernn_papers.plots import plot_trajectories
from stablernn_papers.table import Table

Array = npt.NDArray[np.float64]


class DynamicsKind(MeasuredKind):
    """End points of trajectories without input."""

    def measure(self, request: Request, runs: list[Run]) -> list[tuple[Run, dict[str, Any]]]:
        return [(run, _measure(run.row.options, request.rules.options)) for run in runs]

    def draw(self, path: Path, table: Table, results: Mapping[str, Any]) -> None:
        plot_trajectories(path, results)


def _measure(options: Mapping[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    return learn_pendulum(options, rules) if options["rule"] == "pendulum" else _simulate(options, rules)


def system_matrix(options: Mapping[str, Any]) -> Array:
    """Return the 2 x 2 matrix of a row: as it stands there, or drawn with a seed."""
    if "matrix" in options:
        return np.array(options["matrix"], np.float64)
    drawn = np.random.RandomState(options["seed"]).standard_normal((2, 2))
    if options["draw"] == "normal":
        return drawn
    orthogonal, triangular = np.linalg.qr(drawn)
    # With a positive diagonal of R the draw is uniform over the orthogonal matrices.
    signed: Array = orthogonal * np.sign(np.diag(triangular))
    return signed


def _simulate(options: Mapping[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    matrix = system_matrix(options)
    is_feedback = options["rule"] == "feedback"
    step_size = rules["step_size"]
    trajectories = []
    for start in rules["starts"]:
        states = [np.array(start, np.float64)]
        for _ in range(rules["steps"]):
            change = np.tanh(matrix @ states[-1])
            states.append(states[-1] + step_size * change if is_feedback else change)
        trajectories.append(np.stack(states))
    jacobian = np.eye(2) + step_size * matrix if is_feedback else matrix
    return {
        "hidden_size": 2,
        "parameters": None,
        "seconds": 0.0,
        "matrix": matrix.tolist(),
        "trajectories": [states.tolist() for states in trajectories],
        "figures": {
            **{f"norm_{n}": float(np.linalg.norm(states[-1])) for n, states in enumerate(trajectories)},
            "spectral_radius": float(np.abs(np.linalg.eigvals(jacobian)).max()),
        },
    }
