"""Checks and times the engines of training, whole runs and ONNX Runtime on a GPU.

    STABLERNN_DATA=... python benchmarks/gpu.py          # all of it, about five minutes on one H200
    python benchmarks/gpu.py --only checks --only steps
    python benchmarks/gpu.py --page                      # writes the tables of docs/gpu.md, and measures nothing

Results are ``benchmarks/results/gpu.json``, from which the tables of ``docs/gpu.md`` are written, or another FILE;
without CUDA ``gpu.json`` in the current folder.

Each part runs in a process of its own, so that a failure, even one that leaves the GPU unusable, is recorded with its
message and the next part runs. What a part lacks, such as the package triton, a dataset or a provider of ONNX Runtime,
is recorded as not measured. Without CUDA the same parts run at small sizes, the kernels in Triton's interpreter and
ONNX Runtime on the CPU, and the results say so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness import DOCS, RESULTS, facts, given_command, read_results, replace_tables, spread, table, write_results

STORED = RESULTS / "gpu.json"
WITHOUT_CUDA = Path("gpu.json")
"""What a machine without CUDA writes, whose results must not take the place of those of a GPU."""
PARTS = {"checks": 120, "steps": 110, "long": 80, "training": 110, "onnx": 50, "serving": 80}
"""The parts, and the seconds after which each is stopped."""
PACKAGES = ("torch", "triton", "onnxruntime-gpu", "numpy")


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
    from gpu_parts import MEASURES, NotMeasured

    has_cuda = torch.cuda.is_available()
    try:
        return MEASURES[name](has_cuda)
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
    parser.add_argument("--page", action="store_true", help="write the tables of docs/gpu.md")
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
        replace_tables(DOCS / "gpu.md", page_tables(read_results(STORED)))
        return
    here = environment()
    path = options.results or (WITHOUT_CUDA if here["gpu"] is None else STORED)
    measure_parts(path, here, options.only)
    if path == STORED:
        replace_tables(DOCS / "gpu.md", page_tables(read_results(STORED)))


def measure_parts(path: Path, here: dict[str, Any], only: list[str] | None) -> None:
    """Write the results of all parts, or of some and those that the file has of others."""
    stored = read_results(path) if only else {}
    results = {"environment": here, "parts": dict(stored.get("parts", {}))}
    if stored.get("environment", here)["gpu"] != here["gpu"]:
        raise SystemExit(f"{path} has the results of another machine; give --results another file.")
    for name in only or PARTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results["parts"][name] = run_part(name)
        write_results(path, results)
        print(json.dumps(results["parts"][name], indent=1))


def page_tables(results: dict[str, Any]) -> dict[str, str]:
    """Return the tables of docs/gpu.md; a part that failed or was not measured has its reason in place of one."""
    facts_of = results["environment"]
    packages = ", ".join(f"{name} {number}" for name, number in facts_of["packages"].items())
    conditions = {**facts_of, "packages": packages, "command": f"`{facts_of['command']}`"}
    written = {"conditions": facts(conditions, ())}
    writers: dict[str, Callable[[dict[str, Any]], str]] = {
        "checks": _checks,
        "steps": _steps,
        "long": _long,
        "training": _training,
        "onnx": lambda part: table(
            ("B, T", "ms", "error"),
            ((f"{row['B']}, {row['T']}", f"{row['ms']:.2f}", f"{row['error']:.1e}") for row in part["rows"]),
        ),
        "serving": lambda part: facts({key: part[key] for key in ("model", "auto", "request_ms", "difference")}, ()),
    }
    for name, write in writers.items():
        part = results["parts"].get(name, {"not_measured": "It was left out."})
        reason = part.get("error") or part.get("not_measured")
        written[name] = f"Not measured: {reason}" if reason else write(part)
    return written


def _checks(part: dict[str, Any]) -> str:
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in part["rows"]:
        text = row.get("message") or f"{row['error']:.1e}{'' if row['passed'] else ', failed'}"
        rows.setdefault((row["cell"], row["engine"], f"{row['N']}, {row['B']}, {row['T']}"), {})[row["kind"]] = text
    kinds = ("equal", "lengths", "dt")
    return table(
        ("cell", "engine", "N, B, T", "equal lengths", "unequal lengths", "dt"),
        ((*key, *(errors.get(kind, "") for kind in kinds)) for key, errors in rows.items()),
    )


def _steps(part: dict[str, Any]) -> str:
    rows = []
    for name, measured in part["tables"].items():
        for row, found in measured.get("rows", {}).items():
            rows.append((name, row, f"{found['ms']:.2f}", f"{found['ms_low']:.2f} to {found['ms_high']:.2f}"))
        for row, reason in measured.get("missing", {"": measured.get("not_measured", "")}).items():
            rows.append((name, row, "not measured", reason.partition("\n")[0]))
    return table(("sizes", "row", "ms", "range"), rows)


def _long(part: dict[str, Any]) -> str:
    rows = []
    for row in part["rows"]:
        sizes = (row["cell"], row["N"], f"{row['T']:,}")
        for engine, times in row["ms"].items():
            rows.append((*sizes, engine, spread(times, 1)))
        rows += [
            (*sizes, engine, f"not measured: {reason.splitlines()[0]}") for engine, reason in row["missing"].items()
        ]
    return "\n".join([table(("cell", "N", "T", "engine", "ms"), rows), "", *(f"- {text}" for text in part["sweeps"])])


def _training(part: dict[str, Any]) -> str:
    return table(
        ("cell", "data", "engine", "steps of an epoch", "seconds", "test accuracy"),
        (
            (
                *(run[key] for key in ("cell", "data", "engine")),
                run["steps"] // run["epochs"],
                ", ".join(f"{value:.2f}" for value in run["seconds_of_epochs"]),
                f"{run['accuracy']:.4f}",
            )
            for run in part["runs"]
        ),
    )


if __name__ == "__main__":
    main()
