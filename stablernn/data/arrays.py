"""Arrays of data: their types, exact conversion to float32, the hash of their content, samples of a split.

Tables grow in arrays that move to disk where memory would not hold them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import platformdirs

from stablernn import errors

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
Timestamps = npt.NDArray[np.datetime64] | Int64Array
"""Timestamps of a series: datetime64[ns], or integers that number its steps."""

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")

# Rounding to float32 may move a value by this share of its column's spread: more, and the model sees steps, not data.
_MAX_ROUNDING = 0.01
# A column that varies by no more than this share of its size is a constant with the rounding of float64 on it, unless
# it holds integers, as a 64-bit type does.
_MIN_RELATIVE_SPREAD = 1e-12
_MAX_INTEGER = 2**64
_BLOCK_NUMBERS = 1 << 20
FingerprintPart = str | int | tuple[str, ...] | npt.NDArray[Any]
"""Value that enters a fingerprint."""

# The data are not all that a run holds; the other memory is for the model and its training.
_SHARE_OF_FREE_MEMORY = 0.25
_UNLIMITED = 1 << 62
# Rows of one pass, where all at once would take as much memory again as the table itself.
_BLOCK_ROWS = 1 << 20


class Samples(NamedTuple):
    """Some samples of a split, as numpy arrays.

    Attributes:
        x: float32 (samples, time, features), raw units, NaN = missing, padded with 0 after ``lengths``.
        lengths: int64 (samples,), real steps of each sample.
        y: int64 (samples,) class indices, or float32 (samples, horizon, targets) with NaN = missing.
        dt: float32 (samples, time), the time since the previous step in units of the regular step; None when the times
            of the steps are not known or not used.
        static: float32 (samples, s), values that are constant for a whole series, raw units; None where there are none.
        future: float32 (samples, horizon, f), values known in advance of the steps to forecast, raw units, NaN =
            missing; None where there are none.
        weight: float32 (samples,), weight of each sample in the loss; None where all weigh the same.
    """

    x: Float32Array
    lengths: Int64Array
    y: Int64Array | Float32Array
    dt: Float32Array | None = None
    static: Float32Array | None = None
    future: Float32Array | None = None
    weight: Float32Array | None = None


def cut_samples(
    samples: Samples, max_length: int, *, from_end: bool = False, has_step_targets: bool = False
) -> Samples:
    """Return samples cut to a length.

    Args:
        samples: The samples, with targets ``y``.
        max_length: Steps to keep of each.
        from_end: True to keep the last steps, and not the first.
        has_step_targets: True if targets are those of each step.
    """
    longest = min(max_length, int(samples.lengths.max()))
    starts = np.maximum(samples.lengths - longest, 0) if from_end else np.zeros_like(samples.lengths)
    # (batch, longest): the steps that stay, of each row.
    columns = starts[:, None] + np.arange(longest)
    rows = np.arange(len(columns))[:, None]
    return samples._replace(
        x=samples.x[rows, columns],
        lengths=np.minimum(samples.lengths, longest),
        y=samples.y[rows, columns] if has_step_targets else samples.y,
        dt=None if samples.dt is None else samples.dt[rows, columns],
    )


def finite_float32(
    values: npt.NDArray[Any],
    location: Callable[[tuple[int, ...]], str],
    *,
    series_of: Callable[[Int64Array, Callable[[int], str]], Mapping[str, str]] | None = None,
) -> Float32Array:
    """Convert finite values to float32; NaN stays.

    Args:
        values: Numbers, any shape.
        location: Describes, for a message, the position of the value with this index.
        series_of: Returns, of a column, the series at fault with what is wrong with each, from the indices of the
            values and a description of each.

    Raises:
        DataError: If a value is infinite or too large for float32.
    """
    # Values too large for float32 become infinite without a warning; the check below names the first one.
    with np.errstate(over="ignore"):
        result = values.astype(np.float32)
    infinite = np.isinf(result)
    if infinite.any():

        def describe(*index: int) -> str:
            return (
                f"{location(index)} is {values[index]:g}. Values must be finite float32 numbers; write a missing one "
                "as NaN."
            )

        first = describe(*(int(i) for i in np.argwhere(infinite)[0]))
        raise errors.DataError(first, series=() if series_of is None else series_of(np.flatnonzero(infinite), describe))
    return result


def check_resolution(
    values: npt.NDArray[Any], location: Callable[[int], str], *, present: npt.NDArray[np.bool_] | None = None
) -> None:
    """Refuse columns whose differences float32 cannot represent, see :class:`Resolution`.

    Args:
        values: Finite numbers in their original type, the columns last; NaN is ignored.
        location: Describes, for a message, the column with this number.
        present: Which values count, in the shape of ``values``; all when omitted.

    Raises:
        DataError: If rounding to float32 moves a value by more than a hundredth of its column's spread.
    """
    for index in range(values.shape[-1]):
        resolution, column = Resolution(), values[..., index]
        resolution.add(column.reshape(-1) if present is None else column[present[..., index]])
        resolution.check(functools.partial(location, index))


class Resolution:
    """The loss of a column, taken in chunk by chunk, by rounding to float32.

    A counter that begins at 1,700,000,000 loses its differences: the model would see steps and not data.
    """

    def __init__(self) -> None:
        self._low: float = np.inf
        self._high: float = -np.inf
        self._error = 0.0
        self._has_fractions = False

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add finite numbers (n,) in their original type; NaN is ignored."""
        if np.can_cast(values.dtype, np.float32):
            return
        if values.dtype.kind not in "iu":
            values = values.astype(np.float64, copy=False)
            values = values[~np.isnan(values)]
        if not len(values):
            return
        low, high = values.min().item(), values.max().item()
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._error = max(self._error, _rounding(values))
        if values.dtype.kind == "f":
            # Below the first size integers, whose spread is 1 or more, need not be told from noise.
            is_large = 1 / _MIN_RELATIVE_SPREAD <= max(abs(low), abs(high)) < _MAX_INTEGER
            self._has_fractions |= not is_large or bool((values != np.rint(values)).any())

    def check(self, location: Callable[[], str], *, series: Sequence[str] = ()) -> None:
        """Refuse a column that loses too much.

        Args:
            location: Describes the column, for a message.
            series: Names of the series that the column is all of.

        Raises:
            DataError: If rounding moves a value by more than a hundredth of the column's spread.
        """
        low, high = self._low, self._high
        spread = high - low
        is_noise = self._has_fractions and spread <= _MIN_RELATIVE_SPREAD * max(abs(low), abs(high))
        if low < high and not is_noise and self._error > _MAX_ROUNDING * spread:
            first, last = (str(limit) if isinstance(limit, int) else f"{limit:.17g}" for limit in (low, high))
            raise errors.DataError(
                f"{location()} goes from {first} to {last}, which float32 rounds by up to {self._error:.3g}. "
                f"Subtract an offset, such as {first}, from all of its values.",
                series=series,
            )


