"""The look at sequences and steps before training: labels, leakage, lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bad_files import labelled
from data.check.reports import warnings
from stablernn.data.check import check_data
from stablernn.data.check.content import inspect_steps
from stablernn.data.check.report import Findings
from stablernn.data.step_data import StepData, StoredSteps


def write_npz(folder: Path, x: np.ndarray, y: list[int], name: str = "d.npz") -> Path:
    np.savez(folder / name, x=x.astype(np.float32), y=y)
    return folder / name


def test_sequences_of_test_that_are_in_training_are_leakage(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6, 2))
    train = write_npz(tmp_path, np.concatenate([x[:30], x[:1]]), [n % 2 for n in range(30)] + [0], "d_TRAIN.npz")
    write_npz(tmp_path, np.concatenate([x[30:], x[5:8]]), [n % 2 for n in range(10)] + [0, 0, 1], "d_TEST.npz")
    report = check_data(train)
    duplicates = report.content["duplicates"]
    assert sum(duplicates["across"][f"{split}, test"] for split in ("train", "validation")) == 3
    # x[0] came twice into the training file; both may go to either split.
    assert sum(duplicates["within"].values()) + duplicates["across"]["train, validation"] == 1
    # x[5] is of class 1 in training.
    assert duplicates["with_other_labels"] == 1
    found = [finding.text for finding in report.warnings if finding.code == "leakage"]
    assert any(text.endswith("the score on test will be too good. Take them out of one of the two.") for text in found)
    assert warnings(report)["contradiction"] == (
        "1 sequence comes with more than one label, which no model can get right."
    )


def test_a_feature_that_is_the_label_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = [n % 3 for n in range(30)]
    x = rng.normal(size=(30, 5, 2))
    x[:, -1, 1] = [{0: 4.0, 1: -1.0, 2: 0.5}[label] for label in y]
    assert warnings(check_data(write_npz(tmp_path, x, y)))["feature_tells_label"] == (
        "The last value of 'channel_1' is a number of its own for each class: it seems to be the label. Leave the "
        "feature out if it is not known when the model is asked."
    )


def test_unbalanced_rare_constant_and_empty_are_said(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 5, 2))
    x[:, :, 1] = 3
    x[4] = np.nan
    x[5] = 1.5
    x[5, :, 1] = 3
    found = warnings(check_data(write_npz(tmp_path, x, [0] * 37 + [1] * 3)))
    assert found["unbalanced"] == (
        "Class '0' has 30 training sequences, '1' has 2: saying '0' every time is right in 93.8%. Look at the macro-F1 "
        "beside the accuracy."
    )
    assert found["few_examples"] == "Fewer than 5 training sequences of '1' (2)."
    assert found["constant_column"].startswith("channel_1 has a single value in all of training (scale 0)")
    assert found["constant_sequence"] == "1 of 40 sequences never change (scale 0 on their own)."
    assert found["empty_sequence"] == "1 of 40 sequences have no value at all."
    assert found["no_test"] == "There is no test split; scores will be those of validation only."


def test_steps_show_lengths_the_commonest_target_and_shared_sequences() -> None:
    inputs = [np.array([0, 1, 2, 1]), np.array([2, 2, 1]), np.array([1, 0, 0, 0, 2])]
    targets = [np.array([1, 1, 1, 0]), np.array([0, 0, -1]), np.array([1, 1, 1, 1, 0])]
    split = StoredSteps(inputs, targets)
    other = StoredSteps(inputs[2:], targets[2:])
    data = StepData(
        name="hand made",
        output="categorical",
        tokens=True,
        features=("a", "b", "c"),
        outputs=("no", "yes"),
        train=split,
        validation=other,
        test=StoredSteps([np.array([2, 0])], [np.array([1, 1])]),
        continuous=False,
        headline="loss",
        notes={},
        fingerprint="sha256:0",
    )
    findings = Findings()
    _, content = inspect_steps(data, findings)
    assert content["lengths"] == {"min": 2, "median": 4.0, "max": 5}
    assert content["commonest_target"] == {"name": "yes", "share": 1.0}
    assert content["duplicates"]["across"] == {"train, validation": 1, "train, test": 0, "validation, test": 0}
    assert [finding.text for finding in findings.warnings] == [
        "1 sequence of validation is in train as well, to the last digit."
    ]


def test_sequences_without_a_label_are_no_class(tmp_path: Path) -> None:
    labelled("d.tsv", ["a", "b"] * 6 + ["?", "nan"])(tmp_path)
    report = check_data(tmp_path / "d.tsv")
    assert report.content["classes"] == {"a": {"train": 6}, "b": {"train": 6}}
    assert report.content["unlabelled"] == {"train": 2}


def test_steps_at_one_time_and_at_other_distances_are_said(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(10, 5, 1)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(10) % 2, t=np.array([0, 1, 1, 2, 3.5]))
    found = warnings(check_data(tmp_path / "d.npz"))
    assert found["steps_at_one_time"] == (
        "10 steps at the same time as the one before. Look whether they are there twice."
    )
    assert found["irregular_time"] == (
        "20 steps not at the usual distance from the one before. A cell that takes dt is told, for others steps are "
        "alike."
    )
