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
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from stablernn_native.bindings import (
    FAMILIES,
    FLOAT32,
    MIN_THREAD_WORK,
    NONLINEARITIES,
    Embedding,
    Layer,
    Model,
    NativeError,
    Run,
    check,
    current_path,
    load_kernels,
    path_number,
    run_parts,
)
from stablernn_native.description import READOUTS, Context, Description, GraphFile, read_description
from stablernn_runtime.engines.session import Placement, Session, open_session
from stablernn_runtime.graph_safety import check_graph

_STATISTICS = {"mean": 1, "max": 2}
TOLERANCE = 1e-4
"""Largest difference, as a share of the largest number of an output: a hundred times what rounding made of the widest
model tried."""
_BATCH, _STREAM_STEPS = 3, 3
_LEAST_TIME, _LONGEST_TIME = 11, 500
"""Samples of a sequence: enough to fill the window of a scaling, up to what takes a few milliseconds."""
_SPIKE = 30.0
"""Standard score of a spike; larger ones lose digits in the running sums of the sequence graph."""
_DISTANT_MEAN = 100.0
"""Mean of a window, in standard scores, from which the next one is further away than any scaling clips at."""
Array = NDArray[Any]

MAX_BUFFERED_ROWS = 64
"""Streams in a step up to which buffers are kept. They save microseconds, whatever the number of streams."""


