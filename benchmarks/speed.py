"""Time training steps, inference and streamed steps, beside a lower limit and beside other implementations.

    pip install -e '.[bench]' && make native     # JAX and torchrecurrent; the compiled engine
    python benchmarks/speed.py --short           # one table of each kind, in minutes, printed and not stored
    python benchmarks/speed.py                   # all tables; continues where it was stopped
    python benchmarks/speed.py --only lengths    # only tables whose name begins with this; --again repeats them
    python benchmarks/speed.py --page            # writes the tables of docs/speed.md from the stored results

``stablernn bench`` prints the same rows for sizes of your choice.

What is timed, and the limit, is in docs/speed.md. JAX runs in a process of its own; set ``STABLERNN_BENCH_JAX`` to its
folder if it is installed elsewhere.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from harness import DOCS, RESULTS, read_results, replace_tables, table, write_results
from torch import Tensor, nn

import stablernn as srn
from stablernn.cells import StableCell
from stablernn.certificates.projection import project
from stablernn.engines import list_engines, select_engine
from stablernn.export.scan import sequence_graph
from stablernn.export.step import export_parts
from stablernn.nn.ensemble import Ensemble
from stablernn_cli.bench import (
    CLASSES,
    LIMIT,
    Clock,
    EnsembleState,
    HandWritten,
    Peer,
    Run,
    Sizes,
    Times,
    bench_model,
    conditions,
    graph_run,
    measure,
    pinned,
    sequence_feeds,
    sequence_model_rows,
    step_rows,
    supported_engines,
    training_limit,
    training_rows,
    training_step,
)

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


TORCHRECURRENT = {
    "antisymmetric": "AntisymmetricRNN",
    "antisymmetric_g": "GatedAntisymmetricRNN",
    "cornn": "coRNN",
    "fastgrnn_lsq": "FastGRNN",
    "fastrnn": "FastRNN",
    "indrnn": "IndRNN",
    "lem": "LEM",
    "unicornn": "UnICORNN",
}
"""Cells that torchrecurrent has too, with the same equations, and the names of its layers."""
MARGIN = 1e-3
"""``training.certified_margin`` as it is by default."""
THREADS = 2
SHORT_SHARE = 16
"""Part of the full length that all sequences but one have where lengths are very unequal."""


class TorchRecurrent(nn.Module):
    """Last state of a layer of torchrecurrent.

    Raises:
        ModuleNotFoundError: If torchrecurrent is not installed.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        import torchrecurrent

        layer = getattr(torchrecurrent, TORCHRECURRENT[sizes.cell])
        self.layer = layer(1, sizes.hidden_size, sizes.num_layers, batch_first=True)
        self.output_size = sizes.hidden_size

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.layer(x)
        last: Tensor = state[0] if isinstance(state, tuple) else state
        return last[-1]


def auto_engine(sizes: Sizes, *, timed: bool = False) -> str:
    """Return the engine that ``auto`` takes for a cell."""
    cell = Ensemble(1, sizes.cell, 1, sizes.hidden_size, 1, **sizes.cell_options).cells[0]
    drive = cell.drive(torch.zeros(sizes.batch_size, 1, 1))
    return select_engine("auto", cell, drive, timed=timed).name


