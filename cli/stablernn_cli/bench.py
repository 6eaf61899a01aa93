"""Times of a training step, of inference on whole sequences and of one streamed step, beside the limit and peers.

The rows of a table are timed in turn, and each relative to the limit of the same round. The command ``stablernn bench``
and ``benchmarks/speed.py`` share this module. It imports torch, so that the command imports it when it runs.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

import stablernn as srn
from stablernn.cells import StableCell
from stablernn.engines import list_engines, select_engine
from stablernn.errors import ConfigError
from stablernn.export import model_signature
from stablernn.export.family_description import add_description
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import ModelParts, export_parts, state_names
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.models import SequenceModel
from stablernn_registry import Signature
from stablernn_runtime.engines.plugins import NATIVE, Engine, EngineSession, entry_points
from stablernn_runtime.engines.session import Placement, Session, open_session
from stablernn_runtime.graph import Graph
from stablernn_runtime.run_batch import BatchItem, run_steps
from stablernn_runtime.state_guard import StateGuard

LIMIT = "limit"
"""Name of the row that the others are compared with."""
MIN_ROUNDS = 2
"""Rounds that quartiles need."""

Run = Callable[[], object]
"""Runs a row once; it returns :class:`Times` if it has measured itself, in a process of its own."""
Clock = Literal["cpu_ms", "wall_ms"]


class Times(NamedTuple):
    """Duration of one run of a row, in milliseconds."""

    wall_ms: float
    cpu_ms: float


def measure(
    rows: Mapping[str, Run], rounds: int, *, is_warmed: bool = False, clock: Clock = "cpu_ms"
) -> dict[str, dict[str, float]]:
    """Return the median times of each row in milliseconds, and the median and quartiles of its ratio to the limit.

    All rows are timed in turn, round after round, so that a slow moment of the machine falls on each of them. Where the
    processor can, denormal numbers are flushed to zero.

    Args:
        rows: By name, including :data:`LIMIT`.
        rounds: How often each row is timed, :data:`MIN_ROUNDS` or more.
        is_warmed: Whether each row runs once before it is timed: a run of a millisecond depends on what the row before
            it left in the caches.
        clock: The time that ratios are of.
    """
    was_flushing = is_flushing()
    # Also within `pinned`, since the first session of ONNX Runtime in a process turns it off in its thread.
    torch.set_flush_denormal(True)
    try:
        for run in rows.values():
            run()
        times: dict[str, list[Times]] = {name: [] for name in rows}
        for _ in range(rounds):
            for name, run in rows.items():
                if is_warmed:
                    run()
                times[name].append(_time(run))
    finally:
        torch.set_flush_denormal(was_flushing)
    references = [getattr(value, clock) for value in times[LIMIT]]
    return {name: _figures(values, references, clock) for name, values in times.items()}


def _time(run: Run) -> Times:
    started, started_cpu = time.perf_counter(), time.process_time()
    result = run()
    elapsed = Times(1e3 * (time.perf_counter() - started), 1e3 * (time.process_time() - started_cpu))
    return result if isinstance(result, Times) else elapsed


def _figures(times: list[Times], references: list[float], clock: Clock) -> dict[str, float]:
    ratios = [getattr(value, clock) / reference for value, reference in zip(times, references, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    figures = {
        "cpu_ms": statistics.median(value.cpu_ms for value in times),
        "wall_ms": statistics.median(value.wall_ms for value in times),
        "ratio": statistics.median(ratios),
        "ratio_low": low,
        "ratio_high": high,
    }
    return {name: round(value, 3) for name, value in figures.items()}


@contextmanager
def pinned(threads: int) -> Iterator[bool]:
    """Let torch compute with this many threads and flush denormal numbers to zero; restore both at the end.

    Denormal numbers slow some rows down several times, such as the backward pass of ``nn.LSTM``, and others not at all.

    Yields:
        Whether they are flushed, which not every processor can do.
    """
    threads_before, was_flushing = torch.get_num_threads(), is_flushing()
    torch.set_num_threads(threads)
    try:
        yield torch.set_flush_denormal(True)
    finally:
        torch.set_flush_denormal(was_flushing)
        torch.set_num_threads(threads_before)


def is_flushing() -> bool:
    """Return whether this thread flushes denormal numbers to zero."""
    return not bool(torch.tensor([1e-40], dtype=torch.float32) * torch.ones(1))


def conditions(*, is_flushed: bool) -> dict[str, Any]:
    """Return what measured times depend on, for the tables' readers.

    Args:
        is_flushed: Whether denormal numbers are flushed, as :func:`pinned` yields it.
    """
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "denormals": "flushed" if is_flushed else "not flushed",
    }


# The limit: the matrix products alone. Counted are the products of each step with the state, and for layers above the
# first those with the outputs of the layer below. A cell without a step form counts as one product a step.


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network that reads sequences of one feature, in float32, and of its minibatches.

    Attributes:
        cell: A key of the catalog.
        hidden_size: Units of each layer.
        batch_size: Sequences in a minibatch.
        length: Time steps of each sequence.
        num_layers: Layers.
        members: Networks of an ensemble.
        cell_options: Options of the cell.
    """

    cell: str
    hidden_size: int
    batch_size: int
    length: int
    num_layers: int = 1
    members: int = 1
    cell_options: Mapping[str, Any] = field(default_factory=dict)


