"""Groups of sequences, such as persons: read from tables and arrays, and held out whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold

from stablernn.data import ClassificationData, load_data
from stablernn.data.check import check_data
from stablernn.data.classification import grouped_folds, grouped_validation, stratified_validation
from stablernn.errors import ConfigError, DataError, UnknownNameError


def write_table(path: Path, groups: list[str], labels: list[str], *, steps: int = 3) -> Path:
    rows = ["unique_id,ds,value,person,label"]
    for number, (group, label) in enumerate(zip(groups, labels, strict=True)):
        rows += [f"s{number},2024-01-0{step + 1},{number + step / 10},{group},{label}" for step in range(steps)]
    path.write_text("\n".join(rows) + "\n")
    return path


def write_arrays(path: Path, groups: list[int] | list[str], **arrays: np.ndarray) -> Path:
    x = np.arange(len(groups) * 4, dtype=np.float32).reshape(len(groups), 4)
    np.savez(path, x=x, y=np.arange(len(groups)) % 2, person=np.array(groups), **arrays)
    return path


GROUPS = ["ann", "ann", "ben", "ben", "cem", "cem", "dot", "dot", "eva", "eva"]
LABELS = ["a", "b"] * 5


def loaded(path: Path, **options: object) -> ClassificationData:
    data = load_data(path, **options)  # type: ignore[arg-type]
    assert isinstance(data, ClassificationData)
    return data


def groups_of(data: ClassificationData, names: list[str]) -> dict[str, set[str]]:
    """The groups of each split, by the number of the sequence in the file."""
    return {name: {names[int(i)] for i in split.ids} for name, split in data.splits().items()}


def test_a_group_of_a_table_is_held_out_whole(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gait.csv", GROUPS, LABELS)
    data = loaded(path, group_column="person")
    splits = groups_of(data, GROUPS)
    assert splits["train"] | splits["validation"] == set(GROUPS)
    assert not splits["train"] & splits["validation"]
    assert data.features == ("value",)
    assert data.notes["validation"]["how"] == "whole groups of the training file"
    assert data.notes["validation"]["groups"] == {split: sorted(splits[split]) for split in ("train", "validation")}
    # Without the column it would be a channel of words, which is refused.
    with pytest.raises(DataError, match="column 'person'"):
        load_data(path)
    # The draw does not belong to the content.
    assert data.fingerprint == loaded(path, group_column="person", seed=3).fingerprint


def test_groups_of_an_array(tmp_path: Path) -> None:
    groups = [7, 7, 8, 8, 9, 9, 10, 10]
    path = write_arrays(tmp_path / "gait.npz", groups)
    data = loaded(path, group_column="person")
    splits = groups_of(data, [str(group) for group in groups])
    assert not splits["train"] & splits["validation"]
    assert "ignored_arrays" not in data.notes
    assert loaded(path).notes["ignored_arrays"] == ["person"]


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_groups_on_both_sides_of_the_test_file_are_named(tmp_path: Path, ending: str) -> None:
    if ending == ".csv":
        write_table(tmp_path / "gait_TEST.csv", ["eva", "fay", "ann", "fay"], ["a", "b"] * 2)
        path = write_table(tmp_path / "gait_TRAIN.csv", GROUPS, LABELS)
    else:
        write_arrays(tmp_path / "gait_TEST.npz", ["eva", "fay", "ann", "fay"])
        path = write_arrays(tmp_path / "gait_TRAIN.npz", GROUPS)
    found = [each.text for each in check_data(path, group_column="person").warnings if each.code == "group_leakage"]
    assert found == [
        "Groups of the training file are in the test file, too: ann, eva. The score on test will be too good; take "
        "them out of one of the two."
    ]


@pytest.mark.parametrize(
    ("groups", "labels", "message"),
    [
        (
            ["ann"] * 4,
            ["a", "b"] * 2,
            r"has one group only \('ann'\), so that none can be held out\. Leave data\.group_column \(--group\) out",
        ),
        (
            ["ann", "ann", "ben", "ben"],
            ["a", "a", "b", "b"],
            r"has a label in one group only, whichever groups are held",
        ),
        (["ann", "", "ben", "ben"], ["a", "b"] * 2, r"series 's1' has no group\. Give it one"),
    ],
)
def test_groups_that_leave_nothing_to_hold_out(
    tmp_path: Path, groups: list[str], labels: list[str], message: str
) -> None:
    path = write_table(tmp_path / "gait.csv", groups, labels)
    with pytest.raises(DataError, match=message):
        load_data(path, group_column="person")


def test_columns_and_files_without_groups(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gait.csv", GROUPS, LABELS)
    with pytest.raises(UnknownNameError, match=r"^Unknown column 'persn'\. Did you mean 'person'\?"):
        load_data(path, group_column="persn")
    arrays = write_arrays(tmp_path / "gait.npz", [1, 1, 2, 2])
    with pytest.raises(UnknownNameError, match=r"^Unknown array 'persn'\. Did you mean 'person'\?"):
        load_data(arrays, group_column="persn")
    text = tmp_path / "gait.tsv"
    text.write_text("1\t0.5\t1.5\n2\t0.5\t1.5\n")
    with pytest.raises(ConfigError, match=r"^group_column is for tables and \.npz files, .* 'gait\.tsv' has none\."):
        load_data(text, group_column="person")
    with pytest.raises(ConfigError, match=r"^group_column is for classification; 'co2' is read for task 'forecast'\.$"):
        load_data("co2", group_column="person")


@pytest.mark.parametrize("seed", range(5))
def test_folds_are_of_whole_groups_and_as_even_as_those_of_scikit_learn(seed: int) -> None:
    random = np.random.RandomState(seed)
    groups = random.permutation(np.repeat(np.arange(24), random.randint(1, 12, 24)))
    y = (groups + random.randint(0, 2, len(groups))) % 3
    folds = grouped_folds(y, groups, 5, seed)
    assert sorted(np.concatenate(folds).tolist()) == list(range(len(y)))
    for fold in folds:
        assert not set(groups[fold]) & set(np.delete(groups, fold))
    peer = StratifiedGroupKFold(5, shuffle=True, random_state=seed).split(y, y, groups)
    assert unevenness(y, folds) <= 1.5 * unevenness(y, [fold for _, fold in peer])


def unevenness(y: np.ndarray, folds: list[np.ndarray]) -> float:
    """The standard deviation over the folds of the share that each has of a class, mean over the classes."""
    shares = np.array(
        [[np.mean(np.isin(np.flatnonzero(y == label), fold)) for label in np.unique(y)] for fold in folds]
    )
    return float(shares.std(axis=0).mean())


def test_validation_leaves_every_class_to_training() -> None:
    # Class 2 is in group 0 only, which therefore is never held out.
    y, groups = np.array([0, 1, 2, 0, 1, 0, 1]), np.array([0, 0, 0, 1, 1, 2, 2])
    for seed in range(10):
        fitted, held_out = grouped_validation(y, groups, 0.3, seed)
        assert set(groups[held_out]) <= {1, 2}
        assert set(y[fitted]) == {0, 1, 2}
        assert len(held_out)


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