def _rounding(values: npt.NDArray[Any]) -> float:
    """Return the most by which float32 moves one of these numbers (n,), which are not missing."""
    rounded = values.astype(np.float32).astype(np.float64)
    if values.dtype.kind == "f":
        return float(np.abs(values - rounded).max())
    # float64 holds 53 of up to 64 bits, but each half, and the difference between float32 and the upper one.
    wide = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
    upper = (wide >> 32).astype(np.float64) * 2.0**32
    lower = (wide & 0xFFFFFFFF).astype(np.float64)
    return float(np.abs(rounded - upper - lower).max())


def fingerprint(parts: Iterable[FingerprintPart]) -> str:
    """Return ``sha256:`` and the hash over the parts in their order: texts, numbers, tuples of texts, arrays.

    Arrays enter with shape and type as little-endian C order, every NaN as the same bits; so equal content gives an
    equal hash on every machine.
    """
    digest = hashlib.sha256()
    for part in parts:
        # The header of an array tells it from others with the same bytes.
        header: Any = [part.dtype.newbyteorder("<").str, list(part.shape)] if isinstance(part, np.ndarray) else part
        digest.update(json.dumps(header, ensure_ascii=True).encode() + b"\n")
        if isinstance(part, np.ndarray):
            for block in _blocks(part):
                digest.update(block.tobytes())
    return f"sha256:{digest.hexdigest()}"


