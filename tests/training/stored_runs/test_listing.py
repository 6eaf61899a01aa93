from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stablernn.errors import UnknownNameError
from stablernn.training.stored_runs import MOST_LEVELS, StoredRun, find_runs, list_runs, sort_runs


def make_run(path: Path) -> Path:
    """A directory that has the names of a run's files."""
    path.mkdir(parents=True)
    for name in ("config.yaml", "data.json"):
        (path / name).touch()
    return path


def stored(name: str, *, accuracy: float | None = None, log_loss: float | None = None, **facts: Any) -> StoredRun:
    scores = {name: value for name, value in {"accuracy": accuracy, "log_loss": log_loss}.items() if value is not None}
    return StoredRun(Path(name), "done", metric="accuracy", metrics={"validation": scores}, **facts)


def names(runs: list[StoredRun]) -> str:
    return "".join(run.path.name for run in runs)


def test_runs_are_listed_at_every_level(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in ("a", "b/runs/x", "b/runs/y", "c/d/e/f")]
    assert list(find_runs(tmp_path)) == paths


def test_the_levels_are_limited(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath(*"abcdefgh"[:MOST_LEVELS])
    make_run(deepest.parent / "too" / "deep")
    path = make_run(deepest)
    assert list(find_runs(tmp_path)) == [path]


def test_links_hidden_folders_and_folders_of_a_run_are_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a")
    make_run(path / "checkpoints" / "inner")
    make_run(tmp_path / ".cache" / "hidden")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "best").symlink_to(path)
    assert list(find_runs(tmp_path)) == [path]


def test_a_run_that_lies_in_two_of_the_folders_is_listed_once(trained: Path) -> None:
    (run,) = list_runs([trained.parent, trained])
    assert run.state == "done"


def test_the_newest_run_comes_first_and_those_of_unknown_time_last(trained: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(trained, tmp_path / name)
    (tmp_path / "a" / "env.json").write_text('{"time": "2026-01-01T10:00:00+02:00"}')
    (tmp_path / "b" / "env.json").write_text("{")
    (tmp_path / "c" / "env.json").write_text('{"time": "2026-01-01T09:00:00+00:00"}')
    assert names(list_runs([tmp_path])) == "cab"


RUNS = (
    stored("a", accuracy=0.5, log_loss=0.9, parameters=3, started=datetime(2026, 1, 1, tzinfo=UTC)),
    stored("b", parameters=1, started=datetime(2026, 1, 3, tzinfo=UTC)),
    stored("c", accuracy=0.7, log_loss=1.5, started=datetime(2026, 1, 2, tzinfo=UTC)),
)


@pytest.mark.parametrize(
    ("key", "order"), [("started", "bca"), ("accuracy", "cab"), ("log_loss", "acb"), ("parameters", "bac")]
)
def test_the_order_follows_the_direction_of_the_key(key: str, order: str) -> None:
    assert names(sort_runs(RUNS, key)) == order


def test_an_unknown_key_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownNameError) as error:
        sort_runs(RUNS, "acuracy")
    assert str(error.value) == (
        "Unknown key to sort runs by 'acuracy'. Did you mean 'accuracy'? It is one of path, state, data, task, cell, "
        "parameters, epochs, seconds, rate, started, or a metric of the runs, for the test split with 'test.' in "
        "front: accuracy, log_loss."
    )
