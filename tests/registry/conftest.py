from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import Registry, Version

FIELDS: dict[str, Any] = {
    "task": "classify",
    "cell": "lipschitz",
    "signature": {
        "step": {
            "inputs": [
                {"name": "x", "dtype": "float32", "shape": ["batch", 1], "optional": False},
                {"name": "state_0", "dtype": "float32", "shape": ["batch", 4], "optional": True},
            ],
            "outputs": [
                {"name": "logits", "dtype": "float32", "shape": ["batch", 2], "optional": False},
                {"name": "state_0_out", "dtype": "float32", "shape": ["batch", 4], "optional": False},
            ],
        },
        "states": [
            {"input": "state_0", "output": "state_0_out", "shape": ["batch", 4], "dtype": "float32", "role": "hidden"}
        ],
    },
    "labels": ["no", "yes"],
    "features": ["pressure"],
    "metrics": {"test": {"accuracy": 0.98, "roc_auc": None}},
    "lineage": {"run": "runs/1", "config": {"training": {"seed": 0}}},
}

Publish = Callable[..., Version]
MEMORY = Path("/dev/shm")


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of synced writes take seconds on a disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def fields() -> dict[str, Any]:
    return dict(FIELDS)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


@pytest.fixture
def publish(registry: Registry, tmp_path: Path) -> Publish:
    """``publish("digits", {"step.onnx": b"..."})`` writes the files and publishes them."""

    def publish(name: str = "digits", content: dict[str, bytes] | None = None, **fields: Any) -> Version:
        sources = {}
        for index, (filename, data) in enumerate((content or {"step.onnx": b"graph"}).items()):
            sources[filename] = tmp_path / f"source-{index}"
            sources[filename].write_bytes(data)
        return registry.publish(name, sources, {**FIELDS, **fields}, who="ada")

    return publish


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder with its bytes."""
    return lambda root: {
        path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


@pytest.fixture
def lock_elsewhere() -> Callable[[Path], AbstractContextManager[None]]:
    """What lets another process hold the lock of a path inside a ``with`` block."""

    @contextmanager
    def lock(path: Path) -> Iterator[None]:
        script = """
import filelock, sys
with filelock.FileLock(sys.argv[1]):
    print('held', flush=True)
    sys.stdin.readline()
"""
        command = [sys.executable, "-c", script, str(path)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield
        finally:
            holder.communicate("\n")

    return lock
