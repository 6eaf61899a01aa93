"""What the data behind scores lacks is said wherever they are; what was fitted after training goes with a version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Workplace
from stablernn.data import load_data
from stablernn.training import load_run
from stablernn_cli.commands.registry import data_notes
from stablernn_registry import Registry

PARTIAL = {"partial": ["data_batch_3.bin", "data_batch_5.bin"]}
UNCHECKED = {"unchecked": ["MuseData.pickle"]}
LINE = (
    "Data: only in part, missing or short: data_batch_3.bin, data_batch_5.bin; with no published checksum to hold "
    "against: MuseData.pickle."
)


@pytest.mark.parametrize(
    ("notes", "line"),
    [
        ({}, None),
        (PARTIAL, LINE.partition(";")[0] + "."),
        (UNCHECKED, "Data: with no published checksum to hold against: MuseData.pickle."),
        (UNCHECKED | PARTIAL, LINE),
    ],
)
def test_the_line(notes: dict[str, list[str]], line: str | None) -> None:
    assert data_notes(notes) == line


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes all data that runs load lack something."""

    def load(*arguments: Any, **options: Any) -> Any:
        data = load_data(*arguments, **options)
        return replace(data, notes={**data.notes, **PARTIAL, **UNCHECKED})

    return lambda: monkeypatch.setattr("stablernn.training.run.load_data", load)


def test_scores_say_what_their_data_lacks(trained: Workplace, lacking: Callable[[], None], tmp_path: Path) -> None:
    evaluated = ("-q", "eval", "digits-run")
    assert trained.ok(*evaluated, "--json").json["data_notes"] == {}
    assert "Data:" not in trained.ok(*evaluated).out
    lacking()
    training = ("-q", "train", "--data", "digits", "--cell", "rnn", "--hidden-size", 3, "--max-steps", 1)
    assert LINE in trained.ok(*training, "--run-dir", tmp_path / "said").out.splitlines()
    told = trained.ok(*training, "--run-dir", tmp_path / "told", "--json").json
    assert told["data_notes"] == PARTIAL | UNCHECKED
    assert json.loads((tmp_path / "told/summary.json").read_text())["data_notes"] == PARTIAL | UNCHECKED
    for target in ("digits-run", "digits:1"):
        assert LINE in trained.ok("-q", "eval", target).out.splitlines()
        assert trained.ok("-q", "eval", target, "--json").json["data_notes"] == PARTIAL | UNCHECKED


def test_a_version_keeps_the_temperature_of_its_run(trained: Workplace) -> None:
    run = load_run(trained.path("digits-run"))
    written = json.loads((run.path / "calibration.json").read_text())
    assert written["temperature"]["temperature"] == pytest.approx(float(run.model.get_buffer("temperature")))
    version = Registry(trained.registry).get("digits:1")
    assert json.loads(version.read("calibration.json")) == written
    assert version.manifest.preprocessing["calibration"] == written
