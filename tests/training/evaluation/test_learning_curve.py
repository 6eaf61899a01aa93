"""Whether a validation curve was still improving when training ended."""

from __future__ import annotations

from typing import Any

import pytest

from stablernn.training.train_model import describe_improvement, improvement_at_end


def records(name: str, *values: float | None) -> list[dict[str, Any]]:
    return [{"validation": {name: value}} for value in values]


def test_a_rising_accuracy_is_still_improving() -> None:
    curve = records("accuracy", 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    improvement = improvement_at_end(curve, "accuracy", 200)
    assert improvement == {
        "metric": "accuracy", "before": pytest.approx(0.7), "after": pytest.approx(0.9), "epochs": [6, 8],
    }  # fmt: skip
    assert describe_improvement(improvement) == (
        "The validation accuracy was still improving when training stopped: 0.7 after 6 epochs, 0.9 after 8. Train "
        "longer, such as --epochs 16."
    )


def test_a_gain_within_the_noise_of_few_sequences_is_none() -> None:
    # 1 of 50 errors less, which has a standard error of 3 sequences.
    curve = records("accuracy", 0.5, 0.7, 0.8, 0.8, 0.8, 0.8, 0.81, 0.82)
    assert improvement_at_end(curve, "accuracy", 50) is None
    assert improvement_at_end(curve, "accuracy", 5000) is not None


@pytest.mark.parametrize("last", [0.5, 0.49, 0.48])
def test_an_error_that_hardly_falls_is_none(last: float) -> None:
    assert improvement_at_end(records("mase", 0.9, 0.6, 0.5, last), "mase", 100) is None


def test_an_error_that_falls_is_still_improving_and_missing_values_count_as_none() -> None:
    curve = records("mase", None, 0.9, 0.8, 0.5)
    improvement = improvement_at_end(curve, "mase", 100)
    assert improvement is not None
    assert (improvement["before"], improvement["after"], improvement["epochs"]) == (0.8, 0.5, [3, 4])
    assert improvement_at_end(records("mase", None, None, None, 0.5), "mase", 100) is None
