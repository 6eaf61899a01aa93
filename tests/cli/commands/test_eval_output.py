"""`eval --output`: what a model predicts for each sample of a split, beside the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from cli_helpers import HORIZON, Workplace

READERS = {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson}


def written(workplace: Workplace, target: str, name: str) -> tuple[pl.DataFrame, dict]:
    document = workplace.document(f"eval {target} --output {name}")
    frame = READERS[Path(name).suffix](workplace.path(name))
    assert (document["output"], document["rows"]) == (name, len(frame))
    return frame, document


@pytest.mark.parametrize("target", ["load-run", "load"])
@pytest.mark.parametrize("name", ["e.csv", "e.parquet", "e.jsonl"])
def test_the_errors_of_the_rows_are_the_scores(workplace: Workplace, target: str, name: str) -> None:
    frame, document = written(workplace, target, name)
    assert frame.columns[:6] == ["unique_id", "origin", "ds", "target", "actual", "mean"]
    assert len(frame) == document["samples"] * HORIZON * 2
    error = frame["actual"].cast(pl.Float64) - frame["mean"].cast(pl.Float64)
    # The rows are rounded, which counts where errors are small.
    assert np.isclose(error.abs().mean(), document["metrics"]["mae"], rtol=1e-4, atol=5e-6)
    assert set(frame["target"]) == {"heat", "power"}
    first = frame.row(0, named=True)
    assert (first["origin"], first["ds"]) == tuple(str(np.datetime64(first["ds"]) + day) for day in (-1, 0))


def test_the_share_of_right_labels_is_the_accuracy(workplace: Workplace) -> None:
    frame, document = written(workplace, "digits", "e.parquet")
    assert frame.columns == ["id", "label", "predicted", *(f"probability_{digit}" for digit in range(10))]
    assert len(frame) == document["samples"]
    assert (frame["label"] == frame["predicted"]).mean() == pytest.approx(document["metrics"]["accuracy"])
    assert np.allclose(
        frame.select(pl.sum_horizontal(pl.selectors.starts_with("probability_"))).to_numpy(), 1, atol=1e-5
    )


def test_another_suffix_is_refused_before_the_model_runs(workplace: Workplace) -> None:
    assert workplace.refusal("eval digits --output e.xlsx") == (
        "--output must end in .csv, .parquet or .jsonl, which selects the format, got 'e.xlsx'. Choose another name."
    )
