"""Results of a reproduction as a file with a hash of its content, so that an edited one is recognized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json, to_json_types, write_json
from stablernn.errors import CheckpointError

HASH_KEY = "sha256"


def content_hash(results: Mapping[str, Any]) -> str:
    """Return the SHA-256 of results without their own hash, independent of indentation and of the order of keys."""
    content = {key: value for key, value in results.items() if key != HASH_KEY}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_results(path: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Write results with their hash, and return them as JSON types."""
    document = dict(to_json_types(results))
    document[HASH_KEY] = content_hash(document)
    write_json(path, document)
    return document


def read_results(path: Path) -> dict[str, Any] | None:
    """Read results; None if there is no such file.

    Raises:
        CheckpointError: If the file is not JSON, or was changed after it was written.
    """
    if not path.is_file():
        return None
    results = read_json(path)
    if not isinstance(results, dict) or HASH_KEY not in results:
        raise CheckpointError(
            f"'{path}' has no '{HASH_KEY}' of its content, so that nobody can tell whether it was edited. Restore the "
            "file, or run 'stablernn reproduce' again, which writes it from the finished runs."
        )
    if results[HASH_KEY] != content_hash(results):
        raise CheckpointError(
            f"'{path}' was edited after it was written: its content does not have the hash that it states. Restore the "
            "file, or run 'stablernn reproduce' again, which writes it from the finished runs."
        )
    return results
