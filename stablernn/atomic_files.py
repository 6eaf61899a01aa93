"""Files of runs: written atomically, and JSON documents."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn.errors import CheckpointError
from stablernn_registry.atomic_io import replacing


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file as :func:`stablernn_registry.atomic_io.replacing` does.

    Raises:
        CheckpointError: If it cannot be written (a full disk, missing permissions); no temporary file is left then.
    """
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise CheckpointError(f"Cannot write '{path}': {error.strerror}.") from error


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
