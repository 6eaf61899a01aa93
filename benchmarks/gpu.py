"""Checks and times the engines of training, whole runs and ONNX Runtime on a GPU.

    STABLERNN_DATA=... python benchmarks/gpu.py          # all of it, about five minutes on one H200
    python benchmarks/gpu.py --only checks --only steps
    python benchmarks/gpu.py --page                      # writes the page from the results, and measures nothing

Results are one JSON file and a page: ``benchmarks/results/gpu.json`` with ``docs/gpu.md`` and its part of
``docs/performance.md``, or another FILE with a page beside it; without CUDA ``gpu.json`` in the current folder.

Each part runs in a process of its own, so that a failure, even one that leaves the GPU unusable, is recorded with its
message and the next part runs. What a part lacks, such as the package triton, a dataset or a provider of ONNX Runtime,
is recorded as not measured. Without CUDA the same parts run at small sizes, the kernels in Triton's interpreter and
ONNX Runtime on the CPU, and the results say so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from given_command import given_command

RESULTS = Path(__file__).parent / "results" / "gpu.json"
WITHOUT_CUDA = Path("gpu.json")
"""What a machine without CUDA writes, whose results must not take the place of those of a GPU."""
PARTS = {"checks": 120, "steps": 110, "long": 80, "training": 110, "onnx": 50, "serving": 80}
"""The parts, and the seconds after which each is stopped."""
PACKAGES = ("torch", "triton", "onnxruntime-gpu", "numpy")


class NotMeasured(Exception):
    """Something that a part needs is missing."""


def run_part(name: str) -> dict[str, Any]:
    """Return what a part gives, by a process of its own; its failure is a result too."""
    started = time.perf_counter()
    command = [sys.executable, str(Path(__file__)), "--part", name]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=PARTS[name])
    except subprocess.TimeoutExpired:
        result: dict[str, Any] = {"error": f"It took longer than {PARTS[name]} seconds and was stopped."}
    else:
        # The last line; libraries may print above it.
        lines = process.stdout.strip().splitlines()
        if process.returncode or not lines:
            message = process.stderr.strip().splitlines()
            result = {"error": message[-1] if message else f"It ended with status {process.returncode}."}
        else:
            result = json.loads(lines[-1])
    return {"seconds": round(time.perf_counter() - started, 1), **result}


def measure_part(name: str) -> dict[str, Any]:
    """Return what a part gives, in this process."""
    import torch

    has_cuda = torch.cuda.is_available()
    try:
        return dict(importlib.import_module(f"gpu_{name}").measure(has_cuda))
    except NotMeasured as error:
        return {"not_measured": str(error)}
    # Whatever goes wrong is a result, and the other parts run.
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def environment() -> dict[str, Any]:
    """Return what the figures depend on."""
    import torch

    gpu = None
    if torch.cuda.is_available():
        facts: Any = torch.cuda.get_device_properties(0)
        gpu = {
            "name": facts.name,
            "memory_gib": round(facts.total_memory / 2**30, 1),
            "processors": facts.multi_processor_count,
            "shared_memory": getattr(facts, "shared_memory_per_block_optin", None),
            "driver": _driver(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": given_command({"--results": "FILE"}),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "gpu": gpu,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    # The driver works without its command.
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; can be given several times")
    parser.add_argument("--results", type=Path, metavar="FILE", help="the file to write; see above for the default")
    parser.add_argument("--page", action="store_true", help="write the page from the results, and measure nothing")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        import torch

        if not torch.cuda.is_available():
            # Before triton is imported, which decides then how kernels run.
            os.environ["TRITON_INTERPRET"] = "1"
        print(json.dumps(measure_part(options.part)))
        return
    if options.page:
        write_pages(options.results or RESULTS)
        return
    facts = environment()
    path = options.results or (WITHOUT_CUDA if facts["gpu"] is None else RESULTS)
    measure_parts(path, facts, options.only)
    for page in write_pages(path):
        print(f"page: {page}")


def measure_parts(path: Path, facts: dict[str, Any], only: list[str] | None) -> None:
    """Write the results of all parts, or of some and those that the file has of others."""
    from gpu_page import goals

    stored = json.loads(path.read_text(encoding="utf-8")) if only and path.exists() else {}
    results = {"environment": facts, "parts": dict(stored.get("parts", {}))}
    if stored.get("environment", facts)["gpu"] != facts["gpu"]:
        raise SystemExit(f"{path} has the results of another machine; give --results another file.")
    for name in only or PARTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results["parts"][name] = run_part(name)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(results["parts"][name], indent=1))
    for goal in goals(results):
        print(f"goal: {goal.what}: {goal.wanted}; {goal.reached}")


def write_pages(path: Path) -> list[Path]:
    """Write the pages of a file of results, and return them; that of a file outside the repository is beside it."""
    import gpu_page
    import serving_page

    results = json.loads(path.read_text(encoding="utf-8"))
    if path.resolve() != RESULTS.resolve():
        gpu_page.write_page(results, path.with_suffix(".md"))
        return [path.with_suffix(".md")]
    gpu_page.write_page(results)
    serving_page.write_page()
    return [gpu_page.PAGE, serving_page.PAGE]


if __name__ == "__main__":
    main()
