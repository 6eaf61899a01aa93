"""Time and memory of checking a table of a million rows, with semicolons, decimal commas and a repeated row.

    python benchmarks/table_intake.py [--rows 1000000]

prints the seconds and the peak memory of `stablernn data check --fix`, and of a check with the configuration that it
wrote.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

METERS = 20


def write_table(path: Path, rows: int) -> None:
    """Write quarter hours of meters with two columns of numbers, and one row twice."""
    steps = rows // METERS
    times = np.datetime64("2020-01-01") + np.arange(steps) * np.timedelta64(15, "m")
    stamps = [f"{text[8:10]}.{text[5:7]}.{text[:4]} {text[11:16]}" for text in times.astype(str)]
    random = np.random.default_rng(0)
    with path.open("w", encoding="cp1252") as file:
        file.write("Zähler;ds;y;temperature\n")
        for meter in range(METERS):
            values = (meter + random.normal(size=(steps, 2))).round(2).tolist()
            lines = [
                f"m{meter};{stamp};" + f"{y};{heat}".replace(".", ",")
                for stamp, (y, heat) in zip(stamps, values, strict=True)
            ]
            file.write("\n".join([*lines, *lines[-1:] * (meter == 0)]) + "\n")


def measure(folder: Path, *arguments: str) -> tuple[float, float]:
    """Return the seconds and the peak memory in MB of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "stablernn_cli", "-q", "data", "check", "meters.csv", "--target", "y", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"The check of {folder / 'meters.csv'} failed with exit code {process.returncode}.")
    # Kilobytes on Linux.
    return time.perf_counter() - start, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder / "meters.csv", rows)
        size = (folder / "meters.csv").stat().st_size / 1e6
        print(f"{rows:,} rows, {size:.0f} MB")
        for label, arguments in (
            ("check --fix", ("--no-plan", "--fix", "config.yaml")),
            ("check of the repaired data", ("--no-plan", "--config", "config.yaml")),
        ):
            seconds, memory = measure(folder, *arguments)
            print(f"{label}: {seconds:.1f} s, {memory:.0f} MB")


if __name__ == "__main__":
    main()
