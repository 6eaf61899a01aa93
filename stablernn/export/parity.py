"""Parity checks: the exported graphs must compute what the model computes, and a stream what a sequence computes.

Four evaluations of one recurrence are compared on random raw inputs with gaps: the torch model, the sequence graph, the
step graph called sample by sample, and one padded batch of unequal lengths.

- One step from the same state must agree with torch within ``STEP_TOLERANCE`` of the largest output, or within
  ``ROUNDING_FACTOR`` times the error of torch's own float32 step if that is more: an output that is a small difference
  of large numbers has few right digits in either.
- A whole sequence may differ by that times the amplification of the model: the change of its outputs, in float64, if
  every scaled input changes by one float32 rounding step; or, again, by ``ROUNDING_FACTOR`` times torch's own error.
  Both bounds are capped at ``SEQUENCE_CAP``.
- Stepped and whole-sequence outputs must be equal to the last bit on one CPU thread, from a zero state and from a final
  state, and so must the outputs of a sequence alone and in a padded batch.

A graph with a resampling has no steps: the torch model, the graph on one padded batch, and the same on each sequence
alone are compared.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor

from stablernn.errors import ParityError
from stablernn.export.scan import MAX_ELEMENTS, MAX_ROWS_NAME
from stablernn.export.step import state_names
from stablernn.nn.models import SequenceModel

Arrays = dict[str, np.ndarray]
STEP_TOLERANCE = 1e-5
ROUNDING_FACTOR = 8
SEQUENCE_CAP = 1e-3
"""Largest allowed error of a sequence, and of a step."""
BATCHES = (1, 5)
DEFAULT_LENGTHS = (1, 7, 40)
_COMBINED: dict[str, Callable[[Iterable[Any]], Any]] = {
    "max_abs_error": max,
    "max_rel_error": max,
    "step_rel_error": max,
    "torchscript_rel_error": max,
    "stream_equals_sequence": all,
    "batch_equals_single": all,
}
"""How a report sums up its comparisons."""


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


def open_session(graph: bytes) -> ort.InferenceSession:
    """Return an ONNX Runtime session on one CPU thread, for which bitwise equality is promised."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Otherwise a file with ORTM as bytes 4 to 8 would be read as a flatbuffer.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def check_parity(
    model: SequenceModel,
    step: bytes | None,
    sequence: bytes,
    scripted: Any | None = None,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare the torch model, both graphs and, if given, the TorchScript module on random inputs.

    Args:
        model: The model in evaluation mode, float32, on the CPU.
        step: Serialized ``step.onnx``; None for a model with a resampling, which has no steps and no streams.
        sequence: Serialized ``sequence.onnx``.
        scripted: The TorchScript module; None if there is none.
        lengths: Three or more sequence lengths, in raw samples.
        seed: Seed of the random inputs.

    Returns:
        The report, as JSON types: ``max_abs_error`` and ``max_rel_error`` over whole sequences, ``step_rel_error``,
        ``amplification``, each comparison with its shape, ``stream_equals_sequence``, ``batch_equals_single``.

    Raises:
        ParityError: If any difference exceeds its bound.
    """
    report = measure_parity(model, step, sequence, scripted, lengths=lengths, seed=seed)
    check_bounds(report)
    return report


def measure_parity(
    model: SequenceModel,
    step: bytes | None,
    sequence: bytes,
    scripted: Any | None = None,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the report of :func:`check_parity`, whatever it says."""
    generator = np.random.default_rng(seed)
    graphs = _Graphs(model, None if step is None else open_session(step), open_session(sequence), scripted)
    rows = []
    amplification = 1.0
    for length in lengths:
        for size in BATCHES:
            batch = _Batch(
                draw_inputs(model, generator, size, length),
                draw_lengths(generator, size, length),
                _draw_known_inputs(model, generator, size),
            )
            batch_amplification = measure_amplification(model, *batch, generator)
            amplification = max(amplification, batch_amplification)
            # One long batch is enough.
            is_last = (length, size) == (lengths[-1], BATCHES[-1])
            has_long_batches = is_last and MAX_ROWS_NAME.encode() in sequence
            row = graphs.compare(batch, batch_amplification, has_long_batches=has_long_batches)
            rows.append({"time": length, "batch": size, **row})
    return {
        **{name: combine(row[name] for row in rows) for name, combine in _COMBINED.items() if name in rows[0]},
        "amplification": amplification,
        "longest": max(lengths),
        "compared": rows,
        "conditions": conditions(),
    }


