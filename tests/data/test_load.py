"""``load_data``: names, paths, tasks, and settings that are not for the task."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data import load_data
from stablernn.data.check import check_data
from stablernn.errors import ConfigError, DataError, StableRNNError, UnknownNameError


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("digist", "Unknown dataset or file 'digist'. Did you mean 'digits'? See 'stablernn data list'."),
        ("no/such.csv", "No file 'no/such.csv'. Check the path."),
        ("such.csv", "No file 'such.csv'. Check the path."),
        ("no/such", "No file 'no/such'. Check the path."),
    ],
)
def test_unknown_source_names_what_there_is(source: str, sentence: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_data(source)
    assert str(caught.value) == sentence


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with a name")
@pytest.mark.parametrize("ending", ["csv", "npz", "txt", "parquet", "xlsx", "tsv", "ts.gz"])
def test_a_pipe_and_a_device_without_an_end_are_refused(tmp_path: Path, ending: str) -> None:
    pipe, device = tmp_path / f"pipe.{ending}", tmp_path / f"zero.{ending}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(DataError, match="is a pipe or a device"):
            load_data(path)
        assert "is a pipe or a device" in str(check_data(path).problems[0])


FIXED = "'digits' has fixed splits (index % 5: 0 is test, 1 is validation, the rest is train)."
CLASSIFY = "'digits' is read for task 'classify'"


@pytest.mark.parametrize(
    ("source", "options", "kind", "sentence"),
    [
        (
            "digits",
            {"task": "clasify"},
            UnknownNameError,
            "Unknown task 'clasify'. Did you mean 'classify'? Tasks are classify, forecast and predict-next.",
        ),
        ("digits", {"task": "forecast"}, ConfigError, f"{CLASSIFY}, got task 'forecast'."),
        ("co2", {"task": "classify"}, ConfigError, "'co2' is read for task 'forecast', got task 'classify'."),
        ("digits", {"horizon": 3}, ConfigError, f"horizon is for forecasting; {CLASSIFY}."),
        ("digits", {"target": "y"}, ConfigError, f"target is for forecasting; {CLASSIFY}."),
        ("digits", {"time_column": "t"}, ConfigError, "time_column is for tables; 'digits' is none."),
        ("digits", {"future": ["x"]}, ConfigError, f"future is for forecasting; {CLASSIFY}."),
        ("digits", {"window_stride": 2}, ConfigError, f"window_stride is for forecasting; {CLASSIFY}."),
        (
            "co2",
            {"label_column": "x"},
            ConfigError,
            "label_column is for classification; 'co2' is read for task 'forecast'.",
        ),
        ("digits", {"seed": 2**32}, ConfigError, "seed must be from 0 to 4294967295, got 4294967296."),
        ("digits", {"seed": -1}, ConfigError, "seed must be from 0 to 4294967295, got -1."),
        ("digits", {"test": "x.npz"}, ConfigError, f"test is for files; {FIXED}"),
        ("digits", {"validation_fraction": 0.3}, ConfigError, f"validation_fraction is for files; {FIXED}"),
    ],
)
def test_settings_that_do_not_fit_are_refused_not_ignored(
    source: str, options: dict[str, Any], kind: type[StableRNNError], sentence: str
) -> None:
    with pytest.raises(kind) as caught:
        load_data(source, **options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", ["d.dat", "d", "d.npz.gz", "d.parquet.xz", "d.csv.zip"])
def test_unknown_ending_names_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1")
    with pytest.raises(DataError) as caught:
        load_data(tmp_path / name)
    assert str(caught.value) == (
        f"'{name}' has no ending that is read. Known are .npz, .parquet, .xlsx, .ts, .tsv, .txt, .arff and .csv; "
        "the last five also with .gz or .xz behind them."
    )


def test_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"' has no recordings; they are \.wav, \.csv, "):
        load_data(str(tmp_path))


@pytest.mark.parametrize("name", ["d.csv", "d.tsv", "d.ts", "d.arff", "d.npz", "d.parquet"])
def test_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load_data(tmp_path / name)
    assert str(caught.value) == f"'{name}' is empty. Write it again, or give another file."


def test_a_dataset_goes_before_a_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits").write_text("1")
    assert load_data("digits").name == "digits"


@pytest.mark.parametrize("name", ["digits", "co2"])
def test_notes_are_json(name: str) -> None:
    notes = load_data(name).notes
    assert json.loads(json.dumps(notes)) == notes


def test_notes_of_files_are_json(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((4, 2)), y=np.array([0, 0, 1, 1]), lengths=np.array([1, 2, 2, 2]), other=np.zeros(1))
    notes = load_data(path).notes
    assert json.loads(json.dumps(notes)) == notes
