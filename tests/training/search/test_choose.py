"""Searches that train: the choice, its repetition, budgets, stops, and that test data take no part."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import NO_PLOTS, Workplace
from stablernn.training import load_config

FEW = ("--budget", "600steps", "--hidden-size", 4, "--epochs", 10, "--batch-size", 8)
"""A search of seconds."""


def waves(seed: int, *, is_test_shuffled: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    """Two classes of short sequences that differ in frequency."""
    generator = np.random.default_rng(seed)
    y = np.arange(40) % 2
    x = np.sin(np.arange(12)[None, :, None] * (1 + y[:, None, None])) + 0.3 * generator.normal(size=(40, 12, 1))
    return {"x": x.astype(np.float32), "y": 1 - y if is_test_shuffled else y}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    folder = tmp_path_factory.mktemp("search")
    for name, wrong in (("right", False), ("wrong", True)):
        (folder / name).mkdir()
        np.savez(folder / name / "waves_TRAIN.npz", **waves(0))
        np.savez(folder / name / "waves_TEST.npz", **waves(1, is_test_shuffled=wrong))
    return Workplace(folder)


@pytest.fixture(scope="module")
def chosen(place: Workplace) -> dict[str, Any]:
    """The summary of a run that was chosen, and under ``printed`` what the command printed."""
    printed = place.ok("train", "--data", "right/waves_TRAIN.npz", *FEW, *NO_PLOTS, "--run-dir", "run").out
    return {**json.loads(place.path("run/summary.json").read_text()), "printed": printed}


@pytest.fixture(autouse=True)
def _one_process(chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches use one process, except that of ``chosen``: each takes seconds to import torch."""
    monkeypatch.setattr("stablernn.training.search.ladder.available_cores", lambda: 1)


def without_times(choice: dict[str, Any]) -> dict[str, Any]:
    recipes = [{key: value for key, value in recipe.items() if key != "seconds"} for recipe in choice["recipes"]]
    return {**choice, "recipes": recipes}


def test_the_best_recipe_is_trained_and_the_run_says_how_it_was_chosen(
    place: Workplace, chosen: dict[str, Any]
) -> None:
    choice = chosen["choice"]
    assert choice == json.loads(place.path("run/choice.json").read_text())
    statuses = [recipe["status"] for recipe in choice["recipes"]]
    assert statuses.count("chosen") == 1
    assert "compared" in statuses
    compared = [recipe for recipe in choice["recipes"] if recipe["scores"]]
    assert all(len(recipe["scores"]) <= choice["parts"] for recipe in compared)
    assert choice["metric"] == "accuracy"
    settings = load_config(place.path("run/config.yaml"))
    assert settings.model.cell == choice["settings"]["model.cell"]
    # With few sequences nothing is held out at the end, so that the parts calibrate.
    assert settings.training.refit
    assert choice["settings"]["training.temperature"] == settings.training.temperature != 1
    calibration = json.loads(place.path("run/calibration.json").read_text())
    assert calibration["temperature"]["temperature"] == settings.training.temperature
    # Settings of the user stay.
    assert (settings.model.hidden_size, settings.training.batch_size) == (4, 8)


def test_test_data_take_no_part_and_the_same_budget_in_steps_chooses_the_same(
    place: Workplace, chosen: dict[str, Any]
) -> None:
    # The leak: if a model were chosen by these labels, another one would be.
    options = ("--data", "wrong/waves_TRAIN.npz", *FEW, *NO_PLOTS, "--run-dir", "leak")
    other = place.ok("train", *options, "--json").json
    assert without_times(other["choice"]) == without_times(chosen["choice"])
    assert other["metrics"]["test"] != chosen["metrics"]["test"]


