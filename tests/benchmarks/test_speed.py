"""The speed benchmark's own parts: its grid, what it measures again, its rows and the verdicts on its page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmark_scripts import script
from packages import ROOT
from stablernn import list_cells
from stablernn.engines import list_engines
from stablernn_cli.bench.limit import Sizes
from stablernn_cli.bench.timing import Times

TINY = Sizes("antisymmetric", 4, 2, 8)
ENGINES = [f"engine {name}" for name in list_engines() if name in ("fused", "loop", "native")]


@pytest.fixture(autouse=True)
def no_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the process of JAX, which compiles for seconds."""
    monkeypatch.setattr(script("speed_training"), "start_jax", lambda *_: None)


def stored(rows: dict[str, float], auto: str = "native") -> dict[str, Any]:
    """Return a table as the results hold it, with these ratios."""
    figures = {
        row: {"cpu_ms": 2 * ratio, "wall_ms": 3 * ratio, "ratio": ratio, "ratio_low": ratio, "ratio_high": ratio}
        for row, ratio in {"limit": 1.0, **rows}.items()
    }
    facts = {"date": "2026-01-01", "machine": "m", "cores": 1, "threads": 1, "torch": "t", "cpu_capability": "c"}
    facts |= {"denormals": "flushed", "engines": ["loop"], "rounds": 2, "clock": "cpu_ms"}
    sizes = {"cell": "antisymmetric", "batch": 32, "time_steps": 784, "hidden": 128}
    return {"sizes": sizes, "revision": 2, "auto": auto, "conditions": facts, "rows": figures}


def verdict(tables: dict[str, Any], what: str) -> tuple[str | None, bool]:
    (goal,) = [goal for goal in script("speed_goals").goals(tables) if goal.what == what]
    return goal.reached, goal.is_met


def test_the_grid_has_every_size_but_one_and_every_cell() -> None:
    grid = script("speed_grid")
    tables = list(grid.tables(short=False))
    names = [table.name for table in tables]
    assert len(set(names)) == len(names)
    trained = [table.sizes for table in tables if table.kind == "train"]
    left_out = {
        (batch, length, hidden) for batch in grid.BATCHES for length in grid.LENGTHS for hidden in grid.HIDDEN_SIZES
    } - {(sizes["batch"], sizes["time_steps"], sizes["hidden"]) for sizes in trained}
    assert left_out == {(128, 4096, 256)}
    assert len(trained) == 26 * len(grid.FAMILIES)
    assert [table.sizes["cell"] for table in tables if table.kind == "cells"] == list_cells()
    assert {table.kind for table in tables} == script("speed_page").HEADINGS.keys()


def test_a_short_run_has_one_table_of_each_kind() -> None:
    kinds = [table.kind for table in script("speed_grid").tables(short=True)]
    assert sorted(kinds) == sorted(script("speed_page").HEADINGS)


def test_tables_that_are_stored_are_not_measured_again_unless_asked() -> None:
    speed, name = script("speed"), "lengths antisymmetric B=128 T=784 N=128"
    (current,) = speed.pending({"tables": {}}, only=name, again=False)
    results = {"tables": {name: {"revision": current.revision}}}
    assert speed.pending(results, only=name, again=False) == []
    assert [table.name for table in speed.pending(results, only=name, again=True)] == [name]
    older = {"tables": {name: {"revision": current.revision - 1}}}
    assert [table.name for table in speed.pending(older, only=name, again=False)] == [name]


def test_a_run_that_was_stopped_goes_on_behind_its_last_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speed, grid, measured = script("speed"), script("speed_grid"), []

    def table(name: str, *, stops: bool = False) -> Any:
        def measure() -> dict[str, Any]:
            measured.append(name)
            if stops:
                raise KeyboardInterrupt
            return {"limit": {"ratio": 1.0}}

        return grid.Table(name, {}, 2, measure)

    monkeypatch.setattr(speed, "RESULTS", tmp_path / "speed.json")
    monkeypatch.setattr(speed, "tables", lambda *, short: [table("a"), table("b", stops=True), table("c")])
    with pytest.raises(KeyboardInterrupt):
        speed.run(short=False, only="", again=False, is_flushed=True)
    assert list(json.loads((tmp_path / "speed.json").read_text())["tables"]) == ["a"]
    monkeypatch.setattr(speed, "tables", lambda *, short: [table("a"), table("b"), table("c")])
    speed.run(short=False, only="", again=False, is_flushed=True)
    assert measured == ["a", "b", "b", "c"]
    assert list(json.loads((tmp_path / "speed.json").read_text())["tables"]) == ["a", "b", "c"]


