"""Error bounds of layers that contract, if their weights are stored in fewer bits (weight quantization).

Every matrix among a module's parameters is rounded, to float16 or to int8 with one scale a row; vectors (biases,
slopes, steps) stay as they are. The model is then built from the rounded numbers, and computes as before. If a
quantized step differs from the step itself by at most ``delta`` at every state that the quantized model can be in, and
the step contracts by ``rate``, then the two never come further apart than ``delta / (1 - rate)``.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix, inverse_norm_upper_bound, norm_upper_bound
from stablernn.bounds.lure import LureSystem, largest_state_norm, lure_gain, lure_rate
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.certificates.cascade import Cascade

_PROGRESS = logging.getLogger("stablernn.progress")

Format = Literal["float16", "int8"]
_MATRICES = ("F", "G", "V", "U", "D", "B")
FORMATS: tuple[Format, ...] = ("float16", "int8")

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def quantize(module: AnyModule, form: Format) -> AnyModule:
    """Return a copy of a module whose matrices are rounded to the numbers that a shorter format can hold.

    Args:
        module: Any module; it is not changed.
        form: ``float16``, or ``int8``: multiples from -127 to 127 of a scale, one for each row of a matrix.
    """
    quantized = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in quantized.parameters():
            if parameter.dim() > 1:
                parameter.copy_(_quantize_matrix(parameter, form))
    return quantized


def _quantize_matrix(matrix: Tensor, form: Format) -> Tensor:
    if form == "float16":
        return matrix.half().to(matrix.dtype)
    # One scale for each row, over all further axes.
    scale = matrix.flatten(1).abs().amax(dim=1).reshape(-1, *[1] * (matrix.dim() - 1)) / 127
    return torch.where(scale > 0, torch.round(matrix / scale.clamp_min(1e-45)) * scale, matrix)


@dataclass(frozen=True)
class QuantizationErrorBound:
    """A bound on the difference of the outputs of layers and of their quantized copy, at any time, from the zero state.

    Attributes:
        rate: At which the quantized layers contract, in a norm in which the layers themselves do. The errors can be
            those of another norm.
        error: For inputs of zero, in the 2-norm.
        error_per_input: Added for each unit of the largest 2-norm of an input.
    """

    rate: float
    error: float
    error_per_input: float


def quantization_error_bound(
    cells: Sequence[StableCell],
    proved: Cascade,
    form: Format,
    *,
    is_logged: bool = False,
) -> QuantizationErrorBound | None:
    """Return the bound for one stack of layers; None if none is proved.

    None is proved if a layer or its quantized copy does not contract, if it does so in the infinity norm only, or if
    its step is no Lur'e system with nonlinearities that are bounded or keep zero.

    The norm of the smallest rate can be so stretched that errors are larger in it: of all norms in which the layers
    contract, the one with the smallest errors for inputs of norm 1 is taken.

    Args:
        cells: From the input on.
        proved: What is proved of them, of regular steps.
        form: The format.
        is_logged: Whether to log each norm that is tried to ``stablernn.progress``.
    """
    quantized = [quantize(cell, form) for cell in cells]
    # Large weights are infinite in float16.
    if not all(bool(torch.isfinite(weight).all()) for cell in quantized for weight in cell.parameters()):
        return None
    candidates = (proved, *proved.in_other_norms)
    bounds = []
    for number, stack in enumerate(candidates, start=1):
        # Each may take as long as the proof.
        if is_logged:
            part = f", norm {number} of {len(candidates)}" if len(candidates) > 1 else ""
            _PROGRESS.info("Bounding the error of weights in %s%s ...", form, part)
        bound = _error_bound_in(cells, quantized, stack)
        if bound is not None:
            bounds.append(bound)
    if not bounds:
        return None
    # The errors hold together, for inputs of any size, only as of one norm; the rate says nothing about them.
    best = min(bounds, key=lambda bound: bound.error + bound.error_per_input)
    return replace(best, rate=min(bound.rate for bound in bounds))


def _error_bound_in(
    cells: Sequence[StableCell], quantized: Sequence[StableCell], proved: Cascade
) -> QuantizationErrorBound | None:
    """Return the bound in the norms of one cascade; None if none is proved."""
    if not proved.is_contracting:
        return None
    # Sizes are affine in the largest 2-norm of an input: the size without inputs, and the increase for each unit.
    input_size, output_error, rate = np.array([0.0, 1.0]), np.zeros(2), 0.0
    # (layers, 2)
    errors = np.zeros((len(cells), 2))
    for depth, (cell, copied, bound) in enumerate(zip(cells, quantized, proved.bounds, strict=True)):
        layer_error = _layer_error(cell, copied, bound, input_size)
        if layer_error is None:
            return None
        quantized_rate, step_error, input_size = layer_error
        rate = max(rate, quantized_rate)
        errors[depth] = step_error + bound.gain * output_error
        output_error = bound.output_gain * errors[depth]
    # The errors of all past steps, added up over time: the fixed point of e <- step @ e + errors.
    total_errors = np.linalg.solve(np.eye(len(cells)) - proved.step, errors)
    constant, slope = (proved.output @ total_errors + output_error) * (1 + 1e-9)
    return QuantizationErrorBound(rate, float(constant), float(slope)) if np.isfinite([constant, slope]).all() else None


def _layer_error(
    cell: StableCell, quantized: StableCell, bound: StepBound, input_size: Matrix
) -> tuple[float, Matrix, Matrix] | None:
    """Return the copy's rate, the error of one step in the layer's norm, and the size of the copy's output.

    The last two are affine, as ``input_size`` is: the size without inputs, and the increase for each unit.
    """
    step, quantized_step = cell.lure_system(), quantized.lure_system()
    reads_state_only = bound.covers[:1] == cell.state_names[:1] and not bound.output_input_gain
    if step is None or quantized_step is None or bound.norm not in ("l2", "weighted-l2") or not reads_state_only:
        return None
    if not all(np.isfinite(_matrix(quantized_step, name)).all() for name in _MATRICES):
        return None
    rate = lure_rate(quantized_step, bound.metric, bound.multipliers)
    changes = {name: _matrix(quantized_step, name) - _matrix(step, name) for name in _MATRICES}
    is_bounded = math.isfinite(step.f_max)
    # A change of G or D acts on the neurons, which must be bounded for it to have a bound.
    if not rate < 1 or not is_bounded and (changes["G"].any() or changes["D"].any()):
        return None
    metric = np.eye(len(step.F)) if bound.metric is None else bound.metric
    state_size = _reachable_state_norm(quantized, quantized_step, bound, rate, input_size)
    neurons_size = np.array([step.f_max * math.sqrt(len(step.V)) if is_bounded else 0.0, 0.0])
    # Outside of the nonlinearity, and as its argument.
    outer_error = norm_upper_bound(metric @ changes["F"]) * state_size
    outer_error = outer_error + norm_upper_bound(metric @ changes["G"]) * neurons_size
    outer_error = outer_error + norm_upper_bound(metric @ changes["B"]) * input_size
    inner_error = norm_upper_bound(changes["V"]) * state_size
    inner_error = inner_error + norm_upper_bound(changes["D"]) * neurons_size
    inner_error = inner_error + norm_upper_bound(changes["U"]) * input_size
    # Neurons that read others before them pass on the errors of these.
    propagation = np.linalg.inv(np.eye(len(step.V)) - np.abs(_matrix(step, "D")))
    neuron_gain = norm_upper_bound(metric @ step.G) * norm_upper_bound(propagation)
    return rate, (outer_error + neuron_gain * inner_error) * (1 + 1e-9), state_size


def _matrix(step: LureSystem, name: str) -> Matrix:
    """Return one of a step's matrices, zeros if it has none."""
    matrix: Matrix | None = getattr(step, name)
    if matrix is not None:
        return matrix
    return np.zeros_like(step.U, shape=(len(step.V), len(step.V)) if name == "D" else (len(step.F), step.U.shape[1]))


