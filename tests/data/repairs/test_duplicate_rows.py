"""Rows that repeat a time: their mean or the last of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data.options import Repairs
from stablernn.data.table.series import Table, open_table
from stablernn.errors import DataError

ROWS = "unique_id,ds,y,z\na,1,1,5\na,2,2,\na,2,4,7\nb,2,9,1\nb,2,9,1\nb,3,8,1\n"


def read(folder: Path, text: str, **repairs: Any) -> Table:
    (folder / "d.csv").write_text(text)
    return open_table(folder / "d.csv", repairs=Repairs(**repairs)).read()


@pytest.mark.parametrize(("how", "merged"), [("mean", [3.0, 7.0]), ("last", [4.0, 7.0])], ids=["mean", "last"])
def test_rows_of_one_time_become_one(tmp_path: Path, how: str, merged: list[float]) -> None:
    table = read(tmp_path, ROWS, on_duplicate=how)
    a, b = table.series
    assert (a.ds.tolist(), b.ds.tolist()) == ([1, 2], [2, 3])
    np.testing.assert_array_equal(a.values, [[1, 5], merged])
    np.testing.assert_array_equal(b.values, [[9, 1], [8, 1]])
    assert (table.notes["duplicate_rows"], table.notes["duplicate_rows_differing"]) == (2, 1)


def test_the_last_row_is_that_of_the_file_whatever_the_order(tmp_path: Path) -> None:
    table = read(tmp_path, "ds,y\n3,1\n1,5\n3,2\n2,6\n", on_duplicate="last", sort=True)
    np.testing.assert_array_equal(table.series[0].values[:, 0], [5, 6, 2])
    assert table.notes["rows_sorted"] == 2


def test_unsorted_rows_are_refused_though_times_may_repeat(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^'d\.csv' is not sorted by time: row 5 has 1 after 2 in row 4\."):
        read(tmp_path, "ds,y\n1,1\n2,1\n2,2\n1,3\n", on_duplicate="mean")


def test_a_mean_of_text_is_refused_and_of_equal_text_is_not(tmp_path: Path) -> None:
    text = "ds,y,wind\n1,1,N\n2,2,S\n2,3,{}\n"
    with pytest.raises(DataError) as caught:
        read(tmp_path, text.format("N"), on_duplicate="mean", categories=["wind"])
    assert str(caught.value) == (
        "'d.csv' column 'wind' has two categories at one time, in rows 3 and 4, and data.on_duplicate=mean cannot "
        "average text. Correct them, or set data.on_duplicate=last."
    )
    table = read(tmp_path, text.format("S"), on_duplicate="mean", categories=["wind"])
    np.testing.assert_array_equal(table.series[0].values, [[1, 1, 0], [2.5, 0, 1]])


def test_values_that_differ_at_many_times_are_not_proposed_to_be_merged(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, "ds,y\n1,1\n1,2\n2,1\n2,2\n")
    assert str(caught.value).endswith("in rows 2 and 3. Name the column that tells series apart by id_column.")
    assert caught.value.settings == {}