class LayerProducts(NamedTuple):
    """Matrix products of a layer.

    Attributes:
        recurrent: Products of a step with the state.
        input_shape: Inputs and outputs of the product with the layer below; None for the first layer, whose input of
            one feature costs nothing.
    """

    recurrent: int
    input_shape: tuple[int, int] | None


def layer_products(sizes: Sizes) -> list[LayerProducts]:
    """Return the products of each layer of a member."""
    rnn = srn.StableRNN(sizes.cell, 1, sizes.hidden_size, sizes.num_layers, **sizes.cell_options)
    products = []
    for depth, cell in enumerate(rnn.cells):
        drive_size = cell.drive(torch.zeros(1, 1, cell.input_size)).shape[-1]
        products.append(LayerProducts(_recurrent_products(cell), (cell.input_size, drive_size) if depth else None))
    return products


def _recurrent_products(cell: StableCell) -> int:
    form = cell.step_form(cell.materialize())
    if form is None:
        return 1
    evaluations = 2 if form.family == "two-stage" else 1
    return evaluations * (1 if form.linear is None else 2)


def training_limit(sizes: Sizes) -> Run:
    """Return the products of a training step.

    They are ``h K^T`` and ``g K`` for each time step, and one for the gradient of ``K``; for the input of an upper
    layer one each for the drive, the gradient of the input and that of the matrix.
    """
    hidden, length, layers = sizes.hidden_size, sizes.length, layer_products(sizes)
    state, matrix = torch.randn(sizes.batch_size, hidden), torch.randn(hidden, hidden)
    states, out, gradient = torch.randn(length * sizes.batch_size, hidden), torch.empty_like(state), matrix.clone()
    inputs = [
        (torch.randn(len(states), size), torch.randn(size, drive_size), torch.randn(len(states), drive_size))
        for size, drive_size in (layer.input_shape for layer in layers if layer.input_shape is not None)
    ]

    def run() -> None:
        for _ in range(sizes.members):
            for layer in layers:
                for _ in range(layer.recurrent):
                    for _ in range(2 * length):
                        torch.mm(state, matrix, out=out)
                    torch.mm(states.t(), states, out=gradient)
            for x, weight, drive in inputs:
                torch.mm(x, weight)
                torch.mm(drive, weight.t())
                torch.mm(x.t(), drive)

    return run


def forward_limit(sizes: Sizes) -> Run:
    """Return the products of the outputs of a batch."""
    hidden, layers = sizes.hidden_size, layer_products(sizes)
    state, matrix = torch.randn(sizes.batch_size, hidden), torch.randn(hidden, hidden)
    out = torch.empty_like(state)
    inputs = [
        (torch.randn(sizes.length * sizes.batch_size, size), torch.randn(size, drive_size))
        for size, drive_size in (layer.input_shape for layer in layers if layer.input_shape is not None)
    ]
    products = sizes.length * sum(layer.recurrent for layer in layers)

    def run() -> None:
        for _ in range(sizes.members):
            for _ in range(products):
                torch.mm(state, matrix, out=out)
            for x, weight in inputs:
                torch.mm(x, weight)

    return run