class NativeModel:
    """The matrices of a model, packed for a path. Thread-safe.

    Args:
        description: The model.
        path: Name of a path; by default the fastest, or the one that ``STABLERNN_NATIVE_PATH`` names.

    Attributes:
        path: Name of the path.
        state_sizes: Lengths of the states.
        outputs: Answers of a step; 0 without a head.

    Raises:
        NativeError: If this machine does not have the path.
    """

    def __init__(self, description: Description, path: str | None = None) -> None:
        self.path = current_path() if path is None else path
        self.state_sizes = description.state_sizes
        self.outputs = 0 if description.head is None else len(description.head.bias)
        self._description = description
        self._number = path_number(self.path)
        # What the structures point to.
        self._memory: list[Any] = []
        self._structure = self._model()
        self._multiplications = sum(
            layer.recurrent.size * (2 if layer.linear is not None else 1) for layer in description.layers
        )

    def _model(self) -> Model:
        description, head = self._description, self._description.head
        layers = (Layer * len(description.layers))()
        for structure, layer in zip(layers, description.layers, strict=True):
            structure.family = FAMILIES[layer.family]
            structure.nonlinearity = NONLINEARITIES[layer.nonlinearity]
            structure.step_size = layer.step_size
            structure.recurrent = self._pack(layer.recurrent)
            structure.linear = self._pack(layer.linear)
            structure.bias = self._address(layer.bias)
            structure.input = self._pack_affine(layer.input)
            structure.input_bias = self._address(layer.input_bias)
        parts = READOUTS[description.readout]
        model = Model(
            path=self._number,
            dtype=FLOAT32,
            features=description.features,
            samples=description.patch,
            overlap=description.overlap,
            mean=self._address(description.mean),
            scale=self._address(description.scale),
            has_mask=description.mask_channel,
            statistics=sum(_STATISTICS.get(part, 0) for part in parts),
            hidden=description.hidden,
            members=description.members,
            num_layers=len(layers) // description.members,
            layers=layers,
            outputs=self.outputs,
            reads_last="last" in parts,
            every_step=description.every_step,
            temperature=1.0,
        )
        context = description.context
        if context is not None:
            model.window, model.season = context.window, context.season
            model.floor = self._address(context.floor)
            model.scale_floor, model.clip = context.scale_floor, context.clip
        if description.embeddings is not None:
            model.embedding = len(description.embeddings[0][1])
            model.embeddings = (Embedding * description.members)(
                *(Embedding(self._pack_affine(weight), self._address(bias)) for weight, bias in description.embeddings)
            )
        if head is not None:
            model.head = self._pack_affine(head.weight)
            model.head_bias = self._address(head.bias)
            model.output_mean = self._address(head.mean)
            model.output_scale = self._address(head.scale)
            model.temperature = head.temperature
        return model

    def execute(self, run: Run, threads: int) -> None:
        """Run a call, its rows shared out among threads.

        Args:
            run: From :meth:`prepare`.
            threads: Threads at most.

        Raises:
            NativeError: If the kernels refuse it.
            MemoryError: If there is not enough memory.
            RuntimeError: If a thread cannot be started.
        """
        work = run.rows * run.steps * self._multiplications
        count = min(threads, run.rows, max(1, work // MIN_THREAD_WORK))
        kernel = load_kernels().srnn_run_model
        if count <= 1:
            check_run(kernel(ctypes.byref(run)))
            return
        bounds = [run.rows * part // count for part in range(count + 1)]
        parts = [_part(run, start, end) for start, end in zip(bounds, bounds[1:], strict=False)]
        for status in run_parts(lambda part: kernel(ctypes.byref(part)), parts):
            check_run(status)

    def prepare(
        self,
        x: Array,
        states: Sequence[Array],
        answers: Array | None,
        probabilities: Array | None,
        order: Array,
        lengths: Array | None = None,
    ) -> Run:
        """Return a call that refers to arrays, which have to outlive it; all are contiguous.

        Args:
            x: float32, ``(batch, steps, patch, features)``.
            states: float32, ``(batch, size)`` each; the call overwrites them.
            answers: float32, ``(batch, outputs)``, or with a time axis after the batch; None without a head.
            probabilities: Their softmax, written likewise; None if it is not needed.
            order: int64, the numbers of the rows to compute, by falling length.
            lengths: int64, ``(batch,)``, steps of each row; None if all have all.

        Raises:
            ValueError: If an array has another type or shape, or is not contiguous.
        """
        batch, steps = x.shape[:2]
        description = self._description
        answer_shape = (batch, steps, self.outputs) if description.every_step else (batch, self.outputs)
        expected = [
            (x, np.float32, (batch, steps, description.patch, description.features)),
            (order, np.int64, (batch,)),
        ]
        expected += [(state, np.float32, (batch, size)) for state, size in zip(states, self.state_sizes, strict=True)]
        expected += [(array, np.float32, answer_shape) for array in (answers, probabilities) if array is not None]
        expected += [] if lengths is None else [(lengths, np.int64, (batch,))]
        for array, dtype, shape in expected:
            if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
                raise ValueError(
                    f"expected a contiguous array of {dtype.__name__} {shape}, got {array.dtype} {array.shape}."
                )
        if (answers is None) != (self.outputs == 0):
            raise ValueError("A model has answers if it has a head.")
        run = Run(
            model=ctypes.pointer(self._structure),
            steps=steps,
            order=order.ctypes.data,
            rows=batch,
            lengths=None if lengths is None else lengths.ctypes.data,
            x=x.ctypes.data,
            states=(ctypes.c_void_p * len(states))(*(state.ctypes.data for state in states)),
            answers=None if answers is None else answers.ctypes.data,
            probabilities=None if probabilities is None else probabilities.ctypes.data,
        )
        return run

    def _address(self, array: Array | None) -> int | None:
        if array is None:
            return None
        self._memory.append(array)
        return int(array.ctypes.data)

    def _pack(self, matrix: Array | None) -> int | None:
        if matrix is None:
            return None
        lib, hidden, strides = load_kernels(), len(matrix), [stride // matrix.itemsize for stride in matrix.strides]
        packed = np.empty(lib.srnn_packed_size(self._number, FLOAT32, hidden), np.float32)
        check(lib.srnn_pack(self._number, FLOAT32, hidden, matrix.ctypes.data, *strides, packed.ctypes.data))
        return self._address(packed)

    def _pack_affine(self, matrix: Array) -> int | None:
        lib = load_kernels()
        packed = np.empty(lib.srnn_affine_size(self._number, FLOAT32, *matrix.shape), np.float32)
        check(lib.srnn_pack_affine(self._number, FLOAT32, *matrix.shape, matrix.ctypes.data, packed.ctypes.data))
        return self._address(packed)


_NO_MEMORY = 2


def check_run(status: int) -> None:
    """Refuse the status of a run that failed.

    Raises:
        MemoryError: If there was not enough memory.
        NativeError: For any other status but 0.
    """
    if status == _NO_MEMORY:
        raise MemoryError("There is not enough memory for the states of a batch.")
    check(status)


def _part(run: Run, start: int, end: int) -> Run:
    """Return the call for some of its rows."""
    part = Run()
    ctypes.pointer(part)[0] = run
    part.order = run.order + start * ctypes.sizeof(ctypes.c_int64)
    part.rows = end - start
    return part


class Function(Protocol):
    """A function or a session that computes a graph."""

    def run(self, names: Sequence[str], feeds: Mapping[str, Array], /) -> Any:
        """Return outputs by name."""
        ...


def check_parity(
    sequence: tuple[Function, Function],
    step: tuple[Function, Function],
    signature: Mapping[str, Any],
    description: Description,
) -> None:
    """Run sequences of several lengths and steps from several states by both.

    Args:
        sequence: The engine's function over sequences, and the graph.
        step: Those over a step.
        signature: Inputs, outputs and states of the version.
        description: The model.

    Raises:
        ValueError: If an output differs by more than rounding.
    """
    random = np.random.default_rng(0)
    states = {state["input"]: state["output"] for state in signature["states"]}
    feeds = _feeds(signature["sequence"], description, random)
    cases = [feeds]
    if description.context is not None:
        cases.append({**feeds, "x": _unusual_samples(feeds["x"], description)})
    for feeds in cases:
        values = _compare("sequences", sequence, signature["sequence"], feeds)
        # From the states of the sequences on.
        for _ in range(_STREAM_STEPS):
            feeds = {
                **_feeds(signature["step"], description, random),
                **{name: values[output] for name, output in states.items()},
            }
            values = _compare("a step", step, signature["step"], feeds)
    if description.context is not None:
        feeds = _window_feeds(signature, description, description.context, random)
        _compare("a step from a window", step, signature["step"], feeds)


def _unusual_samples(x: Array, description: Description) -> Array:
    """Return sequences with a flat stretch, then a spike, and with values that have no logarithm if those are taken."""
    x = x.copy()
    time = x.shape[1]
    flat, spike = (description.raw_values(np.full(x.shape[2], score)) for score in (0.5, _SPIKE))
    # Within the length of the last sequence, which is half of the first one's.
    x[1:, : time // 4] = flat
    x[::2, time // 3] = spike
    if description.context is not None and description.context.floor is not None:
        x[::2, time // 3 + 1] = 0
        x[0, time // 2] = -1
        x[0, -1] = description.context.floor / 2
    return x


def _window_feeds(
    signature: Mapping[str, Any], description: Description, context: Context, random: np.random.Generator
) -> dict[str, Array]:
    """Return inputs of a step from random and flat windows, in which different numbers of samples count.

    Sequences do not fill a long window; a state can do so at once.
    """
    window, season, patch = context.window, context.season, description.patch
    # After the step exactly a season counts in the first row, if that is possible.
    counts = [max(season - patch, 0), 0, season, season + 1, window, window]
    feeds = _feeds(signature["step"], description, random, batch=len(counts))
    values, count, mean = (feeds[state["input"]] for state in signature["states"][:3])
    values[...] = random.normal(size=values.shape)
    values[-1] = 0.5
    count[...] = np.array(counts)[:, None]
    mean[...] = random.normal(size=mean.shape)
    mean[-2:] = [[-_DISTANT_MEAN], [_DISTANT_MEAN]]
    if context.floor is not None:
        samples = feeds["x"].reshape(len(counts), patch, description.features)
        samples[1::2, -1] = context.floor / 2
    return feeds


def _feeds(
    graph: Mapping[str, Any], description: Description, random: np.random.Generator, *, batch: int = _BATCH
) -> dict[str, Array]:
    """Return random inputs with gaps, padding and states of zeros, the samples in the units of the data."""
    window = 0 if description.context is None else description.context.window
    time = min(max(_LEAST_TIME, window + 2 * description.patch), _LONGEST_TIME)
    sizes = {"batch": batch, "time": time}
    feeds: dict[str, Array] = {}
    for tensor in graph["inputs"]:
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor["shape"]]
        if tensor["name"] == "lengths":
            feeds["lengths"] = np.array([time, 1, time // 2], np.int64)
        elif tensor["name"].startswith("state_"):
            feeds[tensor["name"]] = np.zeros(shape, np.float32)
        else:
            values = random.normal(size=shape).astype(np.float32)
            if tensor["name"] == "x":
                values = description.raw_values(values)
            feeds[tensor["name"]] = np.where(random.uniform(size=shape) < 0.1, np.float32(np.nan), values)
    return feeds


def _compare(
    label: str, pair: tuple[Function, Function], graph: Mapping[str, Any], feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the outputs of the graph, from which those of the engine do not differ."""
    names = [tensor["name"] for tensor in graph["outputs"]]
    actual, expected = (function.run(names, feeds) for function in pair)
    for name, value, reference in zip(names, actual, expected, strict=True):
        sizes = np.abs(reference[np.isfinite(reference)])
        scale = max(float(sizes.max(initial=0)), float(np.finfo(np.float32).tiny))
        difference = _largest_difference(value, reference) if value.shape == reference.shape else np.inf
        # NaN is no agreement.
        if not difference <= TOLERANCE * scale:
            raise ValueError(
                f"the output '{name}' over {label} differs from its graph by {difference / scale:.3g} of the largest "
                f"number; {TOLERANCE:g} is allowed. Use --engine onnx, and report it"
            )
    return dict(zip(names, expected, strict=True))


def _largest_difference(value: Array, reference: Array) -> float:
    # The exponential of a random forecast may be infinite, in both alike.
    differs = value != reference
    with np.errstate(invalid="ignore"):
        return float(np.abs(value[differs] - reference[differs]).max(initial=0))


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
