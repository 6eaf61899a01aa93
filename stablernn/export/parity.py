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
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import torch

from stablernn.errors import ParityError
from stablernn.export.input_products import MAX_ELEMENTS, MAX_ROWS_NAME
from stablernn.export.step import state_names
from stablernn.export.torch_outputs import (
    Arrays,
    max_errors,
    measure_amplification,
    measure_rounding,
    measure_step_rounding,
    outputs_by_name,
    run_torch,
    torch_step,
)
from stablernn.nn.models import SequenceModel

STEP_TOLERANCE = 1e-5
ROUNDING_FACTOR = 8
SEQUENCE_CAP = 1e-3
"""Largest allowed error of a sequence, and of a step."""
BATCHES = (1, 5)
DEFAULT_LENGTHS = (1, 7, 40)

SequenceRunner = Callable[[Arrays, np.ndarray, Arrays], Arrays]
"""From inputs, lengths, and states with known inputs to outputs, all by name."""


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
    step: bytes,
    sequence: bytes,
    scripted: Any | None = None,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare the torch model, both graphs and, if given, the TorchScript module on random inputs.

    Args:
        model: The model in evaluation mode, float32, on the CPU.
        step: Serialized ``step.onnx``.
        sequence: Serialized ``sequence.onnx``.
        scripted: The TorchScript module; None if there is none.
        lengths: Three or more sequence lengths.
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
    step: bytes,
    sequence: bytes,
    scripted: Any | None = None,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the report of :func:`check_parity`, whatever it says."""
    generator = np.random.default_rng(seed)
    names = state_names(model)
    step_session, sequence_session = open_session(step), open_session(sequence)
    run_sequence = _sequence_runner(sequence_session)
    rows = []
    amplification = 1.0
    for length in lengths:
        for batch in BATCHES:
            inputs = draw_inputs(model, generator, batch, length)
            lengths_of_batch = draw_lengths(generator, batch, length)
            known_inputs = _draw_known_inputs(model, generator, batch)
            expected = run_torch(model, inputs, lengths_of_batch, known_inputs)
            actual = run_sequence(inputs, lengths_of_batch, {**_zero_states(model, batch), **known_inputs})
            batch_amplification = measure_amplification(model, inputs, lengths_of_batch, known_inputs, generator)
            amplification = max(amplification, batch_amplification)
            max_error = min(STEP_TOLERANCE * batch_amplification, SEQUENCE_CAP)
            row: dict[str, Any] = {"time": length, "batch": batch, "allowed_rel_error": max_error}
            row["max_abs_error"], row["max_rel_error"] = max_errors(expected, actual)
            if not row["max_rel_error"] <= max_error:
                rounding = measure_rounding(model, inputs, lengths_of_batch, known_inputs, expected)
                row["allowed_rel_error"] = allow_rounding(max_error, rounding)
            # Each sequence of the batch alone, without padding: (1, lengths_of_batch[b], ...).
            singles = [
                {name: value[b : b + 1, : lengths_of_batch[b]] for name, value in inputs.items()} for b in range(batch)
            ]
            single_known = [{name: value[b : b + 1] for name, value in known_inputs.items()} for b in range(batch)]
            streamed = [_run_stream(step_session, model, *pair) for pair in zip(singles, single_known, strict=True)]
            single_outputs = [
                run_sequence(single, lengths_of_batch[b : b + 1], {**_zero_states(model, 1), **single_known[b]})
                for b, single in enumerate(singles)
            ]
            first_sample = _split_steps(model, inputs)[0]
            final = {name: actual[f"{name}_out"] for name in names}
            row["step_rel_error"] = _step_error(step_session, model, first_sample, final, known_inputs)
            if not row["step_rel_error"] <= STEP_TOLERANCE:
                rounding = measure_step_rounding(model, first_sample, final, known_inputs)
                row["allowed_step_rel_error"] = allow_rounding(STEP_TOLERANCE, rounding)
            # Once more from the final state, since equality must not hold for a zero state only.
            final_states = {name: single_outputs[-1][f"{name}_out"] for name in names}
            continued = run_sequence(singles[-1], lengths_of_batch[-1:], {**final_states, **single_known[-1]})
            streamed.append(_run_stream(step_session, model, singles[-1], single_known[-1], final_states))
            row["stream_equals_sequence"] = all(map(are_equal, streamed, [*single_outputs, continued]))
            row["batch_equals_single"] = all(
                are_equal(_select_sequence(model, actual, b, int(lengths_of_batch[b])), single_outputs[b])
                for b in range(batch)
            )
            # One batch is enough. Its first sequence is complete.
            if (length, batch) == (lengths[-1], BATCHES[-1]) and MAX_ROWS_NAME.encode() in sequence:
                row["batch_equals_single"] &= _long_batch_equals_single(
                    model, run_sequence, singles[0], single_known[0], single_outputs[0]
                )
            if scripted is not None:
                script_output = _run_script(scripted, model, inputs, lengths_of_batch, known_inputs)
                row["torchscript_rel_error"] = max_errors(expected, script_output)[1]
            rows.append(row)
    report = {
        "max_abs_error": max(row["max_abs_error"] for row in rows),
        "max_rel_error": max(row["max_rel_error"] for row in rows),
        "step_rel_error": max(row["step_rel_error"] for row in rows),
        "amplification": amplification,
        "stream_equals_sequence": all(row["stream_equals_sequence"] for row in rows),
        "batch_equals_single": all(row["batch_equals_single"] for row in rows),
        "longest": max(lengths),
        "compared": rows,
        "conditions": conditions(),
    }
    if scripted is not None:
        report["torchscript_rel_error"] = max(row["torchscript_rel_error"] for row in rows)
    return report


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


def _long_batch_equals_single(
    model: SequenceModel, run_sequence: SequenceRunner, inputs: Arrays, known_inputs: Arrays, outputs: Arrays
) -> bool:
    """Return whether a sequence has the same outputs in a batch too long for products in front of the Scan."""
    rows = MAX_ELEMENTS // model.rnn.first.hidden_size + 1
    time = inputs[model.input_name].shape[1]
    batch = rows // -(-time // model.patches.stride) + 1

    def repeat(values: Arrays) -> Arrays:
        return {name: np.repeat(value, batch, axis=0) for name, value in values.items()}

    actual = run_sequence(
        repeat(inputs), np.full(batch, time, np.int64), {**_zero_states(model, batch), **repeat(known_inputs)}
    )
    return are_equal(repeat(outputs), actual)


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


def _sequence_runner(session: ort.InferenceSession) -> SequenceRunner:
    return lambda inputs, lengths, state: run_session(session, {**inputs, "lengths": lengths, **state})


def run_session(session: ort.InferenceSession, inputs: Arrays) -> Arrays:
    """Return all outputs of a graph by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, cast("list[np.ndarray]", session.run(names, inputs)), strict=True))


