"""Comparisons that train: equal time, resuming, growth, and what a folder refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Workplace
from comparison_helpers import write_waves
from stablernn.compare import Comparison, compare, run_comparison
from stablernn.compare.run_comparison import make_contenders, make_problems, parse_recipe, step_milliseconds
from stablernn.errors import ConfigError
from stablernn.nn.models import Classifier
from stablernn.training.build import measure_speed

SMALL = ("model.hidden_size=4", "training.batch_size=8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    for name, length in (("short", 8), ("long", 16)):
        for part, seed in (("TRAIN", 0), ("TEST", 1)):
            write_waves(folder / f"{name}_{part}.npz", seed, length)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _no_export() -> Iterator[None]:
    """Take a number for the time of a step, which is measured on an exported model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_comparison, "step_milliseconds", lambda model: 0.1)
        yield


@pytest.mark.slow
def test_the_step_of_an_exported_model_is_measured() -> None:
    assert 0 < step_milliseconds(Classifier("lru", 1, 2, 4).eval()) < 100


def comparison_of(place: Path, *names: str, cells: str = "lru,lipschitz", **options: Any) -> Comparison:
    problems = make_problems([str(place / f"{name}_TRAIN.npz") for name in names])
    contenders = make_contenders(cells.split(","), options.pop("recipes", []))
    return Comparison(problems, contenders, **{"overrides": SMALL, "seeds": (0,), **options})


@pytest.fixture(scope="module")
def timed(place: Path) -> tuple[Path, dict[str, Any]]:
    """A folder with a comparison of two cells on two problems, and its results."""
    output = place / "timed"
    return output, compare(comparison_of(place, "short", "long", seconds=0.3), output)


def test_every_contender_is_trained_for_the_same_time(timed: tuple[Path, dict[str, Any]]) -> None:
    output, results = timed
    assert len(results["runs"]) == 4
    plan = json.loads((output / "comparison.json").read_text())
    for name in ("short", "long"):
        contenders = plan["problems"][name]["contenders"]
        assert plan["problems"][name]["cpu_seconds"] == 0.3
        assert all(contender["steps"] >= 1 for contender in contenders.values())
        for row in results["runs"]:
            if row["problem"] == name:
                assert row["steps"] == contenders[row["contender"]]["steps"]
    rows = results["problems"]["short"]["rows"]
    assert {row["name"] for row in rows} == {"lru", "lipschitz"}
    assert all(row["certificate"]["kind"] == "contracting" and row["step_ms"] > 0 for row in rows)
    assert (output / "table.md").read_text().startswith("## short")
    assert "\\toprule" in (output / "table.tex").read_text()
    assert (output / "results.csv").read_text().startswith("problem,contender,cell,seed,run,")
    assert (output / "critical_difference.png").read_bytes().startswith(b"\x89PNG")


def test_finished_runs_are_kept_and_further_ones_join(place: Path, timed: tuple[Path, dict[str, Any]]) -> None:
    output, results = timed
    names: list[str] = []
    wider = comparison_of(place, "short", "long", cells="lru,lipschitz,rnn", seconds=0.3)
    more = compare(wider, output, progress=lambda name, done, total: names.append(name))
    assert names == ["rnn on short, seed 0", "rnn on long, seed 0"]
    kept = [row for row in more["runs"] if row["contender"] != "rnn"]
    assert kept == results["runs"]


def test_a_folder_refuses_another_comparison(place: Path, timed: tuple[Path, dict[str, Any]]) -> None:
    output, _ = timed
    with pytest.raises(ConfigError, match=r"was begun with seconds=0\.3, now it is 9\.0\. Name another folder"):
        compare(comparison_of(place, "short", seconds=9.0), output)
    with pytest.raises(ConfigError, match=r"has 'lru' on 'short' with other settings\."):
        compare(comparison_of(place, "short", seconds=0.3, overrides=("model.hidden_size=5",)), output)
    write_waves(place / "changed_TRAIN.npz", 3, 8)
    changed = comparison_of(place, "changed", seconds=0.3)
    changed = replace(changed, problems=[replace(changed.problems[0], name="short")])
    with pytest.raises(ConfigError, match=r"^The data 'short' has changed since the comparison in '"):
        compare(changed, output)


@pytest.mark.slow
def test_without_a_time_the_first_contender_sets_it(place: Path, tmp_path: Path) -> None:
    overrides = (*SMALL, "training.epochs=4")
    comparison = comparison_of(place, "short", cells="lipschitz,lru", overrides=overrides)
    results = compare(comparison, tmp_path / "out")
    problem = json.loads((tmp_path / "out" / "comparison.json").read_text())["problems"]["short"]
    whole = measure_speed(comparison.settings(comparison.problems[0], comparison.contenders[0], 0)).steps
    assert problem["contenders"]["lipschitz"]["steps"] == whole == results["runs"][0]["steps"]
    assert problem["cpu_seconds"] > 0


def test_a_training_that_fails_is_counted_and_comes_last(place: Path, tmp_path: Path) -> None:
    recipes = [parse_recipe("good: training.lr=0.01"), parse_recipe("bad: training.lr=1e30 training.clip_norm=null")]
    comparison = comparison_of(place, "short", cells="lipschitz", recipes=recipes, epochs=3)
    results = compare(replace(comparison, overrides=(*SMALL, "training.certified=false")), tmp_path / "out")
    rows = {row["name"]: row for row in results["problems"]["short"]["rows"]}
    assert (rows["lipschitz, good"]["failed"], rows["lipschitz, bad"]["failed"]) == (0, 1)
    assert rows["lipschitz, bad"]["rank"] == 2


@pytest.mark.slow
def test_a_stopped_comparison_goes_on_to_the_same_scores(place: Path, tmp_path: Path) -> None:
    words = ["compare", "--data", str(place / "short_TRAIN.npz"), "--cells", "lru", "--seeds", "0", "--epochs", "40"]
    words += ["--set", "model.hidden_size=4", "--set", "training.batch_size=8", "--output"]
    command = [sys.executable, "-m", "stablernn_cli", *words, "stopped"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "stopped" / "runs" / "short-lru-0" / "metrics.jsonl"
    while not metrics.is_file():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Run the same command again to go on; finished work is kept." in printed
    workplace = Workplace(tmp_path)
    resumed = workplace.ok(*words, "stopped", "--json").json
    whole = workplace.ok(*words, "whole", "--json").json
    assert [row["metrics"] for row in resumed["runs"]] == [row["metrics"] for row in whole["runs"]]
