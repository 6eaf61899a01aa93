"""Time training steps, inference and streamed steps, beside a lower limit and beside other implementations.

    pip install -e '.[bench]' && make native     # JAX and torchrecurrent; the compiled engine
    python benchmarks/speed.py --short           # one table of each kind, in minutes, printed and not stored
    python benchmarks/speed.py                   # all tables; continues where it was stopped
    python benchmarks/speed.py --only lengths    # only tables whose name begins with this; --again repeats them
    python benchmarks/speed.py --page            # prints the tables of the results

``stablernn bench`` prints the same rows for sizes of your choice.

What is timed, and the limit, is in benchmarks/speed.md. JAX runs in a process of its own; set ``STABLERNN_BENCH_JAX``
to its folder if it is installed elsewhere.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import log, read_results, stored, table, write_results
from torch import Tensor, nn

import stablernn as srn
from stablernn.cells import StableCell
from stablernn.certificates.projection import project
from stablernn.engines import list_engines, select_engine
from stablernn.export.scan import sequence_graph
from stablernn.export.step import export_parts
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

STORED = stored("speed")
JAX_FOLDER = "STABLERNN_BENCH_JAX"
"""Environment variable with the folder of JAX, if it is not installed: ``pip install --target FOLDER 'jax[cpu]'``."""
COMPARED_STEPS = 16
"""Steps after which the states of JAX are compared with ours: a cell that does not contract amplifies rounding."""
TOLERANCE = 1e-4
"""Share of the largest of these states by which they may differ."""
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
JAX_ROW = "JAX lax.scan"

Rows = dict[str, Run]
Figures = dict[str, dict[str, float]]


def inference_rows(sizes: Sizes) -> Rows:
    """Return the rows of a table: the outputs of a batch of whole sequences."""
    model = bench_model(sizes)
    x = torch.randn(sizes.batch_size, sizes.length, 1)
    rows = sequence_model_rows(sizes, model, x, threads=1)
    unreduced = sequence_graph(export_parts(model), is_reduced=False)
    rows["sequence.onnx, all nodes of a step"] = graph_run(unreduced, sequence_feeds(model, x), threads=1)
    expected = model.final_state(x[:, :COMPARED_STEPS], None)[1].numpy()
    return rows | jax_row(step_arrays(model.rnn.cells[0]), x, expected)


def jax_row(form: Mapping[str, Any], x: Tensor, expected: np.ndarray) -> Rows:
    """Start a process that runs the cell by ``lax.scan`` under jit; no row, and a message, if there is no JAX.

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
        process = subprocess.Popen([sys.executable, script, folder], env=environment, stdin=-1, stdout=-1, text=True)
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        # Written once the inputs are read.
        ready = stdout.readline()
    if not ready:
        log(f"No row of JAX: it is not installed, and {JAX_FOLDER} names no folder with it.")
        return {}
    error = json.loads(ready)["relative_error"]
    if not error <= TOLERANCE:
        raise SystemExit(f"The states or gradients of JAX differ by {error:.2g} of the largest.")

    def run() -> Times:
        stdin.write("run\n")
        stdin.flush()
        return Times(**json.loads(stdout.readline()))

    return {JAX_ROW: run}


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


def jax_training_row(sizes: Sizes, x: Tensor) -> Rows:
    """Return a training step by JAX: value, gradient and Adam of the same network, compiled as one function.

    Its parameters are the matrices of the step themselves, which the cells here build from free ones. The states, the
    loss and the gradients of a few steps are compared with torch's.
    """
    model = HandWritten(sizes)
    cell: StableCell = model.rnn.cells[0]
    head, labels = nn.Linear(model.output_size, CLASSES), torch.randint(0, CLASSES, (len(x),))
    form = cell.step_form(cell.materialize())
    assert form is not None
    recurrent = form.recurrent.detach().clone().requires_grad_()
    (h,) = cell.initial_state(len(x))
    for drive in cell.drive(x[:, :COMPARED_STEPS]).unbind(1):
        h = replace(form, recurrent=recurrent).step(h, drive)
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(head(h), labels), recurrent)
    arrays = {
        "labels": labels.numpy(),
        "head_weight": head.weight.detach().numpy(),
        "head_bias": head.bias.detach().numpy(),
        "expected_gradient": gradient.numpy(),
    }
    return jax_row(step_arrays(cell) | arrays, x, h.detach().numpy())


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