class _Batch(NamedTuple):
    """Padded sequences.

    Attributes:
        inputs: Inputs at every sample by name, each (batch, time, ...). The first sequence is as long as the batch.
        lengths: int64 (batch,).
        known_inputs: Inputs of the emission apart from the state by name, each (batch, ...).
    """

    inputs: Arrays
    lengths: np.ndarray
    known_inputs: Arrays

    def split(self) -> list[_Batch]:
        """Return each sequence alone, without padding."""
        return [
            _Batch(
                {name: value[row : row + 1, :length] for name, value in self.inputs.items()},
                self.lengths[row : row + 1],
                {name: value[row : row + 1] for name, value in self.known_inputs.items()},
            )
            for row, length in enumerate(self.lengths)
        ]

    def repeat(self, count: int) -> _Batch:
        """Return a batch of copies of a single sequence."""
        return _Batch(_repeat(self.inputs, count), np.repeat(self.lengths, count), _repeat(self.known_inputs, count))


@dataclass(frozen=True)
class _Graphs:
    """The exported graphs, to be compared with the model that they were made of.

    Attributes:
        model: The model.
        step: Session of the step graph; None if there is none, and no states.
        sequence: Session of the sequence graph.
        scripted: The TorchScript module; None if there is none.
    """

    model: SequenceModel
    step: ort.InferenceSession | None
    sequence: ort.InferenceSession
    scripted: Any | None

    def run(self, batch: _Batch, states: Arrays | None = None) -> Arrays:
        """Return the outputs of the sequence graph, from a zero state by default."""
        if self.step is None:
            return run_session(self.sequence, {**batch.inputs, "lengths": batch.lengths})
        states = states or _zero_states(self.model, len(batch.lengths))
        return run_session(self.sequence, {**batch.inputs, "lengths": batch.lengths, **states, **batch.known_inputs})

    def stream(self, batch: _Batch, states: Arrays | None = None) -> Arrays:
        """Run the step graph over all steps; outputs have a time axis if the model has outputs at every step."""
        model = self.model
        assert self.step is not None
        states = states or _zero_states(model, len(batch.lengths))
        outputs: Arrays = {}
        step_outputs: dict[str, list[np.ndarray]] = {name: [] for name in model.output_names}
        for sample in _split_steps(model, batch.inputs):
            outputs = run_session(self.step, sample | states | batch.known_inputs)
            states = {name: outputs[f"{name}_out"] for name in states}
            for name, values in step_outputs.items():
                values.append(outputs[name])
        if not model.every_step:
            return outputs
        return outputs | {name: np.stack(values, axis=1) for name, values in step_outputs.items()}

    def compare(self, batch: _Batch, amplification: float, *, has_long_batches: bool) -> dict[str, Any]:
        """Return the errors on a batch, those that are allowed, and whether equal bits were equal.

        Args:
            batch: The batch.
            amplification: Amplification of a rounding error by the model on this batch.
            has_long_batches: Whether to also compare a batch that is computed without products in front of the Scan.
        """
        outputs, singles = self.run(batch), batch.split()
        expected = {name: value for name, value in run_torch(self.model, *batch).items() if name in outputs}
        single_outputs = [self.run(single) for single in singles]
        row: dict[str, Any] = {
            **self._sequence_errors(batch, expected, outputs, amplification),
            "batch_equals_single": all(
                are_equal(_select_sequence(self.model, outputs, number, int(length)), single_outputs[number])
                for number, length in enumerate(batch.lengths)
            ),
        }
        if self.step is not None:
            row |= self._step_errors(batch, self._final_states(outputs))
            row["stream_equals_sequence"] = self._stream_equals_sequence(singles, single_outputs)
        if has_long_batches:
            row["batch_equals_single"] &= self._long_batch_equals_single(singles[0], single_outputs[0])
        if self.scripted is not None:
            row["torchscript_rel_error"] = max_errors(expected, _run_script(self.scripted, self.model, *batch))[1]
        return row

    def _sequence_errors(
        self, batch: _Batch, expected: Arrays, outputs: Arrays, amplification: float
    ) -> dict[str, float]:
        allowed = min(STEP_TOLERANCE * amplification, SEQUENCE_CAP)
        max_abs_error, max_rel_error = max_errors(expected, outputs)
        if not max_rel_error <= allowed:
            allowed = allow_rounding(allowed, measure_rounding(self.model, *batch, expected))
        return {"allowed_rel_error": allowed, "max_abs_error": max_abs_error, "max_rel_error": max_rel_error}

    def _step_errors(self, batch: _Batch, states: Arrays) -> dict[str, float]:
        """Return the relative difference of torch and the step graph after one step from some states."""
        sample, known_inputs = _split_steps(self.model, batch.inputs)[0], batch.known_inputs
        expected = torch_step(self.model, sample, states, known_inputs)
        assert self.step is not None
        outputs = run_session(self.step, sample | states | known_inputs)
        errors = {"step_rel_error": max_errors(expected, outputs)[1]}
        if not errors["step_rel_error"] <= STEP_TOLERANCE:
            rounding = measure_step_rounding(self.model, sample, states, known_inputs)
            errors["allowed_step_rel_error"] = allow_rounding(STEP_TOLERANCE, rounding)
        return errors

    def _stream_equals_sequence(self, sequences: Sequence[_Batch], outputs: Sequence[Arrays]) -> bool:
        """Return whether the step graph gives the bits of the sequence graph, from a zero state and from a final one.

        Args:
            sequences: Single sequences.
            outputs: Outputs of the sequence graph for each, from a zero state.
        """
        last, states = sequences[-1], self._final_states(outputs[-1])
        return all(
            are_equal(self.stream(sequence), result) for sequence, result in zip(sequences, outputs, strict=True)
        ) and are_equal(self.stream(last, states), self.run(last, states))

    def _long_batch_equals_single(self, single: _Batch, outputs: Arrays) -> bool:
        """Return whether a sequence has the same outputs in a batch too long for products in front of the Scan."""
        rows, resampling = MAX_ELEMENTS // self.model.rnn.first.hidden_size + 1, self.model.resampling
        samples = int(single.lengths[0]) if resampling is None else resampling.steps
        count = rows // -(-samples // self.model.patches.stride) + 1
        return are_equal(_repeat(outputs, count), self.run(single.repeat(count)))

    def _final_states(self, outputs: Arrays) -> Arrays:
        return {name: outputs[f"{name}_out"] for name in state_names(self.model)}


