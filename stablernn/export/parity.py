"""Whether the exported graphs compute what the model computes, and a stream what a sequence computes.

Four ways through one recurrence are compared on random raw inputs with gaps: the torch model, the sequence graph, the
step graph fed one sample after the other, and one padded batch of unequal lengths.

- One step from the same state must agree with torch within ``STEP_TOLERANCE`` of the largest output.
- A whole sequence may differ by that times the model's own amplification: how far its outputs move, in float64, when
  every scaled input moves by one float32 rounding step. The product is capped at ``SEQUENCE_CAP``.
- Stepped and whole-sequence outputs must be equal to the last bit on one CPU thread, from zeros and from a state that
  was reached, and so must a sequence alone and the same one in a padded batch.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor

from stablernn.errors import ParityError
from stablernn.export.step import state_names
from stablernn.nn.models import Forecaster, SequenceModel

STEP_TOLERANCE = 1e-5
SEQUENCE_CAP = 1e-3
BATCHES = (1, 5)
DEFAULT_LENGTHS = (1, 7, 40)

Arrays = dict[str, np.ndarray]
Runner = Callable[[Arrays, np.ndarray, Arrays], Arrays]


def session(graph: bytes) -> ort.InferenceSession:
    """An ONNX Runtime session on one CPU thread, the configuration for which equality to the bit is promised."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Else a file whose bytes 4 to 8 are ORTM would be read as a flatbuffer.
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
    """Compare all ways through the model.

    Args:
        model: In evaluation mode, float32, on the CPU.
        step: Serialized ``step.onnx``.
        sequence: Serialized ``sequence.onnx``.
        scripted: The TorchScript module, where one was made.
        lengths: Three or more sequence lengths.
        seed: Of the random inputs.

    Returns:
        The report, as JSON types: ``max_abs_error`` and ``max_rel_error`` over whole sequences, ``step_rel_error``,
        ``amplification``, what was compared at which shapes, ``stream_equals_sequence``, ``batch_equals_single``.

    Raises:
        ParityError: If any comparison is outside its bound.
    """
    generator = np.random.default_rng(seed)
    names = state_names(model)
    step_session, sequence_session = session(step), session(sequence)
    run_sequence = _sequence_runner(sequence_session)
    rows = []
    amplification = 1.0
    for length in lengths:
        for batch in BATCHES:
            inputs = _inputs(model, generator, batch, length)
            valid = _lengths(generator, batch, length)
            known = _known(model, generator, batch)
            expected = _torch_run(model, inputs, valid, known)
            actual = run_sequence(inputs, valid, {**_zeros(model, batch), **known})
            grown = _amplification(model, inputs, valid, known, generator)
            amplification = max(amplification, grown)
            allowed = min(STEP_TOLERANCE * grown, SEQUENCE_CAP)
            row: dict[str, Any] = {"time": length, "batch": batch, "allowed_rel_error": allowed}
            row["max_abs_error"], row["max_rel_error"] = _difference(expected, actual)
            singles = [{name: value[b : b + 1, : valid[b]] for name, value in inputs.items()} for b in range(batch)]
            told = [{name: value[b : b + 1] for name, value in known.items()} for b in range(batch)]
            stepped = [_stream(step_session, model, *both) for both in zip(singles, told, strict=True)]
            alone = [
                run_sequence(single, valid[b : b + 1], {**_zeros(model, 1), **told[b]})
                for b, single in enumerate(singles)
            ]
            first = _samples(model, inputs)[0]
            row["step_rel_error"] = _one_step_error(step_session, model, first, actual, names, known)
            # Once more from where it ended: a state that is given counts, and not only one of zeros.
            reached = {name: alone[-1][f"{name}_out"] for name in names}
            further = run_sequence(singles[-1], valid[-1:], {**reached, **told[-1]})
            stepped.append(_stream(step_session, model, singles[-1], told[-1], reached))
            row["stream_equals_sequence"] = all(map(_equal, stepped, [*alone, further]))
            row["batch_equals_single"] = all(
                _equal(_one_of(model, actual, b, int(valid[b])), alone[b]) for b in range(batch)
            )
            if scripted is not None:
                script_output = _script_run(scripted, model, inputs, valid, known)
                row["torchscript_rel_error"] = _difference(expected, script_output)[1]
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
        "conditions": {
            "onnxruntime": ort.__version__,
            "torch": torch.__version__,
            "provider": "CPUExecutionProvider",
            "threads": 1,
            "machine": platform.machine(),
        },
    }
    if scripted is not None:
        report["torchscript_rel_error"] = max(row["torchscript_rel_error"] for row in rows)
    _judge(report)
    return report