def torchrecurrent_row(sizes: Sizes, x: Tensor) -> Rows:
    """Return the row of torchrecurrent; none, and a message, where it is not installed, none if it lacks the cell."""
    if sizes.cell not in TORCHRECURRENT:
        return {}
    try:
        model = TorchRecurrent(sizes)
    except ModuleNotFoundError:
        log("No row of torchrecurrent: it is not installed.")
        return {}
    # It is a module with an `output_size` like ours, which is all that a step needs.
    return {"torchrecurrent": training_step(model, x)}  # type: ignore[arg-type]


def auto_engine(sizes: Sizes, *, timed: bool = False) -> str:
    """Return the engine that ``auto`` takes for a cell."""
    cell = EnsembleState(replace(sizes, members=1, num_layers=1)).rnn.cells[0]
    return select_engine("auto", cell, cell.drive(torch.zeros(sizes.batch_size, 1, 1)), timed=timed).name


def engine_rows(sizes: Sizes, x: Tensor) -> Rows:
    """Return the limit and the training step of every engine."""
    engines = {f"engine {name}": training_step(EnsembleState(sizes, name), x) for name in supported_engines(sizes)}
    return {LIMIT: training_limit(sizes), **engines}


def inputs_of(sizes: Sizes) -> Tensor:
    """Return a minibatch ``(batch, time, 1)``."""
    return torch.randn(sizes.batch_size, sizes.length, 1)


def train_rows(sizes: Sizes) -> Rows:
    """Return the rows of one layer: every engine, a loop by hand, torch's layers, torchrecurrent and JAX."""
    x = inputs_of(sizes)
    return {**training_rows(sizes), **torchrecurrent_row(sizes, x), **jax_training_row(sizes, x)}


def cells_rows(sizes: Sizes) -> Rows:
    """Return the rows of a cell of the catalog: the limit and every engine, torch's LSTM and torchrecurrent."""
    x = inputs_of(sizes)
    lstm = training_step(Peer(nn.LSTM, sizes), x)
    return {**engine_rows(sizes, x), "nn.LSTM": lstm, **torchrecurrent_row(sizes, x)}


def members_rows(sizes: Sizes) -> Rows:
    """Return the rows of an ensemble: every engine, and with that of ``auto`` the members one after the other."""
    x, engine = inputs_of(sizes), auto_engine(sizes)
    steps = [training_step(EnsembleState(replace(sizes, members=1), engine), x) for _ in range(sizes.members)]

    def run_single() -> None:
        for step in steps:
            step()

    return {**engine_rows(sizes, x), f"engine {engine}, one member after the other": run_single}


