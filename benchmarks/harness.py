"""What the benchmarks share: commands and what they use, conditions, stored results, and their tables."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PR_SET_CHILD_SUBREAPER = 36
ORPHAN_SECONDS = 30.0
"""Time to wait for processes that outlive a program, such as the Java process of Spark, to end."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Row = dict[str, Any]


def arguments_parser(documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of a script."""
    return argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)


def page_parser(documentation: str | None, default: Path | None) -> argparse.ArgumentParser:
    """Return a parser with ``--results`` and ``--page``, for a script that prints the tables of its results."""
    parser = arguments_parser(documentation)
    parser.add_argument("--results", type=Path, default=default, help="file to write and to print the tables of")
    parser.add_argument("--page", action="store_true", help="only print the tables of the results")
    return parser


def given_command(**placeholders: str) -> str:
    """Return the command of this process as it was given.

    Args:
        placeholders: Option without its dashes -> the word that stands for its value, a path of this machine.
    """
    script, *words = sys.argv
    hidden = {f"--{option}": word for option, word in {"results": "FILE", **placeholders}.items()}
    shown_words = [f"benchmarks/{Path(script).name}"]
    shown_words += [hidden.get(option, word) for option, word in zip(["", *words], words, strict=False)]
    return "python " + shlex.join(shown_words)


def processor() -> str:
    """Return the name of the CPU, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def installed(package: str) -> str | None:
    """Return the version of a package, also where its build for GPUs is installed; None without it."""
    for name in (package, f"{package}-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def conditions(*packages: str, placeholders: Mapping[str, str] = MappingProxyType({}), **more: Any) -> Row:
    """Return what figures depend on: date, command, commit, machine and versions.

    Args:
        packages: Names of packages whose versions are stored.
        placeholders: See :func:`given_command`.
        more: Further entries.
    """
    from stablernn.training.loop.device import code_commit

    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": given_command(**placeholders),
        "commit": code_commit(),
        "machine": platform.machine(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{package: installed(package) for package in packages},
        **more,
    }


def data_folder() -> Path:
    """Return the folder of the data sets.

    Raises:
        SystemExit: If ``STABLERNN_DATA`` does not name it.
    """
    if not os.environ.get("STABLERNN_DATA"):
        raise SystemExit("Set STABLERNN_DATA to the folder of the data sets.")
    return Path(os.environ["STABLERNN_DATA"]).expanduser().absolute()


def shown(words: Sequence[str]) -> str:
    """Return a command of stablernn as a user would type it, with the data folder as its variable."""
    folder = os.environ.get("STABLERNN_DATA", "")
    return "stablernn " + " ".join(word.replace(folder, "$STABLERNN_DATA") if folder else word for word in words)


def stablernn(*words: str) -> list[str]:
    """Return the command line that runs a command of stablernn."""
    return [sys.executable, "-m", "stablernn_cli", *words]


def run_json(words: Sequence[str], folder: str | Path | None = None) -> Row:
    """Run a command of stablernn, in a folder or one that is deleted, and return the document that it prints.

    Raises:
        SystemExit: If it fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        command = stablernn(*words, "--json")
        done = subprocess.run(command, cwd=folder or temporary, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shown(words)}: {done.stderr}")
    return dict(json.loads(done.stdout))


def measure_use(command: Sequence[str], folder: str | Path, **environment: str) -> dict[str, float]:
    """Run a command on one thread; return its seconds, and processor seconds and the largest memory of all processes.

    It runs in a process of its own, since the system sums up all children that a process ever had.

    Raises:
        SystemExit: If it fails.
    """
    variables = {**os.environ, **ONE_THREAD, **environment}
    wrapped = [sys.executable, __file__, *command]
    done = subprocess.run(wrapped, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return dict(json.loads(done.stdout))


def main() -> None:
    """Run the program of the arguments, and print what it and all of its descendants used; its output is dropped."""
    # Without it, processes that outlive the program would be handed to the first one of the system, and their use.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begin = time.perf_counter()
    status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
    seconds = time.perf_counter() - begin
    deadline = time.monotonic() + ORPHAN_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        log("Processes of the program are still running; their time is not counted.")
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    # ru_maxrss is that of the largest process, in KiB on Linux.
    row = {"processor_seconds": use.ru_utime + use.ru_stime, "memory_mib": use.ru_maxrss / 1024}
    print(json.dumps({"seconds": seconds, **row}))
    sys.exit(status)


def in_turn(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Return what each run gives in each round: one after the other, round after round."""
    found: dict[str, list[Any]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    return found


def medians(rows: Sequence[Mapping[str, float]], digits: int = 3) -> dict[str, float]:
    """Return the median of each figure."""
    return {key: round(statistics.median(row[key] for row in rows), digits) for key in rows[0]}


def stored(name: str) -> Path:
    """Return the file of the results of a benchmark."""
    return RESULTS / f"{name}.json"


def read_results(path: Path, default: Any = None) -> Any:
    """Return stored results; ``default`` or an empty document if there are none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {} if default is None else default


def write_results(path: Path, results: Any) -> None:
    """Store results, as a whole: a stop while writing must not lose those of hours."""
    from stablernn.atomic_files import write_bytes

    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(results, indent=1) + "\n").encode())


def log(*words: object) -> None:
    """Print progress to standard error."""
    print(*words, file=sys.stderr, flush=True)


def rounded(value: Any) -> Any:
    """Return a value with four significant digits, which is more than repeats; what is infinite becomes None."""
    if isinstance(value, dict):
        return {str(key): rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return value if not isinstance(value, float) else float(f"{value:.4g}") if abs(value) < 1e300 else None


def spread(values: Sequence[float], form: str = ",.0f", middle: Callable[..., float] = statistics.median) -> str:
    """Return the median, or another middle, of values with the smallest and the largest behind it; ``-`` of none."""
    if not len(values):
        return "-"
    first = f"{middle(values):{form}}"
    return first if len(values) == 1 else f"{first} ({min(values):{form}} to {max(values):{form}})"


def mean_spread(values: Sequence[float], form: str = ".3f") -> str:
    """Return the mean of values with the smallest and the largest behind it."""
    return spread(values, form, statistics.fmean)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def facts(section: Mapping[str, Any], left_out: Sequence[str] = ("conditions", "examples", "ended")) -> str:
    """Return a table of the single figures of a section of results, under the names that they have there."""

    def leaves(part: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
        for key, value in part.items():
            name = f"{prefix}{key.replace('_', ' ')}"
            if key in left_out:
                continue
            if isinstance(value, Mapping):
                yield from leaves(value, f"{name}: ")
            elif isinstance(value, bool):
                yield name, "yes" if value else "no"
            elif isinstance(value, float | int | str):
                form = {float: ",.4g", int: ","}.get(type(value), "")
                yield name, f"{value:{form}}"

    return table(("", ""), leaves(section, ""))


def print_tables(tables: Mapping[str, str]) -> None:
    """Print tables under their names, for the study beside a script."""
    for name, content in tables.items():
        print(f"## {name}\n\n{content}\n")


def megabytes(size: float) -> str:
    """Return a number of bytes in MB, or in GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
