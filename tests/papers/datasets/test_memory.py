"""Copy and adding: held against their definitions in a few lines, and against what can be said without memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.data import load_data
from stablernn.data.step_data import StepData
from stablernn.errors import ConfigError
from stablernn_papers.datasets.memory import ADDING_BASELINE, adding_batch, copy_baseline, copy_batch


def loaded(key: str, length: int | None = None, seed: int = 0) -> StepData:
    data = load_data(key, length=length, seed=seed)
    assert isinstance(data, StepData)
    return data


@settings(max_examples=10, deadline=None)
@given(delay=st.integers(1, 50), seed=st.integers(0, 2**31))
def test_copy_is_symbols_blanks_a_marker_and_blanks_to_say_them_in(delay: int, seed: int) -> None:
    read, said = copy_batch(5, delay, np.random.RandomState(seed))
    for question, answer in zip(read.tolist(), said.tolist(), strict=True):
        symbols = question[:10]
        assert all(1 <= symbol <= 8 for symbol in symbols)
        assert question[10:] == [0] * (delay - 1) + [9] + [0] * 10
        assert answer == [0] * (delay + 10) + symbols


@settings(max_examples=10, deadline=None)
@given(length=st.integers(2, 60), seed=st.integers(0, 2**31))
def test_adding_flags_a_number_of_each_half_and_asks_for_their_sum(length: int, seed: int) -> None:
    x, sums = adding_batch(5, length, np.random.RandomState(seed))
    half = length // 2
    for sequence, total in zip(x, sums, strict=True):
        numbers, flags = sequence.T
        assert numbers.min() >= 0
        assert numbers.max() <= 1
        assert sorted(flags.tolist()) == [0] * (length - 2) + [1, 1]
        assert flags[:half].sum() == flags[half:].sum() == 1
        first, second = numbers[flags == 1]
        assert total.tolist() == [np.float32(first + second)]


def test_baselines_are_those_of_answers_without_memory() -> None:
    assert copy_baseline(1000) == pytest.approx(0.0204, abs=5e-5)
    _, said = copy_batch(1000, 200, np.random.RandomState(0))
    # Blanks for sure, then one of eight.
    loss = np.where(np.arange(220) < 210, 0.0, math.log(8)) * np.ones_like(said)
    assert loss.mean() == pytest.approx(copy_baseline(200))
    _, sums = adding_batch(100_000, 2, np.random.RandomState(0))
    assert np.mean((sums - 1) ** 2) == pytest.approx(ADDING_BASELINE, abs=3e-3)
    assert loaded("copy", 200).notes["memoryless_baseline"] == copy_baseline(200)
    assert loaded("adding").notes["memoryless_baseline"] == 1 / 6


def test_copy_as_a_dataset() -> None:
    data = loaded("copy", 30)
    assert (data.output, data.tokens, data.headline, data.answer_steps) == ("categorical", True, "loss", 10)
    assert data.features == ("blank", *"12345678", "marker")
    assert (len(data.train), len(data.validation), len(data.test)) == (100_000, 1000, 10_000)
    samples = data.train.gather([0, 99_999])
    assert samples.lengths.tolist() == [50, 50]
    assert samples.y[:, -10:].tolist() == samples.x[:, :10].tolist()


def test_adding_as_a_dataset_asks_at_the_last_step_only() -> None:
    data = loaded("adding", 12)
    assert (data.output, data.tokens, data.headline, data.features) == ("real", False, "mse", ("number", "flag"))
    samples = data.validation.gather([7])
    assert samples.x.shape == (1, 12, 2)
    assert np.isnan(samples.y[0, :-1]).all()
    assert samples.y[0, -1] == (samples.x[0, :, 0] * samples.x[0, :, 1]).sum()


@pytest.mark.parametrize("key", ["copy", "adding"])
def test_sequences_depend_on_seed_split_and_number_alone(key: str) -> None:
    data, again, other = loaded(key, 20), loaded(key, 20), loaded(key, 20, seed=1)
    for name in ("train", "validation", "test"):
        together = data.split(name).gather([4, 900])
        np.testing.assert_array_equal(together.x[1], again.split(name).gather([900]).x[0])
        assert not np.array_equal(together.x, other.split(name).gather([4, 900]).x)
    assert not np.array_equal(data.train.gather([4]).x, data.test.gather([4]).x)
    assert not np.array_equal(data.train.gather([4]).x, data.train.gather([5]).x)
    assert data.fingerprint == again.fingerprint
    assert len({data.fingerprint, other.fingerprint, loaded(key, 21).fingerprint}) == 3


def test_sequences_too_short_for_the_task_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^length of 'adding' must be 2 or more, got 1\.$"):
        load_data("adding", length=1)
