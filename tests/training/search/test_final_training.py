"""What the rest of a budget is spent on: epochs where a recipe has a use for them, then members."""

from __future__ import annotations

from typing import Any

import pytest

from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate
from stablernn.training.search.final_training import TrainingLength, final_settings
from stablernn.training.search.recipes import Recipe
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate


def settings(affordable: float, *, most_epochs: int | None, **training: int) -> tuple[Config, dict[str, Any]]:
    """Settings of the last training of a forecaster, whose recommended training has 3 epochs and 300 steps."""
    user = validate({"data": {"source": "toy"}, "training": training})
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lipschitz"}, "training": training})
    candidate = Candidate(Recipe("toy", {}, "", most_epochs=most_epochs), config, "contracting")
    length = TrainingLength(affordable, 0.01, 300, 3, Budget(None, 10_000))
    return final_settings(user, "forecast", candidate, length)


@pytest.mark.parametrize(
    ("affordable", "changes"),
    [
        (399, {}),
        (1250, {"training.epochs": 12}),
        # 20 epochs are 2,000 steps; what is left after them pays for a second member.
        (3900, {"training.epochs": 20}),
        (4000, {"training.epochs": 20, "model.members": 2}),
    ],
)
def test_a_larger_budget_pays_for_epochs_before_members(affordable: float, changes: dict[str, Any]) -> None:
    config, chosen = settings(affordable, most_epochs=20)
    assert chosen == changes
    assert config.training.epochs == changes.get("training.epochs")
    assert config.model.members == changes.get("model.members", 1)
    assert config.model.cell == "lipschitz"


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
