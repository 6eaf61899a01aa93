"""Processor time of whole commands: training beside a plain loop, the first step, the start of the command line.

    STABLERNN_DATA=... python benchmarks/end_to_end.py           # all of it, half an hour
    STABLERNN_DATA=... python benchmarks/end_to_end.py --short   # digits, fewer rounds, a smaller table; 4 minutes
    STABLERNN_DATA=... python benchmarks/end_to_end.py --only commands
    python benchmarks/end_to_end.py --page                       # prints the tables of the results

Each command runs in a process of its own, one thread each; what is compared with each other runs in turn, round after
round, and counts user and system time of the process and of those that it starts. ``stablernn train`` runs with
default settings: beside the training it certifies, calibrates, scores baselines, draws figures and writes checkpoints.
The plain loop (``benchmarks/plain_loop.py``) has the same model, patches, schedule, augmentation and validation and
nothing of that. Where a run spends its time is measured by ``benchmarks/time_by_cause.py``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import (
    ROOT,
    Row,
    data_folder,
    log,
    measure_use,
    read_results,
    stablernn,
    stored,
    table,
    write_results,
)

from stablernn.engines import list_engines

STORED = stored("end_to_end")
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

train(load_config(None, ["data.source=digits", "model.cell=antisymmetric"]), run_dir="run", progress=report)
"""
BUILD_OPTIMIZER = "import os, torch; torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))]); os._exit(0)"
LISTS = ("cells list", "data list", "registry list", "reproduce list")


def script(name: str, *words: str) -> list[str]:
    """Return the command line of another script of this folder."""
    return [sys.executable, str(ROOT / "benchmarks" / name), *words]