ONE_BY_ONE = "engine NAME, one member after the other"
ROWS: dict[str, tuple[Sizes, list[str]]] = {
    "train": (TINY, ["limit", *ENGINES, "hand-written loop", "nn.LSTM", "nn.GRU", "nn.RNN", "torchrecurrent"]),
    "cells": (Sizes("lstm", 4, 2, 8), ["limit", "engine loop", "engine torch-rnn", "nn.LSTM"]),
    "layers": (
        Sizes("lipschitz", 4, 2, 8, num_layers=2),
        ["limit", *ENGINES, "hand-written loop", "nn.LSTM", "nn.GRU", "nn.RNN"],
    ),
    "members": (Sizes("rnn", 4, 2, 8, members=3), ["limit", *ENGINES, "engine torch-rnn", ONE_BY_ONE]),
    "lengths": (
        TINY,
        ["limit", *(f"{e}{s}" for e in ENGINES for s in ("", ", mixed lengths", ", very unequal lengths", ", dt"))],
    ),
    "certified": (
        Sizes("lipschitz", 4, 2, 8),
        ["limit", "engine NAME", "engine NAME, certified", "projection of the step before"],
    ),
    "threads": (
        TINY,
        [f"{row}{s}" for row in ("limit", *ENGINES) if row != "engine loop" for s in ("", ", 2 threads")],
    ),
}


@pytest.mark.parametrize("kind", ROWS)
def test_the_rows_of_each_kind_run(kind: str) -> None:
    training = script("speed_training")
    sizes, expected = ROWS[kind]
    rows = training.BUILDERS[kind](sizes)
    assert list(rows) == [row.replace("NAME", training.auto_engine(sizes)) for row in expected]
    for run in rows.values():
        run()


def test_the_projection_is_timed_within_the_certified_step() -> None:
    rows = script("speed_training").certified_table(Sizes("lipschitz", 16, 2, 8))
    certified = next(run for row, run in rows.items() if row.endswith("certified"))
    certified()
    first = rows["projection of the step before"]()
    certified()
    assert isinstance(first, Times)
    assert first.wall_ms > 0
    assert rows["projection of the step before"]() != first


def test_rows_are_measured_under_both_settings_of_the_allocator() -> None:
    allocator = script("speed_allocator")
    figures = allocator.allocator_rows(TINY, rounds=2)
    chosen = [row for row in figures if not row.endswith(", memory kept")]
    assert len(chosen) == 5
    assert list(figures) == chosen + [f"{row}, memory kept" for row in chosen]
    assert {figures[row]["ratio"] for row in ("limit", "limit, memory kept")} == {1.0}


@pytest.mark.slow
def test_memory_is_that_of_the_states_that_a_row_keeps() -> None:
    rows = script("speed_memory").memory_rows(Sizes("antisymmetric", 64, 16, 4096))
    tensors = {row: figures["state_tensors"] for row, figures in rows.items()}
    assert 2 < tensors["engine fused"] < tensors["engine loop"] < tensors["nn.LSTM"]
    assert tensors["engine fused, recompute_every=64"] < tensors["engine fused"]


MAIN = "train antisymmetric B=128 T=784 N=128"


