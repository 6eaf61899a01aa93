"""Values that stand for a missing one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stablernn.data.options import Repairs
from stablernn.data.table.series import Table, open_table
from stablernn.errors import DataError


def read(folder: Path, text: str, **repairs: Any) -> Table:
    (folder / "d.csv").write_text(text)
    return open_table(folder / "d.csv", repairs=Repairs(**repairs)).read()


def test_codes_are_missing_values_however_they_are_written(tmp_path: Path) -> None:
    table = read(tmp_path, "ds,y,z\n1,-9999,1\n2,-9999.0,--\n3,-9.999e3,3\n4,4,-9998\n", missing=[-9999, "--"])
    nan = np.nan
    np.testing.assert_array_equal(table.series[0].values, [[nan, 1], [nan, nan], [nan, 3], [4, -9998]])
    assert table.notes["missing_codes"] == {"count": 4, "columns": {"y": 3, "z": 1}}
    assert table.notes["missing_values"] == 4


def test_codes_of_float32_columns_match(tmp_path: Path) -> None:
    frame = pl.DataFrame({"ds": [1, 2], "y": pl.Series([0.1, 2.0], dtype=pl.Float32)})
    frame.write_parquet(tmp_path / "d.parquet")
    table = open_table(tmp_path / "d.parquet", repairs=Repairs(missing=(0.1,))).read()
    np.testing.assert_array_equal(table.series[0].values[:, 0], [np.nan, 2])


def test_a_code_that_is_every_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, "ds,y,z\n1,0,1\n2,0,0\n3,,3\n", missing=[0])
    assert str(caught.value) == (
        "'d.csv' column 'y' holds nothing but '0', which data.missing takes for missing values. Leave the code out of "
        "data.missing, or the column out by data.channels."
    )


def test_codes_do_not_touch_times_and_names(tmp_path: Path) -> None:
    table = read(tmp_path, "unique_id,ds,y\n1,1,1\n1,2,2\n", missing=[1])
    assert (table.series[0].unique_id, table.series[0].ds.tolist()) == ("1", [1, 2])
    assert table.notes["missing_codes"]["count"] == 1
