"""The .npz reader: what it takes, what it refuses, and that it never unpickles."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stablernn.data import ClassificationData, load_data
from stablernn.data.readers.npz import read_npz
from stablernn.errors import DataError


def write(folder: Path, **arrays: Any) -> Path:
    path = folder / "d.npz"
    np.savez(path, **arrays)
    return path


X = np.arange(24, dtype=np.float64).reshape(4, 3, 2)
Y = np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.array([2, 10, -1, 2]), ["2", "10", "-1", "2"]),
        (np.array([2.0, 10.0, -1.0, 2.0]), ["2", "10", "-1", "2"]),
        (np.array(["up", "down", "up", "down"]), ["up", "down", "up", "down"]),
        (np.array([b"up", b"down", b"up", b"down"]), ["up", "down", "up", "down"]),
        (np.array([True, False, True, False]), ["True", "False", "True", "False"]),
    ],
    ids=["int", "float", "str", "bytes", "bool"],
)
def test_labels_become_words(tmp_path: Path, y: Any, words: list[str]) -> None:
    assert read_npz(write(tmp_path, x=X, y=y)).labels == words


class Bomb:
    """Unpickling this writes a file, which the test would find."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return (open, (self.path, "w"))


def test_objects_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    x = np.empty(2, dtype=object)
    x[:] = [Bomb(mark), Bomb(mark)]
    path = tmp_path / "d.npz"
    with path.open("wb") as file:
        np.savez(file, x=x, allow_pickle=True)
    with pytest.raises(DataError, match=r"'d\.npz': the array 'x' holds Python objects, which only pickle"):
        load_data(path)
    assert not mark.exists()


INFINITE = X.copy()
INFINITE[3, 0, 1] = -np.inf
HUGE = X[:, :, 0].copy()
HUGE[2, 1] = 1e300


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"x": X[0, 0], "y": Y},
            r"'d\.npz': 'x' must be numbers of shape \(samples, time, features\)",
        ),
        ({"x": X, "y": Y[:3]}, r"'d\.npz': 'y' must have the shape \(4,\), as 'x' says, got \(3,\)"),
        (
            {"x": X, "y": np.array([0, 1, np.nan, 1])},
            r"'d\.npz': y\[2\] has no label",
        ),
        ({"x": X, "y": Y, "lengths": np.array([1, 2, 3, 4])}, r"'d\.npz': lengths\[3\] must be 1 to 3, got 4"),
        (
            {"x": X[:, :, 0], "y": Y, "mask": X[:, :, 0]},
            r"'d\.npz': 'mask' must be true or false, or 1 or 0, of the shape",
        ),
        (
            {"x": X, "y": Y, "t": np.zeros((3, 3))},
            r"'d\.npz': 't' must be numbers or dates of the shape \(4, 3\) or",
        ),
        (
            {"x": X, "y": Y, "t": np.array([[0, 1, 2], [0, 1, 2], [0, 2, 1], [0, 1, 2]])},
            r"'d\.npz': the times t\[2\] must be finite and never fall",
        ),
        (
            {"x": X, "y": Y, "t": np.array([0, np.nan, 2.0])},
            r"'d\.npz': the times t\[0\] must be finite and never fall",
        ),
        (
            {"x": INFINITE, "y": Y},
            r"'d\.npz': x\[3, 0, 1\] is -inf",
        ),
        (
            {"x": HUGE, "y": Y},
            r"'d\.npz': x\[2, 1\] is 1e\+300",
        ),
        (
            {"x": np.stack([X[:, :, 0], np.full((4, 3), np.nan)], axis=2), "y": Y},
            r"'d\.npz' has no value at all in feature 'channel_1' of the",
        ),
    ],
    ids=[
        "x of one dimension",
        "y too short",
        "a label missing",
        "length too large",
        "mask of other numbers",
        "times of another shape",
        "times that fall",
        "a time missing",
        "infinite",
        "too large for float32",
        "channel without values",
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load_data(write(tmp_path, **arrays))


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_data(path)
    return str(caught.value)


def test_labels_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, x=X, y=np.array([b"up", b"down", b"caf\xe9", b"up"]))
    assert refused(path) == (
        "'d.npz': y[2] is b'caf\\xe9', which is not UTF-8 text. Turn bytes into text by numpy.char.decode with the "
        "encoding that they have."
    )


def test_an_array_that_claims_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    path, header = tmp_path / "d.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(16))
    assert refused(path) == (
        "'d.npz': the array 'x' says that it is float64 (10000000000000,), which takes 80000000000000 bytes, and has "
        "16. The file is damaged; write it again."
    )


def named(folder: Path, name: str, x: Any, features: list[str] | None) -> Path:
    arrays: dict[str, Any] = {} if features is None else {"features": np.array(features)}
    np.savez(folder / name, x=x, y=Y, **arrays)
    return folder / name


def test_features_of_a_test_file_are_found_by_name(tmp_path: Path) -> None:
    train = named(tmp_path, "D_TRAIN.npz", X, ["a", "b"])
    named(tmp_path, "D_TEST.npz", X[:, :, ::-1], ["b", "a"])
    data = load_data(train)
    assert isinstance(data, ClassificationData)
    assert data.features == ("a", "b")
    np.testing.assert_array_equal(data.split("test").x, X)


def test_a_feature_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'d\.npz' has a name twice in 'features' \(a, a\)"):
        load_data(named(tmp_path, "d.npz", X, ["a", "a"]))


