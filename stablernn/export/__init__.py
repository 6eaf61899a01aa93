"""Trained models as files that other runtimes can run."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stablernn._version import __version__
from stablernn.certificates.certificate import prove
from stablernn.errors import ConfigError, near
from stablernn.export import torchscript
from stablernn.export.parity import DEFAULT_LENGTHS, check_parity
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import parts, state_names
from stablernn.export.weights import weights_file
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor
from stablernn.nn.training_calls import warn_of_missing_calls

__all__ = ["FORMATS", "ExportReport", "export"]

FORMATS = ("onnx", "torchscript")
LONGEST = 1000
"""Steps up to which parity is checked: stepping a graph from the host takes its time."""


@dataclass(frozen=True)
class ExportReport:
    """What :func:`export` wrote.

    Attributes:
        files: Name of each file and where it lies.
        signature: Inputs, outputs and states of both graphs, as JSON types.
        parity: The parity report, as JSON types.
        certificate: What is proved of the recurrent layers, as JSON types; ``metrics`` stands in the file only.
    """

    files: Mapping[str, Path]
    signature: Mapping[str, Any]
    parity: Mapping[str, Any]
    certificate: Mapping[str, Any]


def export(
    model: SequenceModel, folder: Path | str, *, formats: Sequence[str] = ("onnx",), steps: int | None = None
) -> ExportReport:
    """Write a model's weights, configuration, graphs, parity report and certificate into a folder.

    ONNX is always written: ``step.onnx`` (one step) and ``sequence.onnx`` (whole sequences). ``torchscript`` adds
    ``model.torchscript``, in a format that torch has deprecated.

    Warns (:class:`stablernn.errors.UntrainedWarning`) where a training loop left out a call that the model depends on,
    such as :meth:`stablernn.nn.models.SequenceModel.fit_scaling`.

    Args:
        model: Any model of :mod:`stablernn.nn.models`, on any device; it is not changed.
        folder: Made if it does not exist.
        formats: ``onnx``, ``torchscript`` or both.
        steps: The length of the sequences that the model is for. Parity is checked at this length too, up to 1,000.

    Raises:
        ConfigError: If a format is not one of ours, or this is not a model.
        ParityError: If a graph's numbers differ from the model's; no file is left.
        ExportError: If the model has an operation that fixes the batch size, or the installed torch has no TorchScript
            any more.

    Example:
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
            raise ConfigError(f"Unknown format '{name}'.{near(name, FORMATS)} It is one of {', '.join(FORMATS)}.")
    warn_of_missing_calls(model, stacklevel=2)
    frozen = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    exported = parts(frozen)
    graphs = {
        "step.onnx": step_graph(exported).SerializeToString(),
        "sequence.onnx": sequence_graph(exported).SerializeToString(),
    }
    scripted = torchscript.script(frozen) if "torchscript" in formats else None
    parity = check_parity(
        frozen, graphs["step.onnx"], graphs["sequence.onnx"], scripted, lengths=parity_lengths(steps or 1)
    )
    certificate = prove(frozen).document()
    signature = model_signature(frozen)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Written aside and moved in when all are there: a disk that fills up leaves nothing half-written.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as name:
        aside = Path(name)
        for file, content in graphs.items():
            (aside / file).write_bytes(content)
        (aside / "weights.safetensors").write_bytes(weights_file(frozen))
        config = {"model": frozen.config(), "signature": signature, "stablernn": __version__}
        _write_json(aside / "config.json", config)
        _write_json(aside / "parity.json", parity)
        _write_json(aside / "certificate.json", certificate)
        if scripted is not None:
            torchscript.save(scripted, aside / "model.torchscript")
        files = {path.name: path.replace(folder / path.name) for path in sorted(aside.iterdir())}
    # The matrices of its norms are long, and for those who check the proof.
    told = {key: value for key, value in certificate.items() if key != "metrics"}
    return ExportReport(files, signature, parity, told)


def parity_lengths(longest: int) -> list[int]:
    """Lengths at which parity is checked for sequences of up to a length."""
    return sorted({*DEFAULT_LENGTHS, min(longest, LONGEST)})


def model_signature(model: SequenceModel) -> dict[str, Any]:
    """Inputs, outputs and states of both graphs; a shape's words are free axes. ``optional`` holds over HTTP."""
    roles = model.state_roles()
    states = [
        {"input": name, "output": f"{name}_out", "shape": ["batch", size], "dtype": "float32", "role": role}
        for name, (role, size) in zip(state_names(model), roles, strict=True)
    ]
    shapes = _output_shapes(model)
    states_out = [_tensor(state["output"], state["shape"]) for state in states]
    outputs = [*(_tensor(name, shape) for name, shape in shapes.items()), *states_out]
    if model.every_step:
        over_time = [_tensor(name, [shape[0], "time", *shape[1:]]) for name, shape in shapes.items()]
        sequence_outputs = [*over_time, *states_out]
    else:
        sequence_outputs = outputs
    state_inputs = [_tensor(state["input"], state["shape"], optional=True) for state in states]
    timed = model.max_dt is not None
    sequence_dt = [_tensor("dt", ["batch", "time"], optional=True)] if timed else []
    sample = list(model.sample_shape)
    step_dt = [_tensor("dt", ["batch", *sample[:-1]], optional=True)] if timed else []
    known = [_tensor(name, ["batch", *shape], optional=True) for name, shape in model.known_inputs.items()]
    signature = {
        "sequence": {
            "inputs": [
                _input(model, ["batch", "time"]),
                *sequence_dt,
                _tensor("lengths", ["batch"], dtype="int64", optional=True),
                *state_inputs,
                *known,
            ],
            "outputs": sequence_outputs,
        },
        "step": {
            "inputs": [_input(model, ["batch", *sample[:-1]]), *step_dt, *state_inputs, *known],
            "outputs": outputs,
        },
        "states": states,
    }
    return signature | ({"max_dt": model.max_dt} if timed else {})


def _input(model: SequenceModel, axes: list[str | int]) -> dict[str, Any]:
    if model.input_name == "tokens":
        return _tensor("tokens", axes, dtype="int64")
    return _tensor("x", [*axes, model.input_size])


def _output_shapes(model: SequenceModel) -> dict[str, list[str | int]]:
    if isinstance(model, Classifier):
        return {name: ["batch", model.num_classes] for name in model.output_names}
    if isinstance(model, SequencePredictor):
        return {name: ["batch", model.num_outputs] for name in model.output_names}
    assert isinstance(model, Forecaster)
    mean: list[str | int] = ["batch", model.steps, len(model.target_indices)]
    return {name: mean if name == "mean" else [*mean, len(model.quantiles)] for name in model.output_names}


def _tensor(name: Any, shape: Any, *, dtype: str = "float32", optional: bool = False) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "optional": optional}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class _CallableModule(ModuleType):
    """This package, callable as :func:`export`, and pickled by its name.

    ``stablernn.export`` is a public function, but the import system binds the name to this package whenever a module
    below it is imported.
    """

    __signature__ = inspect.signature(export)

    def __call__(self, *args: Any, **options: Any) -> ExportReport:
        return export(*args, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _CallableModule
