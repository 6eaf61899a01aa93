"""``read_inputs``: the same numbers as training saw, real future time stamps, and files that do not fit the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data import ClassificationData, dataset_info, load_data, read_inputs
from stablernn.errors import DataError, StableRNNError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def bundled(key: str) -> Path:
    file = dataset_info(key).file
    assert file is not None
    return file


def test_sequences_equal_those_of_load_data(tmp_path: Path) -> None:
    data = load_data("digits")
    inputs = read_inputs(bundled("digits"), task="classify", features=["pixel"])
    assert len(inputs) == 1797
    assert isinstance(data, ClassificationData)
    test = data.test
    assert test is not None
    np.testing.assert_array_equal(inputs.x[::5], test.x)
    assert inputs.y is not None
    assert inputs.y[:3] == ("0", "1", "2")
    assert inputs.ids[5:7] == ("5", "6")


def test_contexts_are_the_last_steps_of_each_series(tmp_path: Path) -> None:
    rows = "".join(f"{s},{i},{i + n}\n" for n, s in enumerate("ab") for i in range(10))
    path = write(tmp_path / "d.csv", "unique_id,ds,y\n" + rows)
    inputs = read_inputs(path, task="forecast", features=["y"], context_length=4)
    assert inputs.ids == ("a", "b")
    assert inputs.x[:, :, 0].tolist() == [[6, 7, 8, 9], [7, 8, 9, 10]]
    assert inputs.frequency == "1"
    assert inputs.future_ds(1, 3).tolist() == [10, 11, 12]


def test_every_other_step_is_not_the_frequency_either(tmp_path: Path) -> None:
    rows = "".join(f"2024-01-01 {hour:02d}:00,{hour}\n" for hour in range(0, 24, 2))
    with pytest.raises(DataError, match="is in steps of '2h', and the model was trained on steps of 'h'"):
        read_inputs(write(tmp_path / "d.csv", "ds,y\n" + rows), task="forecast", features=["y"], frequency="h")


def test_a_context_without_a_target_is_nothing_to_forecast_from(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", "ds,y,promo\n" + "".join(f"{i},{i if i < 5 else ''},1\n" for i in range(9)))
    given = {"task": "forecast", "features": ["y", "promo"], "context_length": 3}
    assert len(read_inputs(path, **given)) == 1
    with pytest.raises(DataError, match="series 'd' has no value of y in its last 3 steps"):
        read_inputs(path, **given, targets=["y"])


def test_irregular_series_go_on_by_their_median_step(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", "ds,y\n2024-01-01,1\n2024-01-02,2\n2024-01-03 06:00,3\n2024-01-04 06:00,4\n")
    inputs = read_inputs(path, task="forecast", features=["y"])
    assert inputs.frequency is None
    assert [str(stamp)[:16] for stamp in inputs.future_ds(0, 2)] == ["2024-01-05T06:00", "2024-01-06T06:00"]


def test_single_row_without_frequency_has_no_future(tmp_path: Path) -> None:
    inputs = read_inputs(write(tmp_path / "d.csv", "ds,y\n2024-01-31,1\n"), task="forecast", features=["y"])
    with pytest.raises(DataError, match="Series 'd' has one row and no frequency is known, so its next"):
        inputs.future_ds(0, 2)


@pytest.mark.parametrize(
    ("name", "text", "options", "kind", "sentence"),
    [
        (
            "d.ts",
            "@classLabel false\n@data\n1:2:3:4:5\n",
            {"task": "classify", "features": ["a", "b", "c"]},
            DataError,
            r"'d\.ts' has 5 features \(channel_0, channel_1, channel_2,",
        ),
        (
            "d.csv",
            "ds,a,q\n1,1,1\n",
            {"features": ["a", "b", "c"]},
            DataError,
            r"'d\.csv' has 2 features \(a, q\), the model expects 3 \(a, b, c\)",
        ),
        (
            "d.tsv",
            "1\t2\n",
            {"features": ["y"]},
            DataError,
            r"'d\.tsv' is for task 'classify'; task 'forecast' reads \.csv,",
        ),
        (
            "d.csv",
            "ds,y\n1,inf\n",
            {"features": ["y"]},
            DataError,
            r"'d\.csv' row 2, column 'y' is inf",
        ),
    ],
    ids=["features", "columns", "tsv to forecast", "infinite"],
)
def test_files_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], kind: type[StableRNNError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        read_inputs(write(tmp_path / name, text), **{"task": "forecast", **options})
