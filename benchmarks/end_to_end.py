"""Processor time of whole commands: training beside a plain loop, the first step, the start of the command line.

    STABLERNN_DATA=... python benchmarks/end_to_end.py           # all of it, half an hour
    STABLERNN_DATA=... python benchmarks/end_to_end.py --short   # digits, fewer rounds, a smaller table; 4 minutes
    STABLERNN_DATA=... python benchmarks/end_to_end.py --only commands
    python benchmarks/end_to_end.py --page                       # writes docs/end_to_end.md from the results

Each command runs in a process of its own, one thread each; what is compared with each other runs in turn, round after
round, and counts user and system time of the process and of those that it starts. ``stablernn train`` runs with
default settings: beside the training it certifies, calibrates, scores baselines, draws figures and writes checkpoints.
The plain loop (``benchmarks/plain_loop.py``) has the same model, patches, schedule, augmentation and validation and
nothing of that. Where a run spends its time is measured by ``benchmarks/time_by_cause.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from stablernn.engines import list_engines

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "end_to_end.json"
PAGE = ROOT / "docs" / "end_to_end.md"
DATA = os.environ.get("STABLERNN_DATA", "")
PROBLEMS = {"digits": "digits", "ECG5000": "ucr-uea/ECG5000/ECG5000_TRAIN.tsv"}
"""Sources of the classification problems, below ``STABLERNN_DATA`` where they are files."""
CELL = "antisymmetric"
ROUNDS, SHORT_ROUNDS, COMMAND_ROUNDS = 3, 2, 11
SERIES, STEPS_OF_A_TABLE = 10, 20
FIRST_STEP = """
import os
from stablernn.training import load_config, train

def report(progress):
    # Without the end of the interpreter, which takes some tenths of a second with torch.
    os._exit(0)

train(load_config(None, ["data.source=digits", "model.cell=antisymmetric"]), run_dir={folder!r}, progress=report)
"""
BUILD_OPTIMIZER = "import os, torch; torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))]); os._exit(0)"
LISTS = ("cells list", "data list", "registry list", "reproduce list")

Commands = dict[str, Callable[[Path], list[str]]]


def stablernn(*words: str) -> list[str]:
    return [sys.executable, "-m", "stablernn_cli", *words]


def train_command(source: str, folder: Path, *words: str) -> list[str]:
    return stablernn(
        "--quiet", "train", "--data", source, "--cell", CELL, "--free", "--run-dir", str(folder / "run"), *words
    )


def path_of(source: str) -> str:
    if "/" in source and not DATA:
        raise SystemExit(f"'{source}' lies below STABLERNN_DATA, which is not set. Set it, or run --only digits.")
    return str(Path(DATA) / source) if "/" in source else source


def processor_time(command: list[str], folder: Path) -> float:
    """Run a command in a folder and return the seconds of processor time that it took.

    Raises:
        SystemExit: If it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {process.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(commands: Commands, reference: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each command, and the median and range of its ratio to the reference command's."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(processor_time(command(Path(folder)), Path(folder)))
    rows = {}
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, seconds[reference], strict=True)]
        rows[name] = {
            "cpu_seconds": round(statistics.median(values), 3),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_low": round(min(ratios), 3),
            "ratio_high": round(max(ratios), 3),
        }
    return rows


def training(name: str, rounds: int) -> dict[str, Any]:
    """Compare training with default settings with the plain loop of the same settings."""
    source = path_of(PROBLEMS[name])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        processor_time(train_command(source, folder), folder)
        config = folder / "run" / "config.yaml"
        plain = [sys.executable, str(ROOT / "benchmarks" / "plain_loop.py"), source, str(config)]
        summary = json.loads((folder / "run" / "summary.json").read_text())
        peer = subprocess.run(plain, cwd=folder, capture_output=True, text=True, check=True)
        rows = compare(
            {"plain loop": lambda _: plain, "stablernn train": lambda run: train_command(source, run)},
            "plain loop",
            rounds,
        )
        rows["plain loop"]["test_accuracy"] = round(float(peer.stdout), 4)
        rows["stablernn train"]["test_accuracy"] = round(summary["metrics"]["test"]["accuracy"], 4)
        causes = seconds_by_cause(["train", "--data", source, "--cell", CELL, "--free"])
    lengths = {name: summary[name] for name in ("epochs", "steps")}
    return {**lengths, "rounds": rounds, "rows": rows, "causes": causes}


def table(rows: int) -> dict[str, Any]:
    """Return the seconds by cause of training a forecaster, for a few steps, on a table of hourly series."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "table.csv"
        write_table(path, rows)
        words = ["train", "--data", str(path), "--cell", CELL, "--free", "--max-steps", str(STEPS_OF_A_TABLE)]
        return {"rows_of_the_table": rows, "steps": STEPS_OF_A_TABLE, "causes": seconds_by_cause(words)}


def write_table(path: Path, rows: int) -> None:
    """Write hourly series with daily and weekly seasons as a long table."""
    generator, hours = np.random.default_rng(0), np.arange(rows // SERIES)
    times = np.datetime_as_string(np.datetime64("2010-01-01T00") + hours, unit="s")
    with path.open("w", encoding="utf-8") as file:
        file.write("unique_id,ds,y\n")
        for number in range(SERIES):
            seasons = 3 * np.sin(2 * np.pi * hours / 24 + number) + np.sin(2 * np.pi * hours / 168)
            values = 10 + number + seasons + 0.5 * generator.normal(size=len(hours))
            file.writelines(f"s{number},{time},{value:.4f}\n" for time, value in zip(times, values, strict=True))


def seconds_by_cause(words: list[str]) -> dict[str, float]:
    """Return the processor seconds of one run of the command line by cause."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "benchmarks" / "time_by_cause.py"), *words, "--run-dir", "run"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {process.stderr}")
    causes: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return causes


