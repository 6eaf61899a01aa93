"""Rows of inference: whole sequences through ``sequence.onnx``, and steps of one stream through ``step.onnx``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

import stablernn as srn
from stablernn.export import model_signature
from stablernn.export.family_description import add_description
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import ModelParts, export_parts, state_names
from stablernn.nn.models import SequenceModel
from stablernn_cli.bench.limit import Sizes, forward_limit
from stablernn_cli.bench.timing import LIMIT, Run
from stablernn_cli.bench.training import CLASSES, peer_layer
from stablernn_registry import Signature
from stablernn_runtime.engines.plugins import NATIVE, Engine, EngineSession, entry_points
from stablernn_runtime.engines.session import Placement, Session, open_session
from stablernn_runtime.graph import Graph
from stablernn_runtime.run_batch import BatchItem, run_steps
from stablernn_runtime.state_guard import StateGuard

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
