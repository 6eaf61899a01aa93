"""Series that are too short, set aside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stablernn.data import ForecastData, load_data, read_inputs
from stablernn.data.options import Repairs
from stablernn.data.table.repairs import suggest_min_length
from stablernn.errors import DataError


def write(path: Path, lengths: dict[str, int], first: int = 0, label: bool = False) -> Path:
    rows = [
        f"{name},{first + n},{n % 5}{',' + name[0] if label else ''}"
        for name, count in lengths.items()
        for n in range(count)
    ]
    path.write_text("\n".join(["unique_id,ds,y" + ",label" * label, *rows]).replace("ds,y,", "ds,x,") + "\n")
    return path


def test_short_series_are_set_aside_and_listed(tmp_path: Path) -> None:
    data = load_data(write(tmp_path / "d.csv", {"a": 50, "b": 9, "c": 60}), min_length=10, horizon=2)
    assert isinstance(data, ForecastData)
    assert [series.unique_id for series in data.series] == ["a", "c"]
    assert (data.notes["short_series"], data.notes["series"]) == ({"count": 1, "names": ["b"]}, 2)


def test_they_may_be_in_the_test_file(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", {"a": 50, "b": 9})
    test = write(tmp_path / "e.csv", {"a": 4, "b": 4}, first=50)
    data = load_data(path, test=test, min_length=10, horizon=2)
    assert isinstance(data, ForecastData)
    assert ([series.unique_id for series in data.series], data.test_steps) == (["a"], 4)


def test_their_labels_go_with_them(tmp_path: Path) -> None:
    lengths = {f"{kind}{n}": 5 + 5 * (n % 2) for n in range(8) for kind in "pq"}
    data = load_data(write(tmp_path / "d.csv", lengths, label=True), min_length=10)
    assert data.notes["short_series"]["count"] == 8
    assert len(data.train.y) + len(data.validation.y) == 8  # type: ignore[union-attr]


def test_prediction_takes_them(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", {"a": 50, "b": 9})
    inputs = read_inputs(path, task="forecast", features=["y"], context_length=20, repairs=Repairs(min_length=10))
    assert (inputs.ids, inputs.lengths.tolist(), inputs.notes["short_contexts"]) == (("a", "b"), [20, 9], 1)


def test_a_length_that_no_series_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_data(write(tmp_path / "d.csv", {"a": 50, "b": 9}), min_length=51)
    assert str(caught.value) == "'d.csv' has no series of 51 rows (data.min_length); the longest has 50. Lower it."


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([10, *[500] * 14], 250), ([100, 90, 80], None), ([20] * 3 + [300] * 2, None), ([60, 3], 30)],
)
def test_the_proposal_keeps_half_of_the_series_or_more(lengths: list[int], expected: int | None) -> None:
    assert suggest_min_length(np.array(lengths).tolist(), 30) == expected
