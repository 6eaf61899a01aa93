"""Files that are either whole or not there."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn.errors import CheckpointError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader, a kill or a power cut sees the old content or the new, never a part.

    Raises:
        CheckpointError: If it cannot be written (a full disk, no right to write); nothing is left behind then.
    """
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise CheckpointError(f"Cannot write '{path}': {error.strerror}.") from error


def _umask() -> int:
    # The mask can only be read by setting it; mkstemp makes files private, and a run is no secret.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_json(path: Path, value: object) -> None:
    """Write one JSON document, indented, in the order given; NaN and infinities become ``null``."""
    write_bytes(path, (json.dumps(to_json_types(value), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The JSON document in a file.

    Raises:
        CheckpointError: If the file is not there or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"There is no file '{path}'.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' cannot be read as JSON: {error}.") from error


def to_json_types(value: object) -> Any:
    """The same value in the types of JSON: numbers that JSON lacks become None, numpy numbers become Python's."""
    if isinstance(value, Mapping):
        return {str(key): to_json_types(entry) for key, entry in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return value
    if isinstance(value, Sequence):
        return [to_json_types(entry) for entry in value]
    number = getattr(value, "item", lambda: value)()
    if isinstance(number, float) and not math.isfinite(number):
        return None
    return number
