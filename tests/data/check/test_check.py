"""The look at data before training: facts, every problem in a refused file, warnings, leakage."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bad_files import BAD_FILES, DAYS, ROWS, BadFile, labelled, table
from stablernn.data import load_data
from stablernn.data.check import DataReport, check_data
from stablernn.data.check.channel_statistics import compute_statistics
from stablernn.data.check.report import Findings
from stablernn.data.check.row_order import count_unordered
from stablernn.data.check.steps import inspect_steps
from stablernn.data.step_data import StepData, StoredSteps
from stablernn.errors import StableRNNError, UnknownNameError

SHARED = os.environ.get("STABLERNN_DATA")


def problems(report: DataReport) -> list[tuple[str, str]]:
    return [(finding.code, finding.text) for finding in report.problems]


def warnings(report: DataReport) -> dict[str, str]:
    return {finding.code: finding.text for finding in report.warnings}


def check(folder: Path, rows: list[str], header: str = "ds,y", **options: object) -> DataReport:
    table("d.csv", rows, header)(folder)
    return check_data(folder / "d.csv", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad.fault)
def test_a_bad_file_is_refused_in_the_words_of_the_reader_and_every_fault_is_listed(
    tmp_path: Path, bad: BadFile
) -> None:
    bad.write(tmp_path)
    with pytest.raises(StableRNNError) as refused:
        load_data(tmp_path / bad.name, **bad.options)
    assert str(refused.value) == bad.sentence
    report = check_data(tmp_path / bad.name, **bad.options)
    assert problems(report) == [("refused", bad.sentence), *bad.more]
    assert not report.ok
    assert (report.data is None) == (not report.assumed)
    json.dumps(report.as_json(), allow_nan=False)


def test_a_file_that_is_not_there_is_an_error_and_no_report(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="No file"):
        check_data(tmp_path / "no.csv")


def test_a_good_file_has_its_facts_and_nothing_to_say(tmp_path: Path) -> None:
    report = check(tmp_path, ROWS)
    assert report.ok
    assert report.warnings == ()
    assert report.task == "forecast"
    assert [(column.name, column.role, column.kind) for column in report.columns] == [
        ("ds", "time", "dates"),
        ("y", "target", "numbers"),
    ]
    assert (report.columns[0].low, report.columns[0].high) == ("2024-01-01", "2024-02-29")
    assert (report.columns[1].low, report.columns[1].high) == (0.0, 6.0)
    content = report.content
    assert content["steps"] == {"min": 60, "median": 60.0, "max": 60}
    assert (content["frequency"], content["season"]) == ("D", 7)


def test_gaps_missing_values_and_ignored_columns_are_counted(tmp_path: Path) -> None:
    rows = [f"{row},{n}.5,x" for n, row in enumerate(ROWS) if n not in (20, 21)]
    rows[3] = f"{DAYS[3]},,7.5,x"
    report = check(tmp_path, rows, "ds,y,heat,note", channels=["y", "heat"])
    assert report.content["gap_steps_filled"] == 2
    assert warnings(report)["gaps"] == "2 rows missing on the time grid, filled as steps without values."
    # A filled step lacks both channels, the cell one.
    assert warnings(report)["missing_values"] == "5 values are missing, of 120 (4.2%)."
    assert [(c.name, c.role, c.kind) for c in report.columns][-1] == ("note", "ignored", "words")


def test_irregular_times_are_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.integers(1, 500, 80))
    report = check(tmp_path, [f"{time},{n % 9}" for n, time in enumerate(times)])
    assert report.content["frequency"] is None
    assert "irregular_time" in warnings(report)


@pytest.mark.parametrize("bad_cell", ["inf", "1e60"])
def test_a_number_that_float32_does_not_hold_is_found_beside_other_faults(tmp_path: Path, bad_cell: str) -> None:
    rows = [f"{row},{bad_cell if n == 4 else n}" for n, row in enumerate(ROWS)]
    rows[9] = f"{DAYS[9]},word,3"
    sentences = [text for _, text in problems(check(tmp_path, rows, "ds,y,z"))]
    assert any("row 11, column 'y': 'word' is not a number" in text for text in sentences)
    assert any(text.startswith("'d.csv' row 6, column 'z' is ") for text in sentences)


def test_columns_of_words_are_left_out_on_trial(tmp_path: Path) -> None:
    rows = [f"{row},{'NW' if n % 2 else 'SE'},{n}" for n, row in enumerate(ROWS)]
    report = check(tmp_path, rows, "ds,y,wind,z")
    assert problems(report)[1] == (
        "words",
        "'d.csv' column 'wind' holds words ('SE', 'NW') and no numbers. Name it by data.categories, name the "
        "columns to read by 'channels', or write it as numbers.",
    )
    assert report.assumed == {"categories": ["wind"]}
    assert report.data is not None
    assert report.content["series"] == 1


def test_a_target_is_guessed_and_said_to_be(tmp_path: Path) -> None:
    report = check(tmp_path, [f"{row},{n % 4}" for n, row in enumerate(ROWS)], "ds,a,b")
    assert report.assumed == {"target": "b"}
    assert [column.role for column in report.columns] == ["time", "channel", "target"]
    assert [code for code, _ in problems(report)] == ["refused"]


def test_columns_that_differ_by_a_number_are_guessed_to_be_series(tmp_path: Path) -> None:
    meters = [f"{row},{n % 4},{n % 5}" for n, row in enumerate(ROWS)]
    report = check(tmp_path, meters, "ds,meter 1,meter 2,meter 10")
    assert report.assumed == {"channels_as_series": True}
    assert problems(report)[0][1].endswith("Where each is a series to forecast, set data.channels_as_series=true.")
    assert report.content["series"] == 3
    weather = check(tmp_path, meters, "ds,wind,load 1,load 2")
    assert weather.assumed == {"target": "load 2"}
    # Names of series say that the columns are channels of each.
    named = check(tmp_path, [f"x,{row}" for row in meters], "unique_id,ds,meter 1,meter 2,meter 10")
    assert named.assumed == {"target": "meter 10"}


def test_the_only_column_of_numbers_is_the_target_beside_words(tmp_path: Path) -> None:
    rows = [f"{row},{'ok' if n % 3 else 'check'}" for n, row in enumerate(ROWS)]
    report = check(tmp_path, rows, "ds,load,status")
    assert report.assumed == {"categories": ["status"], "target": "load"}
    assert report.data is not None
    assert report.data.targets == ("load",)


def test_a_column_that_tells_series_apart_is_guessed(tmp_path: Path) -> None:
    rows = [f"{shop},{row}" for row in ROWS for shop in ("x", "z")]
    report = check(tmp_path, rows, "shop,ds,y")
    assert report.assumed == {"id_column": "shop"}
    assert warnings(report)["unnamed_series"] == "Column 'shop' seems to tell series apart: name it by id_column."
    assert report.content["series"] == 2
    assert warnings(report)["duplicate_series"].startswith("1 of 2 series have the values of another one.")


def test_a_time_in_several_columns_is_recognized(tmp_path: Path) -> None:
    rows = [f"{n + 1},2024,{1 + n // 30},{1 + n % 30},{n % 7}" for n in range(60)]
    report = check(tmp_path, rows, "No,year,month,day,y")
    assert warnings(report)["time_in_parts"] == (
        "The time seems to be in several columns (year, month, day). Join them into one column 'ds', such as "
        "2024-01-31 13:00."
    )
    assert report.assumed["time_column"] == "No"


def test_a_file_without_a_header_is_recognized_although_it_loads(tmp_path: Path) -> None:
    report = check(tmp_path, ROWS[1:], ROWS[0])
    assert report.ok
    assert warnings(report)["no_header"] == (
        "The first row holds no names but values (2024-01-01, 0). Put a row with the names of the columns before it."
    )


def test_series_in_rows_are_recognized(tmp_path: Path) -> None:
    header = ",".join(f"V{n}" for n in range(1, 32))
    report = check(tmp_path, [f"H{n}," + ",".join(map(str, range(n, n + 30))) for n in range(4)], header)
    assert warnings(report) == {
        "series_in_rows": "Each row seems to be a series of up to 30 values behind its name. Tables are read with a "
        "row for each series and time: unique_id, ds, y."
    }


@pytest.mark.parametrize("first", ["2024-01-{:02}", "{:02}/01/2024"], ids=["dates", "days first"])
def test_a_wide_table_is_not_taken_for_series_in_rows(tmp_path: Path, first: str) -> None:
    header = ",".join(["date", *(f"c{channel}" for channel in range(25))])
    rows = [
        f"{first.format(day)}," + ",".join(str((day * channel) % 7) for channel in range(25)) for day in range(1, 31)
    ]
    report = check(tmp_path, rows, header)
    assert "series_in_rows" not in warnings(report)
    assert not report.ok
    if first.startswith("2024"):
        assert report.assumed == {"channels_as_series": True}
        assert (report.content["series"], len(report.columns)) == (25, 26)


def test_single_faults_are_all_listed(tmp_path: Path) -> None:
    """Loading stops at the first; the check tells of each, though it stands in one cell only."""
    rows = [f"2024-01-{day:02},{day % 5},{day % 3}" for day in range(1, 31)]
    rows[3], rows[7] = "2024-01-04,many,1", "2024-01-08,3,few"
    rows[12], rows[13] = rows[13], rows[12]
    rows[20] = rows[20].replace("01-21", "01-20")
    report = check(tmp_path, rows, "ds,y,z")
    assert [code for code, _ in problems(report)] == ["refused", "time_twice", "not_sorted", "not_a_number"]
    assert [text for _, text in problems(report)[1:]] == [
        "'d.csv' has 1 row with a time that its series already has.",
        "'d.csv' has 1 row that is earlier than the row of their series before.",
        "'d.csv' column 'z': 1 of 30 cells is no number; the first is 'few' in row 9.",
    ]


def test_a_file_of_no_known_ending_is_shown(tmp_path: Path) -> None:
    (tmp_path / "d.dat").write_text("0.5;1\n0.6;2\n")
    report = check_data(tmp_path / "d.dat")
    assert report.preview == ("0.5;1", "0.6;2")
    assert "looks_like_a_table" in warnings(report)


def test_what_is_left_of_a_cut_file_is_shown(tmp_path: Path) -> None:
    (bad,) = [bad for bad in BAD_FILES if bad.fault == "truncated gzip"]
    bad.write(tmp_path)
    assert check_data(tmp_path / bad.name).preview[:2] == ("ds,y", "2024-01-01,0")


def test_parquet_is_looked_at_as_csv_is(tmp_path: Path) -> None:
    frame = pl.DataFrame({"ds": DAYS, "y": [n % 7 for n in range(60)], "word": ["a"] * 60})
    frame.write_parquet(tmp_path / "d.parquet")
    report = check_data(tmp_path / "d.parquet")
    assert [code for code, _ in problems(report)] == ["refused", "words"]
    assert report.assumed == {"channels": ["y"]}
    assert report.data is not None


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


def test_a_series_that_ends_before_the_others_shares_its_test_with_their_training(tmp_path: Path) -> None:
    rows = [f"a,{row}" for row in ROWS] + [f"b,{date},{n % 5}" for n, date in enumerate(DAYS[:40])]
    report = check(tmp_path, rows, "unique_id,ds,y")
    assert warnings(report)["ends_apart"].startswith(
        "Series end at different times: one is trained on until 2024-02-13, the test of another begins at 2024-02-02."
    )


def write_npz(folder: Path, x: np.ndarray, y: list[int], name: str = "d.npz") -> Path:
    np.savez(folder / name, x=x.astype(np.float32), y=y)
    return folder / name


def test_sequences_of_test_that_are_in_training_are_leakage(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6, 2))
    train = write_npz(tmp_path, np.concatenate([x[:30], x[:1]]), [n % 2 for n in range(30)] + [0], "d_TRAIN.npz")
    write_npz(tmp_path, np.concatenate([x[30:], x[5:8]]), [n % 2 for n in range(10)] + [0, 0, 1], "d_TEST.npz")
    report = check_data(train)
    duplicates = report.content["duplicates"]
    assert sum(duplicates["across"][f"{split}, test"] for split in ("train", "validation")) == 3
    # x[0] came twice into the training file; both may go to either split.
    assert sum(duplicates["within"].values()) + duplicates["across"]["train, validation"] == 1
    # x[5] is of class 1 in training.
    assert duplicates["with_other_labels"] == 1
    found = [finding.text for finding in report.warnings if finding.code == "leakage"]
    assert any(text.endswith("the score on test will be too good. Take them out of one of the two.") for text in found)
    assert warnings(report)["contradiction"] == (
        "1 sequence comes with more than one label, which no model can get right."
    )


def test_a_feature_that_is_the_label_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = [n % 3 for n in range(30)]
    x = rng.normal(size=(30, 5, 2))
    x[:, -1, 1] = [{0: 4.0, 1: -1.0, 2: 0.5}[label] for label in y]
    assert warnings(check_data(write_npz(tmp_path, x, y)))["feature_tells_label"] == (
        "The last value of 'channel_1' is a number of its own for each class: it seems to be the label. Leave the "
        "feature out if it is not known when the model is asked."
    )


def test_unbalanced_rare_constant_and_empty_are_said(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 5, 2))
    x[:, :, 1] = 3
    x[4] = np.nan
    x[5] = 1.5
    x[5, :, 1] = 3
    found = warnings(check_data(write_npz(tmp_path, x, [0] * 37 + [1] * 3)))
    assert found["unbalanced"] == (
        "Class '0' has 30 training sequences, '1' has 2: saying '0' every time is right in 93.8%. Look at the macro-F1 "
        "beside the accuracy."
    )
    assert found["few_examples"] == "Fewer than 5 training sequences of '1' (2)."
    assert found["constant_column"].startswith("channel_1 has a single value in all of training (scale 0)")
    assert found["constant_sequence"] == "1 of 40 sequences never change (scale 0 on their own)."
    assert found["empty_sequence"] == "1 of 40 sequences have no value at all."
    assert found["no_test"] == "There is no test split; scores will be those of validation only."


def test_a_class_that_no_split_scores_is_said(tmp_path: Path) -> None:
    labelled("d_TRAIN.tsv", ["a", "b", "c"] * 8)(tmp_path)
    labelled("d_TEST.tsv", ["a", "b"])(tmp_path)
    assert (
        warnings(check_data(tmp_path / "d_TRAIN.tsv"))["class_not_scored"] == "The test split has no sequence of 'c'."
    )


def test_a_table_with_labels_shows_the_part_of_every_column(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"s{n},{t},{rng.normal():.3f},{'ab'[n % 2]}" for n in range(12) for t in range(6)]
    report = check(tmp_path, rows, "unique_id,ds,x,label")
    assert report.task == "classify"
    assert [(column.name, column.role) for column in report.columns] == [
        ("unique_id", "id"),
        ("ds", "time"),
        ("x", "channel"),
        ("label", "label"),
    ]
    assert report.content["classes"] == {"a": {"train": 5, "validation": 1}, "b": {"train": 5, "validation": 1}}


def test_steps_show_lengths_the_commonest_target_and_shared_sequences() -> None:
    inputs = [np.array([0, 1, 2, 1]), np.array([2, 2, 1]), np.array([1, 0, 0, 0, 2])]
    targets = [np.array([1, 1, 1, 0]), np.array([0, 0, -1]), np.array([1, 1, 1, 1, 0])]
    split = StoredSteps(inputs, targets)
    other = StoredSteps(inputs[2:], targets[2:])
    data = StepData(
        name="hand made",
        output="categorical",
        tokens=True,
        features=("a", "b", "c"),
        outputs=("no", "yes"),
        train=split,
        validation=other,
        test=StoredSteps([np.array([2, 0])], [np.array([1, 1])]),
        continuous=False,
        headline="loss",
        notes={},
        fingerprint="sha256:0",
    )
    findings = Findings()
    _, content = inspect_steps(data, findings)
    assert content["lengths"] == {"min": 2, "median": 4.0, "max": 5}
    assert content["commonest_target"] == {"name": "yes", "share": 1.0}
    assert content["duplicates"]["across"] == {"train, validation": 1, "train, test": 0, "validation, test": 0}
    assert [finding.text for finding in findings.warnings] == [
        "1 sequence of validation is in train as well, to the last digit."
    ]


@given(
    st.lists(
        st.lists(st.lists(st.floats(-1e3, 1e3, width=32) | st.just(float("nan")), min_size=2, max_size=2), min_size=1),
        min_size=1,
        max_size=5,
    )
)
@settings(deadline=None, max_examples=60)
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


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=40))
def test_rows_out_of_order_are_counted_in_their_series(rows: list[tuple[str, int]]) -> None:
    twice = len(rows) - len(set(rows))
    back = sum(
        later < earlier
        for name in "ab"
        for times in [[time for series, time in rows if series == name]]
        for earlier, later in zip(times, times[1:], strict=False)
    )
    stamps = np.array([time for _, time in rows], dtype=np.int64)
    assert count_unordered(stamps, pl.Series([name for name, _ in rows])) == (twice, back)


@pytest.mark.skipif(SHARED is None, reason="STABLERNN_DATA is not set")
@pytest.mark.parametrize(
    ("file", "codes", "assumed", "facts"),
    [
        ("forecasting/ETT-small/ETTh1.csv", ["refused"], {"target": "OT"}, {"frequency": "h", "missing_values": 0}),
        ("forecasting/univariate/airline-passengers.csv", [], {}, {"frequency": "MS", "season": 12}),
        ("ucr-uea/JapaneseVowels/JapaneseVowels_TRAIN.ts", [], {}, {"lengths": {"min": 7, "median": 15, "max": 29}}),
        ("ucr-uea/ECG5000/ECG5000_TRAIN.tsv", [], {}, {"sequences": {"train": 400, "validation": 100, "test": 4500}}),
        ("forecasting/m4/Hourly-train.csv.gz", ["refused"], {}, {}),
    ],
    ids=lambda value: Path(value).name if isinstance(value, str) else "",
)
def test_published_files(file: str, codes: list[str], assumed: dict[str, str], facts: dict[str, object]) -> None:
    assert SHARED is not None
    report = check_data(Path(SHARED) / file)
    assert [code for code, _ in problems(report)] == codes
    assert report.assumed == assumed
    assert {key: report.content[key] for key in facts} == facts


@pytest.mark.skipif(SHARED is None, reason="STABLERNN_DATA is not set")
def test_the_published_air_of_beijing_needs_a_time_and_numbers() -> None:
    assert SHARED is not None
    report = check_data(Path(SHARED) / "forecasting/beijing_pm25/pollution.csv.gz")
    assert [code for code, _ in problems(report)] == ["refused", "words"]
    assert report.assumed["time_column"] == "No"
    assert report.assumed["categories"] == ["cbwd"]
    assert "time_in_parts" in warnings(report)
    missing = {column.name: round(column.missing * 43824) for column in report.columns}
    assert missing["pm2.5"] == 2067


@pytest.mark.parametrize("count", [1, 15])
def test_a_code_for_missing_values_is_far_from_the_median_however_often_it_comes(tmp_path: Path, count: int) -> None:
    values = np.random.default_rng(0).normal(20, 3, size=300)
    values[::20][:count] = -999
    report = check(tmp_path, [f"{n},{value:.2f}" for n, value in enumerate(values)])
    assert report.columns[1].outliers == count


def test_skewed_values_are_not_far(tmp_path: Path) -> None:
    values = np.random.default_rng(0).exponential(size=2000) * (np.arange(2000) % 2)
    assert check(tmp_path, [f"{n},{value:.3f}" for n, value in enumerate(values)]).columns[1].outliers == 0


def test_a_value_that_is_rare_and_always_the_same_is_not_far(tmp_path: Path) -> None:
    report = check(tmp_path, [f"{n},{int(n % 97 == 0)}" for n in range(300)])
    assert report.columns[1].outliers == 0


@pytest.mark.parametrize("kind", ["numbers", "whole numbers", "words"])
def test_a_channel_does_not_tell_series_apart_where_a_row_stands_twice(tmp_path: Path, kind: str) -> None:
    cells = {"numbers": [n / 4 for n in range(4)], "whole numbers": [3, 1, 4, 2], "words": ["N", "E", "S", "W"]}[kind]
    rows = [f"{row},{cells[n % 4]}" for n, row in enumerate(ROWS)]
    report = check(tmp_path, [*rows[:5], f"{DAYS[4]},3,{cells[1]}", *rows[5:]], "ds,y,wind")
    assert "id_column" not in report.assumed
    assert "unnamed_series" not in warnings(report)


def test_the_target_does_not_tell_series_apart(tmp_path: Path) -> None:
    report = check(tmp_path, [f"{day},{shop}" for day in DAYS for shop in (1, 2)])
    assert report.assumed == {}


def test_sequences_without_a_label_are_no_class(tmp_path: Path) -> None:
    labelled("d.tsv", ["a", "b"] * 6 + ["?", "nan"])(tmp_path)
    report = check_data(tmp_path / "d.tsv")
    assert report.content["classes"] == {"a": {"train": 6}, "b": {"train": 6}}
    assert report.content["unlabelled"] == {"train": 2}


def test_blank_and_short_rows_are_said(tmp_path: Path) -> None:
    rows = [*(f"{row},1" for row in ROWS[:10]), ",,", ROWS[10], *(f"{row},{n}" for n, row in enumerate(ROWS[11:]))]
    found = warnings(check(tmp_path, rows, "ds,y,z"))
    assert found["blank_rows"] == "1 row without anything in them, skipped."
    assert found["short_rows"] == (
        "1 row with fewer cells than the header has; those at the end are taken for missing."
    )


def test_steps_at_one_time_and_at_other_distances_are_said(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(10, 5, 1)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(10) % 2, t=np.array([0, 1, 1, 2, 3.5]))
    found = warnings(check_data(tmp_path / "d.npz"))
    assert found["steps_at_one_time"] == (
        "10 steps at the same time as the one before. Look whether they are there twice."
    )
    assert found["irregular_time"] == (
        "20 steps not at the usual distance from the one before. A cell that takes dt is told, for others steps are "
        "alike."
    )
