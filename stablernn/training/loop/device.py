"""The device of a training, torch's settings on it, and the environment as a run records it.

It is enough to explain a number later, and tells nothing of who ran it.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from stablernn._version import __version__
from stablernn.errors import DeviceError
from stablernn.training.loop.launch import Launch


def pick_device(name: str, launch: Launch | None = None) -> torch.device:
    """Return the device called ``auto``, ``cpu`` or ``cuda``; ``auto`` is a GPU if torch sees one.

    Args:
        name: The name.
        launch: The place of this process among several, of which each on a machine has a GPU of its own.

    Raises:
        DeviceError: If ``cuda`` is asked for and torch sees no GPU, or there are more processes than GPUs.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise DeviceError(f"The device 'cuda' is not there: {_why_no_gpu()}. Allowed here are 'cpu' and 'auto'.")
    if not available or name == "cpu":
        return torch.device("cpu")
    if launch is None or launch.world_size == 1:
        return torch.device("cuda")
    if launch.local_rank >= torch.cuda.device_count():
        raise DeviceError(
            f"Each process trains on a GPU of its own, and torch sees {torch.cuda.device_count()} for process number "
            f"{launch.local_rank} of this machine. Give torchrun a smaller --nproc-per-node, or train on the CPU "
            "(--device cpu)."
        )
    # NCCL and the libraries of CUDA use the current device.
    torch.cuda.set_device(launch.local_rank)
    return torch.device("cuda", launch.local_rank)


def _why_no_gpu() -> str:
    """Return what torch says when CUDA is started, such as that the driver is too old."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return str(error).strip().splitlines()[0].removesuffix(".")
    return "torch sees no GPU"


@contextmanager
def torch_settings(device: torch.device, *, seed: int, threads: int) -> Iterator[None]:
    """Set seed, threads and deterministic algorithms for the time of a run, then restore those of the caller.

    The threads are those of torch and of NumPy's linear algebra: scores of baselines depend in their last digits on how
    many there are. Deterministic algorithms are asked for on the CPU only: on a GPU torch refuses some operations
    without them. By default torch then fills all memory with NaN before it is written, which changes no result of code
    that writes before it reads, and takes part of every step; this is switched off.
    """
    # A module with properties, of which type checkers know nothing.
    deterministic: Any = torch.utils.deterministic
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode(), deterministic.fill_uninitialized_memory
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), threadpool_limits(threads, user_api="blas"):
        try:
            torch.set_num_threads(threads)
            # use_deterministic_algorithms does the same, and imports torch's compiler, which takes seconds.
            torch.set_deterministic_debug_mode("error" if device.type == "cpu" else "default")
            deterministic.fill_uninitialized_memory = False
            torch.manual_seed(seed)
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.set_deterministic_debug_mode(before[1])
            deterministic.fill_uninitialized_memory = before[2]


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
