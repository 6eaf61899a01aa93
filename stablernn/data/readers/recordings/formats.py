"""Files with one recording each: audio, arrays, tables and EDF."""

from __future__ import annotations

import functools
import io
import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Float32Array, Resolution, finite_float32
from stablernn.data.messages import format_names
from stablernn.data.options import Repairs
from stablernn.data.readers.cells import MISSING_CELLS, restore_integers, strip_cells
from stablernn.data.readers.npz import parse_array
from stablernn.data.readers.paths import read_bytes
from stablernn.data.readers.recordings.matlab import read_matlab_arrays
from stablernn.data.readers.table_chunks import read_chunks, read_column_names
from stablernn.data.readers.tables import is_index
from stablernn.data.sequences import default_channel_names

#: Columns of tables that number the steps of a recording, and are no channels.
TIME_COLUMNS = ("ds", "time", "t", "timestamp")


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
    columns = [_column(name, frame[channel]) for channel in channels]
    ignored = tuple(column for column in names if column not in channels)
    return _Content(columns, channels, None, ignored)


def _column(name: str, cells: pl.Series) -> npt.NDArray[Any]:
    cleaned = strip_cells(cells, MISSING_CELLS)
    numbers = cleaned.cast(pl.Float64, strict=False)
    if numbers.null_count() > cleaned.null_count():
        row = int(np.argmax((numbers.is_null() & cleaned.is_not_null()).to_numpy()))
        raise errors.DataError(
            f"'{name}', column '{cells.name}': '{cleaned[row]}' is not a number. Recordings hold numbers; times "
            f"stand in a column named {', '.join(TIME_COLUMNS[:-1])} or {TIME_COLUMNS[-1]}."
        )
    numbers = restore_integers(cleaned, numbers)
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
