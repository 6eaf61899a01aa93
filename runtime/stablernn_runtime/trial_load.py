"""Opens a version for the first time, in a process of its own. Run as a module, it is that process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stablernn_registry import Registry, Version
from stablernn_runtime.errors import ModelLoadError, NotReadyError, ServingError
from stablernn_runtime.isolation import (
    Abort,
    AbortedError,
    IsolatedProcess,
    IsolationError,
    answer_requests,
    is_out_of_memory,
)

_process = IsolatedProcess("stablernn_runtime.trial_load")
_sound: set[str] = set()
"""Hashes of what was opened in time; they are of content, not of names and dates."""


def is_known_sound(version: Version, threads: int) -> bool:
    """Return whether :func:`try_opening` has opened a version of the same content with so many threads before."""
    return _key(version, threads) in _sound


def try_opening(
    version: Version, root: Path, threads: int, seconds: float, memory_bytes: int, abort: Abort | None = None
) -> None:
    """Open a version with ONNX Runtime in another process, where that was not done before.

    Args:
        version: The version.
        root: The registry that it is from.
        threads: Threads inside one run.
        seconds: How long it may take.
        memory_bytes: How much memory it may take.
        abort: Ends the other process when the server stops.

    Raises:
        ModelLoadError: If it cannot be opened, or takes longer or more.
        NotReadyError: If ``abort`` is set.
    """
    key = _key(version, threads)
    if key in _sound:
        return
    request = {"root": str(root), "ref": version.ref, "digest": version.digest, "threads": threads}
    try:
        answer = _process.ask(request, seconds, memory_bytes, abort)
    except AbortedError as error:
        raise NotReadyError(f"'{version.ref}' is not open yet, and the server is shutting down.") from error
    except IsolationError as error:
        raise ModelLoadError(
            f"'{version.ref}' cannot be served: opening it was tried in a process of its own, and {error}. If the "
            "version is sound, allow more by STABLERNN_LOAD_TIMEOUT_SECONDS and STABLERNN_LOAD_MEMORY_BYTES."
        ) from error
    if "refused" in answer:
        raise ModelLoadError(str(answer["refused"]))
    _sound.add(key)


def close() -> None:
    """End the processes without work; the next call of :func:`try_opening` starts another."""
    _process.close()


def _key(version: Version, threads: int) -> str:
    """Return all that opening depends on: the threads, and a hash of the graphs and what the manifest says of them."""
    facts = version.manifest.model_dump(mode="json", exclude={"name", "version", "created", "lineage", "metrics"})
    return f"{threads} {hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()}"


def _open(request: dict[str, Any]) -> dict[str, Any]:
    from stablernn_runtime.served_model import ServedModel

    version = Registry(request["root"]).get(request["ref"])
    if version.digest != request["digest"]:
        raise ModelLoadError(f"'{version.ref}' is another version now")
    try:
        ServedModel.load(version, "cpu", request["threads"])
    except ServingError as error:
        if is_out_of_memory(error):
            raise MemoryError from error
        return {"refused": str(error)}
    return {}


if __name__ == "__main__":
    # Before the first request, whose time does not count it.
    import stablernn_runtime.served_model  # noqa: F401

    answer_requests(_open)
