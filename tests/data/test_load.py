"""``load_data``: names, paths, tasks, and settings that are not for the task."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data import load_data
from stablernn.data.check import check_data
from stablernn.data.options import NAMED_OPTIONS, TASK_OPTIONS, DataOptions, LoadOptions
from stablernn.errors import ConfigError, DataError, StableRNNError, UnknownNameError
from stablernn.training.settings.config import DataConfig, TaskConfig


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("digist", "Unknown dataset or file 'digist'"),
        ("no/such.csv", r"No file 'no/such\.csv'"),
        ("such.csv", r"No file 'such\.csv'"),
        ("no/such", "No file 'no/such'"),
    ],
)
def test_unknown_source_names_what_there_is(source: str, sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        load_data(source)


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


@pytest.mark.parametrize("name", ["d.csv", "d.tsv", "d.ts", "d.arff", "d.npz", "d.parquet"])
def test_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load_data(tmp_path / name)
    assert str(caught.value) == f"'{name}' is empty. Write it again, or give another file."


@pytest.mark.parametrize("name", ["digits", "co2"])
def test_notes_are_json(name: str) -> None:
    notes = load_data(name).notes
    assert json.loads(json.dumps(notes)) == notes


def test_load_data_takes_every_option_with_the_same_default() -> None:
    parameters = inspect.signature(load_data).parameters
    assert set(parameters) == set(LoadOptions.model_fields)
    for name, field in LoadOptions.model_fields.items():
        if name != "source":
            # None stands for no names at all.
            assert (parameters[name].default or ()) == (field.default or ()), name


def test_settings_have_the_same_options_in_two_sections() -> None:
    assert list(DataConfig.model_fields) == list(DataOptions.model_fields)
    assert set(LoadOptions.model_fields) - set(DataConfig.model_fields) == {
        "task",
        *(set(TaskConfig.model_fields) & set(LoadOptions.model_fields)),
    }
    assert set(TASK_OPTIONS) | set(NAMED_OPTIONS) < set(LoadOptions.model_fields)


def test_options_that_differ_from_their_defaults_are_named() -> None:
    options = LoadOptions.unchecked("d.csv", target="y", future=[], season=None, window_stride=2, horizon=0)
    assert options.changed(TASK_OPTIONS) == ("target", "horizon", "window_stride")
    assert (options.target, options.future, options.calendar) == (("y",), (), ())


def test_defaults_of_a_dataset_give_way_to_options() -> None:
    options = LoadOptions.unchecked("co2", horizon=3).with_defaults({"horizon": 52, "season": 52})
    assert (options.horizon, options.season, options.context_length) == (3, 52, None)


def test_an_unknown_option_is_a_type_error_of_the_function_that_was_called() -> None:
    message = r"^{}\(\) got an unexpected keyword argument 'horizont'$"
    with pytest.raises(TypeError, match=message.format("check_data")):
        check_data("co2", horizont=3)
    with pytest.raises(TypeError, match=message.format("load_data")):
        load_data("co2", horizont=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=message.format("load_data")):
        LoadOptions.unchecked("co2", horizont=3)


def test_numbers_of_numpy_are_options(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("ds,y\n" + "".join(f"{step},{step % 7}\n" for step in range(60)))
    data = load_data(path, horizon=np.int64(2), season=np.int64(7))  # type: ignore[arg-type]
    assert (data.horizon, data.season) == (2, 7)  # type: ignore[union-attr]
