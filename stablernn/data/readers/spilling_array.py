"""Arrays that grow piece by piece and move to disk where memory would not hold them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import platformdirs

from stablernn import errors

# What is read is not all that a run holds; the rest of the memory is for that.
_SHARE_OF_FREE_MEMORY = 0.25


class Budget:
    """Bytes that several arrays may take together before those that want more go to disk.

    Args:
        available: How many; a quarter of the free memory when omitted.
    """

    def __init__(self, available: int | None = None) -> None:
        self.left = int(_SHARE_OF_FREE_MEMORY * free_memory()) if available is None else available


class GrowingArray:
    """Rows that are appended in pieces and become one array.

    Args:
        dtype: Of all pieces.
        columns: Numbers in a row; None for rows of a single one.
        budget: What it may take of the memory, shared with others. Beyond it the rows lie in a file below
            ``STABLERNN_CACHE`` that has no name and is gone with the process, however it ends.
    """

    def __init__(self, dtype: npt.DTypeLike, columns: int | None, budget: Budget) -> None:
        self.dtype = np.dtype(dtype)
        self._tail = () if columns is None else (columns,)
        self._budget = budget
        self._pieces: list[npt.NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, piece: npt.NDArray[Any]) -> None:
        """Add rows of the type and width."""
        piece = np.ascontiguousarray(piece, dtype=self.dtype)
        self._rows += len(piece)
        if self._file is None and piece.nbytes > self._budget.left:
            self._file = _nameless_file()
            self._move_into(self._file)
        if self._file is not None:
            _write(self._file, piece)
            return
        self._budget.left -= piece.nbytes
        self._pieces.append(piece)

    def _move_into(self, file: IO[bytes]) -> None:
        for piece in self._pieces:
            self._budget.left += piece.nbytes
            _write(file, piece)
        self._pieces.clear()

    def whole(self) -> npt.NDArray[Any]:
        """All rows as one array. Nothing can be appended afterwards."""
        shape = (self._rows, *self._tail)
        if self._file is not None and self._rows:
            self._file.flush()
            # A plain array over the mapped file, so that parts of it know each other by their base.
            return np.asarray(np.memmap(self._file, dtype=self.dtype, mode="r+", shape=shape))
        result = np.empty(shape, dtype=self.dtype)
        at = 0
        while self._pieces:
            # Each piece goes as soon as it is copied: memory holds the rows once, not twice.
            piece = self._pieces.pop(0)
            result[at : at + len(piece)] = piece
            at += len(piece)
        return result


def free_memory() -> int:
    """Bytes that this process can still take: of the machine, its container and its own limits."""
    return max(0, min(_free_of_machine(), _free_of_container(), _free_of_limits()))


def _free_of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        # Neither Linux nor a Unix that tells: what a small machine of today has.
        return 4 << 30


def _free_of_container() -> int:
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        taken = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return int(most) - taken if most != "max" else 1 << 62
    except (OSError, ValueError):
        return 1 << 62


def _free_of_limits() -> int:
    try:
        import resource

        pages = [int(word) for word in Path("/proc/self/statm").read_text().split()]
    except (ImportError, OSError):
        return 1 << 62
    page = os.sysconf("SC_PAGE_SIZE")
    free = 1 << 62
    for limit, taken in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            free = min(free, most - taken * page)
    return free


def _nameless_file() -> IO[bytes]:
    given = os.environ.get("STABLERNN_CACHE")
    folder = Path(given) if given else platformdirs.user_cache_path("stablernn", appauthor=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise errors.DataError(
            f"The table is larger than the memory and '{folder}' cannot take it: {error.strerror or error}. "
            "Set STABLERNN_CACHE to a folder with room, or read fewer columns by "
            "'channels'."
        ) from error


def _write(file: IO[bytes], piece: npt.NDArray[Any]) -> None:
    if not piece.nbytes:
        return
    try:
        file.write(piece.view(np.uint8).data)
    except OSError as error:
        raise errors.DataError(
            f"The table is larger than the memory and does not fit on the disk of STABLERNN_CACHE: "
            f"{error.strerror or error}. Set STABLERNN_CACHE to a folder with room, or read fewer columns by "
            "'channels'."
        ) from error