@pytest.mark.parametrize(
    ("tables", "what", "reached", "is_met"),
    [
        ({MAIN: {"engine native": 1.6}}, "training step, {}: `auto` / limit", "1.60", True),
        ({MAIN: {"engine native": 1.8}}, "training step, {}: `auto` / limit", "1.80", False),
        ({MAIN: {"nn.LSTM": 2.0}}, "training step, {}: `auto` / limit", None, False),
        (
            {MAIN.replace("train", "allocator"): {"engine native": 1.0, "nn.LSTM": 4.6}},
            "training step, {}: times as fast as nn.LSTM by default",
            "4.60",
            True,
        ),
        (
            {MAIN.replace("train", "allocator"): {"engine native, memory kept": 1.0, "nn.LSTM, memory kept": 3.0}},
            "training step, {}: times as fast as nn.LSTM, memory kept",
            "3.00",
            False,
        ),
        (
            {"inference lipschitz B=1 T=784 N=128": {"engine native of serve": 0.3, "JAX lax.scan": 0.4}},
            "inference, lipschitz B=1: `native` / JAX lax.scan",
            "0.75",
            True,
        ),
        (
            {MAIN: {"engine native": 1.0, "JAX lax.scan": 1.5}},
            "training step, {}: times as fast as JAX lax.scan",
            "1.50",
            False,
        ),
        (
            {
                "threads antisymmetric B=128 T=784 N=128": {
                    "limit, 2 threads": 0.5,
                    "engine native": 1.8,
                    "engine native, 2 threads": 1.0,
                }
            },
            "two threads, antisymmetric B=128: factor gained / that of the products",
            "0.90",
            True,
        ),
        (
            {"lengths lipschitz B=128 T=784 N=128": {"engine native": 1.0, "engine native, mixed lengths": 0.7}},
            "lipschitz B=128, mixed lengths: time / that of full length",
            "0.70",
            False,
        ),
        (
            {
                "certified rnn B=32 T=784 N=128": {
                    "engine native, certified": 2.0,
                    "projection of the step before": 0.1,
                }
            },
            "certified training, rnn B=32 T=784 N=128: projection / step",
            "0.05",
            True,
        ),
        (
            {
                "cells lem B=32 T=128 N=64": {"engine native": 2.0, "engine loop": 1.0},
                "cells rnn B=32 T=128 N=64": {"engine native": 1.0, "engine loop": 1.0},
            },
            "cells at least as fast as with `loop`",
            "1 of 2: not lem",
            False,
        ),
        (
            {
                MAIN: {"engine native": 1.04, "engine fused": 1.0},
                "layers x": {"engine native": 1.2, "engine loop": 1.0},
            },
            "settings in which `auto` is within 5 % of the fastest engine",
            "1 of 2",
            False,
        ),
        (
            {"inference lipschitz B=32 T=784 N=128": {"sequence.onnx": 0.8, "nn.LSTM": 2.0, "JAX lax.scan": 1.0}},
            "inference, lipschitz B=32: fastest of ours / fastest peer",
            "0.80",
            True,
        ),
    ],
    ids=lambda value: value.split("`")[0][-40:] if isinstance(value, str) else "",
)
def test_goals_are_judged_by_the_rows(
    tables: dict[str, dict[str, float]], what: str, reached: str | None, is_met: bool
) -> None:
    results = {name: stored(rows) for name, rows in tables.items()}
    assert verdict(results, what.format(MAIN.removeprefix("train "))) == (reached, is_met)


def test_goals_without_tables_are_not_measured() -> None:
    goals = list(script("speed_goals").goals({}))
    assert script("speed_goals").summary(goals) == (0, 0, len(goals))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], str]:
    page = script("speed_page")
    monkeypatch.setattr(page, "PAGE", tmp_path / "speed.md")
    monkeypatch.setattr(page, "IMAGE", tmp_path / "images" / "speed.svg")

    def write(tables: dict[str, Any]) -> str:
        page.write_page({"tables": tables}, "The ``method``.")
        return (tmp_path / "speed.md").read_text()

    return write


def test_the_page_shows_ratios_verdicts_and_an_image(write: Callable[[dict[str, Any]], str], tmp_path: Path) -> None:
    text = write({MAIN: stored({"engine native": 1.25, "nn.LSTM": 9.5})})
    assert "The `method`." in text
    assert "| B=128 T=784 N=128 | 2.0 | 1.25 ± 0.00 | 9.50 ± 0.00 |" in text
    assert "`auto` / limit | at most 1.70 | 1.25 | met |" in text
    assert "`fused` / limit | at most 2.20 | - | not measured |" in text
    assert (tmp_path / "images" / "speed.svg").read_text().count("engine native") == 1


def test_the_page_in_the_repository_is_that_of_the_results(
    write: Callable[[dict[str, Any]], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed, page = script("speed"), script("speed_page")
    monkeypatch.setattr(page, "draw", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["speed.py", "--page"])
    speed.main()
    assert (tmp_path / "speed.md").read_text() == (ROOT / "docs" / "speed.md").read_text()
