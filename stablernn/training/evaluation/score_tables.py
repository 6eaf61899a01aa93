"""Scores of a forecast by series and by step ahead, as rows of tables and as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn.atomic_files import write_bytes
from stablernn.data import ForecastData
from stablernn.training.evaluation.metrics import ratio
from stablernn.training.evaluation.predictors import Array, Outputs
from stablernn.training.evaluation.scorers import ForecastScorer

Row = dict[str, Any]


def by_series(data: ForecastData, scorer: ForecastScorer, outputs: Outputs) -> list[Row]:
    """Return the scores of each series and target over all its windows, with the MAE of the seasonal naive forecast.

    Returns:
        Rows of ``unique_id``, ``target``, ``windows``, the scores, ``seasonal_naive_mae``, ``relative_mae``. A series
        without windows in the split has no row.
    """
    naive = scorer.naive_forecast("seasonal_naive")
    return [
        {
            "unique_id": data.series[number].unique_id,
            "target": target,
            "windows": windows.stop - windows.start,
            **_scores(scorer, outputs, naive, windows=windows, targets=slice(position, position + 1)),
        }
        for position, target in enumerate(data.targets)
        for number, windows in scorer.series_slices()
    ]


def by_step(data: ForecastData, scorer: ForecastScorer, outputs: Outputs) -> list[Row]:
    """Return the scores of each step ahead and target over all windows, with the MAE of the seasonal naive forecast.

    Returns:
        Rows of ``step`` (from 1), ``target``, the scores, ``seasonal_naive_mae``, ``relative_mae``.
    """
    naive = scorer.naive_forecast("seasonal_naive")
    return [
        {
            "step": step + 1,
            "target": target,
            **_scores(scorer, outputs, naive, steps=slice(step, step + 1), targets=slice(position, position + 1)),
        }
        for position, target in enumerate(data.targets)
        for step in range(data.horizon)
    ]


def _scores(scorer: ForecastScorer, outputs: Outputs, naive: Array, **part: slice) -> dict[str, float]:
    """Return the scores of a part, selected by the slices of :meth:`ForecastScorer.part`."""
    scores = scorer.part(outputs, **part)
    naive_mae = scorer.part({"mean": naive}, **part)["mae"]
    # 0/0 is 1, as in the scores of the whole split.
    return {**scores, "seasonal_naive_mae": naive_mae, "relative_mae": ratio(scores["mae"], naive_mae, zero=1.0)}


def write_tables(folder: Path, tables: Mapping[str, Sequence[Row]]) -> list[Path]:
    """Write each table to ``NAME.csv`` in a folder, created if needed, and return the paths; NaN is an empty cell."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in tables.items():
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        # NaN is the only value that differs from itself; cells also hold text, which has no isnan.
        writer.writerows({key: "" if value != value else value for key, value in row.items()} for row in rows)
        paths.append(folder / f"{name}.csv")
        write_bytes(paths[-1], buffer.getvalue().encode())
    return paths
