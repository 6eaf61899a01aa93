"""Opens a version for the first time, in a separate process with a time and memory limit.

Run as a module, this file is that process.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stablernn_registry import Registry, Version
from stablernn_runtime.engines.loaded_graphs import ONNX
from stablernn_runtime.errors import ModelLoadError, NotReadyError, ServingError
from stablernn_runtime.graph import is_out_of_memory
from stablernn_runtime.isolation import (
    Abort,
    AbortedError,
    IsolatedProcess,
    IsolationError,
    answer_requests,
)
from stablernn_runtime.served_model import ServedModel

_process = IsolatedProcess("stablernn_runtime.trial_load")
_passed: set[str] = set()
"""Keys of the versions that were opened in time; they depend on the content, not on names and dates."""


def has_passed(version: Version, threads: int, engine: str = ONNX) -> bool:
    """Return whether :func:`try_opening` has opened a version of the same content in the same way before."""
    return _key(version, threads, engine) in _passed


def try_opening(
    version: Version,
    root: Path,
    threads: int,
    seconds: float,
    memory_bytes: int,
    abort: Abort | None = None,
    engine: str = ONNX,
) -> None:
    """Open a version in another process, unless that was done before.

    Args:
        version: The version.
        root: Folder of its registry.
        threads: Threads inside one run.
        seconds: Time limit.
        memory_bytes: Memory limit.
        abort: Ends the other process when the server stops.
        engine: Name of the engine that opens it.

    Raises:
        ModelLoadError: If it cannot be opened, or takes longer or more.
        NotReadyError: If ``abort`` is set.
    """
    key = _key(version, threads, engine)
    if key in _passed:
        return
    # The other process reads the version from the registry, and by the digest makes sure that it is this one.
    request = {"root": str(root), "ref": version.ref, "digest": version.digest, "threads": threads, "engine": engine}
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
    _passed.add(key)


def close() -> None:
    """End the idle processes; the next call of :func:`try_opening` starts another."""
    _process.close()


def _key(version: Version, threads: int, engine: str) -> str:
    """Return a text of all that opening depends on: engine, threads, and the manifest with a hash of each graph."""
    # Copies of a version under other names and numbers are opened alike.
    fields = version.manifest.model_dump(mode="json", exclude={"name", "version", "created", "lineage", "metrics"})
    return f"{engine} {threads} {hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()}"


def _open(request: dict[str, Any]) -> dict[str, Any]:
    version = Registry(request["root"]).get(request["ref"])
    if version.digest != request["digest"]:
        raise ModelLoadError(f"'{version.ref}' is another version now")
    try:
        ServedModel.load(version, "cpu", request["threads"], request["engine"])
    except ServingError as error:
        # The limit of this process, not a property of the version.
        if is_out_of_memory(error):
            raise MemoryError from error
        return {"refused": str(error)}
    return {}


if __name__ == "__main__":
    answer_requests(_open)