CLASSES = 10
PeerType = type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]
PEERS: tuple[PeerType, ...] = (nn.LSTM, nn.GRU, nn.RNN)
"""Layers of torch, of as many units, layers and members."""


class EnsembleState(nn.Module):
    """Last state of an ensemble; outputs before the last are not computed, as in a model with the readout ``last``.

    Args:
        sizes: Sizes of the network.
        engine: The engine that runs the steps.
        max_dt: Longest step to be passed as ``dt``.
    """

    def __init__(self, sizes: Sizes, engine: str = "auto", max_dt: float | None = None) -> None:
        super().__init__()
        self.rnn = Ensemble(
            sizes.members,
            sizes.cell,
            1,
            sizes.hidden_size,
            sizes.num_layers,
            engine=engine,
            max_dt=max_dt,
            **sizes.cell_options,
        )
        self.output_size = self.rnn.output_size

    def forward(self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None) -> Tensor:
        _, state = self.rnn.run(x, self.rnn.initial_state(len(x)), lengths, dt, every_output=False)
        return self.rnn.output(state)


class HandWritten(nn.Module):
    """The loop that anyone would write by hand, for cells with a step form."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.rnn = Ensemble(sizes.members, sizes.cell, 1, sizes.hidden_size, sizes.num_layers, **sizes.cell_options)
        self.output_size = self.rnn.output_size
        self.num_layers = sizes.num_layers

    def forward(self, x: Tensor) -> Tensor:
        cells = self.rnn.cells
        outputs: list[Tensor] = []
        for first in range(0, len(cells), self.num_layers):
            sequence, states = x, list[Tensor]()
            for cell in cells[first : first + self.num_layers]:
                if states:
                    sequence = torch.stack(states, dim=1)
                form = cell.step_form(cell.materialize())
                assert form is not None
                (h,) = cell.initial_state(len(x))
                states = []
                # Not `drive[:, step]`, whose backward pass fills a tensor of the whole sequence for each step.
                for drive in cell.drive(sequence).unbind(1):
                    h = form.step(h, drive)
                    states.append(h)
            outputs.append(states[-1])
        return torch.cat(outputs, dim=-1)


class Peer(nn.Module):
    """Last state of a recurrent layer of torch; of several where there are several members."""

    def __init__(self, layer: PeerType, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList([peer_layer(layer, sizes) for _ in range(sizes.members)])
        self.output_size = sizes.members * sizes.hidden_size

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for layer in self.layers:
            _, state = layer(x)
            last = state[0] if isinstance(state, tuple) else state
            outputs.append(last[-1])
        return torch.cat(outputs, dim=-1)


def peer_layer(layer: PeerType, sizes: Sizes) -> nn.LSTM | nn.GRU | nn.RNN:
    """Return a recurrent layer of torch with the same sizes."""
    return layer(input_size=1, hidden_size=sizes.hidden_size, num_layers=sizes.num_layers, batch_first=True)


SHOOTING_STEPS = 2_048
"""Length from which the engine ``shooting`` is timed; it is for long sequences."""


def supported_engines(sizes: Sizes, *, timed: bool = False) -> list[str]:
    """Return the engines that can run a cell on the CPU, sorted; ``timed`` for steps that take ``dt``."""
    cell = EnsembleState(sizes).rnn.cells[0]
    drive = cell.drive(torch.zeros(sizes.batch_size, 1, cell.input_size))
    engines = []
    for name in list_engines():
        if name == "shooting" and sizes.length < SHOOTING_STEPS:
            continue
        try:
            select_engine(name, cell, drive, timed=timed)
        except ConfigError:
            continue
        engines.append(name)
    return engines


def training_step(model: EnsembleState | HandWritten | Peer, x: Tensor, **inputs: Tensor) -> Run:
    """Return a function that trains a network by one minibatch ``x``, ``(batch, time, 1)``.

    Args:
        model: The network.
        x: Its input.
        inputs: Further inputs by name, such as ``lengths``.
    """
    head = nn.Linear(model.output_size, CLASSES)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    labels = torch.randint(0, CLASSES, (len(x),))

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(model(x, **inputs)), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def training_rows(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of a training step: every engine that runs the cell, a loop by hand, layers of torch."""
    x = torch.randn(sizes.batch_size, sizes.length, 1)
    rows: dict[str, Run] = {LIMIT: training_limit(sizes)}
    for engine in supported_engines(sizes):
        rows[f"engine {engine}"] = training_step(EnsembleState(sizes, engine), x)
    if EnsembleState(sizes).rnn.cells[0].has_step_form:
        rows["hand-written loop"] = training_step(HandWritten(sizes), x)
    for peer in PEERS:
        rows[f"nn.{peer.__name__}"] = training_step(Peer(peer, sizes), x)
    return rows


