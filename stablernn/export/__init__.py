"""Export of trained models to files that other runtimes can run."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stablernn._version import __version__
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.stored_certificate import certificate_document
from stablernn.errors import ConfigError, did_you_mean
from stablernn.export import torchscript
from stablernn.export.family_description import add_description
from stablernn.export.parity import DEFAULT_LENGTHS, check_bounds, has_equal_bits, measure_parity
from stablernn.export.scan import resampled_sequence_graph, sequence_graph, step_graph
from stablernn.export.step import ModelParts, export_parts, frozen_copy, serialize_weights, state_names
from stablernn.nn.models import SequenceModel, warn_of_missing_calls

__all__ = ["FORMATS", "ExportReport", "export"]

logger = logging.getLogger(__name__)
_PROGRESS = logging.getLogger("stablernn.progress")

FORMATS = ("onnx", "torchscript")
MAX_PARITY_STEPS = 1000
"""Maximum sequence length at which parity is checked: calling the step graph once per step from Python is slow."""


@dataclass(frozen=True)
class ExportReport:
    """The result of :func:`export`.

    Attributes:
        files: Path of each file, by its name.
        signature: Inputs, outputs and states of both graphs, as JSON types.
        parity: The parity report, as JSON types.
        certificate: Proved properties of the recurrent layers, as JSON types; only the file holds ``metrics``.
    """

    files: Mapping[str, Path]
    signature: Mapping[str, Any]
    parity: Mapping[str, Any]
    certificate: Mapping[str, Any]


def export(
    model: SequenceModel,
    folder: Path | str,
    *,
    formats: Sequence[str] = ("onnx",),
    steps: int | None = None,
    inputs_within: float | Sequence[float | Sequence[float]] | InputRange | None = None,
    frequency: str | None = None,
    longest: int | None = None,
) -> ExportReport:
    """Write the weights, configuration, graphs, parity report and certificate of a model into a folder.

    ONNX is always written: ``step.onnx`` (one step) and ``sequence.onnx`` (whole sequences). ``torchscript`` adds
    ``model.torchscript``, in a format that torch has deprecated. A model with ``resample_steps`` needs complete
    sequences: it has no ``step.onnx``, and its signature no step and no states.

    Warns (:class:`stablernn.errors.UntrainedWarning`) if a training loop left out a call that the model depends on,
    such as :meth:`stablernn.nn.models.SequenceModel.fit_scaling`.

    Args:
        model: Any model of :mod:`stablernn.nn.models`, on any device; it is not changed.
        folder: Output folder; created if it does not exist.
        formats: ``onnx``, ``torchscript`` or both; ``onnx`` is written in any case.
        steps: Expected length of the sequences. Parity is checked at this length too, up to 1,000.
        inputs_within: Range of the raw inputs, as of :func:`stablernn.certify`, for which a second certificate is
            stored; servers count samples outside. None for none.
        frequency: Frequency alias of the series, such as ``h``, in whose unit the certificate states times in words;
            None to state them in samples.
        longest: Samples of the longest training sequence: errors that are forgotten later count as never forgotten in
            words. None if it is not known.

    Raises:
        ConfigError: If a format is unknown or cannot hold the model, ``model`` is not a model, or the range does not
            fit it.
        ParityError: If the outputs of a graph differ from those of the model; no file is left behind.
        ExportError: If the model has an operation that fixes the batch size, or the installed torch no longer has
            TorchScript.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export(Classifier("lipschitz", input_size=1, num_classes=2, hidden_size=4), folder)
        >>> sorted(report.files)
        ['certificate.json', 'config.json', 'parity.json', 'sequence.onnx', 'step.onnx', 'weights.safetensors']
    """
    if not isinstance(model, SequenceModel):
        raise ConfigError(
            f"export takes a Classifier, a Forecaster or a SequencePredictor, got {type(model).__name__}; "
            "put the layer into one of them."
        )
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(
                f"Unknown format '{name}'.{did_you_mean(name, FORMATS)} It is one of {', '.join(FORMATS)}."
            )
    if "torchscript" in formats and model.resampling is not None:
        raise ConfigError(
            "TorchScript is not written of a model with resample_steps; export it to onnx alone, whose sequence.onnx "
            "takes raw sequences and their lengths."
        )
    warn_of_missing_calls(model, stacklevel=2)
    if inputs_within is not None and not isinstance(inputs_within, InputRange):
        inputs_within = InputRange.of(inputs_within)
    _PROGRESS.info("Writing the graphs ...")
    frozen = frozen_copy(model)
    parts = export_parts(frozen)
    scripted = torchscript.script(frozen) if "torchscript" in formats else None
    graphs, parity = _build_graphs(frozen, parts, scripted, parity_lengths(steps or 1))
    certificate = certificate_document(frozen, inputs=inputs_within, frequency=frequency, longest=longest)
    signature = model_signature(frozen)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Written to a temporary folder and moved when complete: a disk that fills up leaves no partial export behind.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as name:
        staging = Path(name)
        for file, content in graphs.items():
            (staging / file).write_bytes(content)
        (staging / "weights.safetensors").write_bytes(serialize_weights(frozen))
        config = {"model": frozen.config(), "signature": signature, "stablernn": __version__}
        _write_json(staging / "config.json", config)
        _write_json(staging / "parity.json", parity)
        _write_json(staging / "certificate.json", certificate)
        if scripted is not None:
            torchscript.save(scripted, staging / "model.torchscript")
        files = {path.name: path.replace(folder / path.name) for path in sorted(staging.iterdir())}
    # The matrices of the norms are large and only needed to check the proof.
    summary = {key: value for key, value in certificate.items() if key != "metrics"}
    return ExportReport(files, signature, parity, summary)


def _build_graphs(
    model: SequenceModel, parts: ModelParts, scripted: Any | None, lengths: Sequence[int]
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the graphs by file name, and their parity report.

    Raises:
        ParityError: If the outputs of a graph differ from those of the model.
    """
    step = None
    if model.resampling is None:
        step_model = step_graph(parts)
        add_description(step_model, model)
        step = step_model.SerializeToString()
    for is_reduced in (True, False):
        if model.resampling is None:
            sequence = sequence_graph(parts, is_reduced=is_reduced).SerializeToString()
        else:
            sequence = resampled_sequence_graph(model, parts, is_reduced=is_reduced).SerializeToString()
        _PROGRESS.info("Comparing the graphs with torch, over up to %s steps ...", format(max(lengths), ","))
        report = measure_parity(model, step, sequence, scripted, lengths=lengths)
        report["reduced_scan"] = is_reduced
        if has_equal_bits(report):
            break
        if is_reduced:
            logger.warning(
                "The Scan of sequence.onnx keeps all nodes of a step, because one with fewer nodes does not give the "
                "bits of a stream, or of a batch, on this machine."
            )
    check_bounds(report)
    return {**({} if step is None else {"step.onnx": step}), "sequence.onnx": sequence}, report


