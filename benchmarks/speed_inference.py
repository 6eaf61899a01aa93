"""Tables of inference for ``benchmarks/speed.py``: whole sequences, and one step of a stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import stablernn as srn
from stablernn.export import model_signature
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import export_parts, state_names
from stablernn.nn.models import SequenceModel
from stablernn_registry import Signature
from stablernn_runtime.engines.session import Placement, open_session
from stablernn_runtime.graph import Graph
from stablernn_runtime.run_batch import BatchItem, run_steps
from stablernn_runtime.state_guard import StateGuard

CLASSES = 10
STEPS_A_CALL = 1000
"""Steps in one measurement of the table ``step``, whose times are therefore microseconds of one step."""
JAX_FOLDER = "STABLERNN_BENCH_JAX"
"""Environment variable with the folder of JAX, if it is not installed: ``pip install --target FOLDER 'jax[cpu]'``."""
COMPARED_STEPS = 16
"""Steps after which the states of JAX are compared with ours: a cell that does not contract amplifies rounding."""
TOLERANCE = 1e-4
"""Share of the largest of these states by which they may differ."""

Step = Callable[[], object]


class Times(NamedTuple):
    """What a row in a process of its own took; other rows are measured from outside."""

    wall_ms: float
    cpu_ms: float


def inference_table(
    cell: str, batch: int, time_steps: int, hidden: int, matrices: int = 1, step_size: float | None = None
) -> dict[str, Step]:
    """Return the rows of a table: the outputs of a batch of whole sequences."""
    model, form = _model(cell, hidden, step_size)
    x = torch.randn(batch, time_steps, 1)
    feeds = {"x": x.numpy(), "lengths": np.full(batch, time_steps, np.int64), **_states(model, batch)}
    parts = export_parts(model)
    rows: dict[str, Step] = {"limit": _products(batch, time_steps, hidden, matrices)}
    for name, graph in (
        ("sequence.onnx", sequence_graph(parts)),
        ("sequence.onnx, all nodes of a step", sequence_graph(parts, is_reduced=False)),
    ):
        session = open_session(graph.SerializeToString(), name, Placement("cpu"), 1)
        rows[name] = lambda session=session: session.run(["logits"], feeds)  # type: ignore[misc]
    rows["engine auto of torch"] = lambda: _no_grad(model, x)
    lstm = nn.LSTM(1, hidden, batch_first=True)
    rows["nn.LSTM"] = lambda: _no_grad(lstm, x)
    operator = ort.InferenceSession(_lstm_operator(lstm).SerializeToString(), _options())
    rows["ONNX Runtime's LSTM"] = lambda: operator.run(None, {"x": x.numpy()})
    expected = model.final_state(x[:, :COMPARED_STEPS], None)[1].numpy()
    if (jax_scan := start_jax(form, x, expected)) is not None:
        rows["JAX lax.scan"] = jax_scan
    return rows


def step_table(cell: str, hidden: int, matrices: int = 1, step_size: float | None = None) -> dict[str, Step]:
    """Return the rows of a table: one step of one stream, all outputs read, the state carried to the next."""
    model, _ = _model(cell, hidden, step_size)
    content = step_graph(export_parts(model)).SerializeToString()
    session = open_session(content, "step.onnx", Placement("cpu"), 1)
    signature = Signature.model_validate(model_signature(model))
    assert signature.step is not None
    states = tuple(signature.states)
    graph = Graph(signature.step, session, states, StateGuard(None, [state.input for state in states]), "bench:1")
    buffers = graph.take_buffers(1)
    assert buffers is not None
    x, names = np.ones((1, 1), np.float32), [spec.name for spec in signature.step.outputs]
    steps = np.ones((1, 1, 1), np.float32)
    answers = [name for name in names if name not in graph.state_outputs]
    carried = _states(model, 1)

    def run_dictionaries() -> None:
        values = dict(zip(names, session.run(names, {"x": x, **carried}), strict=True))
        carried.update({state.input: values[state.output] for state in states})

    def run_buffers() -> dict[str, np.ndarray]:
        buffers.inputs["x"][...] = x
        graph.run_buffers(buffers, None)
        return {name: value.copy() for name, value in buffers.outputs.items()}

    def run_stream() -> None:
        (result,) = run_steps(graph, [BatchItem({"x": steps, **carried}, 1, 1, answers)], None)
        carried.update(result.states)  # type: ignore[union-attr]

    return {
        "limit": _products(1, STEPS_A_CALL, hidden, matrices),
        "step.onnx, session.run": _repeat(run_dictionaries),
        "step.onnx, bound buffers": _repeat(run_buffers),
        "step of a stream in the server's runtime": _repeat(run_stream),
    }


def start_jax(form: Mapping[str, Any], x: Tensor, expected: np.ndarray) -> Step | None:
    """Start a process that runs the cell by ``lax.scan`` under jit; None, and a message, if there is no JAX.

    Args:
        form: Matrices and step size, as :func:`_model` returns them.
        x: ``(batch, time, 1)``.
        expected: The states after :data:`COMPARED_STEPS` steps, ``(batch, hidden)``.

    Raises:
        SystemExit: If the states of the process are others.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if JAX_FOLDER in os.environ:
        environment["PYTHONPATH"] = os.environ[JAX_FOLDER]
    script = Path(__file__).with_name("speed_jax.py")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "inputs.npz", x=x.numpy(), expected=expected, compared_steps=COMPARED_STEPS, **form)
        # It ends when its standard input is closed.
        process = subprocess.Popen(
            [sys.executable, str(script), folder],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        # Written once the inputs are read.
        ready = stdout.readline()
    if not ready:
        print(f"No row of JAX: it is not installed, and {JAX_FOLDER} names no folder with it.", file=sys.stderr)
        return None
    error = json.loads(ready)["relative_error"]
    if not error <= TOLERANCE:
        raise SystemExit(f"The states of JAX differ by {error:.2g} of the largest, allowed is {TOLERANCE:.0e}.")

    def run() -> Times:
        stdin.write("run\n")
        stdin.flush()
        return Times(**json.loads(stdout.readline()))

    return run


def _model(cell: str, hidden: int, step_size: float | None) -> tuple[SequenceModel, dict[str, Any]]:
    """Return a classifier, and its cell as the arrays of one step."""
    options = None if step_size is None else {"step_size": step_size}
    model = srn.Classifier(cell, 1, CLASSES, hidden, cell_options=options)
    model.mark_fitted()
    model.eval().requires_grad_(False)
    layer = model.rnn.cells[0]
    form = layer.step_form(layer.materialize())
    assert form is not None
    arrays = {"recurrent": form.recurrent.numpy(), "step_size": np.float32(form.step_size)}
    if form.linear is not None:
        arrays["linear"] = form.linear.numpy()
    return model, {**arrays, "weight": layer.weight_ih.numpy(), "bias": layer.bias_ih.numpy()}


def _states(model: SequenceModel, batch: int) -> dict[str, np.ndarray]:
    return {name: state.numpy() for name, state in zip(state_names(model), model.initial_state(batch), strict=True)}


def _products(batch: int, time_steps: int, hidden: int, matrices: int) -> Step:
    """Return the matrix products of the steps alone."""
    state, matrix, out = torch.randn(batch, hidden), torch.randn(hidden, hidden), torch.empty(batch, hidden)

    def run() -> None:
        for _ in range(matrices * time_steps):
            torch.mm(state, matrix, out=out)

    return run


def _no_grad(module: nn.Module, x: Tensor) -> object:
    with torch.inference_mode():
        return module(x)


def _repeat(step: Step) -> Step:
    def run() -> None:
        for _ in range(STEPS_A_CALL):
            step()

    return run


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def _lstm_operator(lstm: nn.LSTM) -> onnx.ModelProto:
    """Return a graph with ONNX's LSTM, with the weights of torch's."""

    def reorder(name: str) -> np.ndarray:
        # From the gates input, forget, cell, output to input, output, forget, cell.
        i, f, c, o = getattr(lstm, name).detach().numpy().reshape(4, lstm.hidden_size, -1)
        return np.concatenate([i, o, f, c])[None]

    biases = np.concatenate([reorder("bias_ih_l0"), reorder("bias_hh_l0")], axis=1)[:, :, 0]
    nodes = [
        helper.make_node("Transpose", ["x"], ["time_first"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["time_first", "W", "R", "B"], ["", "h"], hidden_size=lstm.hidden_size),
    ]
    weights = {"W": reorder("weight_ih_l0"), "R": reorder("weight_hh_l0"), "B": biases}
    graph = helper.make_graph(
        nodes,
        "lstm",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", "time", 1])],
        [helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [1, "batch", lstm.hidden_size])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
