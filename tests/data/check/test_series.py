"""The look at series before training: facts, warnings, values far from the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bad_files import DAYS, ROWS
from data.check.reports import check, warnings
from stablernn.data.check.content import compute_statistics


def test_gaps_missing_values_and_ignored_columns_are_counted(tmp_path: Path) -> None:
    rows = [f"{row},{n}.5,x" for n, row in enumerate(ROWS) if n not in (20, 21)]
    rows[3] = f"{DAYS[3]},,7.5,x"
    report = check(tmp_path, rows, "ds,y,heat,note", channels=["y", "heat"])
    assert report.content["gap_steps_filled"] == 2
    assert warnings(report)["gaps"] == "2 rows missing on the time grid, filled as steps without values."
    # A filled step lacks both channels, the cell one.
    assert warnings(report)["missing_values"] == "5 values are missing, of 120 (4.2%)."
    assert [(c.name, c.role, c.kind) for c in report.columns][-1] == ("note", "ignored", "words")


def test_a_file_without_a_header_is_recognized_although_it_loads(tmp_path: Path) -> None:
    report = check(tmp_path, ROWS[1:], ROWS[0])
    assert report.ok
    assert warnings(report)["no_header"] == (
        "The first row holds no names but values (2024-01-01, 0). Put a row with the names of the columns before it."
    )


def test_columns_that_give_the_target_away_are_named(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=203).round(4)
    rows = [
        f"{np.datetime64('2024-01-01') + n},{values[n]},{2 * values[n] + 1:.4f},{values[n + 3]},{n}" for n in range(200)
    ]
    found = warnings(check(tmp_path, rows, "ds,y,copy,ahead,row", horizon=4))
    assert found == {
        "column_equals_target": "Column 'copy' is the target 'y' in another unit (correlation 1). Leave it out.",
        "column_tells_future": "Column 'ahead' is the target 'y' of 3 steps later (correlation 1), which nobody knows "
        "when the forecast is made. Leave it out.",
        "counts_rows": "Column 'row' rises by the same amount in every row, as time does: in the test it has values "
        "that training never saw. Leave it out.",
    }


def test_a_column_that_repeats_itself_like_the_target_is_not_taken_for_its_future(tmp_path: Path) -> None:
    rows = [f"{row},{n % 2}" for n, row in enumerate(ROWS)]
    assert "column_tells_future" not in warnings(check(tmp_path, rows, "ds,y,z"))


def test_constant_series_and_far_values_are_said_by_series(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    small, large = rng.normal(size=300), 1e6 + 1e5 * rng.normal(size=300)
    small[7] = -999
    rows = [
        f"{name},{n},{value:.3f}" for name, values in (("a", small), ("b", large)) for n, value in enumerate(values)
    ]
    rows += [f"c,{n},5" for n in range(300)]
    report = check(tmp_path, rows, "unique_id,ds,y")
    found = warnings(report)
    assert found["constant_series"] == "1 of 3 series never change in training (scale 0): c."
    # Held against all series together, none of them would be far.
    assert found["outliers"].startswith("1 value further than 10 robust deviations from the median: y (1).")
    assert report.columns[2].outliers == 1


@given(
    st.lists(
        st.lists(st.lists(st.floats(-1e3, 1e3, width=32) | st.just(float("nan")), min_size=2, max_size=2), min_size=1),
        min_size=1,
        max_size=5,
    )
)
@settings(deadline=None, max_examples=30)
def test_statistics_of_chunks_are_those_of_the_whole(arrays: list[list[list[float]]]) -> None:
    chunks = [np.array(array, dtype=np.float32) for array in arrays]
    whole = np.concatenate(chunks)
    statistics = compute_statistics(chunks, chunks)
    assert statistics.num_steps == len(whole)
    for channel in range(2):
        column = whole[:, channel]
        values = column[~np.isnan(column)]
        assert statistics.missing[channel] == np.isnan(column).sum()
        assert statistics.constant[channel] == (len(np.unique(values)) == 1)
        if len(values):
            assert (statistics.low[channel], statistics.high[channel]) == (values.min(), values.max())
            distances = np.abs(values.astype(np.float64) - np.median(values.astype(np.float64)))
            spread = np.quantile(distances, 0.9) / 1.645 or np.median(
                distances[distances > 0] if distances.any() else 1
            )
            assert statistics.outliers[channel] == (distances > 10 * spread).sum()


@pytest.mark.parametrize("count", [1, 15])
def test_a_code_for_missing_values_is_far_from_the_median_however_often_it_comes(tmp_path: Path, count: int) -> None:
    values = np.random.default_rng(0).normal(20, 3, size=300)
    values[::20][:count] = -999
    report = check(tmp_path, [f"{n},{value:.2f}" for n, value in enumerate(values)])
    assert report.columns[1].outliers == count


def test_skewed_values_are_not_far(tmp_path: Path) -> None:
    values = np.random.default_rng(0).exponential(size=2000) * (np.arange(2000) % 2)
    assert check(tmp_path, [f"{n},{value:.3f}" for n, value in enumerate(values)]).columns[1].outliers == 0