def train_table(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of one layer: every engine, a loop by hand, torch's layers, torchrecurrent and JAX."""
    x = torch.randn(sizes.batch_size, sizes.length, 1)
    rows = {**training_rows(sizes), **_torchrecurrent_row(sizes, x)}
    if (jax_scan := _jax_step(sizes, x)) is not None:
        rows["JAX lax.scan"] = jax_scan
    return rows


def cells_table(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of a cell of the catalog: the limit and every engine, torch's LSTM and torchrecurrent."""
    x = torch.randn(sizes.batch_size, sizes.length, 1)
    lstm = training_step(Peer(nn.LSTM, sizes), x)
    return {**_engine_rows(sizes, x), "nn.LSTM": lstm, **_torchrecurrent_row(sizes, x)}


def layers_table(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of a stack of layers: every engine, a loop by hand and torch's layers."""
    return training_rows(sizes)


def members_table(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of an ensemble: every engine, and with that of ``auto`` the members one after the other."""
    x = torch.randn(sizes.batch_size, sizes.length, 1)
    rows = _engine_rows(sizes, x)
    single = replace(sizes, members=1)
    engine = auto_engine(sizes)
    steps = [training_step(EnsembleState(single, engine), x) for _ in range(sizes.members)]

    def run_single() -> None:
        for step in steps:
            step()

    return {**rows, f"engine {engine}, one member after the other": run_single}


def lengths_table(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of full, mixed (uniform from 1 on) and very unequal lengths, and of irregular steps."""
    batch, length = sizes.batch_size, sizes.length
    x, generator = torch.randn(batch, length, 1), torch.Generator().manual_seed(0)
    mixed = torch.randint(1, length + 1, (batch,), generator=generator)
    unequal = torch.full((batch,), max(1, length // SHORT_SHARE))
    unequal[0] = length
    dt = torch.rand(batch, length, generator=generator)
    rows: dict[str, Run] = {LIMIT: training_limit(sizes)}
    for engine in supported_engines(sizes, timed=True):
        rows[f"engine {engine}"] = training_step(EnsembleState(sizes, engine), x)
        rows[f"engine {engine}, mixed lengths"] = training_step(EnsembleState(sizes, engine), x, lengths=mixed)
        rows[f"engine {engine}, very unequal lengths"] = training_step(EnsembleState(sizes, engine), x, lengths=unequal)
        rows[f"engine {engine}, dt"] = training_step(EnsembleState(sizes, engine, max_dt=1.0), x, dt=dt)
    return rows


def certified_table(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of free and of certified training, and of the projection of the latter's steps alone."""
    x = torch.randn(sizes.batch_size, sizes.length, 1)
    engine = auto_engine(sizes)
    model = EnsembleState(sizes, engine)
    step, cells = training_step(model, x), model.rnn.cells
    elapsed = Times(0.0, 0.0)

    def project_all() -> None:
        nonlocal elapsed
        started, started_cpu = time.perf_counter(), time.process_time()
        for cell in cells:
            project(cell, MARGIN)
        elapsed = Times(1e3 * (time.perf_counter() - started), 1e3 * (time.process_time() - started_cpu))

    def run_certified() -> None:
        step()
        project_all()

    # Training starts inside the region, from where the steps lead out again.
    project_all()
    return {
        LIMIT: training_limit(sizes),
        f"engine {engine}": training_step(EnsembleState(sizes, engine), x),
        f"engine {engine}, certified": run_certified,
        "projection of the step before": lambda: elapsed,
    }


def threads_table(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of one and of two threads, of the limit, ``fused`` and the engine of ``auto``."""
    x = torch.randn(sizes.batch_size, sizes.length, 1)
    rows: dict[str, Run] = {}
    for name, run in _engine_rows(sizes, x).items():
        if name == "engine loop":
            continue
        rows[name] = run
        rows[f"{name}, {THREADS} threads"] = _on_threads(run, THREADS)
    return rows


def _on_threads(run: Run, threads: int) -> Run:
    def run_on_threads() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            run()
        finally:
            torch.set_num_threads(before)

    return run_on_threads


def _engine_rows(sizes: Sizes, x: Tensor) -> dict[str, Run]:
    engines = {f"engine {name}": training_step(EnsembleState(sizes, name), x) for name in supported_engines(sizes)}
    return {LIMIT: training_limit(sizes), **engines}


def _torchrecurrent_row(sizes: Sizes, x: Tensor) -> dict[str, Run]:
    """Return the row of torchrecurrent; none, and a message, where it is not installed, none if it lacks the cell."""
    if sizes.cell not in TORCHRECURRENT:
        return {}
    try:
        model = TorchRecurrent(sizes)
    except ModuleNotFoundError:
        print("No row of torchrecurrent: it is not installed.", file=sys.stderr)
        return {}
    # It is a module with an `output_size` like ours, which is all that a step needs.
    return {"torchrecurrent": training_step(model, x)}  # type: ignore[arg-type]


def _jax_step(sizes: Sizes, x: Tensor) -> Run | None:
    """Return a training step by JAX: value, gradient and Adam of the same network, compiled as one function.

    Its parameters are the matrices of the step themselves, which the cells here build from free ones. The states, the
    loss and the gradients of a few steps are compared with torch's.
    """
    model = HandWritten(sizes)
    cell = model.rnn.cells[0]
    head = nn.Linear(model.output_size, CLASSES)
    labels = torch.randint(0, CLASSES, (len(x),))
    arrays = step_arrays(cell)
    expected, gradient = _compared_gradient(cell, head, x[:, :COMPARED_STEPS], labels)
    arrays |= {
        "labels": labels.numpy(),
        "head_weight": head.weight.detach().numpy(),
        "head_bias": head.bias.detach().numpy(),
        "expected_gradient": gradient.numpy(),
    }
    return start_jax(arrays, x, expected.numpy())


def _compared_gradient(cell: StableCell, head: nn.Linear, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last state and the gradient of the recurrent matrix, by torch."""
    form = cell.step_form(cell.materialize())
    assert form is not None
    recurrent = form.recurrent.detach().clone().requires_grad_()
    form = replace(form, recurrent=recurrent)
    (h,) = cell.initial_state(len(x))
    for drive in cell.drive(x).unbind(1):
        h = form.step(h, drive)
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(head(h), labels), recurrent)
    return h.detach(), gradient


BUILDERS: dict[str, Callable[[Sizes], dict[str, Run]]] = {
    "train": train_table,
    "cells": cells_table,
    "lengths": lengths_table,
    "layers": layers_table,
    "members": members_table,
    "certified": certified_table,
    "threads": threads_table,
}
"""The function that returns the rows of each kind of table."""


KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 30),
}
"""Variables by which glibc keeps all memory that it once had; see mallopt(3)."""
SETTINGS: dict[str, dict[str, str]] = {"": {}, ", memory kept": KEPT}
"""What is appended to the names of rows, and the variables of their process."""


def allocator_rows(sizes: Sizes, rounds: int) -> Figures:
    """Return the figures of each row of :func:`allocator_figures`, once by default and once with memory kept.

    Args:
        sizes: Sizes of the network; one layer, one member.
        rounds: How often each row is timed.
    """
    return {
        f"{row}{suffix}": values
        for suffix, variables in SETTINGS.items()
        for row, values in _alone("allocator_figures", variables, rounds=rounds, **_described(sizes)).items()
    }


def _described(sizes: Sizes) -> dict[str, Any]:
    return {"cell": sizes.cell, "batch": sizes.batch_size, "time_steps": sizes.length, "hidden": sizes.hidden_size}


def _alone(function: str, variables: Mapping[str, str] = MappingProxyType({}), **arguments: Any) -> Any:
    """Return what a function of this file returns in a process of its own."""
    process = subprocess.run(
        [sys.executable, str(Path(__file__)), "--alone", function, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables,
    )
    return json.loads(process.stdout)


def allocator_figures(cell: str, batch: int, time_steps: int, hidden: int, rounds: int) -> Figures:
    """Return the figures of the limit, of the engine that ``auto`` takes, and of torch's layers, timed in turn.

    Args:
        cell: A key of the catalog.
        batch: Sequences in the minibatch.
        time_steps: Length of each.
        hidden: Units.
        rounds: How often each row is timed.
    """
    sizes = Sizes(cell, hidden, batch, time_steps)
    with pinned(threads=1):
        rows = training_rows(sizes)
        chosen = (LIMIT, f"engine {auto_engine(sizes)}", "nn.LSTM", "nn.GRU", "nn.RNN")
        return measure({name: rows[name] for name in chosen}, rounds)


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to :data:`CLEAR`, this sets the peak of a process to what it holds; see proc_pid_clear_refs(5)."""
FEW_STEPS = 4
FLOAT_BYTES = 4
RECOMPUTED = "recompute_every"


def memory_rows(sizes: Sizes) -> Figures:
    """Return for each row the MiB of its peak, and that peak in tensors of one number for each state."""
    engines = supported_engines(sizes)
    # The segment length with the fewest states kept: the root of the number of steps.
    segment = round(sizes.length**0.5)
    rows = [f"engine {engine}" for engine in engines]
    rows += [f"engine {engine}, {RECOMPUTED}={segment}" for engine in engines]
    states = FLOAT_BYTES * sizes.length * sizes.batch_size * sizes.hidden_size
    figures = {}
    for row in [*rows, "nn.LSTM"]:
        peak = _alone("peak_bytes", row=row, **_described(sizes))
        figures[row] = {"peak_mib": round(peak / 2**20, 1), "state_tensors": round(peak / states, 3)}
    return figures


def peak_bytes(row: str, cell: str, batch: int, time_steps: int, hidden: int) -> int:
    """Return the bytes that two training steps of a row need at most.

    Args:
        row: ``engine NAME``, followed by ``, recompute_every=STEPS`` where it recomputes, or ``nn.LSTM``.
        cell: A key of the catalog.
        batch: Sequences in the minibatch.
        time_steps: Length of each.
        hidden: Units.
    """
    sizes = Sizes(cell, hidden, batch, time_steps)
    with pinned(threads=1):
        engine, _, segment = row.removeprefix("engine ").partition(f", {RECOMPUTED}=")
        model = Peer(torch.nn.LSTM, sizes) if engine == "nn.LSTM" else EnsembleState(sizes, engine)
        if isinstance(model, EnsembleState) and segment:
            # Shorter segments first, so that what recomputation imports is loaded.
            model.rnn.recompute_every(FEW_STEPS // 2)
        training_step(model, torch.randn(batch, FEW_STEPS, 1))()
        if isinstance(model, EnsembleState) and segment:
            model.rnn.recompute_every(int(segment))
        step = training_step(model, torch.randn(batch, time_steps, 1))
        gc.collect()
        CLEAR.write_text(RESET_PEAK)
        before = _status_bytes("VmRSS")
        for _ in range(2):
            step()
        return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


FAMILIES = ("antisymmetric", "lipschitz", "lipschitz_rk2", "antisymmetric_g", "rnn")
"""A cell of each family, and of the residual one both with and without a linear part."""
BATCHES, LENGTHS, HIDDEN_SIZES = (1, 32, 128), (64, 784, 4096), (32, 128, 256)
LARGEST = 128 * 4096 * 128**2
"""Multiplications of the recurrent products of a forward pass up to which a table is measured. One is above,
B=128 T=4096 N=256: its rows take up to a minute a step and tens of gigabytes."""
ROUNDS = 9
LONG_ROUNDS, LONG = 5, 128 * 784 * 128**2
"""Rounds of the tables with more multiplications than this, whose rounds take ten seconds and more."""
INFERENCE_ROUNDS = 15
"""A run takes a few milliseconds, so that a slow moment of the machine weighs more."""
SHORT_ROUNDS = 4
REVISIONS = {"train": 2, "cells": 2, "lengths": 2}
"""Raised when the rows of a kind of table change, so that stored tables with other rows are measured again; else 1."""

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Table:
    """A table of the benchmark.

    Attributes:
        name: Its kind, followed by the sizes.
        sizes: Those sizes, for the readers of the JSON document.
        rounds: How often each row is timed.
        measure: Returns the figures of each row.
        clock: The time that ratios are of.
        auto: The engine that ``auto`` takes; None where engines are not compared.
    """

    name: str
    sizes: dict[str, Any]
    rounds: int
    measure: Callable[[], Figures]
    clock: Clock = "cpu_ms"
    auto: str | None = None

    @property
    def kind(self) -> str:
        return self.name.split()[0]

    @property
    def revision(self) -> int:
        return REVISIONS.get(self.kind, 1)


def tables(*, short: bool) -> Iterator[Table]:
    """Yield all tables, or with ``short`` the first of each kind, in few rounds."""
    kinds: set[str] = set()
    for kind, name, sizes in _training_sizes():
        if not short or kind not in kinds:
            kinds.add(kind)
            yield _training_table(kind, f"{kind} {name}", sizes, short=short)
    yield from _allocator_tables(short=short)
    yield from _memory_tables(short=short)
    yield from _inference_tables(short=short)


def _training_sizes() -> Iterator[tuple[str, str, Sizes]]:
    """Yield kind, name and sizes of each table of training steps, those first that say most."""
    for cell in FAMILIES:
        # B=128 T=784 N=128 and B=32 T=784 N=128, which the goals are about, come first.
        for hidden in sorted(HIDDEN_SIZES, key=lambda size: size != 128):
            for length in sorted(LENGTHS, key=lambda length: length != 784):
                for batch in reversed(BATCHES):
                    sizes = Sizes(cell, hidden, batch, length)
                    if _multiplications(sizes) <= LARGEST:
                        yield "train", _name(sizes), sizes
    for cell in ("antisymmetric", "lipschitz"):
        sizes = Sizes(cell, 128, 128, 784)
        yield "lengths", _name(sizes), sizes
    for cell in ("antisymmetric", "lipschitz"):
        for layers in (2, 4):
            sizes = Sizes(cell, 128, 32, 784, num_layers=layers)
            yield "layers", f"{_name(sizes)} layers={layers}", sizes
    for cell in ("antisymmetric", "lipschitz"):
        for hidden, batch, members in ((32, 32, 8), (32, 32, 2), (32, 32, 4), (128, 128, 8)):
            sizes = Sizes(cell, hidden, batch, 784, members=members)
            yield "members", f"{_name(sizes)} members={members}", sizes
    for cell in ("lipschitz", "rnn", "lipschitz_rk2"):
        for batch in (32, 128):
            sizes = Sizes(cell, 128, batch, 784)
            yield "certified", _name(sizes), sizes
    for cell in ("antisymmetric", "lipschitz"):
        sizes = Sizes(cell, 128, 128, 784)
        yield "threads", _name(sizes), sizes
    for cell in srn.list_cells():
        sizes = Sizes(cell, 64, 32, 128)
        yield "cells", _name(sizes), sizes


def _training_table(kind: str, name: str, sizes: Sizes, *, short: bool) -> Table:
    long = _multiplications(sizes) > LONG
    rounds = SHORT_ROUNDS if short else LONG_ROUNDS if long else ROUNDS
    clock: Clock = "wall_ms" if kind == "threads" else "cpu_ms"
    build = functools.partial(BUILDERS[kind], sizes)
    described = _described(sizes)
    if kind in ("layers", "members"):
        described |= {"layers": sizes.num_layers, "members": sizes.members}
    auto = auto_engine(sizes, timed=kind == "lengths")
    return Table(name, described, rounds, functools.partial(_timed, build, rounds, clock=clock), clock, auto)


def _allocator_tables(*, short: bool) -> Iterator[Table]:
    rounds = SHORT_ROUNDS if short else ROUNDS
    for cell, batch in itertools.product(("antisymmetric", "lipschitz"), (32, 128)):
        sizes = Sizes(cell, 128, batch, 784)
        timed = functools.partial(allocator_rows, sizes, rounds)
        yield Table(f"allocator {_name(sizes)}", _described(sizes), rounds, timed, auto=auto_engine(sizes))
        if short:
            break


def _memory_tables(*, short: bool) -> Iterator[Table]:
    for cell in ("antisymmetric",) if short else ("antisymmetric", "lipschitz"):
        sizes = Sizes(cell, 128, 32, 2048 if short else 16384)
        measured = functools.partial(memory_rows, sizes)
        yield Table(f"memory {_name(sizes)}", _described(sizes), 1, measured, auto=auto_engine(sizes))


def _inference_tables(*, short: bool) -> Iterator[Table]:
    """Yield the tables of inference: with the cells' own step sizes, and with one that is a power of two."""
    cells: tuple[tuple[str, float | None], ...] = (("antisymmetric", None),)
    if not short:
        cells = (*cells, ("antisymmetric", 0.25), ("lipschitz", None), ("lipschitz", 0.3))
    rounds = SHORT_ROUNDS if short else INFERENCE_ROUNDS
    for cell, step_size in cells:
        label = cell if step_size is None else f"{cell} step_size={step_size}"
        sizes = {"cell": cell, "hidden": 128, "step_size": step_size}
        for batch in (1,) if short else BATCHES:
            described = {**sizes, "batch": batch, "time_steps": 784}
            build: Callable[[], dict[str, Run]] = functools.partial(inference_table, **described)
            timed = functools.partial(_timed, build, rounds, is_warmed=True)
            yield Table(f"inference {label} B={batch} T=784 N=128", described, rounds, timed)
        timed = functools.partial(_timed, functools.partial(step_table, **sizes), rounds, is_warmed=True)
        yield Table(f"step {label} B=1 N=128", sizes, rounds, timed)


def _timed(
    build: Callable[[], dict[str, Run]], rounds: int, *, clock: Clock = "cpu_ms", is_warmed: bool = False
) -> Figures:
    torch.manual_seed(0)
    return measure(build(), rounds, is_warmed=is_warmed, clock=clock)


def _name(sizes: Sizes) -> str:
    return f"{sizes.cell} B={sizes.batch_size} T={sizes.length} N={sizes.hidden_size}"


def _multiplications(sizes: Sizes) -> int:
    return math.prod((sizes.batch_size, sizes.length, sizes.hidden_size**2, sizes.num_layers, sizes.members))


SUMMARIZED = ("train", "cells", "inference", "step")
"""Kinds with a line for each table; of the others each has a table of its own."""

Tables = dict[str, dict[str, Any]]


def page_tables(tables: Tables) -> dict[str, str]:
    """Return what stands between the markers of docs/speed.md."""
    kinds: dict[str, Tables] = {}
    for name, stored in tables.items():
        kinds.setdefault(name.split()[0], {})[name] = stored
    written = {
        kind: "\n".join((_summaries if kind in SUMMARIZED else _details)(chosen)) for kind, chosen in kinds.items()
    }
    conditions_of = (stored["conditions"] for stored in tables.values())
    names = ("date", "machine", "cores", "threads", "torch", "cpu_capability", "denormals", "engines")
    lines = dict.fromkeys(
        tuple(", ".join(found[name]) if name == "engines" else found[name] for name in names) for found in conditions_of
    )
    return {"conditions": table(names, lines), **written}


def _summaries(tables: Tables) -> Iterator[str]:
    """Yield a table for each cell, or one for all cells of the catalog, with a line for each stored one."""
    named = [(name.split(maxsplit=2)[1:], stored) for name, stored in sorted(tables.items(), key=_by_sizes)]
    is_catalog = all(name.startswith("cells") for name in tables)
    for cell, group in groupby(named, key=lambda item: "" if is_catalog else item[0][0]):
        members = list(group)
        names = dict.fromkeys(row for _, stored in members for row in stored["rows"] if row != "limit")
        # Not all tables have all engines, whose columns come first, in the order of their names.
        rows = sorted(names, key=lambda row: (0, row) if row.startswith("engine ") else (1, ""))
        lines = []
        for (key, sizes), stored in members:
            ratios = (_short_ratio(stored["rows"].get(row)) for row in rows)
            lines.append((f"`{key}`" if is_catalog else sizes, f"{stored['rows']['limit']['cpu_ms']:.1f}", *ratios))
        yield ""
        yield from [f"### `{cell}`", ""] if cell else []
        yield table(("", "limit, ms", *rows), lines)


def _by_sizes(item: tuple[str, dict[str, Any]]) -> tuple[Any, ...]:
    sizes = item[1]["sizes"]
    numbers = (sizes.get(name, 0) or 0 for name in ("step_size", "hidden", "time_steps", "batch"))
    return (sizes["cell"], *numbers)


def _short_ratio(figures: dict[str, float] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['ratio']:.2f} ± {(figures['ratio_high'] - figures['ratio_low']) / 2:.2f}"


def _details(tables: Tables) -> Iterator[str]:
    for name, stored in sorted(tables.items(), key=_by_sizes):
        yield ""
        yield f"### {name.split(maxsplit=1)[1]}"
        yield ""
        if name.startswith("memory"):
            lines = ((row, f"{f['peak_mib']:,.0f}", f"{f['state_tensors']:.2f}") for row, f in stored["rows"].items())
            yield table(("", "MiB", "state tensors"), lines)
            continue
        clock = stored["conditions"]["clock"]
        lines = (
            (row, f"{f[clock]:.1f}", f"{f['ratio']:.2f} ({f['ratio_low']:.2f} to {f['ratio_high']:.2f})")
            for row, f in stored["rows"].items()
        )
        yield table(("", "ms", "ratio"), lines)


STORED = RESULTS / "speed.json"


def pending(stored: dict[str, Any], *, only: str, again: bool) -> list[Table]:
    """Return the tables that are still to be measured.

    Args:
        stored: The results so far.
        only: The beginning of their names.
        again: Whether stored tables are measured again.
    """
    chosen = [entry for entry in tables(short=False) if entry.name.startswith(only)]
    if again:
        return chosen
    return [entry for entry in chosen if stored["tables"].get(entry.name, {}).get("revision") != entry.revision]


def measured(table: Table, *, is_flushed: bool) -> dict[str, Any]:
    """Measure a table, and return it as it is stored."""
    return {
        "sizes": table.sizes,
        "revision": table.revision,
        "auto": table.auto,
        "conditions": {
            **conditions(is_flushed=is_flushed),
            "engines": list_engines(),
            "clock": table.clock,
            "rounds": table.rounds,
        },
        "rows": table.measure(),
    }


def show(name: str, table: dict[str, Any]) -> None:
    print(name, file=sys.stderr)
    for row, figures in table["rows"].items():
        print(f"  {row:44}" + "".join(f"{key:>16}{value:10.2f}" for key, value in figures.items()), file=sys.stderr)
    sys.stderr.flush()


def run(*, short: bool, only: str, again: bool, is_flushed: bool) -> None:
    if short:
        results: dict[str, Any] = {}
        for entry in tables(short=True):
            results[entry.name] = measured(entry, is_flushed=is_flushed)
            show(entry.name, results[entry.name])
        print(json.dumps({"tables": results}, indent=1))
        return
    stored = {"tables": {}, **read_results(STORED)}
    waiting = pending(stored, only=only, again=again)
    for number, entry in enumerate(waiting, start=1):
        print(f"{number} of {len(waiting)}: ", end="", file=sys.stderr)
        stored["tables"][entry.name] = measured(entry, is_flushed=is_flushed)
        show(entry.name, stored["tables"][entry.name])
        # After each table, so that the run can be stopped at any time.
        write_results(STORED, stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one table of each kind, printed and not stored")
    parser.add_argument("--only", default="", help="only tables whose name begins with this")
    parser.add_argument("--again", action="store_true", help="repeat tables that are stored already")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/speed.md")
    parser.add_argument("--alone", nargs=2, metavar=("FUNCTION", "JSON"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        function, words = arguments.alone
        print(json.dumps(globals()[function](**json.loads(words))))
        return
    if arguments.page:
        replace_tables(DOCS / "speed.md", page_tables(read_results(STORED)["tables"]))
        return
    with pinned(threads=1) as is_flushed:
        if not is_flushed:
            raise SystemExit("This processor cannot flush denormal numbers, without which the rows do not compare.")
        run(short=arguments.short, only=arguments.only, again=arguments.again, is_flushed=is_flushed)


if __name__ == "__main__":
    main()