def test_the_printed_command_trains_the_same_model(place: Workplace, chosen: dict[str, Any]) -> None:
    command = chosen["printed"].partition("The same without a search: stablernn ")[2].splitlines()[0].split()
    place.ok(*command, "--run-dir", "explicit")
    weights = [place.path(f"{run}/checkpoints/best.safetensors").read_bytes() for run in ("run", "explicit")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_more_epochs_stay_within_the_budget_and_the_printed_command_has_them(place: Workplace) -> None:
    # An epoch of all sequences has more steps than one of a part.
    method = ("--set", "training.method=gradient")
    options = ("--data", "right/waves_TRAIN.npz", "--budget", "2200steps", "--hidden-size", 4, *method, *NO_PLOTS)
    result = place.ok("train", *options, "--run-dir", "longer")
    summary = json.loads(place.path("longer/summary.json").read_text())
    assert summary["choice"]["settings"]["training.epochs"] == summary["epochs"]
    assert f"pays for {summary['epochs']} epochs." in result.err
    assert 500 < summary["steps"] <= 2200 - summary["choice"]["search_steps"]
    command = result.out.partition("The same without a search: stablernn ")[2].splitlines()[0].split()
    place.ok(*command, "--run-dir", "same_length")
    weights = [place.path(f"{run}/checkpoints/best.safetensors").read_bytes() for run in ("longer", "same_length")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_run_that_was_chosen_is_resumed_and_exported_like_any_other(place: Workplace, chosen: dict[str, Any]) -> None:
    place.ok("-q", "train", "--resume", "--run-dir", "run")
    exported = place.ok("export", "run", "--name", "found", "--json").json
    assert exported["parity"]


@pytest.mark.slow
def test_a_budget_that_is_too_small_for_a_network_takes_a_closed_form(place: Workplace) -> None:
    options = ("--data", "right/waves_TRAIN.npz", "--budget", "30steps", "--hidden-size", 16, *NO_PLOTS)
    result = place.ok("train", *options, "--run-dir", "poor")
    assert re.search(r"The budget of 30 steps compares no networks on this data; that needs [\d,]+ steps\.", result.err)
    summary = json.loads(place.path("poor/summary.json").read_text())
    chosen = summary["choice"]["chosen"]
    assert (summary["steps"], chosen.endswith(", closed form")) == (0, True)
    # Naive answers and closed forms are always compared on all parts.
    assert set(summary["choice"]["baselines"]) == {"majority", "ridge"}
    assert all(len(recipe["scores"]) in (0, 5) for recipe in summary["choice"]["recipes"])
    assert summary["metrics"]["test"]["accuracy"] > 0.9
    command = result.out.partition("The same without a search: stablernn ")[2].splitlines()[0].split()
    place.ok(*command, "--run-dir", "same")
    weights = [place.path(f"{run}/checkpoints/best.safetensors").read_bytes() for run in ("poor", "same")]
    assert weights[0] == weights[1]
    exported = place.ok("export", "poor", "--name", "poor", "--json").json
    assert exported["parity"]["stream_equals_sequence"] is True


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "setsid"), reason="sends a signal to a process of its own session")
def test_a_stop_keeps_the_best_so_far_and_leaves_no_process(place: Workplace) -> None:
    words = ["train", "--data", "right/waves_TRAIN.npz", "--budget", "10m", "--run-dir", "stopped"]
    with subprocess.Popen(
        [sys.executable, "-m", "stablernn_cli", *words],
        cwd=place.path("."),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                # The closed forms come first, and are done.
                if line.startswith("Comparing ") and "networks" in line:
                    break
            os.killpg(process.pid, signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(timeout=60) == 0, rest
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert re.search(r"Stopped: the best model so far, '\w+, closed form', is trained\.", rest)
    assert json.loads(place.path("stopped/summary.json").read_text())["metrics"]["test"]["accuracy"] > 0.9
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process of the search is still running")


@pytest.mark.slow
def test_four_busy_processes_change_neither_the_choice_nor_the_model(place: Workplace) -> None:
    """Each command measures its speeds itself, in a cache of its own, as on a new machine."""
    runs = []
    for busy in (0, 4):
        name = f"beside-{busy}"
        words = [sys.executable, "-m", "stablernn_cli", "train", "--data", "right/waves_TRAIN.npz", "--budget", "10s"]
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            environment = {**os.environ, "STABLERNN_CACHE": str(place.path(f"{name}-cache"))}
            subprocess.run([*words, "--run-dir", name], cwd=place.path("."), env=environment, check=True)
        finally:
            for other in others:
                other.kill()
                other.wait()
        choice = json.loads(place.path(f"{name}/choice.json").read_text())
        runs.append((without_times(choice), place.path(f"{name}/checkpoints/best.safetensors").read_bytes()))
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_series_are_compared_on_earlier_and_earlier_ends(place: Workplace) -> None:
    time_of = np.arange(260)
    rows = ["unique_id,ds,y", *(f"a,{step},{np.sin(step / 4) + 0.01 * step:.4f}" for step in time_of)]
    Path(place.path("series.csv")).write_text("\n".join(rows) + "\n")
    options = ("--horizon", 4, "--context-length", 16, "--budget", "400steps", "--hidden-size", 4, "--epochs", 1)
    summary = place.ok("train", "--data", "series.csv", *options, *NO_PLOTS, "--run-dir", "series", "--json").json
    choice = summary["choice"]
    assert choice["better"] == "lower"
    assert choice["parts"] > 1
    # The context is given, so that recipes with another one are left out.
    assert not any("context" in recipe["name"] for recipe in choice["recipes"])