@pytest.mark.parametrize(
    "counter",
    [
        (2**53 + np.arange(12)).astype(np.float64),
        # Float64 would round them to one number.
        1_700_000_000_000_000_000 + np.arange(12),
        2**64 - 1 - np.arange(12, dtype=np.uint64),
    ],
    ids=[
        "in float64",
        "nanoseconds",
        "unsigned",
    ],
)
def test_large_integers_that_differ_are_no_constant(tmp_path: Path, counter: Any) -> None:
    y = np.arange(4) % 2
    with pytest.raises(DataError, match=f"from {int(counter.min())} to {int(counter.max())}, which float32 rounds"):
        load_data(write(tmp_path, x=counter.reshape(4, 3), y=y))
    constant = read_npz(write(tmp_path, x=np.full((4, 3), counter[0]), y=y)).values[0]
    np.testing.assert_array_equal(constant, counter[0].astype(np.float32))


@pytest.mark.parametrize("key", ["lengths", "mask"])
def test_padding_does_not_hide_what_float32_cannot_tell_apart(tmp_path: Path, key: str) -> None:
    x = np.zeros((4, 5), np.int64)
    x[:, :3] = 1_700_000_000 + 7 * np.arange(12).reshape(4, 3)
    arrays = {"lengths": np.full(4, 3), "mask": x > 0}
    with pytest.raises(DataError, match="'d.npz': x goes from 1700000000 to 1700000077, which float32 rounds"):
        load_data(write(tmp_path, x=x, y=np.arange(4) % 2, **{key: arrays[key]}))


@pytest.mark.parametrize(
    "column",
    [
        np.full(12, 0.1),
        np.array([0.1 + 0.2, 0.3] * 6),
        1e6 + np.linspace(-30, 30, 12),
    ],
    ids=[
        "constant",
        "constant but for rounding",
        "a hundredth at a million",
    ],
)
def test_what_float32_holds_well_enough_is_read(tmp_path: Path, column: Any) -> None:
    x = X.copy()
    x[:, :, 1] = column.reshape(4, 3)
    assert read_npz(write(tmp_path, x=x, y=Y)).values[0].dtype == np.float32


def test_labels_that_are_no_whole_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'d\.npz': the labels 'y' must be whole numbers or words, got"):
        read_npz(write(tmp_path, x=X, y=np.array([1.0, 0.5, 1.0, 2.0])))


def times_of(path: Path, t: npt.NDArray[Any], lengths: list[int] | None = None) -> ClassificationData:
    y = np.array([0, 1] * 10)
    further: dict[str, Any] = {} if lengths is None else {"lengths": np.array(lengths)}
    np.savez(path, x=np.random.default_rng(0).normal(size=(20, 4, 1)), y=y, t=t, **further)
    data = load_data(path)
    assert isinstance(data, ClassificationData)
    return data


def test_the_regular_step_is_that_of_training_alone(tmp_path: Path) -> None:
    x, y = np.zeros((20, 4, 1)), np.array([0, 1] * 10)
    np.savez(tmp_path / "train.npz", x=x, y=y, t=np.arange(4.0))
    np.savez(tmp_path / "test.npz", x=np.repeat(x, 3, axis=0), y=np.repeat(y, 3), t=10.0 * np.arange(4.0))
    data = load_data(tmp_path / "train.npz", test=tmp_path / "test.npz")
    assert isinstance(data, ClassificationData)
    assert data.time_step == 1.0
    assert data.test is not None
    assert data.test.dt is not None
    assert data.test.dt[0].tolist() == [1.0, 10.0, 10.0, 10.0]


def test_what_stands_behind_the_end_counts_in_no_time(tmp_path: Path) -> None:
    t = np.tile([0.0, 1.0, 2.0, 3.0], (20, 1))
    t[:10, 2:] = -5
    data = times_of(tmp_path / "d.npz", t, [2] * 10 + [4] * 10)
    assert data.time_step == 1.0
    assert data.train.dt is not None
    assert (data.train.dt == 1).all()


def test_times_in_another_step_or_left_out(tmp_path: Path) -> None:
    data = times_of(tmp_path / "d.npz", np.array([0.0, 60.0, 120.0, 240.0]))
    finer, without = data.with_time_step(20.0), data.with_time_step(None)
    assert finer.train.dt is not None
    assert finer.train.dt[0].tolist() == [1.0, 3.0, 3.0, 6.0]
    assert finer.time_step == 20.0
    assert without.train.dt is None
    assert without.train.gather([0]).dt is None


@pytest.mark.parametrize("kind", [bool, np.int64, np.float32])
def test_what_a_mask_does_not_show_is_missing_and_counted(tmp_path: Path, kind: Any) -> None:
    mask = np.ones(X.shape, dtype=kind)
    mask[0, 1, 1] = mask[2, 2] = 0
    x = X.copy()
    x[0, 1, 1] = np.inf
    found = read_npz(write(tmp_path, x=x, y=Y, mask=mask, lengths=np.array([3, 3, 2, 3])))
    assert found.notes == {"masked_values": 1}
    assert np.argwhere(np.isnan(found.values[0])).tolist() == [[1, 1]]
    assert found.values[2].tolist() == X[2, :2].tolist()


def test_an_archive_that_unpacks_to_more_than_free_memory_is_refused_before(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(1000))
        archive.filelist[0].file_size = 2**50
    with pytest.raises(DataError, match=r"takes [\d,]+ bytes of memory or more"):
        read_npz(path)
