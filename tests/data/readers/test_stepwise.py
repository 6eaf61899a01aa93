"""Texts and ``.npz`` files with a target at every step."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.data import load_data
from stablernn.data.readers.stepwise import read_steps
from stablernn.data.step_data import NO_TARGET, StepData, StoredSteps
from stablernn.errors import DataError


def load(path: Path, **options: Any) -> StepData:
    data = load_data(path, **options)
    assert isinstance(data, StepData)
    return data


def stored(split: object) -> StoredSteps:
    assert isinstance(split, StoredSteps)
    return split


def test_a_text_is_its_characters_cut_by_time(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("abcabcabca\n", encoding="utf-8")
    data = load(tmp_path / "notes.txt", validation_fraction=0.2)
    assert (data.task, data.output, data.tokens, data.continuous) == ("predict-next", "categorical", True, True)
    assert data.features == data.outputs == ("\n", "a", "b", "c")
    assert data.headline == "bpc"
    parts = {name: stored(data.split(name)) for name in ("train", "validation", "test")}
    assert [parts[name].inputs[0].tolist() for name in parts] == [[1, 2, 3, 1, 2, 3], [1, 2], [3, 1]]
    assert [parts[name].targets[0].tolist() for name in parts] == [[2, 3, 1, 2, 3, 1], [2, 3], [1, 0]]
    assert data.notes["steps"] == {"train": 6, "validation": 2, "test": 2}
    assert data.notes["characters"] == 11


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\r\ufeff"), min_size=3))
def test_any_text_comes_back(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_text(text, encoding="utf-8", newline="")
    if not text.strip():
        return
    found = read_steps(path)
    tokens = [*found.steps.inputs[0], found.steps.targets[0][-1]]
    assert "".join(found.features[token] for token in tokens) == text


@pytest.mark.parametrize("name", ["a_TEST.txt", "a_TEST.txt.gz"])
def test_the_test_file_beside_a_training_file_is_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / "a_TRAIN.txt").write_text("abcabcabcab")
    (tmp_path / name).write_bytes(gzip.compress(b"cab") if name.endswith(".gz") else b"cab")
    data = load(tmp_path / "a_TRAIN.txt")
    assert stored(data.test).inputs[0].tolist() == [2, 0]
    assert [int(split.lengths.sum()) for split in (data.train, data.validation)] == [8, 2]
    # Both files of arrays are read alike, and the option still names another file.
    save(tmp_path / "n_TRAIN.npz", x=np.zeros((5, 4, 1)))
    save(tmp_path / "n_TEST.npz", x=np.ones((2, 4, 1)))
    save(tmp_path / "other.npz", x=np.ones((1, 4, 1)))
    assert len(load(tmp_path / "n_TRAIN.npz", task="predict-next").test) == 2
    assert len(load(tmp_path / "n_TRAIN.npz", task="predict-next", test=tmp_path / "other.npz").test) == 1


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_without_targets_the_next_step_is_the_target(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 6, 2)).astype(np.float32)
    data = load(save(tmp_path / "a.npz", x=x, lengths=np.array([6, 2, 1, 6, 6])), task="predict-next")
    assert (data.output, data.features, data.outputs) == ("real", ("channel_0", "channel_1"), data.features)
    assert data.notes["sequences_without_a_next_step"] == 1
    for split in (data.train, data.validation, data.test):
        for inputs, targets in zip(stored(split).inputs, stored(split).targets, strict=True):
            assert np.array_equal(inputs[1:], targets[:-1])


Y = {
    "classes": (np.array([[0, 2, NO_TARGET]] * 4), "categorical", ("0", "1", "2")),
    "numbers": (np.array([[0.5, np.nan, 1.0]] * 4), "real", ("value",)),
    "several": (np.ones((4, 3, 2)), "real", ("channel_0", "channel_1")),
    "switches": (np.ones((4, 3, 2), bool), "bernoulli", ("channel_0", "channel_1")),
}


@pytest.mark.parametrize("kind", Y)
def test_the_type_of_the_targets_says_what_they_are(kind: str, tmp_path: Path) -> None:
    y, output, names = Y[kind]
    data = load(save(tmp_path / "a.npz", x=np.zeros((4, 3, 1)) + [[[0.0], [1.0], [2.0]]], y=y), task="predict-next")
    assert (data.output, data.outputs, data.tokens) == (output, names, False)
    sample = data.train.gather([0])
    assert sample.y.shape == ((1, 3) if output == "categorical" else (1, 3, len(names)))


def test_whole_numbers_of_two_axes_are_tokens(tmp_path: Path) -> None:
    x = np.array([[0, 1, 2], [2, 1, 0], [1, 1, 3]])
    data = load(save(tmp_path / "a.npz", x=x, features=np.array(["a", "b", "c", "d"])), task="predict-next")
    assert (data.tokens, data.features) == (True, ("a", "b", "c", "d"))
    assert load(save(tmp_path / "b.npz", x=x), task="predict-next").features == ("0", "1", "2", "3")


def test_a_model_is_asked_about_every_step(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("cab")
    steps = read_steps(tmp_path / "q.txt", ("a", "b", "c"), for_model=True).steps
    assert (steps.inputs[0].tolist(), steps.targets[0].tolist()) == ([2, 0, 1], [0, 1, NO_TARGET])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "negative": (
        {"x": np.array([[0, -1]])},
        "'a.npz': the tokens 'x' must be whole numbers from 0, and at least one.",
    ),
    "one class": (
        {"x": np.zeros((4, 3, 1)), "y": np.zeros((4, 3), int)},
        "'a.npz': classes 'y' must be whole numbers from 0, two or more, and -1 where there is no target; got 0 to 0.",
    ),
    "labels": (
        {"x": np.zeros((4, 3, 1)), "y": np.zeros(4, int)},
        "'a.npz': 'y' must hold a target for each step, of the shape (4, 3) or (4, 3, 'outputs'): classes as whole "
        "numbers (-1: none), numbers (NaN: none), or true and false; got int64 (4,).",
    ),
    "infinite": (
        {"x": np.zeros((4, 3, 1)), "y": np.full((4, 3), np.inf)},
        "'a.npz': 'y' has an infinite value; a target that is not there is NaN.",
    ),
    "names": (
        {"x": np.array([[0, 1, 5]] * 4), "features": np.array(["a", "b"])},
        "'a.npz': 'features' must name at least 6 different ones, got a, b (2).",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_says_what_is_wrong(case: str, tmp_path: Path) -> None:
    arrays, sentence = BAD[case]
    with pytest.raises(DataError) as caught:
        load_data(save(tmp_path / "a.npz", **arrays), task="predict-next")
    assert str(caught.value) == sentence


def test_a_character_that_the_model_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcz")
    with pytest.raises(DataError, match=r"'a\.txt' has the character 'z', which the model was not trained"):
        load_data(tmp_path / "a.txt", channels=("a", "b", "c"))


def test_a_table_is_not_followed_step_by_step(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ds,y\n2024-01-01,1\n")
    with pytest.raises(DataError, match=r"'a\.csv' is not for task 'predict-next', which reads \.txt and"):
        load_data(tmp_path / "a.csv", task="predict-next")


@pytest.mark.parametrize(
    ("text", "told", "advice"),
    [
        ("a\tb\n1\t2\n3\t4\n", "2 columns separated by tabs", "rename it"),
        (" 0.5  2\n 3.5  4\n", "2 columns separated by blanks", "write it so"),
    ],
)
def test_a_table_is_not_taken_for_a_text(tmp_path: Path, text: str, told: str, advice: str) -> None:
    path = tmp_path / "rates.txt"
    path.write_text(text * 20)
    with pytest.raises(DataError) as caught:
        load_data(path)
    assert str(caught.value) == (
        f"'rates.txt' looks like a table ({told}), which is read from .csv; {advice}, or say task 'predict-next' "
        "to read it by characters."
    )
    assert load_data(path, task="predict-next").task == "predict-next"
