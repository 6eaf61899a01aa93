"""`predict` of a large table: in pieces it has the answers, bit for bit, that it has when it is read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from cli_helpers import Workplace
from stablernn.data import prediction_inputs
from stablernn.data.table.pieces import NameSet, split_rows
from stablernn_cli.commands import predict as prediction_pieces

LENGTHS = [20, 3, 41, 20, 20, 7, 120, 1, 20, 20, 33]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and pieces of some 50 rows, parts of files of two pieces."""
    monkeypatch.setattr("stablernn.data.table.chunks._MIN_CHUNK_ROWS", 1)
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", 1000)
    monkeypatch.setattr(prediction_inputs, "PIECE_CELLS", 150)
    monkeypatch.setattr("stablernn_cli.prediction_files._PART_ROWS", 4)


@pytest.fixture
def whole_readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets the name of each file that is not read in pieces."""
    readings = []
    read = prediction_pieces.predict_file

    def count(model: Any, source: str, *args: Any, **options: Any) -> Any:
        readings.append(Path(source).name)
        return read(model, source, *args, **options)

    monkeypatch.setattr(prediction_pieces, "predict_file", count)
    return readings


def sequences(lengths: list[int] = LENGTHS) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.concat(
        pl.DataFrame({"unique_id": f"s-{number}", "ds": np.arange(length), "pixel": rng.normal(size=length)})
        for number, length in enumerate(lengths)
    )


def loads(place: Workplace, names: str = "abcdefgh") -> pl.DataFrame:
    """The columns of the model of loads, for several series."""
    wide = pl.read_csv(place.path("load.csv"))
    frames = [
        wide.with_columns(unique_id=pl.lit(name), heat=pl.col("heat") * scale) for scale, name in enumerate(names)
    ]
    return pl.concat(frames)


def write(frame: pl.DataFrame, path: Path) -> Path:
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path, row_group_size=70)
    return path


def predict(place: Workplace, model: str, source: Path, output: Path) -> tuple[bytes, str]:
    result = place.ok(f"predict {model} --input {source} --output {output}")
    assert [path.name for path in output.parent.iterdir() if path.name.startswith(".")] == []
    return output.read_bytes(), result.err


def read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_inputs, "PIECE_CELLS", 1 << 30)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("form", [".parquet", ".csv", ".jsonl"])
def test_files_are_those_of_the_whole_table(
    trained: Workplace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_readings: list[str],
    suffix: str,
    form: str,
) -> None:
    source = write(sequences(), tmp_path / f"in{suffix}")
    in_pieces, _ = predict(trained, "digits:1", source, tmp_path / f"pieces{form}")
    assert whole_readings == []
    read_whole(monkeypatch)
    whole, _ = predict(trained, "digits:1", source, tmp_path / f"whole{form}")
    if form == ".parquet":
        frames = [pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("pieces", "whole")]
        assert frames[0].equals(frames[1])
        assert frames[0].schema == frames[1].schema
        assert frames[0]["id"].to_list() == [f"s-{number}" for number in range(len(LENGTHS))]
    else:
        assert in_pieces == whole


def test_forecasts(
    trained: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_readings: list[str]
) -> None:
    source = write(loads(trained), tmp_path / "in.csv")
    in_pieces, _ = predict(trained, "load:1", source, tmp_path / "pieces.csv")
    assert whole_readings == []
    read_whole(monkeypatch)
    assert in_pieces == predict(trained, "load:1", source, tmp_path / "whole.csv")[0]


def test_the_marks_of_numbers_are_those_of_the_whole_file(
    trained: Workplace, tmp_path: Path, whole_readings: list[str]
) -> None:
    """The cell that tells points from thousands is in the last piece."""
    frame = sequences().with_columns(pixel=pl.int_range(pl.len()) * 7 + 500)
    plain, _ = predict(trained, "digits:1", write(frame, tmp_path / "in.csv"), tmp_path / "a.csv")
    rows = [f"{name};{ds};{pixel:,}".replace(",", ".") for name, ds, pixel in frame.rows()]
    (tmp_path / "marks.csv").write_text("\n".join(["unique_id;ds;pixel", *rows]) + ",0\n")
    marked, _ = predict(trained, "digits:1", tmp_path / "marks.csv", tmp_path / "b.csv")
    assert (marked, whole_readings) == (plain, [])


def test_a_file_that_is_not_sorted_by_series_is_read_whole(
    trained: Workplace, tmp_path: Path, whole_readings: list[str]
) -> None:
    frame = sequences()
    expected, _ = predict(trained, "digits:1", write(frame, tmp_path / "sorted.parquet"), tmp_path / "a.csv")
    by_time = frame.with_columns(order=pl.int_range(pl.len()).over("unique_id")).sort("order", maintain_order=True)
    unsorted = write(by_time.drop("order"), tmp_path / "by-time.parquet")
    content, err = predict(trained, "digits:1", unsorted, tmp_path / "b.csv")
    assert content == expected
    assert whole_readings == ["by-time.parquet"]
    assert "Note: read as a whole, not in pieces: rows of series 's-" in err
    assert "sort the file by series" in err


def test_series_on_unlike_grids_are_read_whole(
    trained: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_readings: list[str]
) -> None:
    # By itself the second half is on a grid of every second step, and beside the first half it has gaps.
    frame = sequences([20] * 12).with_columns(is_late=pl.col("unique_id").str.slice(2).cast(pl.Int64) > 6)
    frame = frame.with_columns(ds=pl.col("ds") * (1 + pl.col("is_late").cast(pl.Int64))).drop("is_late")
    source = write(frame, tmp_path / "in.parquet")
    content, err = predict(trained, "digits:1", source, tmp_path / "a.csv")
    assert whole_readings == ["in.parquet"]
    assert "not in pieces: its series do not all have the same time grid" in err
    read_whole(monkeypatch)
    assert content == predict(trained, "digits:1", source, tmp_path / "b.csv")[0]


@pytest.mark.parametrize(("offsets", "is_whole"), [(["+01:00"] * 8, False), (["+01:00"] * 7 + ["+02:00"], True)])
def test_only_all_times_tell_instants_from_local_days(
    trained: Workplace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_readings: list[str],
    offsets: list[str],
    is_whole: bool,
) -> None:
    frame = loads(trained).with_columns(
        ds=pl.col("ds").cast(pl.String)
        + " 00:00"
        + pl.col("unique_id").replace_strict(dict(zip("abcdefgh", offsets, strict=True)))
    )
    source = write(frame, tmp_path / "in.parquet")
    content, err = predict(trained, "load:1", source, tmp_path / "a.csv")
    assert (whole_readings == ["in.parquet"]) == is_whole
    assert ("its times have several offsets from UTC" in err) == is_whole
    read_whole(monkeypatch)
    assert content == predict(trained, "load:1", source, tmp_path / "b.csv")[0]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(
    ("cell", "fault"), [("x", ": 'x' is not a number. Correct it,"), ("inf", " is inf. Values must be finite float32")]
)
def test_a_bad_cell_near_the_end_names_its_row_and_leaves_no_file(
    trained: Workplace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_readings: list[str],
    cell: str,
    fault: str,
    suffix: str,
) -> None:
    frame = sequences().with_columns(pl.col("pixel").cast(pl.String))
    row = len(frame) - 3
    frame[row, "pixel"] = cell
    source, output = write(frame, tmp_path / f"in{suffix}"), tmp_path / "out" / "answers.parquet"
    output.parent.mkdir()
    result = trained(f"predict digits:1 --input {source} --output {output}")
    # The first line of a CSV file has the names of its columns.
    number = row + (2 if suffix == ".csv" else 1)
    assert result.sentence.startswith(f"'in{suffix}' row {number}, column 'pixel'{fault}")
    assert list(output.parent.iterdir()) == []
    # The piece knows the row of the file, which is not read again to name it.
    assert whole_readings == []
    read_whole(monkeypatch)
    assert trained(f"predict digits:1 --input {source} --output {output}").sentence == result.sentence


def test_in_a_folder_series_at_fault_cost_no_other_its_answer(trained: Workplace, tmp_path: Path) -> None:
    frame = sequences()
    # All series of a piece, one of another with a second fault, and the last one.
    faulty = {"s-3": "inf", "s-4": "inf", "s-5": None, "s-6": "x", "s-10": "inf"}
    broken = frame.with_columns(
        pixel=pl.when(pl.col("unique_id").is_in(list(faulty)))
        .then(pl.col("unique_id").replace_strict(faulty, default=None))
        .otherwise(pl.col("pixel").cast(pl.String))
    )
    (tmp_path / "in").mkdir()
    write(broken, tmp_path / "in" / "part.parquet")
    words = f"predict digits:1 --input {tmp_path / 'in'} --output {tmp_path / 'out'} --json"
    document = trained.ok(words).json
    table = pl.read_parquet(tmp_path / "out" / "part.parquet")
    predict(trained, "digits:1", write(frame, tmp_path / "good.parquet"), tmp_path / "good-answers.parquet")
    expected = pl.read_parquet(tmp_path / "good-answers.parquet")
    answered = table.filter(pl.col("error").is_null())
    assert answered.drop("error").equals(expected.filter(~pl.col("id").is_in(list(faulty))))
    assert table["id"][len(answered) :].to_list() == list(faulty)
    assert (document["samples"], document["without_answer"]) == (len(LENGTHS), len(faulty))
    first = {name: int(frame["unique_id"].index_of(name) or 0) + 1 for name in faulty}
    reasons = dict(table[len(answered) :].select("id", "error").iter_rows())
    assert reasons["s-10"].startswith(f"'part.parquet' row {first['s-10']}, column 'pixel' is inf.")
    assert reasons["s-6"].startswith(f"'part.parquet' row {first['s-6']}, column 'pixel': 'x' is not a number.")
    assert reasons["s-5"] == "'part.parquet': all values of series 's-5' are missing."


def test_pieces_hold_whole_series_and_their_rows() -> None:
    names = ["a"] * 3 + ["b"] * 2 + ["c"] * 9 + ["d", " d", None, "d"] + ["e"] * 2
    frame = pl.DataFrame({"id": names, "ds": range(len(names))})
    chunks = (frame[start : start + 4] for start in range(0, len(frame), 4))
    pieces = list(split_rows(chunks, "id", "ds", min_rows=4, notes={"encoding": "latin-1"}))
    rows = [pl.concat(piece.frames) for piece in pieces]
    assert pl.concat(rows).equals(frame)
    assert [piece.first_row for piece in pieces] == [0, 3, 5, 14, 18]
    assert [piece.notes for piece in pieces] == [{}, {}, {}, {}, {"encoding": "latin-1"}]
    assert [set(each["id"].str.strip_chars().drop_nulls()) for each in rows] == [{"a"}, {"b"}, {"c"}, {"d"}, {"e"}]
    assert not any(piece.is_whole for piece in pieces)
    assert not pieces[3].has_other_series(["d"], "id")
    assert pieces[3].has_other_series(["c"], "id")


def test_names_are_found_again() -> None:
    names = NameSet()
    rng = np.random.default_rng(0)
    numbers = rng.permutation(5000)
    for start in range(0, 5000, 50):
        assert names.add([f"n-{number}" for number in numbers[start : start + 50]]) is None
    assert names.add([]) is None
    assert names.add(["new", f"n-{numbers[1234]}"]) == f"n-{numbers[1234]}"
