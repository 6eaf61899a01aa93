"""Series as slices of the rows of a table, and what is computed once for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stablernn.data.table.frequency import align_to_grid
from stablernn.data.table.series import open_table
from stablernn.data.types import StackedSeries, names_of, values_of


def stacked(ds: list[list[int]], static: list[list[float]] | None = None) -> StackedSeries:
    """Series ``a``, ``b``, ... whose values count their rows."""
    rows = np.concatenate([np.array(stamps, np.int64) for stamps in ds])
    values = np.arange(len(rows), dtype=np.float32)[:, None]
    ends = np.cumsum([len(stamps) for stamps in ds])
    names = "abcdef"[: len(ds)]
    return StackedSeries(tuple(names), rows, values, ends, None if static is None else np.array(static, np.float32))


def test_each_series_has_its_rows() -> None:
    series = stacked([[1, 2, 3], [5, 6]], static=[[7], [8]])
    assert [one.unique_id for one in series] == ["a", "b"] == list(names_of(series))
    assert [one.ds.tolist() for one in series] == [[1, 2, 3], [5, 6]]
    assert [one.values[:, 0].tolist() for one in series] == [[0, 1, 2], [3, 4]]
    assert [values[:, 0].tolist() for values in values_of(series)] == [[0, 1, 2], [3, 4]]
    assert [one.static.tolist() for one in series] == [[7], [8]]
    assert series[-1].unique_id == "b"
    assert [one.unique_id for one in series[1:]] == ["b"]
    with pytest.raises(IndexError):
        series[2]


@pytest.mark.parametrize("stamps", [[1, 2, 3], [1, 2, 5], [0, 10, 20, 25], [4]])
@pytest.mark.parametrize("frequency", [None, "1"])
def test_series_with_equal_stamps_have_the_grid_that_each_has_alone(stamps: list[int], frequency: str | None) -> None:
    series = stacked([stamps, stamps, stamps])
    together: Any = align_to_grid("d", series, frequency)
    apart: Any = align_to_grid("d", tuple(series), frequency)
    assert together[1:] == apart[1:]
    for one, other in zip(together[0], apart[0], strict=True):
        assert one.unique_id == other.unique_id
        np.testing.assert_array_equal(one.ds, other.ds)
        np.testing.assert_array_equal(one.values, other.values)


def test_rows_of_series_may_be_mixed(tmp_path: Path) -> None:
    names = ["b", "a", "b", "a", " a", "b"]
    frame = pl.DataFrame({"unique_id": names, "ds": [1, 1, 2, 2, 3, 3], "y": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]})
    frame.write_parquet(tmp_path / "d.parquet")
    series = open_table(tmp_path / "d.parquet").read().series
    assert [(one.unique_id, one.values[:, 0].tolist()) for one in series] == [("b", [0, 2, 5]), ("a", [1, 3, 4])]
