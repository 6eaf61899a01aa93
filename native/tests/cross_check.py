"""Compare the results of a path on another processor, emulated, with those of plain C on this one.

    apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    python native/tests/cross_check.py

Builds ``all_calls.c`` for both machines, runs it with the path ``neon`` under ``qemu-aarch64``, and compares every
number. Exit code 1: they differ, or tanh is off by 4 ulp or more.
"""

from __future__ import annotations

import array
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parents[1]
FLAGS = ["-O2", "-ffp-contract=off", "-Wno-psabi", "-std=gnu11"]
TOOLS = ("aarch64-linux-gnu-gcc", "qemu-aarch64", "cc")
# Single and double precision: the halves of the blocks.
TOLERANCES = (2e-5, 1e-12)


def build(compiler: str, sources: list[str], flags: list[str], target: Path) -> None:
    files = [str(NATIVE / "src" / source) for source in ["stablernn_native.c", "plain_c.c", *sources]]
    program = str(NATIVE / "tests" / "all_calls.c")
    subprocess.run([compiler, *FLAGS, *flags, program, *files, "-lm", "-o", str(target)], check=True)


def blocks(command: list[str]) -> list[list[float]]:
    """Return the blocks of numbers that the program writes."""
    values = array.array("d", subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    result, start = [], 0
    while start < len(values):
        end = start + 1 + int(values[start])
        result.append(list(values[start + 1 : end]))
        start = end
    return result


def largest_difference(blocks_a: list[list[float]], blocks_b: list[list[float]]) -> float:
    """Return the largest difference relative to the largest number of its block."""
    largest = 0.0
    for a, b in zip(blocks_a, blocks_b, strict=True):
        difference = max(abs(x - y) for x, y in zip(a, b, strict=True)) / max(1e-30, *map(abs, b))
        largest = math.inf if math.isnan(difference) else max(largest, difference)
    return largest


def main() -> int:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"{', '.join(missing)} not found", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        here, there = Path(folder) / "here", Path(folder) / "there"
        build("cc", [], [], here)
        build("aarch64-linux-gnu-gcc", ["neon.c"], ["-static", "-DSRNN_WITH_NEON"], there)
        expected = blocks([str(here), "plain"])
        status = 0
        for path in ("neon", "plain"):
            results = blocks(["qemu-aarch64", str(there), path])
            (ulps,) = results.pop()
            half = len(results) // 2
            differences = [
                largest_difference(results[part], expected[:-1][part]) for part in (slice(half), slice(half, None))
            ]
            print(
                f"{path} on AArch64: {len(results)} blocks; largest difference {differences[0]:.1e} in float32, "
                f"{differences[1]:.1e} in float64; tanh within {ulps:.2f} ulp"
            )
            if ulps >= 4 or any(found > allowed for found, allowed in zip(differences, TOLERANCES, strict=True)):
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
