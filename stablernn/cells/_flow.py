"""ODE solvers with a fixed number of evaluations, for cells whose state follows a vector field between samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

Solver = Literal["euler", "midpoint", "heun", "rk4"]
SOLVERS: tuple[Solver, ...] = ("euler", "midpoint", "heun", "rk4")


def solver_step(solver: Solver, velocity: Callable[[Tensor], Tensor], h: Tensor, length: float | Tensor) -> Tensor:
    """Return the state after one step of ``h' = velocity(h)``.

    Args:
        solver: ``euler``, ``midpoint`` (explicit), ``heun``, or ``rk4`` (the classical Runge-Kutta rule).
        velocity: The vector field.
        h: The state.
        length: Length of the step; a tensor for one length per sample.
    """
    # The names k1 to k4 are those of the Runge-Kutta literature.
    k1 = velocity(h)
    match solver:
        case "euler":
            return h + length * k1
        case "midpoint":
            return h + length * velocity(h + length / 2 * k1)
        case "heun":
            return h + length / 2 * (k1 + velocity(h + length * k1))
        case "rk4":
            k2 = velocity(h + length / 2 * k1)
            k3 = velocity(h + length / 2 * k2)
            k4 = velocity(h + length * k3)
            return h + length / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
