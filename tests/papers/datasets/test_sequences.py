"""Texts, music and series to forecast, from small files in their published formats."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from named_helpers import at_home, lay, published
from stablernn.data import ForecastData, load_data
from stablernn.data.named import series
from stablernn.data.step_data import StepData
from stablernn.errors import ConfigError, DataError
from stablernn_papers.datasets import polyphonic

CHARACTERS = {
    "ptb.char.train.txt": b"a b _ < u n k > \n b a \n ",
    "ptb.char.valid.txt": b"b _ a \n ",
    "ptb.char.test.txt": b"a \n a \n ",
}
WORDS = {
    "ptb.train.txt": b" the <unk> sat \n on the N \n",
    "ptb.valid.txt": b" the N \n",
    "ptb.test.txt": b" N sat \n",
}


def steps(key: str, **options: Any) -> StepData:
    data = load_data(key, **options)
    assert isinstance(data, StepData)
    return data


def test_characters_as_a_dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lay(at_home(monkeypatch, tmp_path) / "ptb", CHARACTERS, ".gz")
    published(monkeypatch, "ptb-char", CHARACTERS)
    data = steps("ptb-char")
    assert data.features == data.outputs == ("<", "<eos>", ">", "_", "a", "b", "k", "n", "u")
    assert (data.output, data.tokens, data.continuous, data.headline) == ("categorical", True, True, "bpc")
    assert data.notes["tokens"] == {"train": 12, "validation": 4, "test": 4}
    samples = data.train.gather([0])
    assert [data.features[token] for token in samples.x[0]] == [*"ab_<unk>", "<eos>", "b", "a"]
    np.testing.assert_array_equal(samples.y[0, :-1], samples.x[0, 1:])
    assert data.outputs[samples.y[0, -1]] == "<eos>"


def test_words_as_a_dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lay(at_home(monkeypatch, tmp_path) / "simple-examples" / "data", WORDS)
    published(monkeypatch, "ptb-word", WORDS)
    data = steps("ptb-word")
    assert data.features == ("<eos>", "<unk>", "N", "on", "sat", "the")
    assert data.headline == "perplexity"
    samples = data.test.gather([0])
    assert [data.features[token] for token in samples.x[0]] == ["N", "sat"]
    assert [data.features[token] for token in samples.y[0]] == ["sat", "<eos>"]


def test_a_word_that_training_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = {**WORDS, "ptb.test.txt": b" N stood \n"}
    lay(at_home(monkeypatch, tmp_path) / "ptb", contents)
    published(monkeypatch, "ptb-word", contents)
    with pytest.raises(DataError, match=r"^'ptb\.test\.txt' has 'stood', which is not in 'ptb\.train\.txt'"):
        load_data("ptb-word")


ROLLS = {
    word: [np.random.RandomState(seed).randint(0, 2, (length, 88)) for length in lengths]
    for seed, (word, lengths) in enumerate({"traindata": (5, 2, 3), "validdata": (4,), "testdata": (2, 6)}.items())
}


def mat(rolls: dict[str, list[np.ndarray]], **more: Any) -> bytes:
    """A MATLAB file of version 5 with cell arrays, as published."""
    cells: dict[str, Any] = {}
    for word, arrays in rolls.items():
        cells[word] = np.empty((1, len(arrays)), dtype=object)
        cells[word][0] = [array.astype(np.uint8) for array in arrays]
    written = BytesIO()
    savemat(written, {**cells, **more}, do_compression=True)
    return written.getvalue()


@pytest.mark.parametrize(("key", "file"), [("nottingham", "Nottingham.mat"), ("jsb", "JSB_Chorales.mat")])
def test_music_is_frames_and_the_frame_after_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str, file: str
) -> None:
    monkeypatch.setitem(polyphonic.COUNTS, key, (3, 1, 2))
    content = mat(ROLLS)
    lay(at_home(monkeypatch, tmp_path) / "polyphonic", {file: content})
    if key == "jsb":
        published(monkeypatch, key, {file: content})
    data = steps(key)
    assert (data.output, data.headline, data.continuous, data.tokens) == ("bernoulli", "nll", False, False)
    assert (data.features[0], data.features[-1], len(data.outputs)) == ("key_21", "key_108", 88)
    assert data.notes["sequences"] == {"train": 3, "validation": 1, "test": 2}
    assert data.notes["frames"] == {"train": 10, "validation": 4, "test": 8}
    assert data.notes.get("unchecked") == (None if key == "jsb" else [file])
    samples = data.train.gather([2, 0])
    assert samples.lengths.tolist() == [2, 4]
    np.testing.assert_array_equal(samples.x[1], ROLLS["traindata"][0][:-1])
    np.testing.assert_array_equal(samples.y[1], ROLLS["traindata"][0][1:])
    np.testing.assert_array_equal(samples.y[0, :2], ROLLS["traindata"][2][1:])
    assert samples.x.dtype == samples.y.dtype == np.float32
    assert np.isnan(samples.y[0, 2:]).all()


def test_music_with_another_number_of_sequences_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lay(at_home(monkeypatch, tmp_path) / "polyphonic", {"Nottingham.mat": mat(ROLLS)})
    with pytest.raises(DataError, match=r"^'nottingham' must have 694, 173, 170 sequences .*got 3, 1, 2"):
        load_data("nottingham")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"nothing of MATLAB", "is not a MATLAB file of version 5"),
        (mat(ROLLS)[:200], r"cannot be read as a MATLAB file|must contain a cell array"),
        (mat({"traindata": ROLLS["traindata"], "validdata": ROLLS["validdata"]}), "a cell array 'testdata'"),
        (mat({"validdata": [], "testdata": []}, traindata=np.zeros((3, 88))), "a cell array 'traindata'"),
        (mat({**ROLLS, "testdata": [np.full((3, 88), 2)]}), r"testdata\[0\] .*each 0 or 1"),
        (mat({**ROLLS, "validdata": [np.ones((3, 87))]}), r"validdata\[0\] .*shape \(3, 87\)"),
    ],
)
def test_what_is_no_music_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=rf"^'m'.*({reason})"):
        polyphonic.read_rolls("m", content)


def table(rows: int) -> bytes:
    """A table as those of ETT, an hour a row."""
    random = np.random.RandomState(0)
    start = np.datetime64("2016-07-01T00:00:00")
    lines = ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"]
    for row in range(rows):
        stamp = str(start + np.timedelta64(row, "h")).replace("T", " ")
        lines.append(",".join([stamp, *(f"{value:.3f}" for value in random.normal(size=7))]))
    return "\n".join(lines).encode()


@pytest.fixture
def transformer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """ETTh1 with 700 + 100 + 100 rows, and 50 behind them."""
    content = table(950)
    monkeypatch.setitem(series.ETT_ROWS, "h", (700, 100, 100))
    lay(at_home(monkeypatch, tmp_path) / "ETT-small", {"ETTh1.csv": content}, ".xz")
    published(monkeypatch, "etth1", {"ETTh1.csv": content})
    return content


def forecast(key: str, **options: Any) -> ForecastData:
    data = load_data(key, **options)
    assert isinstance(data, ForecastData)
    return data


def test_a_transformer_is_cut_to_its_months(transformer: bytes) -> None:
    data = forecast("etth1", validation_steps=100, test_steps=100)
    (one,) = data.series
    assert len(one.ds) == 900
    assert data.notes["rows_left_out"] == 50
    assert (data.targets, data.horizon, data.season, data.context_length) == (("OT",), 96, 24, 336)
    assert data.channels == ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    rows = [line.split(b",") for line in transformer.splitlines()[1:901]]
    np.testing.assert_array_equal(one.values, np.array([row[1:] for row in rows]).astype(np.float32))
    assert data.frequency == "h"


M4 = {
    "Hourly-train.csv": b'"V1","V2","V3","V4"\n"H1","1","2","3"\n"H2","4","5",\n"H3","6","",""\n',
    "Hourly-test.csv": b'"V1","V2","V3"\n"H1","10","11"\n"H2","12","13"\n"H3","14","15"\n',
}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"V1,V2\nH1,\n", "'t' row 2 has no values."),
        (b"V1,V2,V3\nH1,1,2\nH2,1,x\n", "'t' row 3 has a cell that is not a number"),
    ],
)
def test_rows_that_are_none_of_m4_are_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        series.read_m4("t", content)
    assert str(caught.value).startswith(sentence)


def test_the_test_file_of_m4_continues_each_series(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    at_home(monkeypatch, tmp_path)
    longer = {**M4, "Hourly-train.csv": b"V1,V2,V3,V4,V5\nH1,1,2,3,\nH2,4,5,5,5\nH3,6,7,8,\n"}
    lay(tmp_path / "data" / "m4", longer)
    published(monkeypatch, "m4-hourly", longer)
    short = {"horizon": 1, "context_length": 1, "validation_steps": 1}
    data = forecast("m4-hourly", **short)
    assert data.series[2].values[:, 0].tolist() == [6, 7, 8, 14, 15]
    assert data.series[1].ds.tolist() == [1, 2, 3, 4, 5, 6]
    assert (data.test_steps, data.season, data.frequency) == (2, 24, "1")
    with pytest.raises(ConfigError) as caught:
        load_data("m4-hourly", channels=("y", "z"))
    assert str(caught.value) == "The series of 'm4-hourly' have only the channel 'y', and no covariates."
