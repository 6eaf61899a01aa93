"""What storing weights in fewer bits does to a layer that contracts.

Every matrix among a module's parameters is rounded, to float16 or to int8 with one scale a row; vectors (biases,
slopes, steps) stay as they are. The model is then built from the rounded numbers, and computes as before. If a rounded
step differs from the step itself by at most ``delta`` at every state that the rounded model can be in, and the step
contracts by ``rate``, then the two never come further apart than ``delta / (1 - rate)``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix, norm_above
from stablernn.bounds.lure import Sector, largest_state, sector_gain, sector_rate
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.certificates.cascade import Cascade

Format = Literal["float16", "int8"]
_NAMES = ("F", "G", "V", "U", "D", "B")
FORMATS: tuple[Format, ...] = ("float16", "int8")

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def rounded(module: AnyModule, form: Format) -> AnyModule:
    """A copy of a module whose matrices hold the numbers that a shorter format would leave of them.

    Args:
        module: Any module; it is not changed.
        form: ``float16``, or ``int8``: multiples from -127 to 127 of a scale, one for each row of a matrix.
    """
    changed = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in changed.parameters():
            if parameter.dim() > 1:
                parameter.copy_(_rounded(parameter, form))
    return changed


def _rounded(matrix: Tensor, form: Format) -> Tensor:
    if form == "float16":
        return matrix.half().to(matrix.dtype)
    scale = matrix.flatten(1).abs().amax(dim=1).reshape(-1, *[1] * (matrix.dim() - 1)) / 127
    return torch.where(scale > 0, torch.round(matrix / scale.clamp_min(1e-45)) * scale, matrix)


@dataclass(frozen=True)
class StorageBound:
    """How far the outputs of layers and of their rounded copy can come apart, at any time, both begun at the origin.

    Attributes:
        rate: At which the rounded layers contract, in the norm of the layers themselves.
        error: For inputs of zero, in the 2-norm.
        error_per_input: What is added for each unit by which the 2-norm of an input can differ from zero.
    """

    rate: float
    error: float
    error_per_input: float


def storage_bound(cells: Sequence[StableCell], proved: Cascade, form: Format) -> StorageBound | None:
    """The bound for one stack of layers; None where none is proved.

    That is so where a layer or its rounded copy does not contract, where it does so as a largest coordinate only, or
    where its step is not linear but for nonlinearities that are bounded or keep zero.

    Args:
        cells: From the input on.
        proved: What is proved of them, of regular steps.
        form: The format.
    """
    if not proved.is_contracting:
        return None
    # Sizes are affine in the largest 2-norm of an input: what there is without, and what each unit adds.
    given, moved, rate = np.array([0.0, 1.0]), np.zeros(2), 0.0
    errors = np.zeros((len(cells), 2))
    for depth, (cell, bound) in enumerate(zip(cells, proved.bounds, strict=True)):
        short = rounded(cell, form)
        is_finite = all(bool(torch.isfinite(weight).all()) for weight in short.parameters())
        found = _layer(cell, short, bound, given) if is_finite else None
        if found is None:
            return None
        copy_rate, off, given = found
        rate = max(rate, copy_rate)
        errors[depth] = off + bound.gain * moved
        moved = bound.output_gain * errors[depth]
    settled = np.linalg.solve(np.eye(len(cells)) - proved.step, errors)
    constant, slope = (proved.output @ settled + moved) * (1 + 1e-9)
    return StorageBound(rate, float(constant), float(slope)) if np.isfinite([constant, slope]).all() else None


def _layer(cell: StableCell, short: StableCell, bound: StepBound, given: Matrix) -> tuple[float, Matrix, Matrix] | None:
    """The copy's rate, how far one step is off in the layer's norm, and how large the copy's output can be.

    The last two are affine, as the size of the input is: what there is without inputs, and what each unit adds.
    """
    step, other = cell.sector(), short.sector()
    is_plain = bound.covers[:1] == cell.state_names[:1] and not bound.output_input_gain
    if step is None or other is None or bound.norm not in ("l2", "weighted-l2") or not is_plain:
        return None
    if not all(np.isfinite(_matrix(other, name)).all() for name in _NAMES):
        return None
    rate = sector_rate(other, bound.metric)
    changed = {name: _matrix(other, name) - _matrix(step, name) for name in _NAMES}
    is_bounded = math.isfinite(step.reach)
    if not rate < 1 or not is_bounded and (changed["G"].any() or changed["D"].any()):
        return None
    metric = np.eye(len(step.F)) if bound.metric is None else bound.metric
    state = _largest_state(short, other, bound, rate, given)
    neurons = np.array([step.reach * math.sqrt(len(step.V)) if is_bounded else 0.0, 0.0])
    off = norm_above(metric @ changed["F"]) * state
    off = off + norm_above(metric @ changed["G"]) * neurons + norm_above(metric @ changed["B"]) * given
    through = norm_above(changed["V"]) * state
    through = through + norm_above(changed["D"]) * neurons + norm_above(changed["U"]) * given
    # Neurons that read others before them pass on what these are off by.
    spread = np.linalg.inv(np.eye(len(step.V)) - np.abs(_matrix(step, "D")))
    return rate, (off + norm_above(metric @ step.G) * norm_above(spread) * through) * (1 + 1e-9), state


def _matrix(step: Sector, name: str) -> Matrix:
    """One of a step's matrices, zeros where it has none."""
    found: Matrix | None = getattr(step, name)
    if found is not None:
        return found
    return np.zeros_like(step.U, shape=(len(step.V), len(step.V)) if name == "D" else (len(step.F), step.U.shape[1]))


def _largest_state(short: StableCell, step: Sector, bound: StepBound, rate: float, given: Matrix) -> Matrix:
    """At least the 2-norm of every state of the copy that inputs lead to from the origin, affine as they are."""
    radius = largest_state(step, rate, bound.metric)
    if math.isfinite(radius):
        return np.array([radius, 0.0])
    exact = copy.deepcopy(short).float().double()
    with torch.no_grad():
        drive = exact.drive(torch.zeros(1, exact.input_size, dtype=torch.float64))
        reached = exact.step(exact.weights(), exact.initial_state(1), drive)
    pushed = torch.cat([reached[short.state_names.index(name)] for name in bound.covers], dim=-1)[0].numpy()
    metric = np.eye(len(pushed)) if bound.metric is None else bound.metric
    driven = sector_gain(metric @ _matrix(step, "B"), metric @ step.G, step.U, step.D)
    sizes = (np.array([float(np.linalg.norm(metric @ pushed)), 0.0]) + driven * given) / (1 - rate)
    largest: Matrix = norm_above(np.linalg.inv(metric)) * sizes * (1 + 1e-9)
    return largest
