"""Time and memory of checking a table of a million rows, with semicolons, decimal commas and a repeated row.

    python benchmarks/table_intake.py [--rows 1000000]

prints the seconds and the peak memory of `stablernn data check --fix`, and of a check with the configuration that it
wrote.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import harness
import numpy as np
from harness import measure_use, stablernn

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
            numbers = (f"{y};{heat}".replace(".", ",") for y, heat in values)
            lines = [f"m{meter};{stamp};{pair}" for stamp, pair in zip(stamps, numbers, strict=True)]
            file.write("\n".join([*lines, *lines[-1:] * (meter == 0)]) + "\n")


def main() -> None:
    parser = harness.arguments_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "meters.csv"
        write_table(path, rows)
        print(f"{rows:,} rows, {path.stat().st_size / 1e6:.0f} MB")
        for label, option in (("check --fix", "--fix"), ("check of the repaired data", "--config")):
            words = ("meters.csv", "--target", "y", "--no-plan", option, "config.yaml")
            use = measure_use(stablernn("-q", "data", "check", *words), name)
            print(f"{label}: {use['seconds']:.1f} s, {use['memory_mib'] * 1.048576:.0f} MB")


if __name__ == "__main__":
    main()