def _judge(report: Mapping[str, Any]) -> None:
    if not report["step_rel_error"] <= STEP_TOLERANCE:
        raise ParityError(
            f"One step of the exported graph differs from torch by {report['step_rel_error']:.2g} of the largest "
            f"output, allowed is {STEP_TOLERANCE:.0e}; nothing was exported."
        )
    for row in report["compared"]:
        for key, graph in (("max_rel_error", "ONNX"), ("torchscript_rel_error", "TorchScript")):
            if key in row and not row[key] <= row["allowed_rel_error"]:
                raise ParityError(
                    f"The {graph} graph differs from torch by {row[key]:.2g} of the largest output over {row['time']} "
                    f"steps, allowed is {row['allowed_rel_error']:.2g}; nothing was exported."
                )
    if not report["stream_equals_sequence"]:
        raise ParityError(
            "The step graph fed sample by sample and the sequence graph differ in some bit; nothing was exported."
        )
    if not report["batch_equals_single"]:
        raise ParityError(
            "A sequence alone and in a padded batch differ in some bit in the sequence graph; nothing was exported."
        )


def _inputs(model: SequenceModel, generator: np.random.Generator, batch: int, length: int) -> Arrays:
    """Raw values as spread as the training data were, one in twenty missing; steps up to the longest there is.

    In a batch the first sequence has none missing and the second begins with such a one: the graphs take other ways
    there. Tokens are drawn evenly from all that there are.
    """
    if model.input_name == "tokens":
        inputs: Arrays = {"tokens": generator.integers(model.input_size, size=(batch, length))}
    else:
        scores = generator.standard_normal((batch, length, model.input_size))
        gaps = generator.random(scores.shape) < 0.05
        if batch > 1:
            gaps[0], gaps[1, 0] = False, True
        scores[gaps] = np.nan
        inputs = {"x": _raw(model, scores, range(model.input_size))}
    if model.max_dt is not None:
        inputs["dt"] = generator.uniform(0, model.max_dt, (batch, length)).astype(np.float32)
    return inputs


def _known(model: SequenceModel, generator: np.random.Generator, batch: int) -> Arrays:
    """What outputs are made from beside the state, one in twenty not known."""
    known: Arrays = {}
    for name, shape in model.known_inputs.items():
        assert isinstance(model, Forecaster)
        scores = generator.standard_normal((batch, *shape))
        scores[generator.random(scores.shape) < 0.05] = np.nan
        if name == "future":
            known[name] = _raw(model, scores, model.future_indices)
        else:
            mean, scale = model.static_mean.numpy(), model.static_scale.numpy()
            known[name] = (mean + scale * scores).astype(np.float32)
    return known


def _raw(model: SequenceModel, scores: np.ndarray, features: Sequence[int]) -> np.ndarray:
    """Standard scores of some features as raw values."""
    mean, scale = (tensor.double().numpy()[list(features)] for tensor in (model.scaling.mean, model.scaling.scale))
    return model.scaling.inverse(torch.from_numpy(mean + scale * scores)).numpy().astype(np.float32)


def _samples(model: SequenceModel, inputs: Arrays) -> list[Arrays]:
    """What each step reads of whole sequences: a sample of each, or a patch that is filled up with missing ones."""
    stride = model.patches.stride
    if model.patches.size == 1:
        steps = range(inputs[model.input_name].shape[1])
        return [{name: value[:, time] for name, value in inputs.items()} for time in steps]
    rest = -inputs["x"].shape[1] % stride
    padded = {
        name: np.pad(
            value,
            [(0, 0), (rest, 0) if model.patches.end_aligned else (0, rest), *[(0, 0)] * (value.ndim - 2)],
            constant_values=np.nan if name == "x" else 1,
        )
        for name, value in inputs.items()
    }
    steps = range(0, padded["x"].shape[1], stride)
    return [{name: value[:, start : start + stride] for name, value in padded.items()} for start in steps]


def _lengths(generator: np.random.Generator, batch: int, length: int) -> np.ndarray:
    lengths = generator.integers(1, length + 1, size=batch)
    lengths[0] = length
    return lengths.astype(np.int64)


def _zeros(model: SequenceModel, batch: int) -> Arrays:
    sizes = [size for _, size in model.state_roles()]
    return {name: np.zeros((batch, size), np.float32) for name, size in zip(state_names(model), sizes, strict=True)}


def _torch_run(model: SequenceModel, inputs: Arrays, lengths: np.ndarray, known: Arrays) -> Arrays:
    dt = torch.from_numpy(inputs["dt"]) if "dt" in inputs else None
    with torch.no_grad():
        x = torch.from_numpy(inputs[model.input_name])
        if model.every_step:
            return _named(model, *model.run(x, torch.from_numpy(lengths), dt=dt))
        told = {name: torch.from_numpy(value) for name, value in known.items()}
        state = model.final_state(x, torch.from_numpy(lengths), dt=dt)
        # The graphs of a recursive head hold one step of it, which is what emit gives.
        outputs = dict(zip(model.output_names, model.emit(state, **told), strict=True))
    return _named(model, outputs, state)


def _script_run(scripted: Any, model: SequenceModel, inputs: Arrays, lengths: np.ndarray, known: Arrays) -> Arrays:
    tensors = [torch.from_numpy(value) for value in inputs.values()]
    told = [torch.from_numpy(value) for value in known.values()]
    with torch.no_grad():
        results = scripted(*tensors, torch.from_numpy(lengths), *model.initial_state(len(lengths)), *told)
    count = len(model.output_names)
    return _named(model, dict(zip(model.output_names, results[:count], strict=True)), results[count:])


