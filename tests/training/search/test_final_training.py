"""What the rest of a budget is spent on: members and epochs, by the task and the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stablernn.data import ClassificationData, SequenceSplit
from stablernn.data.options import TaskName
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate
from stablernn.training.search.final_training import TrainingLength, final_settings
from stablernn.training.search.recipes import Recipe, recipes
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate


def settings(
    affordable: float,
    *,
    most_epochs: int | None = None,
    most_times: int = 1,
    task: TaskName = "forecast",
    members: int | None = None,
    **training: int,
) -> tuple[Config, dict[str, Any]]:
    """Settings of the last training, whose recommended length is 3 epochs and 300 steps."""
    model = {} if members is None else {"members": members}
    user = validate({"data": {"source": "toy"}, "model": model, "training": training})
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lipschitz", **model}, "training": training})
    candidate = Candidate(Recipe("toy", {}, "", most_times=most_times, most_epochs=most_epochs), config, "contracting")
    length = TrainingLength(affordable, 0.01, 300, 3, Budget(None, 10_000))
    return final_settings(user, task, candidate, length)


@pytest.mark.parametrize(
    ("task", "longer", "affordable", "changes"),
    [
        ("forecast", {"most_epochs": 20}, 399, {}),
        ("forecast", {"most_epochs": 20}, 1250, {"training.epochs": 12}),
        # 20 epochs are 2,000 steps; what is left after them pays for a second member.
        ("forecast", {"most_epochs": 20}, 3900, {"training.epochs": 20}),
        ("forecast", {"most_epochs": 20}, 4000, {"training.epochs": 20, "model.members": 2}),
        ("classify", {"most_times": 4}, 399, {}),
        ("classify", {"most_times": 4}, 400, {"training.epochs": 4}),
        # Four times the epochs are 1,200 steps.
        ("classify", {"most_times": 4}, 2399, {"training.epochs": 12}),
        ("classify", {"most_times": 4}, 2400, {"training.epochs": 12, "model.members": 2}),
        ("classify", {"most_times": 4}, 9600, {"training.epochs": 12, "model.members": 8}),
    ],
)
def test_a_larger_budget_pays_for_epochs_before_members(
    task: TaskName, longer: dict[str, int], affordable: float, changes: dict[str, Any]
) -> None:
    config, chosen = settings(affordable, task=task, **longer)
    assert chosen == changes
    assert config.training.epochs == changes.get("training.epochs")
    assert config.model.members == changes.get("model.members", 1)
    assert config.model.cell == "lipschitz"


def test_a_multiple_of_the_epochs_keeps_what_the_user_sets() -> None:
    assert settings(1200, most_times=4, task="classify", epochs=3)[1] == {"model.members": 4}
    assert settings(1200, most_times=4, task="classify", members=2)[1] == {"training.epochs": 12}
    assert settings(9600, most_times=4, task="classify", members=2, epochs=3)[1] == {}


def test_outputs_at_every_step_get_the_recommended_training() -> None:
    assert settings(4800, task="predict-next")[1] == {}


def test_certificates_of_members_count_in_a_budget_in_time() -> None:
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lipschitz"}})
    # Of 10 s an ensemble of four takes 4 * (1 + 2), one of two half of it; without a proof in training one takes 9.
    for proof, members in (("contracting", 2), ("none", None)):
        length = TrainingLength(1000, 0.01, 100, 3, Budget(10.0))
        candidate = Candidate(Recipe("toy", {}, ""), config, proof)
        assert final_settings(config, "forecast", candidate, length)[1].get("model.members") == members


def test_other_recipes_get_members_alone() -> None:
    assert settings(1250, most_epochs=None)[1] == {"model.members": 4}


def test_a_length_of_the_user_is_kept() -> None:
    assert settings(1250, most_epochs=20, epochs=3)[1] == {"model.members": 4}
    assert settings(250, most_epochs=20, epochs=3)[1] == {}


def test_too_small_a_budget_cuts_the_training(caplog: pytest.LogCaptureFixture) -> None:
    assert settings(250, most_epochs=20)[1] == {"training.max_steps": 250}
    assert "The budget of 10,000 steps leaves 250 of the 300 optimizer steps of 'toy'" in caplog.text
    assert "needs 50 steps more." in caplog.text


def test_recipes_of_classifiers_with_augmentation_have_a_use_for_more_epochs() -> None:
    labels = np.arange(12) % 3
    split = SequenceSplit(np.ones((12, 30, 1), np.float32), np.full(12, 30), labels, ())
    data = ClassificationData("toy", ("a", "b", "c"), ("x",), split, split, None, {}, "sha256:0")
    times = {recipe.name: recipe.most_times for recipe in recipes(data)}
    assert times.pop("lru, unchanged sequences") == 1
    assert set(times.values()) == {2}