def _repeat(values: Arrays, count: int) -> Arrays:
    return {name: np.repeat(value, count, axis=0) for name, value in values.items()}


def conditions() -> dict[str, Any]:
    """Return the versions and the machine that a report is of."""
    return {
        "onnxruntime": ort.__version__,
        "torch": torch.__version__,
        "provider": "CPUExecutionProvider",
        "threads": 1,
        "machine": platform.machine(),
    }


def has_equal_bits(report: Mapping[str, Any]) -> bool:
    """Return whether a stream, a sequence alone and one in a batch gave the same bits."""
    return bool(report.get("stream_equals_sequence", True) and report["batch_equals_single"])


def check_bounds(report: Mapping[str, Any]) -> None:
    """Check a report of :func:`measure_parity`.

    Raises:
        ParityError: If any difference exceeds its bound.
    """
    # Written as "not error <= bound", so that NaN fails too.
    for row in report["compared"]:
        # A graph with a resampling has no steps and no streams.
        step_error, allowed = row.get("step_rel_error", 0.0), row.get("allowed_step_rel_error", STEP_TOLERANCE)
        if not step_error <= allowed:
            raise ParityError(
                f"One step of the exported graph differs from torch by {step_error:.2g} of the largest output, allowed "
                f"is {allowed:.0e}; nothing was exported."
            )
        for key, graph in (("max_rel_error", "ONNX"), ("torchscript_rel_error", "TorchScript")):
            if key in row and not row[key] <= row["allowed_rel_error"]:
                raise ParityError(
                    f"The {graph} graph differs from torch by {row[key]:.2g} of the largest output over {row['time']} "
                    f"steps, allowed is {row['allowed_rel_error']:.2g}; nothing was exported."
                )
    if not report.get("stream_equals_sequence", True):
        raise ParityError(
            "The step graph called sample by sample and the sequence graph are not bitwise equal; nothing was exported."
        )
    if not report["batch_equals_single"]:
        raise ParityError(
            "A sequence alone and in a padded batch are not bitwise equal in the sequence graph; nothing was exported."
        )


