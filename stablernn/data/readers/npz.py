"""Sequences from numpy's ``.npz``, never by pickle."""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array, check_resolution, finite_float32, free_memory
from stablernn.data.files import read_bytes, too_large_error
from stablernn.data.messages import format_names, pluralize
from stablernn.data.sequences import Sequences, default_channel_names
from stablernn.data.types import Notes

_KEYS = ("x", "y", "lengths", "features", "t", "mask", "sample_weight")
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# Advice on arrays of Python objects.
_OBJECT_ADVICE = {
    "x": "Store sequences of unequal length as one padded array with 'lengths'.",
    "y": "Save labels by y.astype(str).",
}


def read_npz(path: Path, *, group: str | None = None) -> Sequences:
    """Read ``x`` (n, time, features) or (n, time), and those of the other arrays that the file has.

    ``y`` (n,) holds labels as integers or text, ``lengths`` (n,) the real steps of each sequence, ``features`` the
    names of the channels, ``t`` (n, time) or (time,) the time of each step, in any unit, ``mask`` in the shape of ``x``
    or (n, time) which values are present: 0 or false is missing, and counted in ``notes["masked_values"]``,
    ``sample_weight`` (n,) the weight of each sequence in the loss. Other arrays are ignored and named in
    ``notes["ignored_arrays"]``.

    Args:
        path: The file.
        group: Name of an array (n,) with the group of each sequence, as integers or text.

    Raises:
        DataError: If the file is no ``.npz``, holds Python objects, or an array has the wrong shape or type.
        UnknownNameError: If there is no such file, or no array of groups.
    """
    arrays = read_arrays(path)
    if "x" not in arrays:
        raise errors.DataError(
            f"'{path.name}' has no array 'x' (samples, time, features); its arrays: "
            f"{format_names(list(arrays)) or 'none'}."
        )
    present = _read_mask(path, arrays["mask"], arrays["x"]) if "mask" in arrays else None
    x, lengths = read_numbers(path, arrays, present)
    names = default_channel_names(x.shape[2])
    if "features" in arrays:
        names = _read_texts(path, arrays, "features", x.shape[2])
        if len(set(names)) < len(names):
            raise errors.DataError(f"'{path.name}' has a name twice in 'features' ({format_names(names)}). Rename one.")
    labels = _read_labels(path, _check_vector(path, arrays, "y", len(x))) if "y" in arrays else None
    if group is not None and group not in arrays:
        raise errors.unknown("array", group, arrays, f"'{path.name}' has {format_names(list(arrays))}.")
    ignored = sorted(set(arrays) - {*_KEYS, group})
    notes: Notes = {"ignored_arrays": ignored} if ignored else {}
    if present is not None:
        mask = np.broadcast_to(present, x.shape)
        # Values after the end of a sequence are padding, masked or not.
        notes["masked_values"] = sum(int((~row[:length]).sum()) for row, length in zip(mask, lengths, strict=True))
    return Sequences(
        name=path.name,
        values=[sequence[:length] for sequence, length in zip(x, lengths, strict=True)],
        labels=labels,
        features=names,
        notes=notes,
        times=_read_times(path, arrays["t"], x.shape[:2], lengths) if "t" in arrays else None,
        locations=tuple(f"y[{index}]" for index in range(len(x))),
        groups=None if group is None else _read_texts(path, arrays, group, len(x)),
        weights=_read_weights(path, arrays, len(x)) if "sample_weight" in arrays else None,
    )


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file by name, each verified by its checksum.

    Raises:
        DataError: If the file is no ``.npz``, holds Python objects, or does not fit into free memory.
        UnknownNameError: If there is no such file.
    """
    content = io.BytesIO(read_bytes(path))
    try:
        with zipfile.ZipFile(content) as archive:
            # The members and the arrays that are made of them.
            size, limit = 2 * sum(member.file_size for member in archive.infolist()), free_memory()
            if size > limit:
                raise too_large_error(path, size, limit)
            # read() compares checksums, so that a damaged file is refused before its bytes are taken for numbers.
            members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    except errors.DataError:
        raise
    except zipfile.BadZipFile as error:
        raise errors.DataError(
            f"'{path.name}' is damaged or is not an .npz file ({error}). "
            "Write it by numpy.savez or numpy.savez_compressed."
        ) from error
    # zipfile raises these for compression, encryption and offsets that it cannot read.
    except (NotImplementedError, RuntimeError, EOFError, ValueError, OSError, zlib.error) as error:
        raise errors.DataError(f"'{path.name}' is damaged ({error}). Write it again.") from error
    return {key: parse_array(path, key, member) for key, member in members.items()}


def parse_array(path: Path, key: str, content: bytes) -> npt.NDArray[Any]:
    """Return the array of an ``.npy`` file, or of a member of an archive.

    Args:
        path: The file, for messages.
        key: Name of the array, for messages.
        content: Its bytes.

    Raises:
        DataError: If it is no whole array, or holds Python objects.
    """
    try:
        _check_size(path, key, content)
        return np.asarray(np.lib.format.read_array(io.BytesIO(content), allow_pickle=False))
    except errors.DataError:
        raise
    # A damaged header may be no Python literal.
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        # numpy has no class of its own for this; only its message tells it apart.
        if "allow_pickle" not in str(error):
            raise errors.DataError(
                f"'{path.name}': '{key}' is not a numpy array ({error}). Write the file by numpy.savez."
            ) from error
        advice = _OBJECT_ADVICE.get(key, "Store numbers or words, or leave the array out.")
        raise errors.DataError(
            f"'{path.name}': the array '{key}' holds Python objects, which only pickle could read and "
            f"which are never loaded. {advice}"
        ) from error


def _check_size(path: Path, key: str, content: bytes) -> None:
    """Refuse an array whose header declares more values than there are, before memory is allocated for them."""
    file = io.BytesIO(content)
    read_header = _HEADER_READERS.get(np.lib.format.read_magic(file))
    if read_header is None:
        return
    shape, _, dtype = read_header(file)
    declared, available = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if declared > available and not dtype.hasobject:
        raise errors.DataError(
            f"'{path.name}': the array '{key}' says that it is {dtype} {shape}, which takes "
            f"{pluralize(declared, 'byte')}, and has {available}. The file is damaged; write it again."
        )


def _read_mask(path: Path, mask: npt.NDArray[Any], x: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which values are present, (n, time, features) or (n, time, 1)."""
    if mask.shape not in (x.shape, x.shape[:2]) or mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
        allowed = f"{x.shape} or {x.shape[:2]}" if x.ndim == 3 else f"{x.shape}"
        raise errors.DataError(
            f"'{path.name}': 'mask' must be true or false, or 1 or 0, of the shape {allowed}, as 'x' says, got "
            f"{mask.dtype} {mask.shape}."
        )
    present = mask.astype(bool)
    return present if present.ndim == 3 else present[:, :, None]


