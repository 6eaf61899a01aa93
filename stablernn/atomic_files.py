"""Atomic writes: a file has its old content or its new one, never a part of it."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from stablernn.errors import CheckpointError

_check_write: ContextVar[Callable[[], None] | None] = ContextVar("check_write", default=None)


@contextmanager
def checked_writes(check: Callable[[], None]) -> Iterator[None]:
    """Call a function right before each write of this thread in the ``with`` block takes effect.

    Args:
        check: The function. If it raises, the file keeps its old content, and the exception goes on to the writer.
    """
    before = _check_write.set(check)
    try:
        yield
    finally:
        _check_write.reset(before)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: readers, and a kill or power cut, find the old content or the new, never a part.

    After it has returned, a power cut no longer brings back the old content.

    Raises:
        CheckpointError: If it cannot be written (a full disk, missing permissions); no temporary file is left then.
    """
    temporary: str | None = None
    try:
        # In the same folder, since os.replace is atomic within one file system only.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            # Before the rename: a power cut must not leave the new name with missing content.
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        check = _check_write.get()
        if check is not None:
            check()
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise CheckpointError(f"Cannot write '{path}': {error.strerror}.") from error
        raise


def _sync_folder(folder: Path) -> None:
    # A copy of the registry's, which this package does not import: until then, a power cut may undo the rename.
    if os.name == "nt":
        # Windows opens no folders.
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems refuse to sync a folder; they order renames themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def _umask() -> int:
    # mkstemp makes files private, but the files of a run are as public as any other. The mask is read by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_json(path: Path, value: object) -> None:
    """Write a JSON document, indented, with keys in their order; NaN and infinities become ``null``."""
    write_bytes(path, (json.dumps(to_json_types(value), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON document.

    Raises:
        CheckpointError: If there is no such file, or it is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"There is no file '{path}'.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' cannot be read as JSON: {error}.") from error


def to_json_types(value: object) -> Any:
    """Convert a value to the types of JSON: NaN and infinities become None, NumPy numbers become Python numbers."""
    # The usual types first: the checks below take ten times as long, and a checkpoint has hundreds of values.
    if type(value) is float:
        return value if math.isfinite(value) else None
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json_types(entry) for key, entry in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return value
    if isinstance(value, Sequence):
        return [to_json_types(entry) for entry in value]
    # NumPy and torch scalars have item(); Python numbers have not.
    number = getattr(value, "item", lambda: value)()
    if isinstance(number, float) and not math.isfinite(number):
        return None
    return number