STEPS_PER_RUN = 1000
"""Steps of a stream in one run of a row of :func:`step_rows`, whose milliseconds are thus microseconds of a step."""

Arrays = dict[str, NDArray[np.float32]]


def bench_model(sizes: Sizes) -> SequenceModel:
    """Return an untrained classifier of sequences of one feature, ready to be exported."""
    model = srn.Classifier(
        sizes.cell,
        1,
        CLASSES,
        sizes.hidden_size,
        num_layers=sizes.num_layers,
        members=sizes.members,
        cell_options=sizes.cell_options,
    )
    model.mark_fitted()
    model.eval().requires_grad_(False)
    return model


def zero_states(model: SequenceModel, batch_size: int) -> Arrays:
    """Return the states with which a sequence starts, as inputs of the graphs."""
    return {
        name: state.numpy() for name, state in zip(state_names(model), model.initial_state(batch_size), strict=True)
    }


def graph_run(graph: onnx.ModelProto, feeds: Mapping[str, NDArray[np.generic]], threads: int) -> Run:
    """Return a function that computes the logits of whole sequences with the runtime's settings."""
    session = open_session(graph.SerializeToString(), "sequence.onnx", Placement("cpu"), threads)
    return lambda: session.run(["logits"], feeds)


def open_native(model: SequenceModel, parts: ModelParts, threads: int) -> Engine | None:
    """Open a model with the engine ``native`` of the server; None if it is not installed or does not run the model.

    Args:
        model: From :func:`bench_model`.
        parts: The exported parts of the model.
        threads: Threads of the engine.
    """
    entry_point = entry_points().get(NATIVE)
    if entry_point is None:
        return None
    step = step_graph(parts)
    add_description(step, model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps({"signature": model_signature(model)}))
        (folder / "step.onnx").write_bytes(step.SerializeToString())
        (folder / "sequence.onnx").write_bytes(sequence_graph(parts).SerializeToString())
        try:
            engine: Engine = entry_point.load()(folder, "cpu")
        except ValueError:
            return None
    engine.set_threads(threads)
    return engine


def sequence_rows(sizes: Sizes, threads: int) -> dict[str, Run]:
    """Return the rows of the outputs of a batch of whole sequences.

    Args:
        sizes: Sizes of the model and of its input.
        threads: Threads of each session.
    """
    return sequence_model_rows(sizes, bench_model(sizes), torch.randn(sizes.batch_size, sizes.length, 1), threads)


def sequence_model_rows(sizes: Sizes, model: SequenceModel, x: Tensor, threads: int) -> dict[str, Run]:
    """Return the rows of :func:`sequence_rows` for a model that was built before.

    Args:
        sizes: Sizes of the model.
        model: From :func:`bench_model`.
        x: ``(batch, time, 1)``.
        threads: Threads of each session.
    """
    lstms = [_lstm(sizes) for _ in range(sizes.members)]
    operator = _open_lstm(lstms, threads)
    lstm_feeds = {"x": x.numpy(), **_lstm_states(sizes, len(x))}

    def run_torch() -> None:
        with torch.inference_mode():
            model(x)

    def run_lstm() -> None:
        with torch.inference_mode():
            for lstm in lstms:
                lstm(x)

    feeds, parts = sequence_feeds(model, x), export_parts(model)
    native = open_native(model, parts, threads)
    native_rows = {} if native is None else {"engine native of serve": lambda: native.sequence.run(["logits"], feeds)}
    return {
        LIMIT: forward_limit(sizes),
        "sequence.onnx": graph_run(sequence_graph(parts), feeds, threads),
        **native_rows,
        "engine auto of torch": run_torch,
        "nn.LSTM": run_lstm,
        "ONNX Runtime's LSTM": lambda: operator.run(None, lstm_feeds),
    }


