"""Sequences from a folder with a file for each recording: audio, arrays, tables and EDF.

They are labeled by subfolders or by a manifest.
"""

from __future__ import annotations

import functools
import io
import math
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Float32Array, Resolution, finite_float32
from stablernn.data.files import read_bytes
from stablernn.data.messages import format_names
from stablernn.data.options import LABEL_COLUMN, Repairs
from stablernn.data.readers.npz import parse_array
from stablernn.data.sequences import Sequences, default_channel_names, plain_labels
from stablernn.data.table.cells import MISSING_CELLS, restore_integers, strip_cells
from stablernn.data.table.chunks import read_chunks, read_column_names
from stablernn.data.table.repairs import MissingCodes
from stablernn.data.table.series import is_index
from stablernn.data.types import Notes

#: Table in the folder that lists its recordings, with a column of this name.
MANIFEST, FILE_COLUMN = "manifest.csv", "file"

#: Columns of tables that number the steps of a recording, and are no channels.
TIME_COLUMNS = ("ds", "time", "t", "timestamp")
_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
# Types of stored numbers, which may be smaller than those of the array, and classes of numeric arrays.
_STORED_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_NUMERIC_CLASSES = range(6, 16)
_COMPLEX_FLAG = 0x0800
# Flags, dimensions and name, before the numbers.
_FLAG_BYTES, _DIMENSION_BYTES = 8, 4


class _Listing(NamedTuple):
    """The recordings of a folder.

    Attributes:
        files: Paths relative to the folder.
        labels: Label of each; None where nothing gives any.
        groups: Group of each; None without groups.
        notes: Files that are not read.
    """

    files: list[str]
    labels: list[str] | None
    groups: tuple[str, ...] | None
    notes: Notes


def read_recordings(
    path: Path,
    *,
    label_column: str = LABEL_COLUMN,
    group_column: str | None = None,
    repairs: Repairs | None = None,
) -> Sequences:
    """Read a folder of recordings.

    With a table ``manifest.csv`` in the folder, its column ``file`` lists the recordings, by paths relative to the
    folder, and its column of labels gives their classes. Otherwise the subfolder directly below the folder is the class
    of all recordings in it; recordings in the folder itself have none, as those to predict.

    Args:
        path: The folder.
        label_column: Column of the manifest with the class of each recording.
        group_column: Column of the manifest with the group of each recording.
        repairs: Used are the marks of numbers, for recordings that are text.

    Raises:
        UnknownNameError: If the manifest lacks the column of groups, or names a file that does not exist.
        ConfigError: If groups are asked for without a manifest.
        DataError: If there are no recordings, they differ in channels or sampling rate, a channel
            loses its differences in float32, or one cannot be read.
    """
    listing = _list_files(path, label_column, group_column)
    if not listing.files:
        raise errors.DataError(
            f"'{path}' has no recordings; they are {', '.join(RECORDING_FORMATS)} files. Put them into a subfolder for "
            f"each class, or list them in {MANIFEST}."
        )
    # Recordings share the scale of a channel, so that what float32 loses is judged over all of them.
    resolutions: dict[str, Resolution] = {}
    recordings = [read_recording(path / file, file, resolutions, repairs) for file in listing.files]
    _check_alike(listing.files, recordings)
    for channel, resolution in resolutions.items():
        resolution.check(functools.partial("'{}': channel '{}'".format, path.name, channel))
    notes = dict(listing.notes)
    if recordings[0].sample_rate is not None:
        notes["sample_rate"] = recordings[0].sample_rate
    ignored = sorted({name for recording in recordings for name in recording.ignored})
    return Sequences(
        name=path.name,
        values=[recording.values for recording in recordings],
        labels=None if listing.labels is None else plain_labels(path.name, listing.labels),
        features=recordings[0].channels,
        notes={**notes, **({"ignored_columns": ignored} if ignored else {})},
        names=tuple(listing.files),
        locations=tuple(f"'{file}'" for file in listing.files),
        groups=listing.groups,
    )