def _run_stream(
    session: ort.InferenceSession,
    model: SequenceModel,
    inputs: Arrays,
    known_inputs: Arrays,
    state: Arrays | None = None,
) -> Arrays:
    """Run the step graph over all steps; outputs have a time axis if the model has outputs at every step."""
    state = state or _zero_states(model, len(inputs[model.input_name]))
    outputs: Arrays = {}
    step_outputs: dict[str, list[np.ndarray]] = {name: [] for name in model.output_names}
    for sample in _split_steps(model, inputs):
        outputs = run_session(session, sample | state | known_inputs)
        state = {name: outputs[f"{name}_out"] for name in state}
        for name, values in step_outputs.items():
            values.append(outputs[name])
    if not model.every_step:
        return outputs
    return outputs | {name: np.stack(values, axis=1) for name, values in step_outputs.items()}


def _select_sequence(model: SequenceModel, outputs: Arrays, row: int, length: int) -> Arrays:
    """Return the outputs of one sequence of a batch; outputs at every step are cut to its length."""
    unpadded = {name: value[:, :length] for name, value in outputs.items() if name in model.output_names}
    return {name: value[row : row + 1] for name, value in {**outputs, **(unpadded if model.every_step else {})}.items()}


def _step_error(
    session: ort.InferenceSession,
    model: SequenceModel,
    sample: Arrays,
    state: Arrays,
    known_inputs: Arrays,
) -> float:
    """Return the relative difference of torch and the step graph after one step from a state."""
    actual = run_session(session, sample | state | known_inputs)
    return max_errors(torch_step(model, sample, state, known_inputs), actual)[1]


def allow_rounding(tolerance: float, rounding: float) -> float:
    """Return the allowed error where that of torch itself is ``rounding``."""
    return min(max(tolerance, ROUNDING_FACTOR * rounding), SEQUENCE_CAP)


def are_equal(first: Arrays, second: Arrays) -> bool:
    """Return whether the arrays in ``first`` have the same bits in ``second``."""
    return all(np.array_equal(value, second[name]) for name, value in first.items())