def lengths_rows(sizes: Sizes) -> Rows:
    """Return the rows of full, mixed (uniform from 1 on) and very unequal lengths, and of irregular steps."""
    batch, length = sizes.batch_size, sizes.length
    x, generator = inputs_of(sizes), torch.Generator().manual_seed(0)
    mixed = torch.randint(1, length + 1, (batch,), generator=generator)
    unequal = torch.full((batch,), max(1, length // SHORT_SHARE))
    unequal[0] = length
    dt = torch.rand(batch, length, generator=generator)
    kinds: dict[str, dict[str, Tensor]] = {
        "": {},
        ", mixed lengths": {"lengths": mixed},
        ", very unequal lengths": {"lengths": unequal},
        ", dt": {"dt": dt},
    }
    rows: Rows = {LIMIT: training_limit(sizes)}
    for engine, (kind, inputs) in product(supported_engines(sizes, timed=True), kinds.items()):
        model = EnsembleState(sizes, engine, max_dt=1.0 if "dt" in inputs else None)
        rows[f"engine {engine}{kind}"] = training_step(model, x, **inputs)
    return rows


def certified_rows(sizes: Sizes) -> Rows:
    """Return the rows of free and of certified training, and of the projection of the latter's steps alone."""
    x, engine = inputs_of(sizes), auto_engine(sizes)
    model = EnsembleState(sizes, engine)
    step, elapsed = training_step(model, x), Times(0.0, 0.0)

    def project_all() -> None:
        nonlocal elapsed
        started, started_cpu = time.perf_counter(), time.process_time()
        for cell in model.rnn.cells:
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


def threads_rows(sizes: Sizes) -> Rows:
    """Return the rows of one and of two threads, of the limit and of all engines but the loop."""

    def on_threads(run: Run) -> Run:
        def run_on_threads() -> None:
            with pinned(threads=THREADS):
                run()

        return run_on_threads

    rows = {name: run for name, run in engine_rows(sizes, inputs_of(sizes)).items() if name != "engine loop"}
    return {key: row for name, run in rows.items() for key, row in _both(name, run, on_threads(run))}


def _both(name: str, run: Run, threaded: Run) -> Iterator[tuple[str, Run]]:
    yield name, run
    yield f"{name}, {THREADS} threads", threaded


SETTINGS: dict[str, dict[str, str]] = {
    "": {},
    ", memory kept": {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
        "MALLOC_TOP_PAD_": str(1 << 30),
    },
}
"""What is appended to the names of rows, and the variables of their process, by which glibc keeps all memory that it
once had; see mallopt(3)."""


def allocator_figures(sizes: Sizes, rounds: int) -> Figures:
    """Return the figures of the limit, the engine of ``auto`` and torch's layers, by default and with memory kept."""
    return {
        f"{row}{suffix}": values
        for suffix, variables in SETTINGS.items()
        for row, values in _alone("allocator_alone", sizes, variables, rounds).items()
    }


def allocator_alone(sizes: Sizes, rounds: int) -> Figures:
    """Return the figures of this process."""
    rows = training_rows(sizes)
    chosen = (LIMIT, f"engine {auto_engine(sizes)}", "nn.LSTM", "nn.GRU", "nn.RNN")
    return measure({name: rows[name] for name in chosen}, rounds)


def _alone(function: str, sizes: Sizes, variables: Mapping[str, str], *arguments: Any) -> Any:
    """Return what a function of this file returns in a process of its own."""
    numbers = (sizes.cell, sizes.hidden_size, sizes.batch_size, sizes.length)
    words = [sys.executable, __file__, "--alone", json.dumps([function, numbers, arguments])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    return json.loads(subprocess.run(words, stdout=-1, text=True, check=True, env=environment).stdout)


FEW_STEPS = 4
FLOAT_BYTES = 4


def memory_figures(sizes: Sizes) -> Figures:
    """Return for each row the MiB of its peak, and that peak in tensors of one number for each state."""
    engines = supported_engines(sizes)
    # The segment length with the fewest states kept: the root of the number of steps.
    segment = round(sizes.length**0.5)
    rows = {f"engine {engine}": (engine, 0) for engine in engines}
    rows |= {f"engine {engine}, recompute_every={segment}": (engine, segment) for engine in engines}
    states = FLOAT_BYTES * sizes.length * sizes.batch_size * sizes.hidden_size
    figures = {}
    for row, arguments in {**rows, "nn.LSTM": ("nn.LSTM", 0)}.items():
        peak = _alone("peak_bytes", sizes, {}, *arguments)
        figures[row] = {"peak_mib": round(peak / 2**20, 1), "state_tensors": round(peak / states, 3)}
    return figures


def peak_bytes(sizes: Sizes, engine: str, segment: int) -> int:
    """Return the bytes that two training steps need at most.

    Args:
        sizes: Sizes of the network.
        engine: An engine, or ``nn.LSTM``.
        segment: Steps of ``recompute_every``; 0 without.
    """
    model = Peer(torch.nn.LSTM, sizes) if engine == "nn.LSTM" else EnsembleState(sizes, engine)
    # Short sequences and segments first, so that what recomputation imports is loaded.
    for length, steps in ((FEW_STEPS, FEW_STEPS // 2), (sizes.length, segment)):
        if isinstance(model, EnsembleState) and segment:
            model.rnn.recompute_every(steps)
        step = training_step(model, torch.randn(sizes.batch_size, length, 1))
        gc.collect()
        # The peak of the process is what it holds now; see proc_pid_clear_refs(5).
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
        step()
    step()
    return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


FAMILIES = ("antisymmetric", "lipschitz", "lipschitz_rk2", "antisymmetric_g", "rnn")
"""A cell of each family, and of the residual one both with and without a linear part."""
BATCHES, LENGTHS, HIDDEN_SIZES = (1, 32, 128), (64, 784, 4096), (32, 128, 256)
LARGEST = 128 * 4096 * 128**2
"""Multiplications of the recurrent products of a forward pass up to which a table is measured. One is above,
B=128 T=4096 N=256: its rows take up to a minute a step and tens of gigabytes."""
ROUNDS = {"inference": 15, "step": 15, "memory": 1}
"""By kind, otherwise 9. A run of inference takes a few milliseconds, so that a slow moment weighs more."""
LONG_ROUNDS, LONG = 5, 128 * 784 * 128**2
"""Rounds of the tables with more multiplications than this, whose rounds take ten seconds and more."""
SHORT_ROUNDS = 4
BUILDERS: dict[str, Callable[[Sizes], Rows]] = {
    "train": train_rows,
    "cells": cells_rows,
    "lengths": lengths_rows,
    "layers": training_rows,
    "members": members_rows,
    "certified": certified_rows,
    "threads": threads_rows,
    "inference": inference_rows,
    "step": partial(step_rows, threads=1),
}
"""The function that returns the rows of each kind of table."""


@dataclass(frozen=True)
class Table:
    """A table of the benchmark: its kind and sizes; ``label`` is the cell with its options."""

    kind: str
    sizes: Sizes
    label: str = ""

    @property
    def name(self) -> str:
        sizes, label = self.sizes, self.label or self.sizes.cell
        if self.kind == "step":
            return f"step {label} B=1 N={sizes.hidden_size}"
        name = f"{self.kind} {label} B={sizes.batch_size} T={sizes.length} N={sizes.hidden_size}"
        name += f" layers={sizes.num_layers}" if self.kind == "layers" else ""
        return name + (f" members={sizes.members}" if self.kind == "members" else "")

    @property
    def clock(self) -> Clock:
        return "wall_ms" if self.kind == "threads" else "cpu_ms"

    def measure(self, *, is_short: bool) -> Figures:
        """Return the figures of each row."""
        rounds = ROUNDS.get(self.kind, LONG_ROUNDS if _multiplications(self.sizes) > LONG else 9)
        rounds = SHORT_ROUNDS if is_short else rounds
        if self.kind == "memory":
            return memory_figures(self.sizes)
        if self.kind == "allocator":
            return allocator_figures(self.sizes, rounds)
        torch.manual_seed(0)
        is_warmed = self.kind in ("inference", "step")
        return measure(BUILDERS[self.kind](self.sizes), rounds, is_warmed=is_warmed, clock=self.clock)

    def document(self, *, is_short: bool, is_flushed: bool) -> dict[str, Any]:
        """Measure the table, and return it as it is stored."""
        sizes, rows = self.sizes, self.measure(is_short=is_short)
        described = {"cell": sizes.cell, "batch": sizes.batch_size, "time_steps": sizes.length, **sizes.cell_options}
        described |= {"hidden": sizes.hidden_size, "layers": sizes.num_layers, "members": sizes.members}
        about = {**conditions(is_flushed=is_flushed), "engines": list_engines(), "clock": self.clock}
        auto = auto_engine(sizes, timed=self.kind == "lengths")
        return {"sizes": described, "auto": auto, "conditions": about, "rows": rows}


def _multiplications(sizes: Sizes) -> int:
    return math.prod((sizes.batch_size, sizes.length, sizes.hidden_size**2, sizes.num_layers, sizes.members))


def all_tables() -> Iterator[Table]:
    """Yield the tables, those first that say most."""
    two = ("antisymmetric", "lipschitz")
    # B=128 T=784 N=128 and B=32 T=784 N=128, which the goals are about, come first.
    hidden_sizes, lengths = (128, 32, 256), (784, 64, 4096)
    for cell, hidden, length, batch in product(FAMILIES, hidden_sizes, lengths, reversed(BATCHES)):
        sizes = Sizes(cell, hidden, batch, length)
        if _multiplications(sizes) <= LARGEST:
            yield Table("train", sizes)
    for kind in ("lengths", "threads"):
        yield from (Table(kind, Sizes(cell, 128, 128, 784)) for cell in two)
    for cell, layers in product(two, (2, 4)):
        yield Table("layers", Sizes(cell, 128, 32, 784, num_layers=layers))
    for cell, (hidden, batch, members) in product(two, ((32, 32, 8), (32, 32, 2), (32, 32, 4), (128, 128, 8))):
        yield Table("members", Sizes(cell, hidden, batch, 784, members=members))
    for cell, batch in product(("lipschitz", "rnn", "lipschitz_rk2"), (32, 128)):
        yield Table("certified", Sizes(cell, 128, batch, 784))
    yield from (Table("cells", Sizes(cell, 64, 32, 128)) for cell in srn.list_cells())
    yield from (Table("allocator", Sizes(cell, 128, batch, 784)) for cell, batch in product(two, (32, 128)))
    yield from (Table("memory", Sizes(cell, 128, 32, 16384)) for cell in two)
    # With the cells' own step sizes, and with one that is a power of two.
    options: tuple[tuple[str, float | None], ...] = (*((cell, None) for cell in two), (two[0], 0.25), (two[1], 0.3))
    for cell, step_size in options:
        label = cell if step_size is None else f"{cell} step_size={step_size}"
        sizes = Sizes(cell, 128, 1, 784, cell_options={} if step_size is None else {"step_size": step_size})
        yield from (Table("inference", replace(sizes, batch_size=batch), label) for batch in BATCHES)
        yield Table("step", replace(sizes, length=1), label)


def short_tables() -> Iterator[Table]:
    """Yield the first table of each kind, of shorter sequences."""
    for kind, group in groupby(sorted(all_tables(), key=lambda entry: entry.kind), lambda entry: entry.kind):
        first = next(group)
        length = min(first.sizes.length, 2048 if kind == "memory" else 128)
        yield replace(first, sizes=replace(first.sizes, length=length, batch_size=min(first.sizes.batch_size, 32)))


SUMMARIZED = ("train", "cells", "inference", "step")
"""Kinds with a line for each table; of the others each has a table of its own."""

Tables = dict[str, dict[str, Any]]


def page_tables(tables: Tables) -> dict[str, str]:
    """Return what stands between the markers of benchmarks/speed.md."""
    kinds: dict[str, Tables] = {}
    for name, entry in sorted(tables.items(), key=_by_sizes):
        kinds.setdefault(name.split()[0], {})[name] = entry
    written = {
        kind: "\n".join((_summaries if kind in SUMMARIZED else _details)(chosen)) for kind, chosen in kinds.items()
    }
    names = ("date", "machine", "cores", "threads", "torch", "cpu_capability", "denormals", "engines")
    found = [{**entry["conditions"], "engines": ", ".join(entry["conditions"]["engines"])} for entry in tables.values()]
    return {"conditions": table(names, dict.fromkeys(tuple(one[name] for name in names) for one in found)), **written}


def _summaries(tables: Tables) -> Iterator[str]:
    """Yield a table for each cell, or one for all cells of the catalog, with a line for each stored one."""
    named = [(name.split(maxsplit=2)[1:], entry) for name, entry in tables.items()]
    is_catalog = all(name.startswith("cells") for name in tables)
    for cell, group in groupby(named, key=lambda item: "" if is_catalog else item[0][0]):
        members = list(group)
        names = dict.fromkeys(row for _, entry in members for row in entry["rows"] if row != LIMIT)
        # Not all tables have all engines, whose columns come first, in the order of their names.
        rows = sorted(names, key=lambda row: (0, row) if row.startswith("engine ") else (1, ""))
        lines = []
        for (key, sizes), entry in members:
            ratios = (_short_ratio(entry["rows"].get(row)) for row in rows)
            lines.append((f"`{key}`" if is_catalog else sizes, f"{entry['rows'][LIMIT]['cpu_ms']:.1f}", *ratios))
        yield ""
        yield from [f"### `{cell}`", ""] if cell else []
        yield table(("", "limit, ms", *rows), lines)


def _by_sizes(item: tuple[str, dict[str, Any]]) -> tuple[Any, ...]:
    sizes = item[1]["sizes"]
    return (sizes["cell"], *(sizes.get(name, 0) or 0 for name in ("step_size", "hidden", "time_steps", "batch")))


def _short_ratio(figures: dict[str, float] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['ratio']:.2f} ± {(figures['ratio_high'] - figures['ratio_low']) / 2:.2f}"


def _details(tables: Tables) -> Iterator[str]:
    for name, entry in tables.items():
        kind, title = name.split(maxsplit=1)
        yield f"\n### {title}\n"
        rows, clock = entry["rows"].items(), entry["conditions"]["clock"]
        if kind == "memory":
            lines = ((row, f"{f['peak_mib']:,.0f}", f"{f['state_tensors']:.2f}") for row, f in rows)
            yield table(("", "MiB", "state tensors"), lines)
        else:
            ratios = {row: [f"{f[key]:.2f}" for key in ("ratio", "ratio_low", "ratio_high")] for row, f in rows}
            lines = ((row, f"{f[clock]:.1f}", "{} ({} to {})".format(*ratios[row])) for row, f in rows)
            yield table(("", "ms", "ratio"), lines)


def main() -> None:
    parser = harness.page_parser(__doc__, STORED)
    parser.add_argument("--short", action="store_true", help="one small table of each kind, printed and not stored")
    parser.add_argument("--only", default="", help="only tables whose name begins with this")
    parser.add_argument("--again", action="store_true", help="repeat tables that are stored already")
    parser.add_argument("--alone", type=json.loads, help="a function to run: JSON of name, sizes and arguments")
    arguments = parser.parse_args()
    if arguments.page:
        harness.print_tables(page_tables(read_results(STORED)["tables"]))
        return
    with pinned(threads=1) as is_flushed:
        if not is_flushed:
            raise SystemExit("This processor cannot flush denormal numbers, without which the rows do not compare.")
        if arguments.alone:
            function, sizes, words = arguments.alone
            print(json.dumps(globals()[function](Sizes(*sizes), *words)))
            return
        results = {"tables": {}} if arguments.short else read_results(arguments.results, {"tables": {}})
        for entry in short_tables() if arguments.short else all_tables():
            if entry.name.startswith(arguments.only) and (arguments.again or entry.name not in results["tables"]):
                document = entry.document(is_short=arguments.short, is_flushed=is_flushed)
                results["tables"][entry.name] = document
                log(entry.name, *(f"\n  {row:44} {figures}" for row, figures in document["rows"].items()))
                # After each table, so that the run can be stopped at any time.
                if not arguments.short:
                    write_results(arguments.results, results)
        if arguments.short:
            print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