def draw_inputs(model: SequenceModel, generator: np.random.Generator, batch: int, length: int) -> Arrays:
    """Draw raw values from the distribution of the training data, 5 % of them missing, and time steps up to ``max_dt``.

    In a batch the first sequence is complete and the second starts with a missing value, because the graphs have
    separate branches for these cases. Tokens are drawn uniformly from the vocabulary.
    """
    if model.input_name == "tokens":
        inputs: Arrays = {"tokens": generator.integers(model.input_size, size=(batch, length))}
    else:
        scores = generator.standard_normal((batch, length, model.input_size))
        gaps = generator.random(scores.shape) < 0.05
        if batch > 1:
            gaps[0], gaps[1, 0] = False, True
        scores[gaps] = np.nan
        inputs = {"x": model.scaling.from_scores(scores, range(model.input_size))}
    if model.max_dt is not None:
        inputs["dt"] = generator.uniform(0, model.max_dt, (batch, length)).astype(np.float32)
    return inputs


def _draw_known_inputs(model: SequenceModel, generator: np.random.Generator, batch: int) -> Arrays:
    """Draw the inputs of the emission apart from the state, 5 % of them missing."""
    known_inputs: Arrays = {}
    for name, shape in model.known_inputs.items():
        scores = generator.standard_normal((batch, *shape))
        scores[generator.random(scores.shape) < 0.05] = np.nan
        known_inputs[name] = model.known_input_from_scores(name, scores)
    return known_inputs


def _split_steps(model: SequenceModel, inputs: Arrays) -> list[Arrays]:
    """Split whole sequences into the inputs of each step: samples, or patches padded with missing values."""
    stride = model.patches.stride
    if model.patches.size == 1:
        steps = range(inputs[model.input_name].shape[1])
        return [{name: value[:, time] for name, value in inputs.items()} for time in steps]
    padding = -inputs["x"].shape[1] % stride
    padded = {
        name: np.pad(
            value,
            [(0, 0), (padding, 0) if model.patches.end_aligned else (0, padding), *[(0, 0)] * (value.ndim - 2)],
            # A padding sample is a missing value with a time step of 1.
            constant_values=np.nan if name == "x" else 1,
        )
        for name, value in inputs.items()
    }
    steps = range(0, padded["x"].shape[1], stride)
    return [{name: value[:, start : start + stride] for name, value in padded.items()} for start in steps]


def draw_lengths(generator: np.random.Generator, batch: int, length: int) -> np.ndarray:
    """Draw the lengths of a batch: the first sequence fills it, the others are padded."""
    lengths = generator.integers(1, length + 1, size=batch)
    lengths[0] = length
    return lengths.astype(np.int64)


def _zero_states(model: SequenceModel, batch: int) -> Arrays:
    sizes = [size for _, size in model.state_roles()]
    return {name: np.zeros((batch, size), np.float32) for name, size in zip(state_names(model), sizes, strict=True)}


def _run_script(
    scripted: Any, model: SequenceModel, inputs: Arrays, lengths: np.ndarray, known_inputs: Arrays
) -> Arrays:
    tensors = [torch.from_numpy(value) for value in inputs.values()]
    known_tensors = [torch.from_numpy(value) for value in known_inputs.values()]
    with torch.no_grad():
        results = scripted(*tensors, torch.from_numpy(lengths), *model.initial_state(len(lengths)), *known_tensors)
    count = len(model.output_names)
    return outputs_by_name(model, dict(zip(model.output_names, results[:count], strict=True)), results[count:])


def run_session(session: ort.InferenceSession, inputs: Arrays) -> Arrays:
    """Return all outputs of a graph by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, cast("list[np.ndarray]", session.run(names, inputs)), strict=True))


def _select_sequence(model: SequenceModel, outputs: Arrays, row: int, length: int) -> Arrays:
    """Return the outputs of one sequence of a batch; outputs at every step are cut to its length."""
    unpadded = {name: value[:, :length] for name, value in outputs.items() if name in model.output_names}
    return {name: value[row : row + 1] for name, value in {**outputs, **(unpadded if model.every_step else {})}.items()}


def allow_rounding(tolerance: float, rounding: float) -> float:
    """Return the allowed error where that of torch itself is ``rounding``."""
    return min(max(tolerance, ROUNDING_FACTOR * rounding), SEQUENCE_CAP)


def are_equal(first: Arrays, second: Arrays) -> bool:
    """Return whether the arrays in ``first`` have the same bits in ``second``."""
    return all(np.array_equal(value, second[name]) for name, value in first.items())
