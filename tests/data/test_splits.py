"""Validation by class: disjoint, complete, stratified, and the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.data.classification import stratified_validation
from stablernn.data.windows import target_range


@settings(deadline=None, max_examples=60)
@given(
    y=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_class_keeps_its_share_and_a_training_sample(y: list[int], fraction: float, seed: int) -> None:
    labels = np.array(y)
    train, validation = stratified_validation(labels, fraction, seed)
    assert sorted([*train, *validation]) == list(range(len(y)))
    for label in set(y):
        count = y.count(label)
        held_out = int((labels[validation] == label).sum())
        assert held_out < count
        assert held_out == min(max(1, round(fraction * count)), count - 1)


def test_same_seed_gives_the_same_split_for_ever() -> None:
    _, validation = stratified_validation(np.arange(20) % 2, 0.2, seed=7)
    assert validation.tolist() == [3, 7, 10, 16]


def test_other_seed_gives_another_split() -> None:
    y = np.arange(100) % 3
    assert stratified_validation(y, 0.2, 0)[1].tolist() != stratified_validation(y, 0.2, 1)[1].tolist()


@pytest.mark.parametrize(("split", "expected"), [("train", (0, 5)), ("validation", (5, 8)), ("test", (8, 10))])
def test_series_are_split_by_time(split: str, expected: tuple[int, int]) -> None:
    assert target_range(10, 3, 2, split) == expected  # type: ignore[arg-type]