def _list_files(path: Path, label_column: str, group_column: str | None) -> _Listing:
    files = sorted(
        file.relative_to(path)
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    recordings = [file.as_posix() for file in files if file.suffix.lower() in RECORDING_FORMATS]
    others = [file.as_posix() for file in files if file.suffix.lower() not in RECORDING_FORMATS]
    if (path / MANIFEST).is_file():
        return _read_manifest(path, recordings, others, label_column, group_column)
    if group_column is not None:
        raise errors.ConfigError(
            f"group_column of a folder names a column of its {MANIFEST}, and '{path}' has none. Write one with the "
            f"columns {FILE_COLUMN}, {label_column} and {group_column}."
        )
    labels = [file.partition("/")[0] if "/" in file else "" for file in recordings]
    return _Listing(recordings, labels if any(labels) else None, None, {"ignored_files": others} if others else {})


def _read_manifest(
    path: Path, recordings: Sequence[str], others: Sequence[str], label_column: str, group_column: str | None
) -> _Listing:
    manifest = path / MANIFEST
    names = read_column_names(manifest)
    for column in (FILE_COLUMN, *([group_column] if group_column is not None else [])):
        if column not in names:
            raise errors.unknown("column", column, names, f"'{MANIFEST}' has {format_names(names)}.")
    frame = pl.concat(list(read_chunks(manifest, names, verbatim=names)))
    cells = {name: strip_cells(frame[name], ()).fill_null("").to_list() for name in names}
    files = [str(file) for file in cells[FILE_COLUMN]]
    repeated, count = Counter(files).most_common(1)[0]
    if count > 1:
        raise errors.DataError(f"'{MANIFEST}' lists '{repeated}' twice. Remove one of the rows.")
    listed, existing = set(files), set(recordings)
    missing = [file for file in files if file not in existing]
    if missing:
        raise errors.unknown(
            "recording",
            missing[0],
            recordings,
            f"'{MANIFEST}' lists files that the folder must have, as {FILE_COLUMN}.",
        )
    unlisted = [file for file in recordings if file not in listed and file != MANIFEST]
    notes: Notes = {"ignored_files": [*others, *unlisted]} if others or unlisted else {}
    labels = cells.get(label_column)
    groups = None if group_column is None else tuple(cells[group_column])
    return _Listing(files, labels, groups, notes)


def _check_alike(files: Sequence[str], recordings: Sequence[Recording]) -> None:
    """Refuse recordings of other channels or another sampling rate than the first."""
    first = recordings[0]
    for file, recording in zip(files, recordings, strict=True):
        if recording.channels != first.channels:
            raise errors.DataError(
                f"'{file}' has the channels {format_names(recording.channels)}, '{files[0]}' has "
                f"{format_names(first.channels)}. All recordings must have the same."
            )
        if recording.sample_rate != first.sample_rate:
            rates = [f"{rate:g} Hz" if rate else "no rate" for rate in (recording.sample_rate, first.sample_rate)]
            raise errors.DataError(
                f"'{file}' has {rates[0]}, '{files[0]}' has {rates[1]}. Resample the recordings to one rate."
            )


class Recording(NamedTuple):
    """One recording.

    Attributes:
        values: float32 (time, channels), raw units, NaN = missing.
        channels: Names of the channels.
        sample_rate: Samples in a second; None where the file does not say.
        ignored: Names of what is not read.
    """

    values: Float32Array
    channels: tuple[str, ...]
    sample_rate: float | None = None
    ignored: tuple[str, ...] = ()


class _Content(NamedTuple):
    """A recording as it is stored: its channels, (time,) each, in their own types."""

    columns: Sequence[npt.NDArray[Any]]
    channels: tuple[str, ...]
    sample_rate: float | None = None
    ignored: tuple[str, ...] = ()


def read_recording(
    path: Path, name: str, resolutions: dict[str, Resolution], repairs: Repairs | None = None
) -> Recording:
    """Read a file of one of :data:`RECORDING_FORMATS`.

    Args:
        path: The file.
        name: Its name in messages.
        resolutions: Takes in the values before they become float32, by channel.
        repairs: Used are the marks of numbers that are text.

    Raises:
        DataError: If it cannot be read, or holds no finite numbers in time and channels.
        ConfigError: If a package that reads the format is not installed.
    """
    reader = _READERS[path.suffix.lower()]
    content = _read_table(path, name, repairs) if reader is _read_table else reader(path, name)
    if not any(map(len, content.columns)):
        raise errors.DataError(f"'{name}' has no samples. Leave it out.")
    columns = []
    for channel, column in zip(content.channels, content.columns, strict=True):
        columns.append(finite_float32(column, functools.partial(_describe_sample, name, channel)))
        resolutions.setdefault(channel, Resolution()).add(column)
    return Recording(np.stack(columns, axis=1), content.channels, content.sample_rate, content.ignored)


def _describe_sample(name: str, channel: str, index: tuple[int, ...]) -> str:
    return f"'{name}' sample {index[0]}, channel '{channel}'"


def _read_wav(path: Path, name: str) -> _Content:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            # Of chunks besides the samples, such as the name of a program.
            warnings.simplefilter("ignore", wavfile.WavFileWarning)
            rate, samples = wavfile.read(io.BytesIO(read_bytes(path)))
    # What scipy raises for damaged headers and parts that are missing.
    except (ValueError, EOFError, TypeError, UnboundLocalError, ZeroDivisionError, struct.error) as error:
        raise errors.DataError(f"'{name}' is damaged or is no WAV file. Write it again.") from error
    columns = _as_columns(name, _scale_to_16_bits(samples))
    return _Content(columns, default_channel_names(len(columns)), float(rate))


def _scale_to_16_bits(samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return samples of any bit depth in units of those of 16 bits; powers of two lose no digit.

    Up to 8 bits are stored unsigned around 128, integers of more bits at the upper end of their type, and floats have
    the range -1 to 1.
    """
    if samples.dtype.kind == "u":
        return (samples.astype(np.int16) - 128) * 256
    if samples.dtype.kind == "f":
        # Values too large for it become infinite, and are refused as such.
        with np.errstate(over="ignore"):
            return samples * 32768
    return samples if samples.dtype.itemsize == 2 else samples / 2.0 ** (8 * samples.dtype.itemsize - 16)


def _read_npy(path: Path, name: str) -> _Content:
    columns = _as_columns(name, parse_array(path, path.stem, read_bytes(path)))
    return _Content(columns, default_channel_names(len(columns)))


def _read_mat(path: Path, name: str) -> _Content:
    arrays = {key: array for key, array in read_matlab_arrays(name, read_bytes(path)).items() if array.size}
    key = "x" if "x" in arrays else next(iter(arrays), "")
    if not arrays or (len(arrays) > 1 and key != "x"):
        variables = format_names(list(arrays)) or "none"
        raise errors.DataError(
            f"'{name}' must hold one variable of numbers (time, channels), or 'x' among others, got {variables}. "
            "Save it so."
        )
    array = arrays[key]
    # A vector of MATLAB is a matrix of one row or column.
    columns = _as_columns(name, array.reshape(-1) if 1 in array.shape else array)
    ignored = tuple(other for other in arrays if other != key)
    return _Content(columns, default_channel_names(len(columns)), None, ignored)


def _read_table(path: Path, name: str, repairs: Repairs | None = None) -> _Content:
    names = read_column_names(path, may_lack_names=True)
    channels = tuple(column for column in names if column.lower() not in TIME_COLUMNS and not is_index(column))
    if not channels:
        raise errors.DataError(f"'{name}' has no column of numbers besides {format_names(names)}.")
    chunks = read_chunks(path, channels, repairs=repairs, may_lack_names=True)
    frame = pl.concat([chunk.select(channels) for chunk in chunks])
    columns = [number_column(name, frame[channel]) for channel in channels]
    ignored = tuple(column for column in names if column not in channels)
    return _Content(columns, channels, None, ignored)


def number_column(name: str, cells: pl.Series, codes: MissingCodes | None = None) -> npt.NDArray[Any]:
    """Return the numbers of a column, NaN where one is missing.

    Args:
        name: Name of the file, for messages.
        cells: The column.
        codes: Replaces values that stand for a missing one.

    Raises:
        DataError: If a cell is no number.
    """
    cleaned = strip_cells(cells, MISSING_CELLS)
    numbers = cleaned.cast(pl.Float64, strict=False)
    if numbers.null_count() > cleaned.null_count():
        row = int(np.argmax((numbers.is_null() & cleaned.is_not_null()).to_numpy()))
        raise errors.DataError(
            f"'{name}', column '{cells.name}': '{cleaned[row]}' is not a number. Recordings hold numbers; times "
            f"stand in a column named {', '.join(TIME_COLUMNS[:-1])} or {TIME_COLUMNS[-1]}."
        )
    numbers = restore_integers(cleaned, numbers)
    numbers = numbers if codes is None else codes.replace(numbers)
    return (numbers.fill_null(float("nan")) if numbers.null_count() else numbers).to_numpy()


def _read_edf(path: Path, name: str) -> _Content:
    try:
        import edfio
    except ImportError as error:
        raise errors.ConfigError(
            f"Recordings such as '{name}' are read with the extra 'edf': pip install -e '.[edf]' in the checkout."
        ) from error
    reader = edfio.read_bdf if path.suffix.lower() == ".bdf" else edfio.read_edf
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            signals = reader(path).signals
            data = [np.asarray(signal.data) for signal in signals]
    except (ValueError, OSError, KeyError, IndexError) as error:
        raise errors.DataError(f"'{name}' is damaged or is no EDF file ({error}). Write it again.") from error
    if any("truncated" in str(warning.message) for warning in caught):
        raise errors.DataError(f"'{name}' is cut off within a data record. Write it again.")
    rates = sorted({float(signal.sampling_frequency) for signal in signals})
    if len(rates) > 1:
        listed = format_names([f"{rate:g} Hz" for rate in rates])
        raise errors.DataError(f"'{name}' has signals of {len(rates)} sampling rates ({listed}). Resample them to one.")
    if not data:
        raise errors.DataError(f"'{name}' has no signals. Leave it out.")
    columns = _as_columns(name, np.stack(data, axis=1))
    return _Content(columns, tuple(signal.label for signal in signals), rates[0])


def _as_columns(name: str, array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Return samples of one or several channels as an array (time,) for each."""
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        raise errors.DataError(
            f"'{name}' must hold numbers in the shape (time,) or (time, channels), got {array.dtype} {array.shape}."
        )
    return [array] if array.ndim == 1 else list(array.T)


_READERS: dict[str, Callable[[Path, str], _Content]] = {
    ".wav": _read_wav,
    ".csv": _read_table,
    ".parquet": _read_table,
    ".npy": _read_npy,
    ".mat": _read_mat,
    ".edf": _read_edf,
    ".bdf": _read_edf,
}
#: Endings of files with one recording each.
RECORDING_FORMATS = tuple(_READERS)


def read_matlab_arrays(name: str, content: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of real numbers in a MATLAB file of level 5 (versions 5 to 7), by the name of their variable.

    scipy reads these files, too, but a damaged one ends the process: it trusts the lengths that the file states. Here
    they are checked against the file and each other, and anything but real arrays is skipped.

    Args:
        name: Name of the file, for messages.
        content: Its bytes.

    Raises:
        DataError: If it is not a whole file of level 5.
    """
    if content.startswith(b"MATLAB 7.3"):
        raise errors.DataError(f"'{name}' is a file of MATLAB 7.3. Save it by save('-v7', ...).")
    order = {b"IM": "<", b"MI": ">"}.get(content[_HEADER_BYTES - 2 : _HEADER_BYTES])
    if order is None:
        raise errors.DataError(f"'{name}' is no MATLAB file of level 5. Save it by save('-v7', ...).")
    arrays: dict[str, npt.NDArray[Any]] = {}
    try:
        for kind, element in _elements(content[_HEADER_BYTES:], order):
            if kind == _COMPRESSED:
                [(kind, element)] = _elements(zlib.decompress(element), order)
            if kind == _MATRIX and element:
                arrays |= _read_matrix(element, order)
    except (ValueError, zlib.error) as error:
        raise errors.DataError(f"'{name}' is damaged ({error}). Save it again.") from error
    return arrays


def _elements(content: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the bytes of the elements that follow each other.

    Raises:
        ValueError: If one does not end within the content.
    """
    position = 0
    while position < len(content):
        tag = np.frombuffer(content[position : position + 8].ljust(8, b"\0"), dtype=f"{order}u4")
        kind, length, start = int(tag[0]), int(tag[1]), position + 8
        if kind >> 16:
            # Up to four bytes stand in the tag itself.
            kind, length, start = kind & 0xFFFF, kind >> 16, position + 4
            position += 8
        else:
            # Compressed elements are not padded.
            position = start + (length if kind == _COMPRESSED else -(-length // 8) * 8)
        if start + length > len(content) or (start == position - 4 and length > 4):
            raise ValueError(f"an element of {length} bytes goes beyond its end")
        yield kind, content[start : start + length]


def _read_matrix(content: bytes, order: str) -> dict[str, npt.NDArray[Any]]:
    """Return an array by its name; nothing if it is not one of real numbers."""
    (_, flags), (_, dimensions), (_, name), *parts = _elements(content, order)
    if len(flags) != _FLAG_BYTES or len(dimensions) % _DIMENSION_BYTES:
        raise ValueError("a variable has no valid description")
    description = int(np.frombuffer(flags, dtype=f"{order}u4")[0])
    if description & 0xFF not in _NUMERIC_CLASSES or description & _COMPLEX_FLAG:
        return {}
    shape = np.frombuffer(dimensions, dtype=f"{order}i4").tolist()
    if len(parts) != 1 or parts[0][0] not in _STORED_TYPES:
        raise ValueError("a variable has no numbers")
    ((kind, numbers),) = parts
    values = np.frombuffer(numbers, dtype=f"{order}{_STORED_TYPES[kind]}")
    if min(shape, default=-1) < 0 or math.prod(shape) != len(values):
        raise ValueError(f"a variable of shape {tuple(shape)} has {len(values)} numbers")
    return {name.decode("ascii", errors="replace"): values.reshape(shape, order="F")}
