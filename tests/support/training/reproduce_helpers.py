"""Helpers for tests of reproduced tables: a table small enough to run, and small images in MNIST's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from named_helpers import at_home, images, lay, published
from stablernn.robustness.settings import Settings
from stablernn_papers.table import FULL, Curvature, Protocol, Row, Table, merge, ours
from stablernn_papers.tables import TABLES
from stablernn_papers.tables.common import DIGITS

EPOCHS = 3


def little_images(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """``mnist-rows`` with 12 random images to train on, 12 to validate and 10 to test."""
    contents = images()
    published(monkeypatch, "mnist-rows", contents)
    lay(at_home(monkeypatch, root) / "mnist", contents, ".gz")


def little_table(monkeypatch: pytest.MonkeyPatch, **changes: object) -> Table:
    """The robustness table with four units, three epochs and hardly an attack, in its place."""
    table = TABLES["robustness"]

    def little(protocol: Protocol, seeds: tuple[int, ...]) -> Protocol:
        training = {"training.batch_size": 8, "training.epochs": EPOCHS, "training.plots": False}
        settings = merge(protocol.settings, ours(training))
        attacks = Settings(
            linf_budgets=(0.02, 0.05), l2_budgets=(0.5, 1.0), sequences=6, steps=2, draws=2, hessian=False
        )
        return replace(protocol, seeds=seeds, settings=settings, attacks=attacks, curvature=Curvature(4, 3))

    rows = tuple(replace(row, hidden_size=row.hidden_size and 4) for row in table.rows)
    small = replace(table, rows=rows, full=little(table.full, (0, 1)), short=little(table.short, (0,)))
    monkeypatch.setitem(TABLES, table.key, replace(small, **changes))
    return small


def two_rows(table: Table) -> tuple[Row, ...]:
    """One that the paper has, and one that it has not."""
    return tuple(row for row in table.rows if row.key in ("lipschitz", "lstm"))


def on_digits(monkeypatch: pytest.MonkeyPatch, key: str, rows: tuple[str, ...], epochs: int = 2) -> Table:
    """A table of sequences with little rows, trained on digits in its full protocol."""
    table = TABLES[key]
    little = tuple(replace(table.row(name), hidden_size=4, data=(), data_settings={}) for name in rows)
    settings = ours({"training.epochs": epochs, "training.batch_size": 256, "training.plots": False})
    changed = replace(
        table, rows=little, data=(DIGITS,), full=Protocol(FULL, seeds=(0, 1), settings=settings), short_data=None
    )
    monkeypatch.setitem(TABLES, key, changed)
    return changed