def commands(rounds: int) -> dict[str, Any]:
    """Return the rows of the first step and of the start of the command line."""
    first_step = compare(
        {
            "import torch, build an optimizer": lambda _: [sys.executable, "-c", BUILD_OPTIMIZER],
            "to the first step of a run": lambda run: [
                sys.executable,
                "-c",
                FIRST_STEP.format(folder=str(run / "run")),
            ],
        },
        "import torch, build an optimizer",
        max(2, rounds // 2),
    )
    imports = [sys.executable, "-c", "import typer, rich"]
    start = compare(
        {"import typer, rich": lambda _: imports, "--help": lambda _: stablernn("--help")}, "import typer, rich", rounds
    )
    lists = compare(
        {words: lambda _, words=words: stablernn(*words.split()) for words in ("--help", *LISTS)}, "--help", rounds
    )
    return {"first_step": first_step, "start": start, "lists": lists}


def conditions() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "cell": CELL,
        "engines": list_engines(),
        "rounds_of_commands": COMMAND_ROUNDS,
    }


def measure(*, short: bool, only: str | None) -> None:
    stored: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() and not short else {}
    stored["conditions"] = conditions()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "commands": lambda: commands(3 if short else COMMAND_ROUNDS),
        **{name: lambda name=name: training(name, SHORT_ROUNDS if short else ROUNDS) for name in PROBLEMS},
        "table": lambda: table(100_000 if short else 1_000_000),
    }
    if short:
        del parts["ECG5000"]
    if only and only not in parts:
        raise SystemExit(f"There is no part '{only}'. It is one of {', '.join(parts)}.")
    for name, part in parts.items():
        if only in (None, name):
            stored[name] = part()
            print(name, json.dumps(stored[name], indent=1), file=sys.stderr, flush=True)
            if not short:
                RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def page() -> str:
    """Return docs/end_to_end.md."""
    stored = json.loads(RESULTS.read_text())
    facts = stored["conditions"]
    lines = [
        "# Training end to end",
        "",
        "Written by `python benchmarks/end_to_end.py --page` from `benchmarks/results/end_to_end.json`; do not edit. "
        "`python benchmarks/end_to_end.py` measures.",
        "",
        *[line.replace("``", "`") for line in (__doc__ or "").strip().split("\n\n", 2)[2].splitlines()],
        "",
        f"{facts['date']}, {facts['machine']}, {facts['cores']} shared cores, Python {facts['python']}, torch "
        f"{facts['torch']}, cell `{facts['cell']}`, engines {', '.join(facts['engines'])}. Seconds are medians; a "
        "ratio is that of one round, the median, and between brackets the smallest and the largest.",
    ]
    measured = [name for name in (*PROBLEMS, "table") if name in stored]
    for name in PROBLEMS:
        if name not in stored:
            continue
        part = stored[name]
        lines += ["", f"## `stablernn train --data {name}`", ""]
        lines += [f"{part['epochs']} epochs, {part['steps']} steps; {part['rounds']} rounds.", ""]
        lines += ["| | CPU seconds | ratio | test accuracy |", "| --- | --- | --- | --- |"]
        lines += [f"{_row(row, figures)} {figures['test_accuracy']:.3f} |" for row, figures in part["rows"].items()]
    lines += ["", "## Seconds by cause", "", f"| | {' | '.join(measured)} |", "| --- " * (len(measured) + 1) + "|"]
    by_part = [stored[name]["causes"] for name in measured]
    causes = dict.fromkeys(cause for part in by_part for cause in part)
    lines += [f"| {cause} | {' | '.join(f'{part.get(cause, 0):.2f}' for part in by_part)} |" for cause in causes]
    if "table" in stored:
        rows = stored["table"]["rows_of_the_table"]
        lines += ["", f"The table has {rows:,} rows of {SERIES} hourly series, and a forecaster is trained for "]
        lines[-1] += f"{STEPS_OF_A_TABLE} steps."
    lines += ["", "## Start", "", f"{facts['rounds_of_commands']} rounds, half of them for the first step.", ""]
    lines += ["| | CPU seconds | ratio |", "| --- | --- | --- |"]
    for rows in stored["commands"].values():
        lines += [_row(f"`{row}`" if row in (*LISTS, "--help") else row, figures) for row, figures in rows.items()]
    return "\n".join(lines) + "\n"


def _row(name: str, figures: dict[str, float]) -> str:
    spread = f"{figures['ratio']:.2f} ({figures['ratio_low']:.2f} to {figures['ratio_high']:.2f})"
    return f"| {name} | {figures['cpu_seconds']:.2f} | {spread} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer rounds and data, printed and not stored")
    parser.add_argument("--only", help="only this part, measured again: commands, digits, ECG5000 or table")
    parser.add_argument("--page", action="store_true", help="write docs/end_to_end.md from the results")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    measure(short=arguments.short, only=arguments.only)


if __name__ == "__main__":
    main()
