"""What the rest of a budget is spent on: members and epochs, by the task and the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stablernn.data import ClassificationData, SequenceSplit
from stablernn.data.options import TaskName
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate, Recipe, RecommendedLength, find_networks
from stablernn.training.search.ladder import RemainingBudget, final_settings
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate


def settings(
    affordable: float,
    *,
    most_epochs: int = 3,
    task: TaskName = "forecast",
    members: int | None = None,
    takes_parts: bool = False,
    **training: int,
) -> tuple[Config, dict[str, Any]]:
    """Settings of the last training, whose recommended length is 3 epochs and 300 steps.

    With ``takes_parts`` the recipe itself says how many epochs are worth having, as that of many windows does.
    """
    model = {} if members is None else {"members": members}
    user = validate({"data": {"source": "toy"}, "model": model, "training": training})
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lipschitz", **model}, "training": training})
    recipe = Recipe("toy", {}, "", most_epochs=most_epochs if takes_parts else None)
    candidate = Candidate(recipe, config, "contracting", RecommendedLength(300, 3, most_epochs))
    return final_settings(user, task, candidate, RemainingBudget(affordable, 0.01, Budget(None, 10_000)))


@pytest.mark.parametrize(
    ("affordable", "changes"),
    [
        (300, {}),
        (399, {"training.max_steps": 399}),
        (1250.5, {"training.max_steps": 1250}),
        (1999, {"training.max_steps": 1999}),
        (2000, {"training.epochs": 20}),
        (4000, {"training.epochs": 20, "model.members": 2}),
    ],
)
def test_a_part_of_a_long_epoch_is_trained(affordable: float, changes: dict[str, Any]) -> None:
    config, chosen = settings(affordable, most_epochs=20, takes_parts=True)
    assert chosen == changes
    assert config.training.max_steps == changes.get("training.max_steps")


@pytest.mark.parametrize(
    ("most_epochs", "affordable", "changes"),
    [
        (20, 399, {}),
        (20, 400, {"training.epochs": 4}),
        (20, 1250, {"training.epochs": 12}),
        # 20 epochs are 2,000 steps; what is left after them pays for a second member.
        (20, 3999, {"training.epochs": 20}),
        (20, 4000, {"training.epochs": 20, "model.members": 2}),
        (20, 16_000, {"training.epochs": 20, "model.members": 8}),
        (3, 1250, {"model.members": 4}),
    ],
)
def test_a_larger_budget_pays_for_epochs_before_members(
    most_epochs: int, affordable: float, changes: dict[str, Any]
) -> None:
    config, chosen = settings(affordable, most_epochs=most_epochs)
    assert chosen == changes
    assert config.training.epochs == changes.get("training.epochs")
    assert config.model.members == changes.get("model.members", 1)
    assert config.model.cell == "lipschitz"


def test_certificates_of_members_count_in_a_budget_in_time() -> None:
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lipschitz"}})
    # Of 10 s an ensemble of four takes 4 * (1 + 2), one of two half of it; without a proof in training one takes 9.
    for proof, members in (("contracting", 2), ("none", None)):
        remaining = RemainingBudget(1000, 0.01, Budget(10.0))
        candidate = Candidate(Recipe("toy", {}, ""), config, proof, RecommendedLength(100, 2, 2))
        assert final_settings(config, "forecast", candidate, remaining)[1].get("model.members") == members


def test_a_length_of_the_user_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    assert settings(1250, most_epochs=20, epochs=3)[1] == {"model.members": 4}
    assert not caplog.text
    assert settings(250, most_epochs=20, epochs=3)[1] == {}
    assert "The training of 'toy' takes 50 steps more than the budget of 10,000 steps leaves. Leave" in caplog.text


def test_too_small_a_budget_cuts_the_training(caplog: pytest.LogCaptureFixture) -> None:
    assert settings(250, most_epochs=20)[1] == {"training.max_steps": 250}
    assert "The training of 'toy' takes 50 steps more than the budget of 10,000 steps leaves. It is cut" in caplog.text


def find_lengths(count: int, **training: Any) -> dict[str, RecommendedLength]:
    """Lengths of the recipes for sequences of two classes, of which a fifth is for validation."""

    def split(first: int, last: int) -> SequenceSplit:
        labels = np.arange(first, last) % 2
        return SequenceSplit(np.ones((last - first, 30, 1), np.float32), np.full(last - first, 30), labels, ())

    splits = split(0, count - count // 5), split(count - count // 5, count)
    data = ClassificationData("toy", ("a", "b"), ("x",), *splits, None, {}, "sha256:0")
    candidates = find_networks(validate({"data": {"source": "toy"}, "training": training}), data)
    return {candidate.recipe.name: candidate.recommended for candidate in candidates}


def test_the_recommended_length_is_that_of_all_training_sequences() -> None:
    # At least 500 steps with minibatches of 8; a part of a search has fewer steps in an epoch, and more epochs.
    assert find_lengths(50)["lru"] == RecommendedLength(7 * 72, 72, 144)
    # Without the ten sequences that are held out for validation.
    assert find_lengths(50, patience=5)["lru"] == RecommendedLength(5 * 100, 100, 200)
    assert find_lengths(50, epochs=3)["lru"] == RecommendedLength(7 * 3, 3, 6)
    assert find_lengths(50, max_steps=90)["lru"] == RecommendedLength(90, 0, 0)


def test_only_classifiers_with_augmentation_are_worth_more_epochs() -> None:
    lengths = find_lengths(50)
    unchanged = lengths.pop("lru, unchanged sequences")
    assert unchanged.most_epochs == unchanged.epochs
    assert all(length.most_epochs == 2 * length.epochs for length in lengths.values())
    # The same where it is the user who leaves sequences unchanged.
    off = find_lengths(50, time_warp=0.0, jitter=0.0, rescale=0.0)
    assert "lru, unchanged sequences" not in off
    assert all(length.most_epochs == length.epochs for length in off.values())
