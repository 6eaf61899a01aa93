"""A few made-up rows in the exact shape in which archives publish them; test_real_files.py reads the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stablernn.data import ClassificationData, ForecastData, load_data


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_ucr_tsv_of_2018(tmp_path: Path) -> None:
    train = write(tmp_path / "Toy_TRAIN.tsv", "1\t0.72\t-1.05\t0.33", "-1\t.5\t2e-1\t1", "-1\t1\t2\t3", "1\t0\t0\t1")
    write(tmp_path / "Toy_TEST.tsv", "-1\t-0.25\t0.5\tNaN", "1\t1\tNaN\t3")
    data = load_data(train)
    assert isinstance(data, ClassificationData)
    assert data.labels == ("-1", "1")
    assert data.test is not None
    np.testing.assert_array_equal(data.test.x[:, :, 0], np.array([[-0.25, 0.5, 0], [1, np.nan, 3]], dtype=np.float32))
    assert data.test.lengths.tolist() == [2, 3]
    assert data.test.y.tolist() == [0, 1]


def test_ucr_text_with_labels_in_e_notation(tmp_path: Path) -> None:
    rows = [f"{label}\t-7.9707818e-01\t 1.0000000e+00" for label in ("1.0000000e+00", "1.2000000e+01") * 2]
    data = load_data(write(tmp_path / "Old_TRAIN.tsv", *rows))
    assert isinstance(data, ClassificationData)
    assert data.labels == ("1", "12")
    np.testing.assert_array_equal(data.train.x[0, :, 0], np.array([-0.79707818, 1], dtype=np.float32))


def test_uea_ts(tmp_path: Path) -> None:
    path = write(
        tmp_path / "Motions_TRAIN.ts",
        "#The four problems were: standing, walking.",
        "#",
        "@problemName Motions",
        "@timeStamps false",
        "@missing false",
        "@univariate false",
        "@dimensions 2",
        "@equalLength true",
        "@seriesLength 3",
        "@classLabel true Standing Walking",
        "@data",
        "0.079106,0.079106,-0.903497:0.394032,0.394032,-3.666397:Standing",
        "-0.40,-2.7,2.6:0.1,0.2,0.3:Walking",
        "0.5,0.5,0.5:1,1,1:Standing",
        "0.25,0.5,?:1,2,3:Walking",
    )
    data = load_data(path)
    assert isinstance(data, ClassificationData)
    assert (data.labels, data.notes["missing_values"]["train"] + data.notes["missing_values"]["validation"]) == (
        ("Standing", "Walking"),
        1,
    )
    values = {int(i): x for split in (data.train, data.validation) for i, x in zip(split.ids, split.x, strict=True)}
    expected = [[0.079106, 0.394032], [0.079106, 0.394032], [-0.903497, -3.666397]]
    np.testing.assert_array_equal(values[0], np.array(expected, dtype=np.float32))


def test_ett(tmp_path: Path) -> None:
    stamps = np.datetime64("2016-07-01T00:00:00") + 3600 * np.arange(60)
    rows = [f"{str(stamp).replace('T', ' ')},5.82699,{i},-0.5,30.5" for i, stamp in enumerate(stamps)]
    data = load_data(write(tmp_path / "ETTh1.csv", "date,HUFL,HULL,MUFL,OT", *rows), target="OT", horizon=6)
    assert isinstance(data, ForecastData)
    assert (data.frequency, data.season, data.channels, data.targets) == (
        "h",
        24,
        ("HUFL", "HULL", "MUFL", "OT"),
        ("OT",),
    )
    (series,) = data.series
    np.testing.assert_array_equal(series.values[7], np.array([5.82699, 7, -0.5, 30.5], dtype=np.float32))
    assert str(series.ds[-1])[:16] == "2016-07-03T11:00"


def test_m4_in_long_form(tmp_path: Path) -> None:
    rows = [f"H{n},{step},{605.0 * n + step}" for n, length in ((1, 20), (414, 24)) for step in range(1, length + 1)]
    train = write(tmp_path / "M4-hourly_TRAIN.csv", "unique_id,ds,y", *rows)
    later = [f"H{n},{length + step},{step}.5" for n, length in ((1, 20), (414, 24)) for step in range(1, 5)]
    write(tmp_path / "M4-hourly_TEST.csv", "unique_id,ds,y", *later)
    data = load_data(train, horizon=4, season=4, validation_steps=4)
    assert isinstance(data, ForecastData)
    assert [one.unique_id for one in data.series] == ["H1", "H414"]
    assert (data.frequency, data.test_steps, [len(one.ds) for one in data.series]) == ("1", 4, [24, 28])
    test = data.windows("test")
    assert test.origins == [(0, 20), (1, 24)]
    np.testing.assert_array_equal(test.truth([1])[0, :, 0], np.array([1.5, 2.5, 3.5, 4.5], dtype=np.float32))