def parity_lengths(longest: int) -> list[int]:
    """Return the sequence lengths at which parity is checked for sequences of at most ``longest`` steps."""
    return sorted({*DEFAULT_LENGTHS, min(longest, MAX_PARITY_STEPS)})


def model_signature(model: SequenceModel) -> dict[str, Any]:
    """Return the inputs, outputs and states of both graphs as JSON types.

    A string in a shape names a dynamic axis. ``optional`` inputs may be left out over HTTP, not in the graphs.
    """
    if model.resampling is not None:
        return _resampled_signature(model, model.resampling.steps)
    roles = model.state_roles()
    states = [
        {"input": name, "output": f"{name}_out", "shape": ["batch", size], "dtype": "float32", "role": role}
        for name, (role, size) in zip(state_names(model), roles, strict=True)
    ]
    state_outputs = [_tensor(state["output"], state["shape"]) for state in states]
    shapes = model.output_shapes
    outputs = [*(_tensor(name, ["batch", *shape]) for name, shape in shapes.items()), *state_outputs]
    if model.every_step:
        # The final states have no time axis: only the last one is returned.
        time_outputs = [_tensor(name, ["batch", "time", *shape]) for name, shape in shapes.items()]
        sequence_outputs = [*time_outputs, *state_outputs]
    else:
        sequence_outputs = outputs
    state_inputs = [_tensor(state["input"], state["shape"], optional=True) for state in states]
    takes_dt = model.max_dt is not None
    sequence_dt = [_tensor("dt", ["batch", "time"], optional=True)] if takes_dt else []
    # (input_size,), or (patch_stride, input_size) where a step takes a patch of samples.
    sample = list(model.sample_shape)
    step_dt = [_tensor("dt", ["batch", *sample[:-1]], optional=True)] if takes_dt else []
    known_inputs = [_tensor(name, ["batch", *shape], optional=True) for name, shape in model.known_inputs.items()]
    signature = {
        "sequence": {
            "inputs": [
                _input(model, ["batch", "time"]),
                *sequence_dt,
                _tensor("lengths", ["batch"], dtype="int64", optional=True),
                *state_inputs,
                *known_inputs,
            ],
            "outputs": sequence_outputs,
        },
        "step": {
            "inputs": [_input(model, ["batch", *sample[:-1]]), *step_dt, *state_inputs, *known_inputs],
            "outputs": outputs,
        },
        "states": states,
    }
    return signature | ({"max_dt": model.max_dt} if takes_dt else {})


def _resampled_signature(model: SequenceModel, steps: int) -> dict[str, Any]:
    """Return the signature of a model of complete sequences: no step, and no states to go on from."""
    inputs = [_input(model, ["batch", "time"]), _tensor("lengths", ["batch"], dtype="int64", optional=True)]
    outputs = [_tensor(name, ["batch", *shape]) for name, shape in model.output_shapes.items()]
    return {
        "sequence": {"inputs": inputs, "outputs": outputs},
        "step": None,
        "states": [],
        "resample_steps": steps,
    }


def _input(model: SequenceModel, axes: list[str | int]) -> dict[str, Any]:
    if model.input_name == "tokens":
        return _tensor("tokens", axes, dtype="int64")
    return _tensor("x", [*axes, model.input_size])


def _tensor(name: Any, shape: Any, *, dtype: str = "float32", optional: bool = False) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "optional": optional}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class _CallableModule(ModuleType):
    """A module type whose instances can be called as :func:`export` and are pickled by name.

    ``stablernn.export`` is a public function, but the import system binds the name to this package whenever a module
    below it is imported.
    """

    __signature__ = inspect.signature(export)

    def __call__(self, *args: Any, **options: Any) -> ExportReport:
        return export(*args, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _CallableModule
