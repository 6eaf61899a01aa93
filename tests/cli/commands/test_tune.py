"""`stablernn tune`: real searches, killed and stopped, resumed and shared."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import Result, Workplace
from tune_helpers import SMALL, waves, write_waves

LONG = (
    "tune --data waves_TRAIN.npz --cell lru --epochs 6 --set training.batch_size=4 --set model.hidden_size=4 "
    "--set model.num_layers=1 --output"
)
"""Trials of a second or two, of which each epoch leaves a checkpoint."""
TUNE = ("tune", *SMALL, "--cell", "lru", "--output", "study")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    folder = tmp_path_factory.mktemp("tune")
    write_waves(folder)
    return Workplace(folder)


@pytest.fixture(scope="module")
def searched(place: Workplace) -> Result:
    """A study of three trials in ``study``, as a user sees it."""
    return place.ok(*TUNE, "--trials", 3)


@pytest.fixture
def results(place: Workplace, searched: Result) -> dict[str, Any]:
    return dict(json.loads(place.path("study/results.json").read_text()))


def worker_of(parent: int, lock: Path) -> int | None:
    """The process that a search started and that trains a run, by the lock that it holds."""
    for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if any(entry.resolve() == lock.resolve() for entry in Path(f"/proc/{number}/fd").iterdir()):
                return int(number)
    return None


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_score_of_a_trial_is_its_best_validation_metric(place: Workplace, results: dict[str, Any]) -> None:
    for trial in results["trials"]:
        lines = place.path(f"{trial['run']}/metrics.jsonl").read_text().splitlines()
        assert trial["value"] == max(json.loads(line)["validation"]["accuracy"] for line in lines)


def test_a_fixed_setting_is_never_varied_and_the_first_trial_is_the_recommended_one(results: dict[str, Any]) -> None:
    for trial in results["trials"]:
        assert not {"model.hidden_size", "training.batch_size", "training.epochs"} & trial["settings"].keys()
    assert results["trials"][0]["settings"]["training.lr"] == 0.005
    assert len({trial["settings"]["training.lr"] for trial in results["trials"]}) == 3


def test_the_printed_command_trains_the_same_model(place: Workplace, searched: Result, results: dict[str, Any]) -> None:
    line = searched.out.partition("The same without a search: stablernn ")[2].splitlines()[0]
    place.ok(*line.split(), "--set", "training.plots=false", "--run-dir", "explicit")
    best = results["best"]["run"]
    weights = [place.path(f"{run}/checkpoints/best.safetensors").read_bytes() for run in (best, "explicit")]
    assert weights[0] == weights[1]


def test_the_same_command_trains_nothing_again(place: Workplace, results: dict[str, Any]) -> None:
    again = place.ok(*TUNE, "--trials", 3, "--json").json
    assert again["trials"] == results["trials"]
    assert again["command"].startswith("stablernn train --data waves_TRAIN.npz")


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (("--epochs", 3), "training.epochs=2, got 3"),
        (("--seed", 1), "training.seed=0, got 1"),
        (("--require", "bounded"), "require='none', got 'bounded'"),
        (("--cell", "gru"), "cell='lru', got 'gru'"),
        (("--set", "training.clip_norm=2"), "training.clip_norm=None, got 2"),
        (("--set", "training.lr=0.01"), "training.lr=None, got 0.01"),
        (("--data", "other_TRAIN.npz"), "fingerprint of the data="),
        (("--storage", "sqlite:///other.db"), "is stored in 'journal', got 'sqlite:///other.db'"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_another_search_in_the_folder_is_refused(
    place: Workplace, searched: Result, options: tuple[object, ...], difference: str
) -> None:
    np.savez(place.path("other_TRAIN.npz"), **waves(2))
    sentence = place.refusal(*TUNE, "--trials", 4, *options)
    assert difference in sentence
    assert "--output" in sentence


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_but_its_epoch(place: Workplace) -> None:
    trials = place.path("killed/trials")

    def kill_the_worker_of_the_second_trial() -> None:
        wait_for((trials / "1/checkpoints/last.json").is_file)
        worker = worker_of(os.getpid(), trials / "1.lock")
        assert worker is not None
        os.kill(worker, signal.SIGKILL)

    with ThreadPoolExecutor(1) as thread:
        kill = thread.submit(kill_the_worker_of_the_second_trial)
        searched = place.ok(f"{LONG} killed --trials 3 --workers 2 --json")
        kill.result()
    assert "trial 1: its process died; its run goes on in another one" in searched.err
    trained = searched.json["trials"]
    assert len(trained) == 3
    (again,) = [trial for trial in trained if trial["resumes"] is not None]
    assert (again["resumes"], again["run"], again["state"]) == (1, "killed/trials/1", "done")
    # The run went on from its checkpoint: no epoch is missing, and none is there twice.
    assert len(json.loads((trials / "1/env.json").read_text())["resumed"]) == 1
    epochs = [json.loads(line)["epoch"] for line in (trials / "1/metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, 7))


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_and_the_same_command_goes_on(place: Workplace) -> None:
    process = place.start(f"{LONG} stopped --trials 2")
    wait_for(place.path("stopped/trials/1/checkpoints/last.json").is_file)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    sentence = err.splitlines()[-1]
    assert sentence.startswith("Error: Stopped after 1 of 2 trials. The best so far is trial 0, with a validation ")
    assert "'stopped/trials/0'. Run the same command again to go on." in sentence
    results = place.document(f"{LONG} stopped --trials 2")
    assert [trial["resumes"] for trial in results["trials"]] == [None, 1]
    assert len(json.loads(place.path("stopped/trials/1/env.json").read_text())["resumed"]) == 1


@pytest.mark.slow
def test_two_searches_share_a_study(place: Workplace) -> None:
    other = place.start(f"{LONG} shared --trials 3")
    # Both have a process that trains.
    wait_for(place.path("shared/study.json").is_file)
    own = place.ok(f"{LONG} shared --trials 3")
    _, err = other.communicate(timeout=60)
    assert other.returncode == 0, err
    results = place.document(f"{LONG} shared --trials 3")
    # No trial was trained twice, and none is missing.
    assert [trial["number"] for trial in results["trials"]] == [0, 1, 2]
    assert sum(line.startswith("trial ") for line in (own.err + err).splitlines()) == 3
    assert len({json.dumps(trial["settings"]) for trial in results["trials"]}) == 3


@pytest.mark.slow
def test_a_trial_of_which_less_is_proved_is_pruned_early(place: Workplace) -> None:
    options = (*SMALL, "--epochs", 9, "--output", "required", "--require", "contracting", "--trials", 2)
    # With a database, which tells of dead trials in another way.
    searched = place.ok("tune", *options, "--cell", "lstm,lru", "--storage", "sqlite:///study.db", "--json")
    lstm, lru = searched.json["trials"]
    assert (lstm["state"], lstm["cell"], lstm["certificate"], lstm["epochs"]) == ("pruned", "lstm", "none", 1)
    assert lstm["reason"] == "proved 'none', less than the 'contracting' that is required"
    assert (lru["state"], lru["cell"], lru["certificate"]) == ("done", "lru", "contracting")
    assert searched.json["best"]["number"] == lru["number"]
    assert "xperimental" not in searched.err
    assert place.path("study.db").is_file()
    assert not place.path("required/journal.log").exists()


def test_a_search_without_time_ends_with_a_sentence(place: Workplace) -> None:
    assert "No trial was finished in the time" in place.refusal(*TUNE[:-1], "hurried", "--timeout", "0.001s", code=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--timeout", "20steps"), "--timeout is a time such as 90s, 30m or 2h, got '20steps'"),
        (("--set", "training.refit=true"), "which training.refit trains on"),
        (("--cell", "lru,lrv"), "Unknown cell 'lrv'. Did you mean 'lvf'?"),
        (("--max-steps", 5), "--epochs and --max-steps exclude each other"),
        (("--set", "model.cell=gru"), "--cell lru contradicts --set model.cell=gru"),
        (("--storage", "nothing"), "--storage is the address of a database"),
        (("--require", "safe"), "--require must be one of 'contracting',"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_refused_before_anything_is_trained(
    place: Workplace, options: tuple[object, ...], sentence: str
) -> None:
    assert sentence in place.refusal(*TUNE[:-1], "refused", "--trials", 1, *options)
