"""Ensembles of networks that were trained alone: their scores on held-out folds, and the rows of a comparison."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_scripts import script
from stablernn.data.types import ClassificationData
from stablernn.training.search.trial import load_all
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate


@pytest.fixture
def module(benchmarks: None) -> Any:
    return script("cross_validation")


def answers(module: Any, probabilities: list[list[float]], truth: list[int]) -> object:
    return module.HeldOut(np.log(np.array(probabilities)), np.array(truth), 1.5)


def test_probabilities_are_averaged_and_not_logits(module: Any) -> None:
    # By the mean of the logits the first network, which is sure, would win both sequences.
    sure = [answers(module, [[0.0001, 0.9999], [0.0001, 0.9999]], [1, 0])] * 2
    others = [[answers(module, [[0.2, 0.8], [0.99, 0.01]], [1, 0])] * 2 for _ in range(2)]
    assert [accuracy for accuracy, _ in module.average_scores([sure, *others])] == [1.0, 1.0]
    assert [accuracy for accuracy, _ in module.average_scores([sure])] == [0.5, 0.5]


def test_the_temperature_of_a_fold_comes_from_the_other_folds(module: Any) -> None:
    right = answers(module, [[0.9, 0.1]] * 50, [0] * 50)
    undecided = answers(module, [[0.9, 0.1]] * 50, [0, 1] * 25)
    (_, loss_of_right), (_, loss_of_undecided) = module.average_scores([[right, undecided]])
    # Where the other fold was half wrong the temperature is high, where it was right it is low.
    assert loss_of_right > -math.log(0.9)
    assert loss_of_undecided > -(math.log(0.9) + math.log(0.1)) / 2


def test_an_ensemble_has_a_row_for_each_fold_with_the_time_of_all_its_networks(module: Any) -> None:
    cross_validation = script("cross_validation")
    ensembles = cross_validation.COMPARISONS["mixed-members"].ensembles
    fold = answers(module, [[0.9, 0.1], [0.2, 0.8]], [0, 1])
    networks = {network: [fold] * 5 for ensemble in ensembles.values() for network in ensemble}
    rows = cross_validation.ensemble_rows("mixed-members", "ECG200", networks)
    assert {(row["variant"], row["part"]) for row in rows} == {(name, part) for name in ensembles for part in range(5)}
    assert {row["cpu_seconds"] for row in rows if row["variant"] == "four lru"} == {6.0}
    assert {row["score"] for row in rows} == {1.0}


def test_only_data_sets_without_all_rows_of_ensembles_are_pending(module: Any) -> None:
    cross_validation = script("cross_validation")
    chosen = cross_validation.COMPARISONS["mixed-members"]
    rows = [
        {"comparison": "mixed-members", "data": data, "variant": name, "seed": 0, "part": 0}
        for data in chosen.data
        for name in chosen.ensembles
        if (data, name) != (chosen.data[1], "four kinds")
    ]
    assert [words for _, words in cross_validation.pending("mixed-members", rows)] == [
        ("mixed-members", chosen.data[1])
    ]


def small_training(folder: Path, **training: int) -> Config:
    """Settings of a training on twenty sequences."""
    time = np.arange(16)
    x = np.stack([np.sin(time * (0.2 if label else 0.9)) for label in [0, 1] * 10])[..., None].astype(np.float32)
    np.savez(folder / "waves.npz", x=x, y=np.array([0, 1] * 10))
    return validate(
        {
            "data": {"source": str(folder / "waves.npz")},
            "model": {"cell": "lru", "hidden_size": 8},
            "training": {"refit": True, **training},
        }
    )


def test_a_multiple_of_the_epochs_is_that_of_the_fold(module: Any, tmp_path: Path) -> None:
    twice = module.held_out(small_training(tmp_path, epochs=3), 1, 0, 5, times=2)
    as_long = module.held_out(small_training(tmp_path, epochs=6), 1, 0, 5)
    np.testing.assert_array_equal(twice.logits, as_long.logits)


@pytest.mark.parametrize(("key", "ensembles"), [("share", {"one": (("a", 0),)}), ("times", {})])
def test_lengths_that_a_comparison_would_leave_out_are_refused(
    module: Any, key: str, ensembles: dict[str, Any]
) -> None:
    comparison = script("cross_validation").Comparison
    with pytest.raises(ValueError, match=rf"^'{key}' has no effect on .*, got it in 'a'; leave it out\.$"):
        comparison(("toy",), {}, {"a": {key: 2}}, ensembles=ensembles)


def test_a_network_answers_for_the_sequences_of_its_fold_alone(module: Any, tmp_path: Path) -> None:
    config = small_training(tmp_path, max_steps=20)
    folds = [module.held_out(config, 1, part, 5) for part in range(5)]
    data = load_all(config)
    assert isinstance(data, ClassificationData)
    assert sum(len(fold.truth) for fold in folds) == len(data.train) + len(data.validation)
    assert all(fold.logits.shape == (len(fold.truth), 2) for fold in folds)
    again = module.held_out(config, 1, 0, 5)
    np.testing.assert_array_equal(again.logits, folds[0].logits)
    assert not np.array_equal(module.held_out(config, 2, 0, 5).logits, folds[0].logits)