def _blocks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the array in blocks, since it may be larger than the memory; little-endian, every NaN as the same bits."""
    rows = max(1, _BLOCK_NUMBERS // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        if block.dtype.kind == "f":
            block = np.where(np.isnan(block), np.nan, block).astype(block.dtype)
        yield np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))


class MemoryBudget:
    """Bytes that several arrays may take together before those that need more go to disk.

    Args:
        available: Number of bytes; a quarter of the free memory when omitted.
    """

    def __init__(self, available: int | None = None) -> None:
        self.available = int(_SHARE_OF_FREE_MEMORY * free_memory()) if available is None else available


class GrowingArray:
    """Rows that are appended in chunks and become one array.

    Args:
        dtype: Type of all chunks.
        columns: Numbers in a row; None for rows of a single one.
        budget: Memory that it may take, shared with other arrays. Beyond it the rows go to a file below
            ``STABLERNN_CACHE`` that has no name and is gone with the process, however it ends.
    """

    def __init__(self, dtype: npt.DTypeLike, columns: int | None, budget: MemoryBudget) -> None:
        self.dtype = np.dtype(dtype)
        self._row_shape = () if columns is None else (columns,)
        self._budget = budget
        self._chunks: list[npt.NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._num_rows = 0

    def __len__(self) -> int:
        return self._num_rows

    def append(self, chunk: npt.NDArray[Any]) -> None:
        """Add rows of the type and width."""
        chunk = np.ascontiguousarray(chunk, dtype=self.dtype)
        self._num_rows += len(chunk)
        if self._file is None and chunk.nbytes > self._budget.available:
            self._file = _create_unnamed_file()
            # Closed with the array, whether or not it is finished; a mapping of the file lives on.
            weakref.finalize(self, _close, self._file)
            self._move_to_disk(self._file)
        if self._file is not None:
            _write(self._file, chunk)
            return
        self._budget.available -= chunk.nbytes
        self._chunks.append(chunk)

    def _move_to_disk(self, file: IO[bytes]) -> None:
        for chunk in self._chunks:
            # Other arrays of the budget may take the memory.
            self._budget.available += chunk.nbytes
            _write(file, chunk)
        self._chunks.clear()

    def finish(self) -> npt.NDArray[Any]:
        """Return all rows as one array. Nothing can be appended afterwards."""
        shape = (self._num_rows, *self._row_shape)
        if self._file is not None and self._num_rows:
            self._file.flush()
            # A plain array over the mapped file: slices of it have one base, by which concatenate_series knows them.
            return np.asarray(np.memmap(self._file, dtype=self.dtype, mode="r+", shape=shape))
        if len(self._chunks) == 1 and self._chunks[0].flags.writeable:
            return self._chunks.pop()
        result = np.empty(shape, dtype=self.dtype)
        start = 0
        while self._chunks:
            # Each chunk is freed as soon as it is copied: memory holds the rows once, not twice.
            chunk = self._chunks.pop(0)
            result[start : start + len(chunk)] = chunk
            start += len(chunk)
        return result


def group_rows(codes: npt.NDArray[np.int32], count: int) -> tuple[Int64Array | None, Int64Array]:
    """Return an order that puts the rows of each group together, and the end of each group in it.

    Args:
        codes: Number of the group of each row, from 0 to ``count - 1``.
        count: Number of groups.

    Returns:
        The order, None where the groups are together already; and int64 (count,).
    """
    # Blocks overlap by one row, so that a change between them is found, too.
    blocks = ((i, codes[i : i + _BLOCK_ROWS + 1]) for i in _block_starts(len(codes)))
    changes = np.concatenate([i + 1 + np.flatnonzero(block[1:] != block[:-1]) for i, block in blocks])
    if len(changes) == count - 1:
        return None, np.append(changes, len(codes))
    ends = np.cumsum(sum(np.bincount(codes[i : i + _BLOCK_ROWS], minlength=count) for i in _block_starts(len(codes))))
    # Stable: the rows of a group keep the order of the file, which must be that of time.
    return np.argsort(codes, kind="stable"), ends


def reorder_rows(array: npt.NDArray[Any], order: Int64Array, budget: MemoryBudget) -> npt.NDArray[Any]:
    """Return ``array[order]``, on disk where memory would not hold it."""
    result = GrowingArray(array.dtype, array.shape[1] if array.ndim > 1 else None, budget)
    for start in _block_starts(len(order)):
        result.append(array[order[start : start + _BLOCK_ROWS]])
    return result.finish()


def find_unordered_row(ds: Timestamps, ends: Int64Array, *, may_repeat: bool = False) -> int | None:
    """Return the first row that the next row of its series does not come after; None if there is none.

    Args:
        ds: Timestamps, the rows of each series together.
        ends: End of each series.
        may_repeat: Whether the next row may have the same time.
    """
    for start in _block_starts(len(ds)):
        # Compared as integers: their difference would overflow beyond 292 years.
        block = ds[start : start + _BLOCK_ROWS + 1].view(np.int64)
        is_late = np.asarray(block[1:] < block[:-1] if may_repeat else block[1:] <= block[:-1])
        borders = ends[(ends > start) & (ends <= start + len(is_late))] - 1 - start
        is_late[borders] = False
        if is_late.any():
            return start + int(np.argmax(is_late))
    return None


def _block_starts(rows: int) -> range:
    return range(0, rows, _BLOCK_ROWS)


def free_memory() -> int:
    """Return the bytes that this process can still take: of the machine, its container and its own limits."""
    return max(0, min(_free_in_machine(), _free_in_container(), _free_in_limits()))


def _free_in_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        # Not Linux.
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        # Neither Linux nor a Unix with this setting: what a small machine of today has.
        return 4 << 30


def _free_in_container() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return int(limit) - used if limit != "max" else _UNLIMITED
    except (OSError, ValueError):
        # No control group of version 2, so no limit that is known.
        return _UNLIMITED


def _free_in_limits() -> int:
    try:
        import resource

        pages = [int(field) for field in Path("/proc/self/statm").read_text().split()]
    except (ImportError, OSError):
        # Windows has no resource module, and only Linux has statm.
        return _UNLIMITED
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    free = _UNLIMITED
    # Fields 0 and 5 of statm are the address space and the data, in pages.
    for limit, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
        soft_limit = resource.getrlimit(limit)[0]
        if soft_limit != resource.RLIM_INFINITY:
            free = min(free, soft_limit - used * page_bytes)
    return free


def _create_unnamed_file() -> IO[bytes]:
    cache = os.environ.get("STABLERNN_CACHE")
    folder = Path(cache) if cache else platformdirs.user_cache_path("stablernn", appauthor=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise errors.DataError(
            f"The table is larger than the memory and '{folder}' cannot take it: {error.strerror or error}. "
            "Set STABLERNN_CACHE to a folder with room, or read fewer columns by data.channels."
        ) from error


def _close(file: IO[bytes]) -> None:
    # Flushing fails again if the disk is full; that error was reported by the write.
    with contextlib.suppress(OSError):
        file.close()


def _write(file: IO[bytes], chunk: npt.NDArray[Any]) -> None:
    if not chunk.nbytes:
        return
    try:
        # As bytes, since numpy gives no buffer of dates.
        file.write(chunk.view(np.uint8).data)
    except OSError as error:
        raise errors.DataError(
            f"The table is larger than the memory and does not fit on the disk of STABLERNN_CACHE: "
            f"{error.strerror or error}. Set STABLERNN_CACHE to a folder with room, or read fewer columns by "
            "data.channels."
        ) from error