def compare(commands: dict[str, list[str]], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each command, and the median and range of its ratio to those of the first."""

    def processor_seconds(command: list[str]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return measure_use(command, folder)["processor_seconds"]

    runs = {name: lambda command=command: processor_seconds(command) for name, command in commands.items()}
    seconds = harness.in_turn(runs, rounds)
    reference, *_ = seconds.values()
    rows = {}
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, reference, strict=True)]
        row = {"cpu_seconds": statistics.median(values), "ratio": statistics.median(ratios)}
        row |= {"ratio_low": min(ratios), "ratio_high": max(ratios)}
        rows[name] = {key: round(value, 3) for key, value in row.items()}
    return rows


def training(name: str, rounds: int) -> Row:
    """Compare training with default settings with the plain loop of the same settings."""
    source = PROBLEMS[name]
    source = str(data_folder() / source) if "/" in source else source
    words = ["train", "--data", source, "--cell", CELL, "--free"]
    with tempfile.TemporaryDirectory() as folder:
        summary = harness.run_json([*words, "--run-dir", "run"], folder)
        plain = script("plain_loop.py", source, f"{folder}/run/config.yaml")
        peer = subprocess.run(plain, cwd=folder, capture_output=True, text=True, check=True)
        commands = {"plain loop": plain, "stablernn train": stablernn("--quiet", *words, "--run-dir", "run")}
        rows: Row = compare(commands, rounds)
    rows["plain loop"]["test_accuracy"] = round(float(peer.stdout), 4)
    rows["stablernn train"]["test_accuracy"] = round(summary["metrics"]["test"]["accuracy"], 4)
    lengths = {key: summary[key] for key in ("epochs", "steps")}
    return {**lengths, "rounds": rounds, "rows": rows, "causes": seconds_by_cause(words)}


def long_table(rows: int) -> Row:
    """Return the seconds by cause of training a forecaster, for a few steps, on a table of hourly series."""
    generator, hours = np.random.default_rng(0), np.arange(rows // SERIES)
    times = np.datetime_as_string(np.datetime64("2010-01-01T00") + hours, unit="s")
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "table.csv"
        with path.open("w", encoding="utf-8") as file:
            file.write("unique_id,ds,y\n")
            for number in range(SERIES):
                seasons = 3 * np.sin(2 * np.pi * hours / 24 + number) + np.sin(2 * np.pi * hours / 168)
                values = 10 + number + seasons + 0.5 * generator.normal(size=len(hours))
                file.writelines(f"s{number},{time},{value:.4f}\n" for time, value in zip(times, values, strict=True))
        words = ["train", "--data", str(path), "--cell", CELL, "--free", "--max-steps", str(STEPS_OF_A_TABLE)]
        return {"rows_of_the_table": rows, "steps": STEPS_OF_A_TABLE, "causes": seconds_by_cause(words)}


def seconds_by_cause(words: list[str]) -> dict[str, float]:
    """Return the processor seconds of one run of the command line by cause."""
    with tempfile.TemporaryDirectory() as folder:
        command, environment = script("time_by_cause.py", *words, "--run-dir", "run"), os.environ | harness.ONE_THREAD
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def commands(rounds: int) -> Row:
    """Return the rows of the first step and of the start of the command line."""
    first_step = {
        "import torch, build an optimizer": [sys.executable, "-c", BUILD_OPTIMIZER],
        "to the first step of a run": [sys.executable, "-c", FIRST_STEP],
    }
    start = {"import typer, rich": [sys.executable, "-c", "import typer, rich"], "--help": stablernn("--help")}
    lists = {words: stablernn(*words.split()) for words in ("--help", *LISTS)}
    return {
        "first_step": compare(first_step, max(2, rounds // 2)),
        "start": compare(start, rounds),
        "lists": compare(lists, rounds),
    }


def page_tables(results: Row) -> dict[str, str]:
    """Return the tables of benchmarks/end_to_end.md."""
    about = results["conditions"]
    engines = f"engines {', '.join(about['engines'])}"
    conditions = "{date}, {machine}, {cores} shared cores, Python {python}, torch {torch}, cell `{cell}`".format(
        **about
    )
    written = {"conditions": f"{conditions}, {engines}; {about['rounds_of_commands']} rounds of commands."}
    for name in PROBLEMS:
        part = results[name]
        lines = [(*_row(row, figures), f"{figures['test_accuracy']:.3f}") for row, figures in part["rows"].items()]
        text = f"{part['epochs']} epochs, {part['steps']} steps; {part['rounds']} rounds."
        written[name] = f"{text}\n\n{table(('', 'CPU seconds', 'ratio', 'test accuracy'), lines)}"
    parts = {name: results[name]["causes"] for name in (*PROBLEMS, "table")}
    causes = dict.fromkeys(cause for part in parts.values() for cause in part)
    rows = [(cause, *(f"{part.get(cause, 0):.2f}" for part in parts.values())) for cause in causes]
    written["causes"] = table(("", *parts), rows)
    starts = [
        _row(f"`{row}`" if row in (*LISTS, "--help") else row, figures)
        for part in results["commands"].values()
        for row, figures in part.items()
    ]
    return {**written, "start": table(("", "CPU seconds", "ratio"), starts)}


def _row(name: str, figures: dict[str, float]) -> tuple[str, str, str]:
    ratios = "{ratio:.2f} ({ratio_low:.2f} to {ratio_high:.2f})".format(**figures)
    return name, f"{figures['cpu_seconds']:.2f}", ratios


def main() -> None:
    parser = harness.page_parser(__doc__, STORED)
    parser.add_argument("--short", action="store_true", help="fewer rounds and data, printed and not stored")
    parser.add_argument("--only", choices=("commands", *PROBLEMS, "table"), help="only this part, measured again")
    arguments = parser.parse_args()
    short = arguments.short
    if not arguments.page:
        results: Row = {} if short else read_results(arguments.results)
        more: Row = {"cell": CELL, "engines": list_engines(), "rounds_of_commands": COMMAND_ROUNDS}
        results["conditions"] = harness.conditions("torch", **more)
        rounds = SHORT_ROUNDS if short else ROUNDS
        parts: dict[str, Callable[[], Any]] = {
            "commands": lambda: commands(3 if short else COMMAND_ROUNDS),
            **{name: lambda name=name: training(name, rounds) for name in (("digits",) if short else PROBLEMS)},
            "table": lambda: long_table(100_000 if short else 1_000_000),
        }
        for name, part in parts.items():
            if arguments.only in (None, name):
                results[name] = part()
                log(name, json.dumps(results[name], indent=1))
                if not short:
                    write_results(arguments.results, results)
    if arguments.results == STORED and not short:
        harness.print_tables(page_tables(read_results(STORED)))


if __name__ == "__main__":
    main()