def _reachable_state_norm(
    quantized: StableCell, step: LureSystem, bound: StepBound, rate: float, input_size: Matrix
) -> Matrix:
    """Return at least the 2-norm of every state of the copy that inputs lead to from the origin, affine as they are."""
    radius = largest_state_norm(step, rate, bound.metric)
    if math.isfinite(radius):
        return np.array([radius, 0.0])
    # Without a ball: the step from the origin without input, and the gain of inputs, over all of time.
    exact = copy.deepcopy(quantized).float().double()
    with torch.no_grad():
        drive = exact.drive(torch.zeros(1, exact.input_size, dtype=torch.float64))
        next_state = exact.step(exact.weights(), exact.initial_state(1), drive)
    tensors = [next_state[quantized.state_names.index(name)] for name in bound.covers]
    offset = torch.cat(tensors, dim=-1)[0].numpy()
    metric = np.eye(len(offset)) if bound.metric is None else bound.metric
    input_gain = lure_gain(replace(step.map, F=metric @ _matrix(step, "B"), G=metric @ step.G, V=step.U))
    sizes = (np.array([float(np.linalg.norm(metric @ offset)), 0.0]) + input_gain * input_size) / (1 - rate)
    largest: Matrix = inverse_norm_upper_bound(metric) * sizes * (1 + 1e-9)
    return largest
