from __future__ import annotations

import numpy as np
import pytest

from stablernn.data import ClassificationData, load_data
from stablernn.data.types import SequenceSplit
from stablernn.training.evaluation.scorers import ClassificationScorer
from stablernn.training.tasks.classify import SHARES, Beginnings, early


@pytest.fixture(scope="module")
def digits() -> ClassificationData:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    return data


def split(lengths: list[int], dt: bool = False) -> SequenceSplit:
    longest = max(lengths)
    x = np.zeros((len(lengths), longest, 1), dtype=np.float32)
    for row, length in zip(x, lengths, strict=True):
        row[:length, 0] = 1 + np.arange(length)
    times = np.where(x[..., 0] > 0, x[..., 0] * 10, 1).astype(np.float32) if dt else None
    y = np.zeros(len(lengths), dtype=np.int64)
    return SequenceSplit(x, np.array(lengths), y, tuple(map(str, range(len(lengths)))), times)


def test_a_share_of_each_sequence_is_rounded_up() -> None:
    begun = Beginnings(split([10, 3, 1], dt=True), 0.3)
    batch = begun.gather(np.arange(3))
    np.testing.assert_array_equal(batch.lengths, [3, 1, 1])
    np.testing.assert_array_equal(batch.x[..., 0], [[1, 2, 3], [1, 0, 0], [1, 0, 0]])
    assert batch.dt is not None
    np.testing.assert_array_equal(batch.dt, [[10, 20, 30], [10, 1, 1], [10, 1, 1]])
    assert begun.steps_seen == 5


def test_no_share_is_empty_and_the_last_is_whole() -> None:
    for length in (1, 7, 10, 30000):
        steps = [int(Beginnings(split([length]), share).gather(np.array([0])).lengths[0]) for share in SHARES]
        assert steps == [-(-length * round(10 * share) // 10) for share in SHARES]


class Counts:
    """Answers class 1 as soon as it has seen so many steps, class 0 before."""

    def run_numpy(self, x: np.ndarray, lengths: np.ndarray | None = None, **further: np.ndarray) -> dict:
        assert lengths is not None
        late = (lengths >= 5)[:, None]
        return {"probabilities": np.where(late, [[0.0, 1.0]], [[1.0, 0.0]])}


def test_accuracy_rises_when_what_tells_has_been_seen(digits: ClassificationData) -> None:
    source = split([10, 20])
    data = ClassificationData("toy", ("a", "b"), ("f",), source, source, None, {}, "")
    scorer = ClassificationScorer(data, "validation")
    scorer.truth = np.ones(2, dtype=np.int64)
    rows = early(Counts(), scorer)
    assert [row["share"] for row in rows] == pytest.approx([n / 10 for n in range(1, 11)])
    assert [row["accuracy"] for row in rows] == [0, 0, 0.5, 0.5, 1, 1, 1, 1, 1, 1]
    assert [row["steps"] for row in rows] == [1.5 * n for n in range(1, 11)]
