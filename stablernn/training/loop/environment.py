"""The environment of a run: enough to explain a number later, nothing that tells who ran it."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from stablernn._version import __version__

_USED_BY_RUNS = ("stablernn", "runtime", "native", "cli", "pyproject.toml")
"""What decides on the numbers of a run, in the repository: pages and stored results do not."""
_PACKAGES = ("torch", "numpy", "pydantic", "polars", "safetensors")


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions, platform, device and threads, and the commit of the code if it runs from its repository."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "stablernn": __version__,
        "commit": code_commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
    }


def code_commit() -> str | None:
    """Return the commit of a checkout of this library, with ``-dirty`` appended if code that runs use was changed."""
    # The folder of the checkout: this file lies in stablernn/training/loop.
    root = Path(__file__).parents[3]
    # An installed package may lie inside somebody else's repository, whose commit would mean nothing.
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *_USED_BY_RUNS)
    # No git, a repository that git does not trust, or one so large that it takes too long.
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changes else commit


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