def sequence_feeds(model: SequenceModel, x: Tensor) -> dict[str, NDArray[np.generic]]:
    """Return the inputs of ``sequence.onnx`` for sequences of equal length, ``(batch, time, 1)``."""
    lengths = np.full(len(x), x.shape[1], np.int64)
    return {"x": x.numpy(), "lengths": lengths, **zero_states(model, len(x))}


def step_rows(sizes: Sizes, threads: int) -> dict[str, Run]:
    """Return the rows of :data:`STEPS_PER_RUN` steps of one stream, whose state is carried from step to step.

    Args:
        sizes: Sizes of the model; batch size and length have no effect.
        threads: Threads of each session.
    """
    model = bench_model(sizes)
    parts = export_parts(model)
    lstms = [_lstm(sizes) for _ in range(sizes.members)]
    rows = {
        LIMIT: forward_limit(replace(sizes, batch_size=1, length=STEPS_PER_RUN)),
        **_graph_steps(model, parts, threads),
        **_native_steps(model, parts, threads),
        "torch, step by step": _torch_steps(model),
        "nn.LSTM, step by step": _lstm_steps(lstms),
        "ONNX Runtime's LSTM, step by step": _lstm_operator_steps(sizes, lstms, threads),
    }
    # The limit is of so many steps already.
    return {name: run if name == LIMIT else _repeat(run) for name, run in rows.items()}


def _graph_steps(model: SequenceModel, parts: ModelParts, threads: int) -> dict[str, Run]:
    """Return steps through ``step.onnx``, all of whose outputs are read."""
    content = step_graph(parts).SerializeToString()
    session = open_session(content, "step.onnx", Placement("cpu"), threads)
    names = ("step.onnx, session.run", "step.onnx, bound buffers", "step of a stream in the server's runtime")
    return _session_steps(model, session, names)


def _native_steps(model: SequenceModel, parts: ModelParts, threads: int) -> dict[str, Run]:
    """Return the same steps by the engine ``native``, where it runs the model."""
    engine = open_native(model, parts, threads)
    if engine is None or engine.step is None:
        return {}
    label = "engine native of serve"
    names = (f"{label}, session.run", f"{label}, buffers", f"{label}, a stream in the runtime")
    return _session_steps(model, EngineSession(engine.step, "the engine native"), names)


def _session_steps(model: SequenceModel, session: Session, names_of_rows: tuple[str, str, str]) -> dict[str, Run]:
    """Return steps through a session: by dictionaries, in buffers, and as the server runs them."""
    signature = Signature.model_validate(model_signature(model))
    assert signature.step is not None
    states = tuple(signature.states)
    graph = Graph(signature.step, session, states, StateGuard(None, [state.input for state in states]), "bench:1")
    buffers = graph.take_buffers(1)
    assert buffers is not None
    run_session = graph.session.run
    x, names = np.ones((1, 1), np.float32), [spec.name for spec in signature.step.outputs]
    steps = np.ones((1, 1, 1), np.float32)
    answers = [name for name in names if name not in graph.state_outputs]
    carried = zero_states(model, 1)

    def run_dictionaries() -> None:
        values = dict(zip(names, run_session(names, {"x": x, **carried}), strict=True))
        carried.update({state.input: values[state.output] for state in states})

    def run_buffers() -> Arrays:
        buffers.inputs["x"][...] = x
        graph.run_buffers(buffers, None)
        return {name: value.copy() for name, value in buffers.outputs.items()}

    def run_stream() -> None:
        (result,) = run_steps(graph, [BatchItem({"x": steps, **carried}, 1, 1, answers)], None)
        carried.update(result.states)  # type: ignore[union-attr]

    return dict(zip(names_of_rows, (run_dictionaries, run_buffers, run_stream), strict=True))


def _torch_steps(model: SequenceModel) -> Run:
    weights, x, state = model.materialize(), torch.ones(1, 1), model.initial_state(1)

    def run() -> None:
        nonlocal state
        with torch.inference_mode():
            state = model.transition(weights, x, state)
            model.emit(state)

    return run


