"""Solvers of a fixed number of evaluations, for cells whose state flows along a vector field between samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

Solver = Literal["euler", "midpoint", "heun", "rk4"]
SOLVERS: tuple[Solver, ...] = ("euler", "midpoint", "heun", "rk4")


def solver_step(solver: Solver, velocity: Callable[[Tensor], Tensor], h: Tensor, length: float | Tensor) -> Tensor:
    """One step of ``h' = velocity(h)``: by Euler, the explicit midpoint, Heun's or the classical Runge-Kutta rule."""
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
