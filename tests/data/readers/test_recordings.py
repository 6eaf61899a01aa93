"""Folders with a file for each recording, labeled by subfolders or by a manifest."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import polars as pl
import pytest
from scipy.io import loadmat, savemat, wavfile

from stablernn.data import ClassificationData, load_data, read_inputs
from stablernn.data.check import check_data
from stablernn.data.load import read_sequences
from stablernn.data.options import Repairs
from stablernn.data.readers.recordings import read_matlab_arrays, read_recording
from stablernn.errors import ConfigError, DataError, UnknownNameError

Writer = Callable[[Path, np.ndarray], None]
RATE = 100


def samples(number: int, steps: int = 40) -> np.ndarray:
    return (100 * np.sin(np.arange(steps * 2).reshape(steps, 2) / (3 + number % 2))).astype(np.int16)


def _wav(path: Path, values: np.ndarray) -> None:
    wavfile.write(path, RATE, values)


def _edf(path: Path, values: np.ndarray) -> None:
    signals = [
        edfio.EdfSignal(
            column.astype(float),
            RATE,
            label=f"channel_{index}",
            physical_range=(-32768, 32767),
            digital_range=(-32768, 32767),
        )
        for index, column in enumerate(values.T)
    ]
    edfio.Edf(signals, data_record_duration=0.1).write(path)


def _csv(path: Path, values: np.ndarray) -> None:
    frame = pl.DataFrame({"time": np.arange(len(values)) / RATE, "channel_0": values[:, 0], "channel_1": values[:, 1]})
    frame.write_csv(path, separator=";")


WRITERS: dict[str, Writer] = {
    ".wav": _wav,
    ".npy": lambda path, values: np.save(path, values),
    ".mat": lambda path, values: savemat(path, {"x": values, "rate": RATE}),
    ".csv": _csv,
    ".parquet": lambda path, values: pl.DataFrame(values, ["channel_0", "channel_1"]).write_parquet(path),
    ".edf": _edf,
}


def folder(path: Path, ending: str = ".wav", count: int = 8) -> Path:
    """Recordings of two classes in subfolders."""
    for number in range(count):
        file = path / ("rest", "walk")[number % 2] / f"{number}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        WRITERS[ending](file, samples(number, 40 + 10 * (number % 3)))
    return path


@pytest.mark.parametrize("ending", WRITERS)
def test_subfolders_are_classes_and_formats_make_no_difference(tmp_path: Path, ending: str) -> None:
    sequences = read_sequences(folder(tmp_path / "data", ending))
    assert sequences.names is not None
    assert (sequences.names[0], sequences.labels) == (f"rest/0{ending}", ["rest"] * 4 + ["walk"] * 4)
    assert sequences.features == ("channel_0", "channel_1")
    for name, values in zip(sequences.names, sequences.values, strict=True):
        number = int(Path(name).stem)
        np.testing.assert_allclose(values, samples(number, 40 + 10 * (number % 3)), atol=0.51)
    assert sequences.notes.get("sample_rate") == (RATE if ending in (".wav", ".edf") else None)


def test_a_folder_is_classified_and_predicted(tmp_path: Path) -> None:
    data = load_data(folder(tmp_path / "data"))
    assert isinstance(data, ClassificationData)
    assert (data.labels, data.notes["sample_rate"]) == (("rest", "walk"), RATE)
    new = tmp_path / "new"
    new.mkdir()
    _wav(new / "a.wav", samples(0))
    inputs = read_inputs(new, task="classify", features=data.features)
    assert (inputs.ids, inputs.y) == (("a.wav",), None)


def _wav_24(path: Path, values: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(values.shape[1])
        file.setsampwidth(3)
        file.setframerate(RATE)
        # The lower three of four bytes, little-endian.
        file.writeframes((values.astype("<i4") << 8).reshape(-1, 1).view(np.uint8)[:, :3].tobytes())


#: Writers of samples of 16 bits, of which the lower eight are 0, in another depth.
DEPTHS: dict[str, Writer] = {
    "8 bits": lambda path, values: _wav(path, ((values >> 8) + 128).astype(np.uint8)),
    "16 bits": _wav,
    "24 bits": _wav_24,
    "32 bits": lambda path, values: _wav(path, values.astype(np.int32) << 16),
    "float32": lambda path, values: _wav(path, (values / 32768).astype(np.float32)),
    "float64": lambda path, values: _wav(path, values / 32768),
}


def test_audio_of_any_bit_depth_is_on_one_scale(tmp_path: Path) -> None:
    values = np.linspace([-32768, 32512], [32512, -32768], 40).astype(np.int16) & -256
    for name, write in DEPTHS.items():
        write(tmp_path / f"{name}.wav", values.astype(np.int16))
    for sequence in read_sequences(tmp_path).values:
        np.testing.assert_array_equal(sequence, values)


@pytest.mark.parametrize(
    ("text", "values", "channels"),
    [
        ("0.0,1.0\n0.5,2\n", [[0, 1], [0.5, 2]], ("channel_0", "channel_1")),
        ("7\n8\n", [[7], [8]], ("value",)),
        ("-1e-3;2,5\n;1\n", [[-1e-3, 2.5], [np.nan, 1]], ("channel_0", "channel_1")),
        ("NA,1.5\n2,3\n", [[np.nan, 1.5], [2, 3]], ("channel_0", "channel_1")),
        # As pandas writes arrays, with and without their index.
        (",0,1\n0,0.5,-0.5\n1,0.25,2.5\n", [[0.5, -0.5], [0.25, 2.5]], ("0", "1")),
    ],
)
def test_a_first_row_of_numbers_is_a_sample(
    tmp_path: Path, text: str, values: list[list[float]], channels: tuple[str, ...]
) -> None:
    (tmp_path / "a.csv").write_text(text)
    sequences = read_sequences(tmp_path)
    np.testing.assert_array_equal(sequences.values[0], np.array(values, np.float32))
    assert sequences.features == channels


@pytest.mark.parametrize("text", ["0\n0\n1\n", "0,1\n-2,0.3\n", ",0,1\n0,4,5\n"])
def test_a_first_row_that_may_be_names_or_a_sample_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=r"'a\.csv' begins with 0.* names of its columns or its first sample"):
        read_sequences(tmp_path)


@pytest.mark.parametrize("start", [1_700_000_000, 2**53, 1_700_000_000_000_000_000])
@pytest.mark.parametrize("ending", [".npy", ".csv", ".parquet", ".mat"])
def test_a_counter_that_float32_cannot_hold_is_refused(tmp_path: Path, ending: str, start: int) -> None:
    for number in range(8):
        file = tmp_path / "data" / "ab"[number % 2] / f"{number}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        steps = np.arange(2, dtype=np.int64)
        # In one recording alone, a constant and another counter.
        counter = np.stack([0 * steps + number, steps], axis=1)
        WRITERS[ending](file, counter + [start, 0])
    with pytest.raises(DataError, match=f"'data': channel 'channel_0' goes from {start} to .*, which float32 rounds"):
        load_data(tmp_path / "data")


def test_a_manifest_gives_labels_and_groups(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    rows = ["file,kind,person"]
    for number in range(8):
        _wav(path / f"{number}.wav", samples(number))
        rows.append(f"{number}.wav,{'ab'[number % 2]},p{number // 2}")
    _wav(path / "unlisted.wav", samples(0))
    (path / "notes.txt").write_text("by hand")
    (path / "manifest.csv").write_text("\n".join(rows) + "\n")
    data = load_data(path, label_column="kind", group_column="person")
    assert isinstance(data, ClassificationData)
    assert data.labels == ("a", "b")
    assert [len(names) for names in data.notes["validation"]["groups"].values()] == [3, 1]
    assert sorted(data.notes["ignored_files"]) == ["notes.txt", "unlisted.wav"]


def test_marks_that_recordings_leave_open_are_settled_for_the_folder(tmp_path: Path) -> None:
    for number in range(8):
        file = tmp_path / "data" / ("rest", "walk")[number % 2] / f"{number}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a;b\n1.017;2.500\n1.250;3.125\n")
    assert check_data(tmp_path / "data").fixes == {"decimal_mark": "."}
    data = load_data(tmp_path / "data", decimal_mark=".")
    assert isinstance(data, ClassificationData)
    np.testing.assert_array_equal(data.train.x[0], np.float32([[1.017, 2.5], [1.25, 3.125]]))
    inputs = read_inputs(tmp_path / "data", task="classify", features=data.features, repairs=Repairs(decimal_mark="."))
    np.testing.assert_array_equal(inputs.x[0], data.train.x[0])


def _no_labels(path: Path) -> None:
    path.mkdir()
    _wav(path / "a.wav", samples(0))


def _two_rates(path: Path) -> None:
    folder(path)
    wavfile.write(path / "walk" / "x.wav", 2 * RATE, samples(1))


def _other_channels(path: Path) -> None:
    folder(path)
    _wav(path / "walk" / "x.wav", samples(1)[:, 0])


def _missing_file(path: Path) -> None:
    folder(path)
    (path / "manifest.csv").write_text("file,label\nrest/1.wav,rest\n")


def _text(path: Path) -> None:
    folder(path, ".csv")
    (path / "rest" / "0.csv").write_text("channel_0,channel_1\n1,2\nx,3\n")


@pytest.mark.parametrize(
    ("write", "options", "kind", "sentence"),
    [
        (
            _no_labels,
            {},
            DataError,
            "'data' has no labels; training and scoring need one for each sequence. Put the recordings into a "
            "subfolder for each class, or list them with their labels in manifest.csv.",
        ),
        (
            _two_rates,
            {},
            DataError,
            "'walk/x.wav' has 200 Hz, 'rest/0.wav' has 100 Hz. Resample the recordings to one rate.",
        ),
        (
            _other_channels,
            {},
            DataError,
            "'walk/x.wav' has the channels value, 'rest/0.wav' has channel_0, channel_1. All recordings must have the "
            "same.",
        ),
        (
            _missing_file,
            {},
            UnknownNameError,
            "Unknown recording 'rest/1.wav'. Did you mean 'rest/6.wav'? 'manifest.csv' lists files that the folder "
            "must have, as file.",
        ),
        (
            _text,
            {},
            DataError,
            "'rest/0.csv', column 'channel_0': 'x' is not a number. Recordings hold numbers; times stand in a column "
            "named ds, time, t or timestamp.",
        ),
        (
            folder,
            {"group_column": "person"},
            ConfigError,
            "group_column of a folder names a column of its manifest.csv, and '{}' has none. Write one with the "
            "columns file, label and person.",
        ),
    ],
)
def test_what_is_no_folder_of_recordings_is_refused(
    tmp_path: Path, write: Callable[[Path], Any], options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    write(tmp_path / "data")
    with pytest.raises(kind) as caught:
        load_data(tmp_path / "data", **options)
    assert str(caught.value) == sentence.format(tmp_path / "data")


@pytest.mark.parametrize(
    "ending", [".mat", *(pytest.param(each, marks=pytest.mark.slow) for each in (".wav", ".npy", ".edf"))]
)
def test_a_recording_with_random_damage_is_read_or_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    WRITERS[ending](path, samples(0))
    content = path.read_bytes()
    random = np.random.default_rng(0)
    refusals, shapes = [], set()
    for number in range(150):
        damaged = bytearray(content)
        if number % 3:
            for position in random.integers(len(damaged), size=1 + number % 5):
                damaged[position] = random.integers(256)
        else:
            del damaged[random.integers(len(damaged)) :]
        path.write_bytes(damaged)
        try:
            recording = read_recording(path, path.name, {})
        except DataError as error:
            refusals.append(str(error))
        else:
            shapes.add(recording.values.shape[1])
            assert not np.isinf(recording.values).any()
    # Damage of single values goes unseen; a file that is cut does not.
    assert len(refusals) >= 50
    assert all(text.startswith(f"'a{ending}'") and text.endswith(".") for text in refusals), refusals
    assert samples(0).shape[1] in shapes


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_of_matlab_are_read_as_scipy_reads_them(tmp_path: Path, compressed: bool) -> None:
    arrays = {
        "x": samples(0),
        "weights": np.linspace(0, 1, 6).reshape(2, 3),
        "flag": np.array([[True, False]]),
        "small": np.uint8([[3]]),
    }
    others = {"words": "text", "cells": np.array([1, "a"], dtype=object), "complex": np.array([[1 + 2j]])}
    savemat(tmp_path / "a.mat", arrays | others, do_compression=compressed)
    found = read_matlab_arrays("a.mat", (tmp_path / "a.mat").read_bytes())
    expected = loadmat(tmp_path / "a.mat")
    assert set(found) == set(arrays)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])


def test_matlab_files_of_other_levels_are_refused() -> None:
    with pytest.raises(DataError, match=r"^'a\.mat' is a file of MATLAB 7\.3\. Save it by save\('-v7', \.\.\.\)\.$"):
        read_matlab_arrays("a.mat", b"MATLAB 7.3 MAT-file".ljust(512, b" "))
    with pytest.raises(DataError, match=r"^'a\.mat' is no MATLAB file of level 5\."):
        read_matlab_arrays("a.mat", bytes(200))
