"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import stablernn as srn

# Small and quick: what is checked is the interface. The checks ask for 83 % on separable blobs, too.
SMALL = {
    "cell": "gru",
    "hidden_size": 8,
    "epochs": 6,
    "lr": 0.03,
    "batch_size": 16,
    "certified": False,
    "settings": {"training.calibrate": False},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [srn.StableClassifier(**SMALL)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "held-out sequences and minibatches are drawn by position"
    },
)
def test_the_classifier_passes_the_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
