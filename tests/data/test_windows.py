"""Windows: nothing of a later split in an earlier one, and gathering equals slicing."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.data import ForecastData, Series
from stablernn.data.arrays import SPLITS, Samples, cut_samples


def make(
    lengths: list[int], context: int, horizon: int, validation: int, test: int, missing: float = 0.0, seed: int = 0
) -> ForecastData:
    """Three channels, of which the third and the first are targets; each value tells series, step and channel."""
    random = np.random.default_rng(seed)
    series = []
    for number, length in enumerate(lengths):
        values = (number * 1000 + np.arange(length)[:, None] + np.arange(3) / 10).astype(np.float32)
        values[random.random((length, 3)) < missing] = np.nan
        series.append(Series(f"s{number}", np.arange(length), values))
    return ForecastData(
        name="made",
        series=tuple(series),
        channels=("a", "b", "c"),
        targets=("c", "a"),
        frequency="1",
        season=1,
        horizon=horizon,
        context_length=context,
        validation_steps=validation,
        test_steps=test,
        notes={},
        fingerprint="",
    )


@st.composite
def datasets(draw: Any) -> ForecastData:
    horizon = draw(st.integers(1, 5))
    context = draw(st.integers(1, 8))
    validation = draw(st.integers(horizon, horizon + 6))
    test = draw(st.integers(horizon, horizon + 6))
    shortest = context + horizon + validation + test
    lengths = draw(st.lists(st.integers(shortest, shortest + 12), min_size=1, max_size=3))
    return make(
        lengths, context, horizon, validation, test, draw(st.sampled_from([0.0, 0.4, 0.9])), draw(st.integers(0, 99))
    )


def targets_of(data: ForecastData, split: str) -> set[tuple[int, int]]:
    """Every (series, step) that a target of the split touches."""
    return {(s, step) for s, end in data.windows(split).origins for step in range(end, end + data.horizon)}


@settings(deadline=None, max_examples=40)
@given(data=datasets())
def test_targets_of_splits_never_overlap(data: ForecastData) -> None:
    train, validation, test = (targets_of(data, split) for split in SPLITS)
    assert not train & validation
    assert not validation & test
    assert not train & test


@settings(deadline=None, max_examples=40)
@given(data=datasets())
def test_gather_equals_slicing(data: ForecastData) -> None:
    for split in SPLITS:
        windows = data.windows(split)
        found = windows.gather(np.arange(len(windows)))
        assert found.x.shape == (len(windows), data.context_length, 3)
        assert found.y.shape == (len(windows), data.horizon, 2)
        assert found.lengths.tolist() == [data.context_length] * len(windows)
        for x, y, (series, end) in zip(found.x, found.y, windows.origins, strict=True):
            values = data.series[series].values
            np.testing.assert_array_equal(x, values[end - data.context_length : end])
            np.testing.assert_array_equal(y, values[end : end + data.horizon][:, [2, 0]])
        numbers = np.arange(len(windows))[::-2]
        np.testing.assert_array_equal(windows.truth(numbers), windows.gather(numbers).y)


@settings(deadline=None, max_examples=40)
@given(data=datasets())
def test_windows_are_all_there_are_but_those_without_any_target_or_context(data: ForecastData) -> None:
    for split in SPLITS:
        windows = data.windows(split)
        possible = []
        for number, series in enumerate(data.series):
            length = len(series.values)
            stop = {
                "train": length - data.test_steps - data.validation_steps,
                "validation": length - data.test_steps,
            }.get(split, length)
            start = {"train": 0, "validation": length - data.test_steps - data.validation_steps}.get(
                split, length - data.test_steps
            )
            for end in range(max(start, data.context_length), stop - data.horizon + 1):
                targets = np.isfinite(series.values[:, [0, 2]]).any(axis=1)
                scored, seen = targets[end : end + data.horizon].any(), targets[end - data.context_length : end].any()
                possible.append(((number, end), bool(scored), bool(seen)))
        assert windows.origins == [origin for origin, scored, seen in possible if scored and seen]
        assert windows.dropped == sum(not scored for _, scored, _ in possible)
        assert windows.without_context == sum(scored and not seen for _, scored, seen in possible)


def test_a_context_in_which_only_other_channels_are_observed_is_none() -> None:
    data = make([12], context=2, horizon=1, validation=2, test=3)
    data.series[0].values[4:7, [0, 2]] = np.nan
    windows = data.windows("train")
    assert (windows.origins, windows.dropped, windows.without_context) == ([(0, 2), (0, 3)], 3, 0)
    validation = data.windows("validation")
    assert (validation.origins, validation.dropped, validation.without_context) == ([(0, 8)], 0, 1)


def test_the_same_windows_with_another_context() -> None:
    windows = make([20], context=6, horizon=2, validation=3, test=4).windows("test")
    found = windows.with_context(3)
    np.testing.assert_array_equal(found.gather([1, 0]).x, windows.gather([1, 0]).x[:, 3:])
    assert (found.origins, found.context_length, windows.context_length) == (windows.origins, 3, 6)


def test_history_before_the_beginning_of_a_series_is_nan() -> None:
    data = make([10, 10], context=2, horizon=1, validation=2, test=2)
    windows = data.windows("train")
    number = windows.origins.index((1, 2))
    np.testing.assert_array_equal(windows.history([number], 4)[0, :, 0], [np.nan, np.nan, 1000, 1001])


def test_training_values_end_before_validation() -> None:
    data = make([20, 25], context=2, horizon=1, validation=3, test=4)
    assert [len(values) for values in data.training_values()] == [13, 18]
    np.testing.assert_array_equal(data.training_values()[1], data.series[1].values[:18])


def test_windows_are_gathered_without_a_table_of_indices() -> None:
    windows = make([4000], context=400, horizon=4, validation=4, test=4).windows("train")
    numbers = np.arange(1000)
    tracemalloc.start()
    try:
        windows.truth(numbers)
        truth_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        x = windows.gather(numbers).x
        gather_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert truth_bytes < x.nbytes / 20
    assert gather_bytes < 1.2 * x.nbytes


def test_the_last_steps_of_samples_keep_their_time() -> None:
    numbers = np.arange(8, dtype=np.float32).reshape(2, 4)
    cut = cut_samples(Samples(numbers[..., None], np.array([4, 3]), np.zeros(2), numbers), 2, from_end=True)
    assert cut.dt is not None
    assert cut.dt.tolist() == cut.x[..., 0].tolist() == [[2, 3], [5, 6]]
