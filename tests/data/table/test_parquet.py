"""Parquet and CSV are one format; tables are read in pieces, and pieces change nothing."""

from __future__ import annotations

import datetime
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.data import ForecastData, load_data, read_inputs
from stablernn.data.arrays import GrowingArray, MemoryBudget
from stablernn.data.table.series import Table, open_table
from stablernn.errors import DataError

DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(40)]


def long_table() -> pl.DataFrame:
    """Three series, their rows mixed, with gaps and missing values."""
    rows = [(f"s{n}", day, n + i / 8 if i % 5 else None, i) for i, day in enumerate(DAYS) for n in (2, 0, 1) if i != 7]
    return pl.DataFrame(rows, schema=["unique_id", "ds", "y", "x"], orient="row")


def same(first: Table, second: Table) -> None:
    assert [one.unique_id for one in first.series] == [one.unique_id for one in second.series]
    assert first.channels == second.channels
    for one, other in zip(first.series, second.series, strict=True):
        np.testing.assert_array_equal(one.ds, other.ds)
        np.testing.assert_array_equal(one.values, other.values)


@pytest.mark.parametrize("stamp", [pl.Date, pl.Datetime("ms"), pl.Datetime("ns"), pl.Datetime("us", "UTC"), pl.String])
def test_parquet_is_read_as_csv_is(tmp_path: Path, stamp: Any) -> None:
    frame = long_table()
    frame.write_csv(tmp_path / "d.csv")
    frame.with_columns(pl.col("ds").cast(stamp)).write_parquet(tmp_path / "d.parquet", row_group_size=7)
    first, second = (load_data(tmp_path / name, horizon=2) for name in ("d.csv", "d.parquet"))
    assert isinstance(second, ForecastData)
    assert second.fingerprint == first.fingerprint
    zone = {"time_zone": "UTC"} if stamp == pl.Datetime("us", "UTC") else {}
    assert second.notes == {**first.notes, **zone}
    inputs = [read_inputs(tmp_path / name, task="forecast", features=["x", "y"]) for name in ("d.csv", "d.parquet")]
    np.testing.assert_array_equal(inputs[0].x, inputs[1].x)


def test_a_zone_is_turned_into_utc(tmp_path: Path) -> None:
    stamps = pl.Series(["2024-01-01 05:00", "2024-01-01 06:00"]).str.to_datetime(time_zone="America/New_York")
    pl.DataFrame({"ds": stamps, "y": [1, 2]}).write_parquet(tmp_path / "d.parquet")
    ds = open_table(tmp_path / "d.parquet").read().series[0].ds
    assert [str(stamp)[:16] for stamp in ds] == ["2024-01-01T10:00", "2024-01-01T11:00"]


def refused(folder: Path, frame: pl.DataFrame, **options: Any) -> str:
    frame.write_parquet(folder / "d.parquet")
    with pytest.raises(DataError) as caught:
        open_table(folder / "d.parquet").read(**options)
    return str(caught.value)


def test_a_column_that_is_no_numbers_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"ds": [1], "y": [1.0], "born": [DAYS[0]]})
    assert refused(tmp_path, frame) == (
        "'d.parquet' column 'born' holds date, not numbers. Name the columns to read by data.channels."
    )


@pytest.mark.parametrize("cut", [3, 40, 200])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    long_table().write_parquet(tmp_path / "d.parquet")
    path = tmp_path / "d.parquet"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(
        DataError, match=r"^'d\.parquet' is damaged or is not a Parquet file \(.*\)\. Write it again\.$"
    ):
        load_data(path)


@settings(deadline=None, max_examples=25)
@given(
    ids=st.lists(st.sampled_from(["a", "b c", "NA", "ü"]), min_size=1, max_size=25),
    block=st.integers(1, 60),
    blanks=st.integers(0, 2),
)
def test_pieces_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], block: int, blanks: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    rows = [f'"{name}",{i},{i * 0.5 if i % 3 else ""}' for i, name in enumerate(ids)]
    (folder / "d.csv").write_text("\n".join(["unique_id,ds,y", *([""] * blanks).__add__(rows)]))
    whole = open_table(folder / "d.csv").read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stablernn.data.files._BLOCK_BYTES", block)
        patch.setattr("stablernn.data.table.series.MemoryBudget", lambda: MemoryBudget(40))
        pieces = open_table(folder / "d.csv").read()
    same(whole, pieces)
    assert pieces.notes == whole.notes
    for one in whole.series:
        expected = [np.float32(i * 0.5) if i % 3 else np.nan for i, name in enumerate(ids) if name == one.unique_id]
        np.testing.assert_array_equal(one.values[:, 0], np.array(expected, np.float32))


def test_what_is_larger_than_its_budget_lies_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLERNN_CACHE", str(tmp_path / "cache"))
    grown = GrowingArray(np.float32, 2, MemoryBudget(100))
    pieces = [np.arange(2 * n, dtype=np.float32).reshape(n, 2) for n in (5, 6, 0, 9)]
    for piece in pieces:
        grown.append(piece)
    found = grown.finish()
    np.testing.assert_array_equal(found, np.concatenate(pieces))
    assert isinstance(found.base, np.memmap)
    assert list((tmp_path / "cache").iterdir()) == []


FULL_DISK = """
import numpy as np
from stablernn.data import arrays
from stablernn.errors import DataError

arrays._create_unnamed_file = lambda: open("/dev/full", "r+b")
array = arrays.GrowingArray(np.float32, None, arrays.MemoryBudget(0))
try:
    for _ in range(100):
        array.append(np.zeros(1000, np.float32))
except DataError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_full_disk_is_reported_once() -> None:
    result = subprocess.run([sys.executable, "-c", FULL_DISK], capture_output=True, text=True, check=True)
    assert "does not fit on the disk of STABLERNN_CACHE: No space left on device." in result.stdout
    assert result.stderr == ""


LOW = """
import resource, sys
from pathlib import Path
from stablernn.data.table.series import open_table
from stablernn.data.forecasting import series_fingerprint
import numpy as np
taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (taken + int(sys.argv[2]), resource.RLIM_INFINITY))
table = open_table(Path(sys.argv[1])).read()
whole = table.series[0].values
while whole.base is not None and not isinstance(whole, np.memmap):
    whole = whole.base
print(isinstance(whole, np.memmap), series_fingerprint(table.channels, table.series))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of memory is measured by /proc")
def test_a_table_larger_than_the_memory_is_read_row_group_by_row_group(tmp_path: Path) -> None:
    rows, columns, series = 3_000_000, 24, 300
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "unique_id": np.repeat([f"s{n:03d}" for n in range(series)], rows // series),
            "ds": np.tile(np.arange(rows // series), series),
            **{f"x{n}": random.integers(0, 1000, rows).astype(np.float32) for n in range(columns)},
        }
    )
    path = tmp_path / "d.parquet"
    frame.write_parquet(path, row_group_size=20_000, compression="lz4")
    plain = open_table(path).read()
    # The result alone takes 288 MB, its time stamps 24.
    limit = 240 << 20
    done = subprocess.run(
        [sys.executable, "-c", LOW, str(path), str(limit)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    mapped, fingerprint = done.stdout.split()
    from stablernn.data.forecasting import series_fingerprint

    assert mapped == "True"
    assert fingerprint == series_fingerprint(plain.channels, plain.series)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
