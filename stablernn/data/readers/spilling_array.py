"""Arrays that grow chunk by chunk and move to disk where memory would not hold them, and operations on their rows."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import platformdirs

from stablernn import errors
from stablernn.data.arrays import Int64Array, Timestamps

# The data are not all that a run holds; the other memory is for the model and its training.
_SHARE_OF_FREE_MEMORY = 0.25
_UNLIMITED = 1 << 62


# Rows of one pass, where all at once would take as much memory again as the table itself.
_BLOCK_ROWS = 1 << 20


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
