"""Tables of the trajectories of small systems, given or learned, with a picture of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import create_cell
from stablernn.training.loop.device import torch_settings
from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import MeasuredKind, Request
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


_SUBSTEPS = 20
"""Runge-Kutta steps within one step of the model; their error is below 1e-9 over the trajectories here."""


def pendulum(start: Array, steps: int, step_size: float) -> Array:
    """Return angle and angular velocity of the pendulum without friction, ``(steps + 1, 2)``.

    It is the differential equation ``angle'' = -sin(angle)``.

    Args:
        start: Angle in radians and angular velocity in radians a unit of time.
        steps: Number of steps.
        step_size: Length of a step in units of time.
    """

    def velocity(state: Array) -> Array:
        return np.array([state[1], -np.sin(state[0])])

    states = [start]
    length = step_size / _SUBSTEPS
    for _ in range(steps):
        state = states[-1]
        for _ in range(_SUBSTEPS):
            first = velocity(state)
            second = velocity(state + length / 2 * first)
            third = velocity(state + length / 2 * second)
            fourth = velocity(state + length * third)
            state = state + length / 6 * (first + 2 * second + 2 * third + fourth)
        states.append(state)
    return np.stack(states)


def learn_pendulum(options: Mapping[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    """Fit the cell to single steps of the pendulum, then let it run on its own from each start.

    Args:
        options: ``skew_weight``, ``damping`` of both matrices, and ``periods``, the number of times that the ``steps``
            of the protocol are taken.
        rules: ``steps``, ``step_size`` and ``starts`` of the protocol.

    Returns:
        The ``trajectories`` of the cell, those of the pendulum as ``targets``, and the ``figures``.
    """
    steps, step_size = rules["steps"] * options["periods"], rules["step_size"]
    targets = [pendulum(np.array(start, np.float64), steps, step_size) for start in rules["starts"]]
    before = torch.from_numpy(np.concatenate([states[:-1] for states in targets]))
    after = torch.from_numpy(np.concatenate([states[1:] for states in targets]))
    with torch_settings(torch.device("cpu"), seed=0, threads=1):
        cell = create_cell(
            "lipschitz",
            1,
            2,
            step_size=step_size,
            skew_weight=options["skew_weight"],
            linear_damping=options["damping"],
            recurrent_damping=options["damping"],
            init_scale=1.0,
        ).double()

        def advance(states: Tensor) -> Tensor:
            # Without input the drive is the bias.
            result: Tensor
            (result,) = cell.step(cell.materialize(), (states,), cell.drive(states.new_zeros(len(states), 1)))
            return result

        optimizer = torch.optim.LBFGS(cell.parameters(), max_iter=500, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            # In units of the velocity, so that the optimizer's tolerances fit.
            error: Tensor = ((advance(before) - after) / step_size).square().mean()
            error.backward()  # type: ignore[no-untyped-call]
            return error

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            states = torch.tensor(rules["starts"], dtype=torch.float64)
            runs = [states]
            for _ in range(steps):
                runs.append(advance(runs[-1]))
            # (starts, steps + 1, 2)
            trajectories = torch.stack(runs, dim=1).numpy()
        jacobian = torch.func.jacrev(lambda state: advance(state[None])[0])(
            torch.zeros(2, dtype=torch.float64)
        ).detach()
    distances = np.sqrt(((trajectories - np.stack(targets)) ** 2).sum(axis=-1).mean(axis=-1))
    return {
        "hidden_size": 2,
        "parameters": sum(parameter.numel() for parameter in cell.parameters()),
        "seconds": 0.0,
        # For the picture alone, so that six digits do.
        "trajectories": trajectories.round(6).tolist(),
        "targets": [states.round(6).tolist() for states in targets],
        "figures": {
            **{f"norm_{n}": float(np.linalg.norm(states[-1])) for n, states in enumerate(trajectories)},
            "spectral_radius": float(np.abs(np.linalg.eigvals(jacobian.numpy())).max()),
            "distance": float(distances.mean()),
        },
    }
