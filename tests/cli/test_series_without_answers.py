"""`predict` for a folder: a series at fault has a row with the reason, and costs no other its answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from cli_helpers import Workplace
from stablernn_runtime import ServedModel
from stablernn_runtime.errors import InputError

STEPS = 20


def sequences(faults: Mapping[str, Any]) -> pl.DataFrame:
    """Three good sequences of the model of digits, with others between them: their values, or values and stamps."""
    rng = np.random.default_rng(0)
    good = {f"good-{number}": rng.normal(size=STEPS) for number in range(3)}
    order = ["good-0", *list(faults)[:1], "good-1", *list(faults)[1:], "good-2"]
    frames = []
    for name in order:
        fault = faults.get(name)
        values, stamps = fault if isinstance(fault, tuple) else (good.get(name, fault), None)
        stamps = range(len(values)) if stamps is None else stamps
        texts = [None if value is None else str(value) for value in values]
        frames.append(pl.DataFrame({"unique_id": name, "ds": list(stamps), "pixel": texts}))
    return pl.concat(frames)


def answers(place: Workplace, frame: pl.DataFrame, folder: Path, *words: Any) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The answers to a file, and the document of the job."""
    (folder / "in").mkdir(parents=True)
    frame.write_parquet(folder / "in" / "part.parquet")
    result = place.ok("predict", *words, "--input", folder / "in", "--output", folder / "out", "--json")
    return pl.read_parquet(folder / "out" / "part.parquet"), result.json


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (["1"] * 9 + ["inf"], r"^'part.parquet' row 30, column 'pixel' is inf. Values must be finite"),
        (["1e39"], r"^'part.parquet' row 21, column 'pixel' is 1e\+39. Values must be finite"),
        (["1", "2", "x"], "^'part.parquet' row 23, column 'pixel': 'x' is not a number"),
        ([None, None, None], "^'part.parquet': all values of series 'bad' are missing"),
        ((["1", "2", "3"], [0, 1, 1]), "^'part.parquet' has the time 1 of series 'bad' twice, in rows 22 and 23"),
        ((["1", "2", "3"], [0, 2, 1]), "^'part.parquet' is not sorted by time: row 23 of series 'bad' has 1 after 2"),
        ((["1"] * 4, [0, 1, 2, 10_000]), "^'part.parquet' mixes frequencies: series 'bad' is irregular, most are '1'"),
    ],
)
def test_the_others_have_the_answers_that_they_have_alone(
    trained: Workplace, tmp_path: Path, fault: Any, reason: str
) -> None:
    frame = sequences({"bad": fault}).with_columns(pl.col("ds").cast(pl.Int64))
    table, document = answers(trained, frame, tmp_path / "with", "digits:1")
    alone, _ = answers(trained, sequences({}), tmp_path / "without", "digits:1")
    assert table.schema == alone.schema
    assert table[:3].equals(alone)
    assert alone["error"].null_count() == 3
    bad = table.row(3, named=True)
    assert bad["id"] == "bad"
    assert pl.Series([bad["error"]]).str.contains(reason).all(), bad["error"]
    assert {bad[name] for name in table.columns[1:-1]} == {None}
    assert (document["samples"], document["without_answer"], document["failed"]) == (4, 1, {})


@pytest.mark.slow
def test_a_series_of_a_million_rows_does_not_pad_the_others(trained: Workplace, tmp_path: Path) -> None:
    long = pl.DataFrame({"unique_id": "long", "ds": np.arange(1_000_001), "pixel": np.zeros(1_000_001)})
    good = sequences({}).with_columns(pl.col("pixel").cast(pl.Float64))
    table, _ = answers(trained, pl.concat([long, good]), tmp_path, "digits:1")
    assert table["id"].to_list() == ["good-0", "good-1", "good-2", "long"]
    assert table["error"][3] == (
        "'part.parquet': series 'long' has 1,000,001 steps, and at most 1,000,000 are read beside shorter ones. Put it "
        "into a file of its own."
    )


def test_strict_jobs_stop_at_a_series(trained: Workplace, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    sequences({"bad": ["inf"]}).write_parquet(tmp_path / "in" / "part.parquet")
    words = f"predict digits:1 --input {tmp_path / 'in'} --output {tmp_path / 'out'}"
    result = trained(f"{words} --strict")
    assert result.code == 3
    assert "part.parquet: 'part.parquet' row 21, column 'pixel' is inf" in result.err
    assert not (tmp_path / "out" / "part.parquet").exists()
    # Without it the same job goes on.
    assert trained.document(f"{words} --resume")["without_answer"] == 1


def test_forecasts_of_the_other_series(trained: Workplace, tmp_path: Path) -> None:
    wide = pl.read_csv(trained.path("load.csv"))
    frames = {
        "missing": wide.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("heat", "power")),
        "good": wide,
        "weekly": wide[::7],
        "beyond": wide.with_columns(pl.col("heat") * 1e38),
    }
    frame = pl.concat([each.with_columns(unique_id=pl.lit(name)) for name, each in frames.items()])
    table, document = answers(trained, frame, tmp_path, "load:1")
    trained.ok(f"predict load:1 --input {trained.path('load.csv')} --output {tmp_path / 'alone.parquet'}")
    alone = pl.read_parquet(tmp_path / "alone.parquet")
    good = table.filter(pl.col("unique_id") == "good")
    assert good.drop("unique_id", "error").equals(alone.drop("unique_id"))
    assert good["error"].null_count() == len(alone)
    reasons = dict(table.filter(pl.col("error").is_not_null()).select("unique_id", "error").iter_rows())
    assert reasons.keys() == {"missing", "weekly", "beyond"}
    assert "series 'missing' has no value of heat, power in its last 12 steps" in reasons["missing"]
    assert "series 'weekly' is in steps of 'W-MON', and the model was trained on steps of 'D'" in reasons["weekly"]
    assert "column 'heat' is 2e+39. Values must be finite" in reasons["beyond"]
    assert document["without_answer"] == 3


def test_an_answer_that_is_not_finite_is_the_error_of_its_series(
    trained: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ServedModel.run_numpy

    def without_sevens(self: ServedModel, x: Any, *args: Any, **options: Any) -> Any:
        if (x[:, 0] == 7).any():
            raise InputError("The output 'probabilities' is not finite.")
        return run(self, x, *args, **options)

    monkeypatch.setattr(ServedModel, "run_numpy", without_sevens)
    table, _ = answers(trained, sequences({"first": ["7"] * 3, "second": ["7"] * STEPS}), tmp_path, "digits:1")
    assert table["id"].to_list() == ["good-0", "good-1", "good-2", "first", "second"]
    assert table["error"][3:].to_list() == ["The output 'probabilities' is not finite."] * 2


@pytest.mark.slow
def test_a_long_sequence_alone_in_its_file_has_an_answer(trained: Workplace, tmp_path: Path) -> None:
    long = pl.DataFrame({"unique_id": "long", "ds": np.arange(1_000_001), "pixel": np.zeros(1_000_001)})
    table, document = answers(trained, long, tmp_path, "digits:1")
    assert (table["id"].to_list(), document["without_answer"]) == (["long"], 0)


def test_a_long_history_is_forecast(trained: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stablernn_cli.prediction.MAX_STEPS", 10)
    wide = pl.read_csv(trained.path("load.csv"))
    frame = pl.concat([wide.with_columns(unique_id=pl.lit(name)) for name in ("a", "b")])
    _, document = answers(trained, frame, tmp_path, "load:1")
    assert (document["samples"], document["without_answer"]) == (2, 0)
