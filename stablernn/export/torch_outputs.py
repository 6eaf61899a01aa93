"""Outputs of the torch model, and how far rounding moves them: the yardsticks of parity."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from stablernn.export.step import state_names
from stablernn.nn.models import SequenceModel

Arrays = dict[str, np.ndarray]


def run_torch(model: SequenceModel, inputs: Arrays, lengths: np.ndarray, known_inputs: Arrays) -> Arrays:
    """Return outputs and final states of torch for a padded batch, by name."""
    dt = torch.from_numpy(inputs["dt"]) if "dt" in inputs else None
    with torch.no_grad():
        x = torch.from_numpy(inputs[model.input_name])
        if model.every_step:
            return outputs_by_name(model, *model.run(x, torch.from_numpy(lengths), dt=dt))
        known_tensors = {name: torch.from_numpy(value) for name, value in known_inputs.items()}
        state = model.final_state(x, torch.from_numpy(lengths), dt=dt)
        # The graphs contain one step of a recursive head, which is what emit() returns.
        outputs = dict(zip(model.output_names, model.emit(state, **known_tensors), strict=True))
    return outputs_by_name(model, outputs, state)


def torch_step(model: SequenceModel, sample: Arrays, state: Arrays, known_inputs: Arrays) -> Arrays:
    """Return outputs and states of torch after one step, by name."""
    tensors = {"x" if name == "tokens" else name: torch.from_numpy(value) for name, value in sample.items()}
    with torch.no_grad():
        next_state = model.transition(
            model.materialize(), state=tuple(torch.from_numpy(value) for value in state.values()), **tensors
        )
        known_tensors = {name: torch.from_numpy(value) for name, value in known_inputs.items()}
        outputs = dict(zip(model.output_names, model.emit(next_state, **known_tensors), strict=True))
    return outputs_by_name(model, outputs, next_state)


def outputs_by_name(model: SequenceModel, outputs: Mapping[str, Tensor], state: Sequence[Tensor]) -> Arrays:
    """Return outputs and states as arrays, under the names that they have in exported graphs."""
    state_outputs = {f"{name}_out": tensor.numpy() for name, tensor in zip(state_names(model), state, strict=True)}
    return {name: tensor.numpy() for name, tensor in outputs.items()} | state_outputs


def max_errors(expected: Arrays, actual: Arrays) -> tuple[float, float]:
    """Return the largest absolute error, and the largest error of any tensor as a share of its largest value."""
    absolute = relative = 0.0
    for name, reference in expected.items():
        error = np.abs(reference.astype(np.float64) - actual[name]).max()
        largest = np.abs(reference).max()
        # max() would drop a NaN, so that it becomes an infinite error.
        absolute = max(absolute, float(error)) if np.isfinite(error) else np.inf
        share = float(error / largest) if largest > 0 else float(error)
        relative = max(relative, share) if np.isfinite(share) else np.inf
    return absolute, relative


def measure_amplification(
    model: SequenceModel, inputs: Arrays, lengths: np.ndarray, known_inputs: Arrays, generator: np.random.Generator
) -> float:
    """Return the factor by which a rounding error at every scaled input grows, at least 1; measured in float64."""
    precise = copy.deepcopy(model).double()
    # The rounding step of float32.
    unit = 2.0**-23
    if model.input_name == "tokens":
        expected = run_torch(precise, inputs, lengths, {})
        _perturb_channels(precise, unit, generator)
        return max(1.0, max_errors(expected, run_torch(precise, inputs, lengths, {}))[1] / unit)
    x = inputs["x"]
    signs = generator.choice([-1.0, 1.0], size=x.shape)
    # Torch and the graphs read the same raw values; rounding differs first in their distance from the mean.
    values = precise.scaling.transform(torch.from_numpy(x.astype(np.float64)))
    mean, _ = precise.feature_scaling()
    distance = torch.from_numpy(unit * signs) * (values - mean)
    perturbed = precise.scaling.inverse(values + distance).numpy()
    known_values = {name: value.astype(np.float64) for name, value in known_inputs.items()}
    expected = run_torch(precise, {**inputs, "x": x.astype(np.float64)}, lengths, known_values)
    _, relative = max_errors(expected, run_torch(precise, {**inputs, "x": perturbed}, lengths, known_values))
    return max(1.0, relative / unit)


def _perturb_channels(model: SequenceModel, step: float, generator: np.random.Generator) -> None:
    """Perturb the channels computed from tokens by ``step``, since tokens themselves are integers."""
    exact_sequence = model.scaling.sequence

    def perturbed_sequence(
        x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        channels, state = exact_sequence(x, state, valid)
        signs = torch.from_numpy(generator.choice([-1.0, 1.0], size=tuple(channels.shape)))
        return channels + step * signs, state

    model.scaling.sequence = perturbed_sequence  # type: ignore[method-assign]


def measure_rounding(
    model: SequenceModel, inputs: Arrays, lengths: np.ndarray, known_inputs: Arrays, outputs: Arrays
) -> float:
    """Return the relative error of torch's own float32 outputs of a sequence, against the same in float64."""
    precise = copy.deepcopy(model).double()
    exact = run_torch(precise, _in_float64(inputs), lengths, _in_float64(known_inputs))
    # Some graphs give no states.
    return max_errors({name: exact[name] for name in outputs}, outputs)[1]


def measure_step_rounding(model: SequenceModel, sample: Arrays, state: Arrays, known_inputs: Arrays) -> float:
    """Return the relative error of torch's own step in float32, against the same in float64."""
    arrays = map(_in_float64, (sample, state, known_inputs))
    precise = torch_step(copy.deepcopy(model).double(), *arrays)
    return max_errors(precise, torch_step(model, sample, state, known_inputs))[1]


def _in_float64(arrays: Arrays) -> Arrays:
    """Return arrays in float64, those of whole numbers as they are."""
    return {name: value if value.dtype.kind in "iub" else value.astype(np.float64) for name, value in arrays.items()}
