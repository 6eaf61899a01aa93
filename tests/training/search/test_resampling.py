"""Parts of the training data, in which nothing of the test data is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forecast_helpers import many_series
from search_helpers import MARK, sequences
from stablernn.data import ClassificationData
from stablernn.data.classification import stratified_folds
from stablernn.data.options import LARGEST_SEED
from stablernn.training.search.trial import Trial, _part, resample
from stablernn.training.settings.load import validate


@pytest.mark.parametrize("count", [2, 5])
def test_folds_hold_every_sample_once_and_every_class_evenly(count: int) -> None:
    y = np.array([0] * 20 + [1] * 10 + [2] * 5)
    folds = stratified_folds(y, count, seed=3)
    assert sorted(np.concatenate(folds).tolist()) == list(range(len(y)))
    for label, size in ((0, 20), (1, 10), (2, 5)):
        shares = [int((y[fold] == label).sum()) for fold in folds]
        assert max(shares) - min(shares) <= 1, (label, size)
    assert [fold.tolist() for fold in folds] == [fold.tolist() for fold in stratified_folds(y, count, seed=3)]


@pytest.mark.parametrize("refit", [True, False])
def test_sequences_of_a_group_are_never_on_both_sides(refit: bool) -> None:
    data = sequences(60)
    # Groups of five sequences, of all classes.
    numbered = [replace(split, groups=np.arange(len(split)) // 5 + first) for split, first in
                ((data.train, 0), (data.validation, 100))]  # fmt: skip
    parts = resample(replace(data, train=numbered[0], validation=numbered[1]), 5, seed=0, refit=refit)
    assert len(parts) == 5
    for part in parts:
        sides = [set(split.groups.tolist()) for split in (part.train, part.validation, part.test) if len(split)]
        assert len(set.union(*sides)) == sum(map(len, sides))


@pytest.mark.parametrize("refit", [True, False])
def test_no_test_sequence_is_in_any_part(refit: bool) -> None:
    parts = resample(sequences(), 5, seed=0, refit=refit)
    held_out: list[str] = []
    for part in parts:
        assert isinstance(part, ClassificationData)
        assert part.test is not None
        for split in (part.train, part.validation, part.test):
            assert not (split.x == MARK).any()
        used = {*part.train.ids, *part.validation.ids}
        assert not used & set(part.test.ids)
        assert len(used) + len(part.test) == 30
        assert bool(len(part.validation)) is not refit
        held_out += part.test.ids
    assert sorted(held_out, key=int) == [str(number) for number in range(30)]


def test_no_test_step_is_in_any_part_of_a_series() -> None:
    data = many_series([np.arange(60.0)[:, None], np.arange(60.0)[:, None]])
    for series in data.series:
        series.values[-data.test_steps :] = MARK
    parts = resample(data, 3, seed=0, refit=False)
    assert len(parts) == 3
    lengths = [len(part.series[0].values) for part in parts]  # type: ignore[union-attr]
    # Each is earlier than the one before by what is scored.
    assert lengths == [60 - data.test_steps - number * data.validation_steps for number in range(3)]
    for part in parts:
        assert all(not (series.values == MARK).any() for series in part.series)  # type: ignore[union-attr]
        assert len(part.split("test"))


def test_a_part_chooses_its_inputs_by_its_own_training_steps(tmp_path: Path) -> None:
    """What is held out, and all that comes later, repeats every 7 steps in one file and every 12 in the other."""
    steps = np.arange(240)
    random = np.random.default_rng(0).normal(size=240)
    chosen = []
    for season in (7, 12):
        later = np.sin(2 * np.pi * steps / season)
        values = np.where(steps < 100, np.sin(2 * np.pi * steps / 7), later) + 0.1 * random
        rows = [f"{step},{value:.6f}" for step, value in zip(steps, values, strict=True)]
        (tmp_path / f"{season}.csv").write_text("\n".join(["ds,y", *rows]))
        data = {"source": str(tmp_path / f"{season}.csv"), "validation_steps": 20, "test_steps": 20}
        config = validate({"data": data, "task": {"horizon": 4}, "model": {"cell": "lru"}})
        parts = [_part(Trial(0, config, number)) for number in (0, 4)]
        chosen.append([(part.linear, scored.linear) for part, scored in parts])  # type: ignore[union-attr]
    (first, last), (other_first, same_last) = chosen
    assert last == same_last
    assert last[0] == last[1]
    assert first != other_first


def test_another_draw_has_other_folds_of_the_same_sequences_and_another_seed(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 12, 1)).astype(np.float32)
    np.savez(tmp_path / "toy_TRAIN.npz", x=x, y=np.arange(30) % 2)
    data, model = {"source": str(tmp_path / "toy_TRAIN.npz")}, {"cell": "lru", "hidden_size": 4}
    config = validate({"data": data, "model": model, "training": {"refit": True, "max_steps": 1, "seed": 3}})
    draws = []
    for draw in (0, 1):
        trials = [Trial(0, config, part, draw=draw) for part in range(5)]
        held_out = [part.test for part, _ in map(_part, trials) if isinstance(part, ClassificationData)]
        assert sorted(number for split in held_out if split is not None for number in split.ids) == sorted(
            map(str, range(30))
        )
        draws.append([split.ids for split in held_out if split is not None])
    assert draws[0] != draws[1]
    assert [Trial(0, config, 2, draw=draw).seed for draw in (0, 1)] == [3, 1_000_003]
    last = config.model_copy(update={"training": config.training.model_copy(update={"seed": LARGEST_SEED})})
    assert Trial(0, last, 2, draw=1).seed == 999_999
