from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(6, 30), columns=st.integers(2, 30), classes=st.integers(2, 4), seed=st.integers(0, 1000))
def test_ridge_equals_sklearn_on_any_table(rows: int, columns: int, classes: int, seed: int) -> None:
    x, y = table(rows, columns, classes, seed)
    theirs = oracle().fit(x, y)
    ours = Ridge(x, y)
    if ours.alpha == pytest.approx(theirs[-1].alpha_):  # two penalties may tie to the last digits
        expected = theirs.decision_function(x)
        scores = ours.scores(x)
        np.testing.assert_allclose(scores[:, 1] if classes == 2 else scores, expected, rtol=1e-5, atol=1e-6)


def test_the_penalty_is_that_of_leaving_out_one_row_after_another() -> None:
    x, y = table(14, 5, 2)
    z = (x - x.mean(axis=0)) / np.where(x.std(axis=0) > 0, x.std(axis=0), 1)
    signs = np.where(y == 1, 1.0, -1.0)
    errors = []
    for alpha in ALPHAS:
        total = 0.0
        for left in range(14):
            rows = np.arange(14) != left
            center, level = z[rows].mean(axis=0), signs[rows].mean()
            gram = (z[rows] - center).T @ (z[rows] - center) + alpha * np.eye(5)
            weights = np.linalg.solve(gram, (z[rows] - center).T @ (signs[rows] - level))
            total += (signs[left] - level - (z[left] - center) @ weights) ** 2
        errors.append(total)
    assert Ridge(x, y).alpha == ALPHAS[int(np.argmin(errors))]


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


def test_long_sequences_are_averaged_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_FEATURES", 4)
    x = np.arange(10.0).reshape(2, 5, 1)
    x = np.concatenate([x, -x], axis=2)
    fitted = Baselines(data(x, [5, 5], [0, 1]))
    # 10 values of a row, at most 4: steps are averaged by threes, the missing sixth is the mean, 4.5.
    expected = np.array([[(0 + 1 + 2) / 3, (3 + 4 + 4.5) / 3], [(5 + 6 + 7) / 3, (8 + 9 + 4.5) / 3]])
    np.testing.assert_allclose(fitted._rows(fitted._data.train)[:, ::2], expected)
    assert (fitted.notes["averaged_steps"], fitted.notes["features"]) == (3, 4)


def test_of_many_sequences_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_ROWS", 50)
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 400)
    x = random.normal(size=(400, 4, 1)) + y[:, None, None]
    fitted = Baselines(data(x, [4] * 400, list(y)))
    assert fitted.notes["rows"] == 50
    assert fitted.scores("train")["ridge"]["accuracy"] > 0.6
    assert Baselines(data(x, [4] * 400, list(y))).scores("train") == fitted.scores("train")


@pytest.mark.parametrize("y", [[1, 1, 1], [2]], ids=["one class", "one sequence"])
def test_nothing_to_tell_apart_has_no_baseline(y: list[int]) -> None:
    fitted = Baselines(data(np.random.default_rng(0).normal(size=(len(y), 3, 1)), [3] * len(y), y))
    assert fitted.scores("train") == {}
    assert fitted.notes == {}


def test_a_class_that_training_lacks_is_never_answered() -> None:
    x = np.array([[[0.0]], [[1.0]], [[5.0]]])
    test = split(x, [1, 1, 1], [0, 2, 1])
    got = Baselines(data(x[[0, 1, 0, 1]], [1] * 4, [0, 2, 0, 2], test=test)).scores("test")
    assert got["ridge"]["accuracy"] == pytest.approx(2 / 3)
    assert got["majority"]["accuracy"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_a_large_set_takes_seconds() -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 30_000)
    x = random.normal(size=(30_000, 784, 1)).astype(np.float32)
    started = time.monotonic()
    Baselines(data(x, [784] * len(y), list(y))).scores("train")
    assert time.monotonic() - started < 60


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
