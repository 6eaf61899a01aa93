"""Tables of training steps for ``benchmarks/speed.py``: those of ``stablernn bench``, torchrecurrent, JAX and more."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from speed_inference import COMPARED_STEPS, start_jax, step_arrays
from torch import Tensor, nn

from stablernn.cells import StableCell
from stablernn.certificates.projection import project
from stablernn.engines import select_engine
from stablernn.nn.ensemble import Ensemble
from stablernn_cli.bench.limit import Sizes, training_limit
from stablernn_cli.bench.timing import LIMIT, Run, Times
from stablernn_cli.bench.training import (
    CLASSES,
    EnsembleState,
    HandWritten,
    Peer,
    supported_engines,
    training_rows,
    training_step,
)

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
