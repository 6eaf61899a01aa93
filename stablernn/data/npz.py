"""Reads sequences from numpy's ``.npz``, never by pickle."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.files import read_bytes
from stablernn.data.sequences import Sequences, channel_names, check_resolution, finite_float32
from stablernn.data.wording import listing

_KEYS = ("x", "y", "lengths", "features", "t")


def read_npz(path: Path) -> Sequences:
    """Reads ``x`` (n, time, features) or (n, time), and, where they are, ``y``, ``lengths``, ``features``, ``t``.

    ``y`` (n,) holds labels as integers or words, ``lengths`` (n,) the real steps of each sequence, ``features`` the
    names of the channels, ``t`` (n, time) or (time,) when each step was, in any unit. Other arrays are left alone and
    named in ``notes["ignored_arrays"]``.

    Raises:
        DataError: If the file is no ``.npz``, holds Python objects, or an array has the wrong shape or type.
        UnknownNameError: If there is no such file.
    """
    arrays = _read_arrays(path)
    if "mask" in arrays:
        # It would change what the numbers mean, so a reader that does not know it must not go on.
        raise errors.DataError(
            f"'{path.name}' has the array 'mask', which is not read yet. "
            "Write missing values as NaN in 'x' and drop it."
        )
    if "x" not in arrays:
        raise errors.DataError(
            f"'{path.name}' has no array 'x' (samples, time, features); its arrays: {listing(list(arrays)) or 'none'}."
        )
    x = _numbers(path, arrays["x"])
    names = channel_names(x.shape[2])
    if "features" in arrays:
        names = tuple(str(name) for name in _vector(path, arrays, "features", x.shape[2]))
        if len(set(names)) < len(names):
            raise errors.DataError(f"'{path.name}' has a name twice in 'features' ({listing(names)}). Rename one.")
    lengths = _lengths(path, arrays, x)
    labels = _labels(path, _vector(path, arrays, "y", len(x))) if "y" in arrays else None
    ignored = sorted(set(arrays) - set(_KEYS))
    return Sequences(
        name=path.name,
        values=[sequence[:length] for sequence, length in zip(x, lengths, strict=True)],
        labels=labels,
        features=names,
        notes={"ignored_arrays": ignored} if ignored else {},
        times=_times(path, arrays["t"], x.shape[:2], lengths) if "t" in arrays else None,
    )


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    content = io.BytesIO(read_bytes(path))
    try:
        with zipfile.ZipFile(content) as archive:
            # read() compares checksums, so that a damaged file is found before its bytes are taken for numbers.
            members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise errors.DataError(
            f"'{path.name}' is damaged or is not an .npz file ({error}). "
            "Write it by numpy.savez or numpy.savez_compressed."
        ) from error
    # What zipfile raises for compression, encryption and offsets that it cannot follow.
    except (NotImplementedError, RuntimeError, EOFError, ValueError, OSError, zlib.error) as error:
        raise errors.DataError(f"'{path.name}' is damaged ({error}). Write it again.") from error
    return {key: _array(path, key, member) for key, member in members.items()}


def _array(path: Path, key: str, content: bytes) -> npt.NDArray[Any]:
    try:
        return np.asarray(np.lib.format.read_array(io.BytesIO(content), allow_pickle=False))
    except ValueError as error:
        # numpy has no class of its own for this; its message is the only mark.
        if "allow_pickle" not in str(error):
            raise errors.DataError(f"'{path.name}': '{key}' is not a numpy array ({error}).") from error
        raise errors.DataError(
            f"'{path.name}': the array '{key}' holds Python objects, which only pickle could read and "
            "which are never loaded. Store sequences of unequal length as one padded array with 'lengths'."
        ) from error


def _numbers(path: Path, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3) or 0 in x.shape:
        raise errors.DataError(
            f"'{path.name}': 'x' must be numbers of shape (samples, time, features) or (samples, time), "
            f"none of them 0, got {x.dtype} {x.shape}."
        )
    cube = x if x.ndim == 3 else x[:, :, None]
    finite = finite_float32(cube, lambda i: f"'{path.name}': x[{', '.join(map(str, i[: x.ndim]))}]")
    check_resolution(cube, lambda channel: f"'{path.name}': " + ("x" if x.ndim == 2 else f"x[:, :, {channel}]"))
    return finite


def _vector(path: Path, arrays: dict[str, npt.NDArray[Any]], key: str, length: int) -> npt.NDArray[Any]:
    array = arrays[key]
    if array.shape != (length,):
        raise errors.DataError(
            f"'{path.name}': '{key}' must have the shape ({length},), as 'x' says, got {array.shape}."
        )
    return array


def _lengths(path: Path, arrays: dict[str, npt.NDArray[Any]], x: npt.NDArray[np.float32]) -> list[int]:
    time = x.shape[1]
    if "lengths" not in arrays:
        return [time] * len(x)
    lengths = _vector(path, arrays, "lengths", len(x))
    if lengths.dtype.kind not in "iu":
        raise errors.DataError(f"'{path.name}': 'lengths' must be whole numbers, got {lengths.dtype}.")
    outside = (lengths < 1) | (lengths > time)
    if outside.any():
        index = int(np.argmax(outside))
        raise errors.DataError(f"'{path.name}': lengths[{index}] must be 1 to {time}, got {lengths[index]}.")
    return [int(length) for length in lengths]


def _times(
    path: Path, t: npt.NDArray[Any], shape: tuple[int, int], lengths: list[int]
) -> list[npt.NDArray[np.float64]]:
    if t.shape not in (shape, shape[1:]) or t.dtype.kind not in "fiuM":
        raise errors.DataError(
            f"'{path.name}': 't' must be numbers or dates of the shape {shape} or {shape[1:]}, as 'x' says, "
            f"got {t.dtype} {t.shape}."
        )
    times = np.broadcast_to(_seconds(t) if t.dtype.kind == "M" else t.astype(np.float64), shape)
    rows = [row[:length] for row, length in zip(times, lengths, strict=True)]
    for index, row in enumerate(rows):
        if not np.isfinite(row).all() or (np.diff(row) < 0).any():
            raise errors.DataError(
                f"'{path.name}': the times t[{index}] must be finite and never fall. Sort the steps by time."
            )
    return rows


def _seconds(dates: npt.NDArray[np.datetime64]) -> npt.NDArray[np.float64]:
    """Seconds since the first of the dates; NaN where there is none."""
    fine = dates.astype("datetime64[us]")
    known = fine[~np.isnat(fine)]
    start = known.min() if known.size else np.datetime64(0, "us")
    return np.asarray((fine - start) / np.timedelta64(1, "s"), dtype=np.float64)


def _labels(path: Path, y: npt.NDArray[Any]) -> list[str]:
    broken = np.isfinite(y) & (y != np.round(y)) if y.dtype.kind == "f" else np.zeros(len(y), bool)
    if broken.any():
        index = int(np.argmax(broken))
        raise errors.DataError(
            f"'{path.name}': the labels 'y' must be whole numbers or words, got y[{index}]={y[index]}; "
            "a number to predict is a forecast, which takes a table."
        )
    return [_word(label) for label in y.tolist()]


def _word(label: object) -> str:
    if isinstance(label, bytes):
        return label.decode()
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
