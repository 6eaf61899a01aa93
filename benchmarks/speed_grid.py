"""The tables of ``benchmarks/speed.py``: their names, sizes and rows."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from speed_allocator import allocator_rows
from speed_inference import inference_table, step_table
from speed_memory import memory_rows
from speed_training import BUILDERS, auto_engine

import stablernn as srn
from stablernn_cli.bench.limit import Sizes
from stablernn_cli.bench.timing import Clock, Run, measure

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
    described = {"cell": sizes.cell, "batch": sizes.batch_size, "time_steps": sizes.length, "hidden": sizes.hidden_size}
    if kind in ("layers", "members"):
        described |= {"layers": sizes.num_layers, "members": sizes.members}
    auto = auto_engine(sizes, timed=kind == "lengths")
    return Table(name, described, rounds, functools.partial(_timed, build, rounds, clock=clock), clock, auto)


def _allocator_tables(*, short: bool) -> Iterator[Table]:
    rounds = SHORT_ROUNDS if short else ROUNDS
    for cell, batch in itertools.product(("antisymmetric", "lipschitz"), (32, 128)):
        sizes = Sizes(cell, 128, batch, 784)
        described = {"cell": cell, "batch": batch, "time_steps": 784, "hidden": 128}
        timed = functools.partial(allocator_rows, sizes, rounds)
        yield Table(f"allocator {_name(sizes)}", described, rounds, timed, auto=auto_engine(sizes))
        if short:
            break


def _memory_tables(*, short: bool) -> Iterator[Table]:
    for cell in ("antisymmetric",) if short else ("antisymmetric", "lipschitz"):
        sizes = Sizes(cell, 128, 32, 2048 if short else 16384)
        described = {"cell": cell, "batch": 32, "time_steps": sizes.length, "hidden": 128}
        measured = functools.partial(memory_rows, sizes)
        yield Table(f"memory {_name(sizes)}", described, 1, measured, auto=auto_engine(sizes))


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
