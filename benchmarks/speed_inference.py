"""Tables of inference for ``benchmarks/speed.py``: those of ``stablernn bench``, every node of a step, and JAX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablernn.cells import StableCell
from stablernn.export.scan import sequence_graph
from stablernn.export.step import export_parts
from stablernn_cli.bench.inference import bench_model, graph_run, sequence_feeds, sequence_model_rows, step_rows
from stablernn_cli.bench.limit import Sizes
from stablernn_cli.bench.timing import Run, Times

JAX_FOLDER = "STABLERNN_BENCH_JAX"
"""Environment variable with the folder of JAX, if it is not installed: ``pip install --target FOLDER 'jax[cpu]'``."""
COMPARED_STEPS = 16
"""Steps after which the states of JAX are compared with ours: a cell that does not contract amplifies rounding."""
TOLERANCE = 1e-4
"""Share of the largest of these states by which they may differ."""


def inference_table(
    cell: str, batch: int, time_steps: int, hidden: int, step_size: float | None = None
) -> dict[str, Run]:
    """Return the rows of a table: the outputs of a batch of whole sequences."""
    sizes = _sizes(cell, batch, time_steps, hidden, step_size)
    model = bench_model(sizes)
    x = torch.randn(batch, time_steps, 1)
    rows = sequence_model_rows(sizes, model, x, threads=1)
    unreduced = sequence_graph(export_parts(model), is_reduced=False)
    rows["sequence.onnx, all nodes of a step"] = graph_run(unreduced, sequence_feeds(model, x), threads=1)
    expected = model.final_state(x[:, :COMPARED_STEPS], None)[1].numpy()
    if (jax_scan := start_jax(step_arrays(model.rnn.cells[0]), x, expected)) is not None:
        rows["JAX lax.scan"] = jax_scan
    return rows


def step_table(cell: str, hidden: int, step_size: float | None = None) -> dict[str, Run]:
    """Return the rows of a table: one step of one stream, all outputs read, the state carried to the next."""
    return step_rows(_sizes(cell, 1, 1, hidden, step_size), threads=1)


def start_jax(form: Mapping[str, Any], x: Tensor, expected: np.ndarray) -> Run | None:
    """Start a process that runs the cell by ``lax.scan`` under jit; None, and a message, if there is no JAX.

    Args:
        form: Matrices and step size, as :func:`step_arrays` returns them; with ``labels``, those of a training step.
        x: ``(batch, time, 1)``.
        expected: The states after :data:`COMPARED_STEPS` steps, ``(batch, hidden)``.

    Raises:
        SystemExit: If the states or the gradients of the process are others.
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
        raise SystemExit(
            f"The states or gradients of JAX differ by {error:.2g} of the largest, allowed is {TOLERANCE:.0e}."
        )

    def run() -> Times:
        stdin.write("run\n")
        stdin.flush()
        return Times(**json.loads(stdout.readline()))

    return run


def _sizes(cell: str, batch: int, time_steps: int, hidden: int, step_size: float | None) -> Sizes:
    return Sizes(cell, hidden, batch, time_steps, cell_options={} if step_size is None else {"step_size": step_size})


def step_arrays(cell: StableCell) -> dict[str, Any]:
    """Return a cell with a step form as the arrays of one step."""
    form = cell.step_form(cell.materialize())
    assert form is not None
    assert form.bias is None
    tensors = {"recurrent": form.recurrent, "linear": form.linear, "weight": cell.weight_ih, "bias": cell.bias_ih}
    return {
        "family": form.family,
        "nonlinearity": form.nonlinearity,
        "step_size": np.float32(form.step_size),
        **{name: tensor.detach().numpy() for name, tensor in tensors.items() if tensor is not None},
    }
