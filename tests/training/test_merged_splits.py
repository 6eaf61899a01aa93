"""Training on all that is not tested on, and what classes count."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from forecast_helpers import many_series
from stablernn.data import ClassificationData, ForecastData, SequenceSplit, load_data
from stablernn.data.named.entry import LazySplit
from stablernn.errors import ConfigError, DataError, InterruptedRun
from stablernn.training import Progress, evaluate, load_config, load_run, train
from stablernn.training.dry_run import plan_training
from stablernn.training.tasks.classify import class_weights

TINY = ["model.hidden_size=5", "training.threads=1", "training.device=cpu", "training.plots=false"]
DIGITS = ["data.source=digits", "model.cell=rnn", "training.batch_size=256", "training.refit=true", *TINY]


def split(first: int, last: int, *, timed: bool = False) -> SequenceSplit:
    x = np.arange(first, last, dtype=np.float32)[:, None, None].repeat(3, axis=1)
    dt = np.full((last - first, 3), 0.5, np.float32) if timed else None
    names = tuple(str(number) for number in range(first, last))
    return SequenceSplit(x, np.full(last - first, 3), np.arange(first, last) % 2, names, dt)


def classes(*, timed: bool = False) -> ClassificationData:
    parts = split(0, 6, timed=timed), split(6, 9, timed=timed), split(9, 11, timed=timed)
    step = 1.0 if timed else None
    return ClassificationData("toy", ("a", "b"), ("x",), *parts, {"other": 1}, "sha256:0", time_step=step)


@pytest.mark.parametrize("timed", [False, True])
def test_sequences_are_joined_in_their_order(timed: bool) -> None:
    got = classes(timed=timed).without_validation()
    assert isinstance(got, ClassificationData)
    assert (len(got.train), len(got.validation)) == (9, 0)
    np.testing.assert_array_equal(got.train.x[:, 0, 0], range(9))
    np.testing.assert_array_equal(got.train.y, np.arange(9) % 2)
    assert got.train.ids == tuple("012345678")
    assert (got.train.dt is not None) is timed
    if timed:
        assert got.longest_step() == 0.5
    assert got.test is not None
    assert len(got.test) == 2
    assert got.fingerprint == "sha256:0"
    assert got.notes == {
        "other": 1,
        "validation": {"how": "none: joined to the training split by training.refit"},
    }


def test_sequences_that_are_made_on_demand_stay_so() -> None:
    asked: list[int] = []

    def make(first: int, length: int) -> Callable[[np.ndarray], np.ndarray]:
        def values(indices: np.ndarray) -> np.ndarray:
            asked.append(len(indices))
            return (first + indices.astype(np.float32))[:, None, None].repeat(length, axis=1)

        return values

    parts = [
        LazySplit(make(first, length), 10, np.full(count, length), np.arange(count) % 2, list(map(str, range(count))))
        for first, length, count in ((0, 3, 6), (6, 4, 3))
    ]
    got = replace(classes(), train=parts[0], validation=parts[1]).without_validation()
    assert isinstance(got, ClassificationData)
    assert isinstance(got.train, LazySplit)
    assert max(asked) == 1
    assert (len(got.train), len(got.validation), got.train.held_bytes) == (9, 0, 20)
    samples = got.train.gather([7, 0, 5])
    np.testing.assert_array_equal(samples.x[..., 0], [[7, 7, 7, 7], [0, 0, 0, 0], [5, 5, 5, 0]])
    np.testing.assert_array_equal(samples.lengths, [4, 3, 3])
    np.testing.assert_array_equal(samples.y, [1, 0, 1])


def test_the_windows_of_validation_are_trained_on() -> None:
    data = many_series([np.arange(40)[:, None]])
    data.notes["windows"] = data.window_counts()
    got = data.without_validation()
    assert isinstance(got, ForecastData)
    # A window of a split needs all of its two targets there: two splits of n have n - 1 each, joined 2 n - 1.
    before = {name: len(data.windows(name)) for name in ("train", "validation", "test")}
    after = {name: len(got.windows(name)) for name in ("train", "validation", "test")}
    assert after == {"train": before["train"] + before["validation"] + 1, "validation": 0, "test": before["test"]}
    assert got.windows("train").origins[-1] == (0, 29)
    assert {name: count["kept"] for name, count in got.notes["windows"].items()} == after
    assert {name: count["kept"] for name, count in data.notes["windows"].items()} == before


def test_classes_count_alike() -> None:
    data = classes()
    many = replace(data, train=replace(data.train, y=np.array([0, 0, 0, 0, 0, 1])), labels=("a", "b", "c"))
    weights = class_weights(many)
    torch.testing.assert_close(weights, torch.tensor([0.6, 3.0, 0.0]))
    assert float(weights[many.train.y].sum()) == pytest.approx(6)


def test_a_run_on_all_sequences(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    config = load_config(overrides=[*DIGITS, "training.max_steps=8"])
    with pytest.raises(InterruptedRun):
        train(config, tmp_path / "run", progress=stop)
    summary = train(None, tmp_path / "run", resume=True)
    assert list(summary["metrics"]) == ["test"]
    described = json.loads((tmp_path / "run/data.json").read_text())
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    assert described["splits"] == {
        "train": len(data.train) + len(data.validation),
        "validation": 0,
        "test": len(data.split("test")),
    }
    assert described["fingerprint"] == data.fingerprint
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["validation"] for line in lines] == [{}, {}]
    assert summary["best_epoch"] == 2
    assert not (tmp_path / "run/calibration.json").exists()
    run = load_run(tmp_path / "run")
    assert evaluate(run.predictor(), run.load_data(), "test")["accuracy"] == summary["metrics"]["test"]["accuracy"]
    with pytest.raises(DataError, match="'validation' of 'digits' is empty"):
        evaluate(run.predictor(), run.load_data(), "validation")


def test_the_plan_is_that_of_the_run() -> None:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    plan = plan_training(load_config(overrides=DIGITS), data)
    assert plan["samples"]["train"] == len(data.train) + len(data.validation)
    assert plan["samples"]["validation"] == 0
    assert plan["steps_per_epoch"] == -(-plan["samples"]["train"] // 256)


@pytest.mark.parametrize("given", ["training.patience=2", "training.schedule=plateau", "training.calibrate=true"])
def test_nothing_can_be_chosen_by_a_split_that_is_trained_on(given: str) -> None:
    with pytest.raises(ConfigError, match=r"^training\.refit leaves no validation split, which training\.patience,"):
        load_config(overrides=[*DIGITS, given])
