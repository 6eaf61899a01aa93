"""The server engine ``native``: runs a version by compiled kernels, without torch.

It is found by name in the entry-point group ``stablernn.engines``. The kernels compute everything from the samples to
the states of the layers, and a linear head. Another head is the part of ``step.onnx`` behind the states, which ONNX
Runtime runs. Loading compares sequences and steps with the graphs of the version.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stablernn_native.bindings import NativeError, current_path, load_kernels
from stablernn_native.description import Description, read_description
from stablernn_native.graph_file import GraphFile
from stablernn_native.model import NativeModel, check_run
from stablernn_native.parity import check_parity
from stablernn_runtime.engines.session import Placement, Session, open_session
from stablernn_runtime.graph_safety import check_graph

Array = NDArray[Any]

MAX_BUFFERED_ROWS = 64
"""Streams in a step up to which buffers are kept. They save microseconds, whatever the number of streams."""


class Outputs:
    """The outputs of a model: its answers, by the kernels or by ONNX Runtime, and its states.

    Args:
        file: ``step.onnx``.
        signature: Inputs, outputs and states of the version.
        description: The model.

    Attributes:
        names: Names of the answers.
        states: Names of the states as outputs.
        state_inputs: Names of the states as inputs.
        known_inputs: Names of the inputs that only the answers read, such as ``static``, with their shapes.
        session: Computes the answers from the states; None if the kernels do.

    Raises:
        ValueError: If the signature has answers that the head does not give.
    """

    def __init__(self, file: GraphFile, signature: Mapping[str, Any], description: Description) -> None:
        step = signature["step"]
        self.states = [state["output"] for state in signature["states"]]
        self.state_inputs = [state["input"] for state in signature["states"]]
        self.names = [tensor["name"] for tensor in step["outputs"] if tensor["name"] not in self.states]
        read = {"x", *self.state_inputs}
        self.known_inputs = {
            tensor["name"]: tensor["shape"][1:] for tensor in step["inputs"] if tensor["name"] not in read
        }
        self.session: Session | None = None
        if description.head is None:
            content = file.extract_model([*self.states, *self.known_inputs], self.names)
            session = open_session(content, "its head", Placement("cpu"), 1)
            self._inputs = [tensor.name for tensor in session.get_inputs()]
            self.session = session
        elif self.known_inputs or self.names not in (["logits", "probabilities"], ["logits"], ["mean"]):
            raise ValueError("its head has other inputs or outputs than it describes. Export it again")

    def compute(self, names: Sequence[str], values: Mapping[str, Array]) -> dict[str, Array]:
        """Return the answers among some outputs, by ONNX Runtime.

        Args:
            names: Names of outputs.
            values: States as outputs and known inputs, by name.
        """
        assert self.session is not None
        wanted = [name for name in self.names if name in names]
        if not wanted:
            return {}
        return dict(zip(wanted, self.session.run(wanted, {name: values[name] for name in self._inputs}), strict=True))


class _ModelGraph:
    """A function of a model. Thread-safe.

    Args:
        model: The packed matrices.
        description: The model as its file describes it.
        outputs: Its outputs.

    Attributes:
        threads: Threads of a run.
    """

    def __init__(self, model: NativeModel, description: Description, outputs: Outputs) -> None:
        self.threads = 1
        self._model = model
        self._description = description
        self._outputs = outputs


class SequenceGraph(_ModelGraph):
    """The function of ``sequence.onnx``."""

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return some outputs of whole sequences.

        Args:
            names: Names of the outputs.
            feeds: Every input of the graph, in its dtype and shape.

        Raises:
            MemoryError: If there is not enough memory.
            ValueError: If an input has another shape.
        """
        x, lengths = self._patches(feeds["x"], feeds["lengths"])
        batch, steps = x.shape[:2]
        # Copies, which the call overwrites.
        states = [np.array(feeds[name], np.float32, order="C") for name in self._outputs.state_inputs]
        values = dict(zip(self._outputs.states, states, strict=True))
        answers: list[Array] = []
        if self._model.outputs:
            time = (steps,) if self._description.every_step else ()
            answers = [np.empty((batch, *time, self._model.outputs), np.float32) for _ in self._outputs.names]
            values.update(zip(self._outputs.names, answers, strict=True))
        # Rows of like length share a block, in which a short one leaves nothing to be computed.
        order = np.arange(batch) if lengths is None else np.argsort(-lengths, kind="stable")
        first, second = [*answers, None, None][:2]
        self._model.execute(self._model.prepare(x, states, first, second, order, lengths), self.threads)
        if self._outputs.session is not None:
            values |= self._outputs.compute(names, {**feeds, **values})
        return [values[name] for name in names]

    def _patches(self, x: Array, lengths: Array) -> tuple[Array, Array | None]:
        """Return the samples of each step, ``(batch, steps, patch, features)``, and the steps of each sequence.

        The steps are None if no sequence has padding.
        """
        patch = self._description.patch
        batch, time, features = x.shape
        steps = -(-time // patch)
        is_padded = min(lengths.tolist()) < time
        lengths = np.clip(lengths, 0, time) if is_padded else lengths
        if patch > 1 and (time % patch or is_padded):
            lengths = np.minimum(lengths, time)
            shift = -lengths % patch if self._description.end_aligned else np.zeros_like(lengths)
            source = np.arange(steps * patch) - shift[:, None]
            is_sample = (source >= 0) & (source < lengths[:, None])
            gathered = np.take_along_axis(x, np.clip(source, 0, time - 1)[:, :, None], axis=1)
            # What a patch lacks is missing.
            x = np.where(is_sample[:, :, None], gathered, np.float32(np.nan))
        samples = np.ascontiguousarray(x, np.float32).reshape(batch, steps, patch, features)
        return samples, -(-lengths // patch) if is_padded else None


class StepBuffers:
    """Fixed memory of a step of some streams, for one thread at a time.

    Args:
        model: The packed matrices.
        description: The model as its file describes it.
        outputs: Its outputs.
        rows: Number of streams.

    Attributes:
        inputs: Arrays of the inputs apart from the states, by name, to be filled before a run.
        states: Arrays of the states, by the name of their input, which a run reads and overwrites.
        outputs: Arrays of the answers, by name, which a run overwrites.
    """

    def __init__(self, model: NativeModel, description: Description, outputs: Outputs, rows: int) -> None:
        self._model = model
        self._outputs = outputs
        shape = [1, description.patch, description.features]
        samples = np.zeros((rows, *shape), np.float32)
        self.inputs = {"x": samples.reshape(rows, *shape[2 if description.patch == 1 else 1 :])}
        for name, size in outputs.known_inputs.items():
            self.inputs[name] = np.zeros((rows, *size), np.float32)
        # All outputs of one stream are copied at once.
        widths = [*model.state_sizes, *(model.outputs for _ in outputs.names if model.outputs)]
        bounds = np.cumsum([0, *widths]).tolist()
        self._memory = np.zeros((rows, bounds[-1]), np.float32)
        self._slices = {
            name: np.s_[:, start:end]
            for name, start, end in zip([*outputs.states, *outputs.names], bounds, bounds[1:], strict=False)
        }
        flat = self._memory.reshape(-1)
        arrays = [
            flat[rows * start : rows * end].reshape(rows, -1) for start, end in zip(bounds, bounds[1:], strict=False)
        ]
        states, answers = arrays[: len(outputs.states)], arrays[len(outputs.states) :]
        self.states = dict(zip(outputs.state_inputs, states, strict=True))
        self.outputs = dict(zip(outputs.names, answers, strict=False))
        self._values = dict(zip([*outputs.states, *outputs.names], arrays, strict=False))
        if description.every_step:
            answers = [array[:, None] for array in answers]
        self._order = np.arange(rows)
        first, second = [*answers, None, None][:2]
        self._run = model.prepare(samples, states, first, second, self._order)
        self._reference = ctypes.byref(self._run)
        self._kernel = load_kernels().srnn_run_model
        self._is_single = rows == 1 and outputs.session is None
        self._fed = tuple({**self.inputs, **self.states}.items())

    def run(self, threads: int = 1) -> None:
        """Run one step.

        Raises:
            MemoryError: If there is not enough memory.
        """
        if threads > 1:
            self._model.execute(self._run, threads)
        elif status := self._kernel(self._reference):
            check_run(status)
        if self._outputs.session is not None:
            self.outputs = self._outputs.compute(self._outputs.names, {**self.inputs, **self._values})

    def run_feeds(self, names: Sequence[str], feeds: Mapping[str, Array], threads: int) -> list[Array]:
        """Run one step from the inputs of the graph, and return some of its outputs, which later runs leave alone."""
        for name, array in self._fed:
            array[...] = feeds[name]
        self.run(threads)
        if self._is_single:
            memory, slices = self._memory.copy(), self._slices
            return [memory[slices[name]] for name in names]
        # ONNX Runtime makes arrays of its own.
        answers = self.outputs if self._outputs.session is not None else {}
        return [answers[name] if name in answers else self._values[name].copy() for name in names]


class StepGraph(_ModelGraph):
    """The function of ``step.onnx``."""

    def __init__(self, model: NativeModel, description: Description, outputs: Outputs) -> None:
        super().__init__(model, description, outputs)
        # By the number of streams, the buffers that no run is using; appending to a deque and taking from it are
        # atomic.
        self._free: defaultdict[int, deque[StepBuffers]] = defaultdict(deque)

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return some outputs after one step.

        Args:
            names: Names of the outputs.
            feeds: Every input of the graph, in its dtype and shape.

        Raises:
            MemoryError: If there is not enough memory.
            ValueError: If an input has another shape.
        """
        rows = len(feeds["x"])
        free = self._free[rows] if rows <= MAX_BUFFERED_ROWS else deque[StepBuffers]()
        try:
            buffers = free.pop()
        except IndexError:
            buffers = self.create_buffers(rows)
        results = buffers.run_feeds(names, feeds, self.threads if rows > MAX_BUFFERED_ROWS else 1)
        free.append(buffers)
        return results

    def create_buffers(self, rows: int) -> StepBuffers:
        """Return fixed memory for steps of ``rows`` streams, which saves copies from step to step."""
        return StepBuffers(self._model, self._description, self._outputs, rows)


class NativeServerEngine:
    """Whole sequences and single steps of one model, by the kernels.

    Args:
        step: The bytes of ``step.onnx``, which describe the model.
        signature: Inputs, outputs and states of the version.

    Attributes:
        version: Name and version of the engine, and the path of the kernels.
        device: ``"cpu"``.
        device_note: Reason for the device if ``auto`` was requested; else empty.
        signature: As the argument.
        description: The model.
        sequence: The function of ``sequence.onnx``.
        step: The function of ``step.onnx``.

    Raises:
        ValueError: If the model is one that the engine does not run; the message says why.
    """

    device: Literal["cpu"] = "cpu"

    def __init__(self, step: bytes, signature: Mapping[str, Any]) -> None:
        file = GraphFile(step)
        self.description = description = read_description(file)
        model = NativeModel(description)
        expected = [(["batch", size], "float32") for size in model.state_sizes]
        if [(state["shape"], state["dtype"]) for state in signature["states"]] != expected:
            raise ValueError("its states are not those of the layers that it describes. Export it again")
        outputs = Outputs(file, signature, description)
        self.version = f"stablernn-native {importlib.metadata.version('stablernn-native')}, path {model.path}"
        self.device_note = ""
        self.signature = signature
        self.sequence = SequenceGraph(model, description, outputs)
        self.step = StepGraph(model, description, outputs)

    def set_threads(self, count: int) -> None:
        """Set the number of threads of one run."""
        self.sequence.threads = self.step.threads = count


def native_engine(folder: Path, device: Literal["auto", "cpu", "cuda"]) -> NativeServerEngine:
    """Build the engine from the files of a version; this factory is registered as ``native``.

    Args:
        folder: Folder with ``config.json``, ``step.onnx`` and ``sequence.onnx``, which are read now and not later.
        device: ``cpu`` or ``auto``; the kernels run on nothing else.

    Raises:
        ImportError: If the kernels cannot be loaded.
        RuntimeError: If the device is ``cuda``.
        ValueError: If the engine does not run the model, or differs from its graphs; the message says why.
        OSError: If a file cannot be read.
    """
    if device == "cuda":
        raise RuntimeError("The engine 'native' runs on the CPU. Use --device cpu or auto, or another engine.")
    try:
        load_kernels()
    except NativeError as error:
        raise ImportError(str(error)) from error
    try:
        current_path()
    except NativeError as error:
        raise ValueError(str(error)) from error
    signature = json.loads((folder / "config.json").read_bytes())["signature"]
    graphs = {name: (folder / name).read_bytes() for name in ("step.onnx", "sequence.onnx")}
    for name, content in graphs.items():
        check_graph(content, f"its {name}")
    engine = NativeServerEngine(graphs["step.onnx"], signature)
    step, sequence = (open_session(content, f"its {name}", Placement("cpu"), 1) for name, content in graphs.items())
    check_parity((engine.sequence, sequence), (engine.step, step), signature, engine.description)
    if device == "auto":
        engine.device_note = "auto: CPU, because the engine 'native' runs on nothing else"
    return engine
