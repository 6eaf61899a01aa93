"""The readers of .ts and .tsv: formats, labels, unequal lengths, missing values, bad files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from stablernn.data import ClassificationData, load_data, read_inputs
from stablernn.data.check import check_data
from stablernn.data.readers.ts import read_ts
from stablernn.data.readers.ucr_tsv import read_ucr
from stablernn.errors import DataError

HEADER = "#a comment\n@problemName Tiny\n@univariate false\n@classLabel true up down\n@data\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def load(source: Path | str, **options: object) -> ClassificationData:
    data = load_data(source, **options)  # type: ignore[arg-type]
    assert isinstance(data, ClassificationData)
    return data


@pytest.mark.parametrize("separator", ["  ", " ", "\t", ","])
def test_txt_of_the_archive_is_no_text_of_characters(tmp_path: Path, separator: str) -> None:
    rows = [f"  {1 + row % 2}.0000000e+00{separator}1.5{separator}{row}{separator}NaN\n" for row in range(12)]
    for name in ("Toy_TRAIN.txt", "Toy_TEST.txt"):
        write(tmp_path / name, "".join(rows))
    data = load(tmp_path / "Toy_TRAIN.txt")
    assert (data.labels, data.test is not None) == (("1", "2"), True)
    assert check_data(tmp_path / "Toy_TRAIN.txt").task == "classify"
    inputs = read_inputs(tmp_path / "Toy_TEST.txt", task="classify", features=["value"])
    np.testing.assert_array_equal(inputs.x[3, :, 0], [1.5, 3])
    assert load_data(tmp_path / "Toy_TRAIN.txt", task="predict-next").task == "predict-next"


@pytest.mark.parametrize(
    "text",
    [
        "in the year 1984\nat the age 12\n",
        "1 2 3 4\n5 6 7\n",
    ],
)
def test_numbers_in_a_text_leave_it_a_text(tmp_path: Path, text: str) -> None:
    assert load_data(write(tmp_path / "a.txt", text * 20)).task == "predict-next"


def test_tsv_padding_is_cut_and_counted_but_missing_values_inside_stay(tmp_path: Path) -> None:
    found = read_ucr(write(tmp_path / "a.tsv", "1\t1\tNaN\t3\tNaN\tNaN\n2\t1\t2\t3\t4\t5\n"))
    assert [len(sequence) for sequence in found.values] == [3, 5]
    np.testing.assert_array_equal(found.values[0][:, 0], [1, np.nan, 3])
    assert found.notes == {"trailing_missing_cut": 2}


def test_labels_written_as_floats_are_whole_numbers(tmp_path: Path) -> None:
    assert read_ucr(write(tmp_path / "a.tsv", "1.0000000e+00\t1\n-1.0\t1\n2.5\t1\n")).labels == ["1", "-1", "2.5"]


def test_ts_question_marks_are_missing_values(tmp_path: Path) -> None:
    found = read_ts(write(tmp_path / "a.ts", HEADER + "1,?,3:NaN,5,6:up\n"))
    np.testing.assert_array_equal(found.values[0], [[1, np.nan], [np.nan, 5], [3, 6]])


def test_unequal_lengths_are_padded_with_zeros_and_noted(tmp_path: Path) -> None:
    rows = "1,2,3:4,5,6:up\n7:8:up\n1,2:1,2:down\n1,2:1,2:down\n"
    data = load(write(tmp_path / "a.ts", HEADER + rows))
    order = [*data.train.ids, *data.validation.ids]
    lengths = dict(zip(order, [*data.train.lengths, *data.validation.lengths], strict=True))
    assert lengths == {"0": 3, "1": 1, "2": 2, "3": 2}
    assert data.notes["lengths"] == {"min": 1, "max": 3, "unequal": True}
    assert data.train.x.shape[1] == data.validation.x.shape[1] == 3
    split, row = (data.train, data.train.ids.index("1")) if "1" in data.train.ids else (data.validation, 0)
    np.testing.assert_array_equal(split.x[row], [[7, 8], [0, 0], [0, 0]])


def test_without_a_test_file_there_is_no_test_split(tmp_path: Path) -> None:
    data = load(write(tmp_path / "a.tsv", "1\t1\n1\t2\n2\t3\n2\t4\n"))
    assert data.test is None
    with pytest.raises(DataError, match=r"'a\.tsv' has no test split.*--test.*--data"):
        data.split("test")


def test_fingerprint_is_of_the_content_not_of_file_or_seed(tmp_path: Path) -> None:
    rows = "1\t1\n1\t2\n2\t3\n2\t4\n1\t5\n2\t6\n"
    plain = load(write(tmp_path / "a.tsv", rows))
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    assert load(tmp_path / "b.tsv.gz", seed=5, validation_fraction=0.4).fingerprint == plain.fingerprint
    assert load(write(tmp_path / "c.tsv", rows.replace("6", "7"))).fingerprint != plain.fingerprint
    assert load(write(tmp_path / "d.tsv", rows.replace("1\t5", "2\t5"))).fingerprint != plain.fingerprint


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.tsv", "1\t1\t2\n2\tx\t3\n", r"'a\.tsv' line 2, value 1: 'x' is not a number; a missing one is"),
        (
            "a.tsv",
            "1\t1\t2\n2\t1\tinf\n",
            r"'a\.tsv' line 2, value 2 is inf",
        ),
        ("a.tsv", "1\t1_000\n", r"'a\.tsv' line 1, value 1: '1_000' is not a number; a missing one"),
        ("a.tsv", "1\t\u0661\n", r"'a\.tsv' line 1, value 1: '١' is not a number; a missing one is"),
        ("a.tsv", "1\t0,5\n", r"'a\.tsv' line 1, value 1: '0,5' is not a number; decimals are"),
        (
            "a.tsv",
            "1 0.5 0.6\n",
            r"'a\.tsv' line 1 has blanks and no tabs",
        ),
        (
            "a.tsv",
            "label\tt0\tt1\n1\t5\t6\n",
            r"'a\.tsv' line 1 holds names and no values \('label t0 t1'\)",
        ),
        (
            "a.ts",
            "1,2:up\n",
            r"'a\.ts' line 1 stands before '@data' but does not begin with '@'",
        ),
        (
            "a.ts",
            HEADER + "1,2\n",
            r"'a\.ts' line 6 ends without a label: its last field is '1,2'",
        ),
        (
            "a.ts",
            "@univariate true\n@data\n1,2:7\n",
            r"'a\.ts' line 3 seems to end with a label, '7', and no",
        ),
        (
            "a.ts",
            HEADER + "1,2:3,4:left\n",
            r"'a\.ts' line 6 has the label 'left', @classLabel allows up, down",
        ),
        (
            "a.ts",
            HEADER + "1,2:3,4:up\n1,2:down\n",
            r"'a\.ts' line 7 has 1 channel, the rows before have 2",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load_data(write(tmp_path / name, text))


def test_test_file_with_other_channels_is_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "a.ts", HEADER + "1:1:up\n2:2:up\n3:3:down\n4:4:down\n")
    with pytest.raises(DataError, match=r"'b\.tsv' has 1 feature \(value\), 'a\.ts' has 2 \(channel_0,"):
        load_data(train, test=write(tmp_path / "b.tsv", "up\t1\n"))


@pytest.mark.parametrize(
    "label",
    [
        "1E2",
        "1_000",
        "0x1",
        "01",
    ],
)
def test_other_labels_stay_as_they_are(tmp_path: Path, label: str) -> None:
    assert read_ucr(write(tmp_path / "a.tsv", f"{label}\t1\n0\t1\n")).labels == [label, "0"]


def test_one_label_in_two_spellings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'a\.tsv' has the labels '1' and '1\.0', which are the same number"):
        read_ucr(write(tmp_path / "a.tsv", "1\t1\n2\t1\n1.0\t1\n"))


def test_train_and_test_may_spell_labels_differently(tmp_path: Path) -> None:
    train = write(tmp_path / "A_TRAIN.tsv", "1.0000000e+00\t1\n" * 2 + "2.0000000e+00\t2\n" * 2)
    write(tmp_path / "A_TEST.tsv", "2\t1\n")
    data = load(train)
    assert data.labels == ("1", "2")
    assert data.test is not None
    assert data.test.y.tolist() == [1]


def test_what_float32_cannot_tell_apart_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"1,1:{1_700_000_000 + 7 * step},{1_700_000_003 + 7 * step}:up\n" for step in range(4))
    with pytest.raises(DataError, match=r"'a\.ts': channel 1 goes from 1700000000 to 1700000024, which"):
        load(write(tmp_path / "a.ts", HEADER + rows))


def test_a_row_that_hardly_changes_is_read_where_others_do(tmp_path: Path) -> None:
    assert len(load(write(tmp_path / "a.tsv", "1\t1e6\t1000000.01\n1\t0\t5\n2\t1\t1\n2\t2\t2\n")).train) == 2
