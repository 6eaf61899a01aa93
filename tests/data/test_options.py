"""The options of loading: one list of names and defaults for Python and for the settings of a run."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from stablernn.data import load_data
from stablernn.data.check import check_data
from stablernn.data.options import NAMED_OPTIONS, TASK_OPTIONS, DataOptions, LoadOptions
from stablernn.training.settings.config import DataConfig, TaskConfig


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


def test_reset_options_are_at_their_defaults() -> None:
    options = LoadOptions.unchecked("co2", test="t.csv", variant="released", horizon=3, future=["x"])
    assert options.reset(("test", "variant", "future")) == LoadOptions.unchecked("co2", horizon=3)


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