def _lstm_steps(lstms: Sequence[nn.LSTM]) -> Run:
    x = torch.ones(1, 1, 1)
    states: list[tuple[Tensor, Tensor] | None] = [None for _ in lstms]

    def run() -> None:
        with torch.inference_mode():
            for number, lstm in enumerate(lstms):
                _, states[number] = lstm(x, states[number])

    return run


def _lstm_operator_steps(sizes: Sizes, lstms: Sequence[nn.LSTM], threads: int) -> Run:
    session = _open_lstm(lstms, threads)
    x, carried = np.ones((1, 1, 1), np.float32), _lstm_states(sizes, 1)
    names = [f"{name}_out" for name in carried]

    def run() -> None:
        carried.update(zip(carried, session.run(names, {"x": x, **carried}), strict=True))

    return run


def _repeat(step: Run) -> Run:
    def run() -> None:
        for _ in range(STEPS_PER_RUN):
            step()

    return run


def _open_lstm(lstms: Sequence[nn.LSTM], threads: int) -> Any:
    """Open ONNX's LSTM with the default settings of ONNX Runtime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return ort.InferenceSession(_lstm_graph(lstms).SerializeToString(), options)


def _lstm(sizes: Sizes) -> nn.LSTM:
    lstm = peer_layer(nn.LSTM, sizes).requires_grad_(False)
    assert isinstance(lstm, nn.LSTM)
    return lstm


def _lstm_states(sizes: Sizes, batch_size: int) -> Arrays:
    """Return the first states of :func:`_lstm_graph`."""
    shape = (1, batch_size, sizes.hidden_size)
    return {
        f"{state}_{member}_{depth}": np.zeros(shape, np.float32)
        for member in range(sizes.members)
        for depth in range(sizes.num_layers)
        for state in "hc"
    }


def _lstm_graph(lstms: Sequence[nn.LSTM]) -> onnx.ModelProto:
    """Return a graph with ONNX's LSTM, with the weights of torch's, which takes and returns the states."""
    nodes = [helper.make_node("Transpose", ["x"], ["time_first"], perm=[1, 0, 2])]
    initializers = []
    values: dict[str, list[str | int | None]] = {}
    for member, lstm in enumerate(lstms):
        sequence = "time_first"
        for depth in range(lstm.num_layers):
            suffix = f"_{member}_{depth}"
            h, c = f"h{suffix}", f"c{suffix}"
            values.update({name: [1, "batch", lstm.hidden_size] for name in (h, c)})
            is_last = depth + 1 == lstm.num_layers
            outputs = ["" if is_last else f"Y{suffix}", f"{h}_out", f"{c}_out"]
            inputs = [sequence, f"W{suffix}", f"R{suffix}", f"B{suffix}", "", h, c]
            nodes.append(helper.make_node("LSTM", inputs, outputs, hidden_size=lstm.hidden_size))
            if not is_last:
                # From (time, 1, batch, hidden).
                sequence, axes = f"squeezed{suffix}", f"axes{suffix}"
                initializers.append(numpy_helper.from_array(np.array([1], np.int64), axes))
                nodes.append(helper.make_node("Squeeze", [outputs[0], axes], [sequence]))
            for name, value in _lstm_weights(lstm, depth).items():
                initializers.append(numpy_helper.from_array(value, f"{name}{suffix}"))
    shapes: dict[str, list[str | int | None]] = {"x": ["batch", "time", 1], **values}
    graph = helper.make_graph(
        nodes,
        "lstm",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(f"{name}_out", onnx.TensorProto.FLOAT, values[name]) for name in values],
        initializers,
    )
    return helper.make_model_gen_version(graph, opset_imports=[helper.make_opsetid("", 20)])


def _lstm_weights(lstm: nn.LSTM, depth: int) -> Arrays:
    """Return the weights of a layer as ONNX's operator names and orders them."""

    def reorder(name: str) -> NDArray[np.float32]:
        # From the gates input, forget, cell, output to input, output, forget, cell.
        i, f, c, o = getattr(lstm, f"{name}_l{depth}").detach().numpy().reshape(4, lstm.hidden_size, -1)
        return np.concatenate([i, o, f, c])[None]

    biases = np.concatenate([reorder("bias_ih"), reorder("bias_hh")], axis=1)[:, :, 0]
    return {"W": reorder("weight_ih"), "R": reorder("weight_hh"), "B": biases}