def _named(model: SequenceModel, outputs: Mapping[str, Tensor], state: Sequence[Tensor]) -> Arrays:
    after = {f"{name}_out": tensor.numpy() for name, tensor in zip(state_names(model), state, strict=True)}
    return {name: tensor.numpy() for name, tensor in outputs.items()} | after


def _sequence_runner(runtime: ort.InferenceSession) -> Runner:
    return lambda inputs, lengths, state: _run(runtime, {**inputs, "lengths": lengths, **state})


def _run(runtime: ort.InferenceSession, inputs: Arrays) -> Arrays:
    names = [output.name for output in runtime.get_outputs()]
    return dict(zip(names, cast("list[np.ndarray]", runtime.run(names, inputs)), strict=True))


def _stream(
    runtime: ort.InferenceSession, model: SequenceModel, inputs: Arrays, known: Arrays, state: Arrays | None = None
) -> Arrays:
    state = state or _zeros(model, len(inputs[model.input_name]))
    outputs: Arrays = {}
    answers: dict[str, list[np.ndarray]] = {name: [] for name in model.output_names}
    for sample in _samples(model, inputs):
        outputs = _run(runtime, sample | state | known)
        state = {name: outputs[f"{name}_out"] for name in state}
        for name, values in answers.items():
            values.append(outputs[name])
    if not model.every_step:
        return outputs
    return outputs | {name: np.stack(values, axis=1) for name, values in answers.items()}


def _one_of(model: SequenceModel, outputs: Arrays, row: int, length: int) -> Arrays:
    """What a batch gave for one of its sequences, without the padding where every step has an output."""
    cut = {name: value[:, :length] for name, value in outputs.items() if name in model.output_names}
    return {name: value[row : row + 1] for name, value in {**outputs, **(cut if model.every_step else {})}.items()}


def _one_step_error(
    runtime: ort.InferenceSession,
    model: SequenceModel,
    first: Arrays,
    reached: Arrays,
    names: Sequence[str],
    known: Arrays,
) -> float:
    """Torch against the step graph, one step on from the state that the sequences reached."""
    state = {name: reached[f"{name}_out"] for name in names}
    actual = _run(runtime, first | state | known)
    tensors = {"x" if name == "tokens" else name: torch.from_numpy(value) for name, value in first.items()}
    with torch.no_grad():
        following = model.transition(
            model.materialize(), state=tuple(torch.from_numpy(value) for value in state.values()), **tensors
        )
        told = {name: torch.from_numpy(value) for name, value in known.items()}
        emitted = dict(zip(model.output_names, model.emit(following, **told), strict=True))
    return _difference(_named(model, emitted, following), actual)[1]


def _difference(expected: Arrays, actual: Arrays) -> tuple[float, float]:
    """Largest absolute error, and largest error of any tensor as a share of that tensor's largest value."""
    absolute = relative = 0.0
    for name, reference in expected.items():
        error = np.abs(reference.astype(np.float64) - actual[name]).max()
        largest = np.abs(reference).max()
        absolute = max(absolute, float(error)) if np.isfinite(error) else np.inf
        share = float(error / largest) if largest > 0 else float(error)
        relative = max(relative, share) if np.isfinite(share) else np.inf
    return absolute, relative


def _amplification(
    model: SequenceModel, inputs: Arrays, lengths: np.ndarray, known: Arrays, generator: np.random.Generator
) -> float:
    """How many times one rounding step at every scaled input comes out larger, at least 1; measured in float64."""
    precise = copy.deepcopy(model).double()
    unit = 2.0**-23
    if model.input_name == "tokens":
        base = _torch_run(precise, inputs, lengths, {})
        _move_channels(precise, unit, generator)
        return max(1.0, _difference(base, _torch_run(precise, inputs, lengths, {}))[1] / unit)
    x = inputs["x"]
    signs = generator.choice([-1.0, 1.0], size=x.shape)
    # Raw values reach torch and the graphs alike; what rounds differently begins with their distance from the mean.
    values = precise.scaling.transform(torch.from_numpy(x.astype(np.float64)))
    distance = torch.from_numpy(unit * signs) * (values - precise.scaling.mean)
    moved = precise.scaling.inverse(values + distance).numpy()
    told = {name: value.astype(np.float64) for name, value in known.items()}
    base = _torch_run(precise, {**inputs, "x": x.astype(np.float64)}, lengths, told)
    _, relative = _difference(base, _torch_run(precise, {**inputs, "x": moved}, lengths, told))
    return max(1.0, relative / unit)


def _move_channels(model: SequenceModel, step: float, generator: np.random.Generator) -> None:
    """Let what stands for tokens be off by ``step``: tokens themselves cannot be moved."""
    exact = model.scaling.sequence

    def moved(x: Tensor, state: tuple[Tensor, ...], valid: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        channels, state = exact(x, state, valid)
        signs = torch.from_numpy(generator.choice([-1.0, 1.0], size=tuple(channels.shape)))
        return channels + step * signs, state

    model.scaling.sequence = moved  # type: ignore[method-assign]


def _equal(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(value, second[name]) for name, value in first.items())
