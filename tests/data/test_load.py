"""``load_data``: names, paths, tasks, and settings that are not for the task."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stablernn.data import load_data
from stablernn.data.check import check_data
from stablernn.data.options import TASK_OPTIONS, LoadOptions
from stablernn.errors import ConfigError, DataError, StableRNNError, UnknownNameError


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("digist", "Unknown dataset or file 'digist'"),
        ("no/such.csv", r"No file 'no/such\.csv'"),
    ],
)
def test_unknown_source_names_what_there_is(source: str, sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        load_data(source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with a name")
@pytest.mark.parametrize("ending", ["csv", "npz", "ts.gz"])
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
            "Unknown task 'clasify'. Did you mean 'classify'? Tasks are classify, forecast, predict-next and simulate.",
        ),
        ("digits", {"task": "forecast"}, ConfigError, f"{CLASSIFY}, got task 'forecast'."),
        ("digits", {"horizon": 3}, ConfigError, f"horizon is for forecasting; {CLASSIFY}."),
        ("digits", {"time_column": "t"}, ConfigError, "time_column is for tables; 'digits' is none."),
        (
            "co2",
            {"label_column": "x"},
            ConfigError,
            "label_column is for classification; 'co2' is read for task 'forecast'.",
        ),
        ("digits", {"seed": 2**32}, ConfigError, "seed must be from 0 to 4294967295, got 4294967296."),
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


def test_options_that_differ_from_their_defaults_are_named() -> None:
    options = LoadOptions.unchecked("d.csv", target="y", future=[], season=None, window_stride=2, horizon=0)
    assert options.changed(TASK_OPTIONS) == ("target", "horizon", "window_stride")
    assert (options.target, options.future, options.calendar) == (("y",), (), ())


def test_an_unknown_option_is_a_type_error_of_the_function_that_was_called() -> None:
    message = r"^{}\(\) got an unexpected keyword argument 'horizont'$"
    with pytest.raises(TypeError, match=message.format("check_data")):
        check_data("co2", horizont=3)
    with pytest.raises(TypeError, match=message.format("load_data")):
        load_data("co2", horizont=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=message.format("load_data")):
        LoadOptions.unchecked("co2", horizont=3)
