from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from stablernn.data import ClassificationData, load_data
from stablernn.data.types import SequenceSplit
from stablernn.training.evaluation import baselines
from stablernn.training.evaluation.baselines import ALPHAS, Baselines, Ridge


def oracle() -> Any:
    return make_pipeline(StandardScaler(), RidgeClassifierCV(alphas=ALPHAS))


def table(rows: int, columns: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), random.integers(0, classes, rows - classes)])
    x = random.normal(size=(rows, columns)) + 1.2 * random.normal(size=(classes, columns))[y]
    x[:, 0] = 3.0  # a column that never changes
    return x, y


@pytest.mark.parametrize(
    ("rows", "columns", "classes"),
    [(60, 8, 3), (60, 8, 2), (20, 90, 2), (25, 90, 4), (40, 40, 3)],
    ids=["tall", "tall of two", "wide of two", "wide", "square"],
)
def test_ridge_equals_sklearn(rows: int, columns: int, classes: int) -> None:
    x, y = table(rows, columns, classes)
    fresh = np.random.default_rng(1).normal(size=(300, columns)) * 2
    theirs = oracle().fit(x, y)
    ours = Ridge(x, y)
    assert ours.alpha == pytest.approx(theirs[-1].alpha_)
    expected = theirs.decision_function(fresh)
    scores = ours.scores(fresh)
    got = scores[:, 1] if classes == 2 else scores
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(ours.predict(fresh), theirs.predict(fresh))


def data(x: np.ndarray, lengths: list[int], y: list[int], **splits: SequenceSplit) -> ClassificationData:
    train = split(x, lengths, y)
    return ClassificationData(
        name="toy",
        labels=("a", "b", "c"),
        features=tuple(f"f{n}" for n in range(x.shape[2])),
        train=train,
        validation=splits.get("validation", train),
        test=splits.get("test"),
        notes={},
        fingerprint="",
    )


def split(x: np.ndarray, lengths: list[int], y: list[int]) -> SequenceSplit:
    return SequenceSplit(x.astype(np.float32), np.array(lengths), np.array(y), tuple(map(str, range(len(y)))))


def test_ridge_on_the_digits_is_that_of_sklearn() -> None:
    digits = load_data("digits")
    assert isinstance(digits, ClassificationData)
    assert digits.test is not None
    theirs = oracle().fit(digits.train.x[..., 0], digits.train.y)
    got = Baselines(digits).scores("test")
    assert got["ridge"]["accuracy"] == theirs.score(digits.test.x[..., 0], digits.test.y)
    assert got["ridge"]["accuracy"] == 0.925
    most = np.bincount(digits.train.y).argmax()
    assert got["majority"]["accuracy"] == (digits.test.y == most).mean()
    assert Baselines(digits).notes == {"rows": 1077, "features": 64, "averaged_steps": 1, "alpha": ALPHAS[7]}


def test_sequences_are_cut_and_filled_up_with_the_mean_of_the_channel() -> None:
    x = np.array([[[1.0, 10.0], [3.0, np.nan], [0, 0]], [[5.0, 30.0], [0, 0], [0, 0]]])
    train = split(x, [2, 1], [0, 1])
    longer = split(np.arange(6.0).reshape(1, 3, 2), [3], [0])
    fitted = Baselines(replace(data(x, [2, 1], [0, 1]), train=train))
    # Means over the observed steps: (1 + 3 + 5) / 3 and (10 + 30) / 2; the longest training sequence has 2 steps.
    np.testing.assert_array_equal(fitted._rows(train), [[1, 10, 3, 20], [5, 30, 3, 20]])
    np.testing.assert_array_equal(fitted._rows(longer), [[0, 1, 2, 3]])


def test_a_weighted_ridge_is_that_of_repeated_rows_and_leaves_out_each_by_a_fit_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With one penalty, since leaving out one of several equal rows is another question.
    monkeypatch.setattr(baselines, "ALPHAS", np.array([0.7]))
    random = np.random.default_rng(0)
    x, targets = random.normal(size=(12, 3)), random.normal(size=(12, 2))
    weights = random.integers(1, 4, 12)
    weighted = baselines.RidgeRegression(x, targets, weights.astype(np.float64))
    # A penalty of the same share: weights have a mean of 1, repeated rows have more of them.
    monkeypatch.setattr(baselines, "ALPHAS", np.array([0.7 * weights.mean()]))
    repeated = baselines.RidgeRegression(np.repeat(x, weights, axis=0), np.repeat(targets, weights, axis=0))
    np.testing.assert_allclose(weighted.linear_map()[0], repeated.linear_map()[0], rtol=1e-10)
    np.testing.assert_allclose(weighted.linear_map()[1], repeated.linear_map()[1], rtol=1e-10)
    shares = weights / weights.mean()
    z = np.column_stack([(x - np.average(x, axis=0, weights=shares)) / repeated._scale, np.ones(12)])
    for row in range(12):
        kept = np.arange(12) != row
        left = (z[kept] * shares[kept, None]).T
        fit = np.linalg.solve(left @ z[kept] + np.diag([0.7, 0.7, 0.7, 0]), left @ targets[kept])
        np.testing.assert_allclose(weighted.left_out[row], z[row] @ fit, rtol=1e-9)