def read_numbers(
    path: Path, arrays: dict[str, npt.NDArray[Any]], present: npt.NDArray[np.bool_] | None
) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Return ``x`` (n, time, features), NaN where ``present`` (n, time, features or 1) is false, and the lengths.

    Raises:
        DataError: If they are not numbers, not finite in float32 or lose their differences there, or a length does not
            fit.
    """
    x = arrays["x"]
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3) or 0 in x.shape:
        raise errors.DataError(
            f"'{path.name}': 'x' must be numbers of shape (samples, time, features) or (samples, time), "
            f"none of them 0, got {x.dtype} {x.shape}."
        )
    cube = x if x.ndim == 3 else x[:, :, None]
    values = cube
    if present is not None:
        # Masked values may be anything, also infinite; they are removed before numbers are checked.
        values = np.where(present, cube, np.array(np.nan, cube.dtype if cube.dtype.kind == "f" else np.float64))
    finite = finite_float32(values, lambda i: f"'{path.name}': x[{', '.join(map(str, i[: x.ndim]))}]")
    lengths = read_lengths(path, arrays, x)
    # Padding, mostly zeros, has no part in the spread of the values; (n, time, 1).
    is_real = (np.arange(x.shape[1]) < np.array(lengths)[:, None])[:, :, None]
    check_resolution(
        cube,
        lambda channel: f"'{path.name}': " + ("x" if x.ndim == 2 else f"x[:, :, {channel}]"),
        present=np.broadcast_to(is_real if present is None else is_real & present, cube.shape),
    )
    return finite, lengths


def _check_vector(path: Path, arrays: dict[str, npt.NDArray[Any]], key: str, length: int) -> npt.NDArray[Any]:
    array = arrays[key]
    if array.shape != (length,):
        raise errors.DataError(
            f"'{path.name}': '{key}' must have the shape ({length},), as 'x' says, got {array.shape}."
        )
    return array


def read_lengths(path: Path, arrays: dict[str, npt.NDArray[Any]], x: npt.NDArray[Any]) -> list[int]:
    """Return the steps of each sequence, all of them where the file has no lengths.

    Raises:
        DataError: If they are not from 1 to the steps of ``x``.
    """
    time = x.shape[1]
    if "lengths" not in arrays:
        return [time] * len(x)
    lengths = _check_vector(path, arrays, "lengths", len(x))
    if lengths.dtype.kind not in "iu":
        raise errors.DataError(f"'{path.name}': 'lengths' must be whole numbers, got {lengths.dtype}.")
    is_out_of_range = (lengths < 1) | (lengths > time)
    if is_out_of_range.any():
        index = int(np.argmax(is_out_of_range))
        raise errors.DataError(f"'{path.name}': lengths[{index}] must be 1 to {time}, got {lengths[index]}.")
    return [int(length) for length in lengths]


def _read_times(
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
    """Return seconds since the earliest of the dates; NaN where there is none."""
    microseconds = dates.astype("datetime64[us]")
    present = microseconds[~np.isnat(microseconds)]
    start = present.min() if present.size else np.datetime64(0, "us")
    return np.asarray((microseconds - start) / np.timedelta64(1, "s"), dtype=np.float64)


def _read_labels(path: Path, y: npt.NDArray[Any]) -> list[str]:
    is_fraction = np.isfinite(y) & (y != np.round(y)) if y.dtype.kind == "f" else np.zeros(len(y), bool)
    if is_fraction.any():
        index = int(np.argmax(is_fraction))
        raise errors.DataError(
            f"'{path.name}': the labels 'y' must be whole numbers or words, got y[{index}]={y[index]}; "
            "a number to predict is a forecast, which takes a table."
        )
    labels = [int(label) if isinstance(label, float) and label.is_integer() else label for label in y.tolist()]
    return [_decode(path, f"y[{index}]", label) for index, label in enumerate(labels)]


def _read_texts(path: Path, arrays: dict[str, npt.NDArray[Any]], key: str, length: int) -> tuple[str, ...]:
    texts = _check_vector(path, arrays, key, length).tolist()
    return tuple(_decode(path, f"{key}[{index}]", text) for index, text in enumerate(texts))


def _decode(path: Path, location: str, value: object) -> str:
    """Return a label or name as text."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise errors.DataError(
            f"'{path.name}': {location} is {value!r}, which is not UTF-8 text. Turn bytes into text by "
            "numpy.char.decode with the encoding that they have."
        ) from error


def _read_weights(path: Path, arrays: dict[str, npt.NDArray[Any]], length: int) -> Float32Array:
    """Return ``sample_weight``, with a mean of 1, so that its scale changes no step size."""
    values = _check_vector(path, arrays, "sample_weight", length)
    is_number = values.dtype.kind in "biuf"
    weights = values.astype(np.float64) if is_number else np.full(length, np.nan)
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise errors.DataError(
            f"'{path.name}': 'sample_weight' holds finite numbers of 0 or more, not all 0, one for each sequence. "
            "Correct them, or leave the array out."
        )
    normalized: Float32Array = (weights / weights.mean()).astype(np.float32)
    return normalized
