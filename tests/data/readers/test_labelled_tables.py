"""Classification from long tables: a series is a sequence, a column has its class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data import ClassificationData, ForecastData, load_data, read_inputs
from stablernn.errors import DataError, StableRNNError

HEADER = "unique_id,ds,a,b,label"


def rows(count: int = 8, length: int = 3, stamps: Sequence[object] | None = None) -> list[str]:
    stamps = stamps or range(length)
    return [
        f"s{n},{stamp},{n * 10 + i},{-n},{'up' if n % 2 else 'down'}"
        for n in range(count)
        for i, stamp in enumerate(stamps)
    ]


def write(path: Path, lines: Sequence[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def load(path: Path, **options: Any) -> ClassificationData:
    data = load_data(path, **options)
    assert isinstance(data, ClassificationData)
    return data


def sequence(data: ClassificationData, number: int) -> tuple[Any, str]:
    split = next(split for split in (data.train, data.validation) if str(number) in split.ids)
    index = split.ids.index(str(number))
    return split.sequences()[index], data.labels[split.y[index]]


def test_each_series_is_a_sequence_with_a_label(tmp_path: Path) -> None:
    data = load(write(tmp_path / "d.csv", rows()))
    assert (data.labels, data.features) == (("down", "up"), ("a", "b"))
    values, label = sequence(data, 3)
    assert values.tolist() == [[30, -3], [31, -3], [32, -3]]
    assert label == "up"
    assert data.time_step is None
    assert data.notes["rows"] == 24


def test_a_column_y_makes_it_a_forecast_unless_the_task_says_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", rows(4, 40), "unique_id,ds,y,b,label")
    assert load(path, task="classify").features == ("y", "b")
    data = load_data(path, channels=["y", "b"], horizon=2)
    assert isinstance(data, ForecastData)
    assert data.targets == ("y",)


STAMPS = ["2024-01-01 00:00:00", "2024-01-01 00:00:07", "2024-01-01 00:01:00", "2024-01-01 03:00:00"]


def test_irregular_stamps_become_distances(tmp_path: Path) -> None:
    data = load(write(tmp_path / "d.csv", rows(stamps=STAMPS)))
    assert data.time_step == 53
    assert data.train.dt is not None
    np.testing.assert_allclose(data.train.dt[0], [1, 7 / 53, 1, 10740 / 53], rtol=1e-6)
    assert data.notes["irregular_intervals"] == 16


def test_sequences_for_prediction_have_names_and_need_no_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", ["x,0,1,2", "x,1,3,4", "y,0,5,6"], "unique_id,ds,b,a")
    inputs = read_inputs(path, task="classify", features=["a", "b"])
    assert inputs.ids == ("x", "y")
    assert inputs.x.tolist() == [[[2, 1], [4, 3]], [[6, 5], [0, 0]]]
    assert (inputs.lengths.tolist(), inputs.y, inputs.dt) == ([2, 1], None, None)
    labelled = read_inputs(write(tmp_path / "l.csv", rows(2)), task="classify", features=["a", "b"], time_step=0.5)
    assert labelled.y == ("down", "up")
    assert labelled.dt is not None
    assert labelled.dt.tolist() == [[1, 2, 2], [1, 2, 2]]


@pytest.mark.parametrize(
    ("header", "lines", "options", "kind", "sentence"),
    [
        (
            HEADER,
            [*rows(), "s3,9,1,1,left"],
            {},
            DataError,
            r"'d\.csv': column 'label' must have one value for each series,",
        ),
        (
            HEADER,
            [*rows(), "z,9,1,1,"],
            {},
            DataError,
            r"'d\.csv': series 'z' has no label",
        ),
        (
            "unique_id,ds,a,b,klass",
            rows(),
            {"task": "classify"},
            DataError,
            r"'d\.csv' has no column 'label' with the class of each series.*label_column.*unique_id",
        ),
        (
            "ds,a,label",
            ["0,1,up", "1,2,up"],
            {},
            DataError,
            r"'d\.csv' has no column 'unique_id', so all of its rows are one.*id_column",
        ),
    ],
    ids=[
        "two labels",
        "no label",
        "no column",
        "no names",
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, header: str, lines: list[str], options: dict[str, Any], kind: type[StableRNNError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        load_data(write(tmp_path / "d.csv", lines, header), **options)
