"""Training steps on long sequences: engines that run parts of time at once next to the loop and layers of torch.

    python benchmarks/long_sequences.py

times them by ``stablernn bench``, writes ``benchmarks/results/long_sequences.json`` after each size and prints the
tables of docs/long_sequences.md, as ``--table`` does alone. Sizes that the file has are not timed again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / "long_sequences.json"
CELLS = ("gru", "lstm", "lem", "lru", "mingru", "minlstm")
HIDDEN_SIZE = 64
WIDE_CELLS, WIDE_LENGTH, WIDTHS = ("gru", "lru", "mingru"), 4_096, (16, 256)
"""Cells that are timed with other numbers of units, too, on one sequence of this length."""
LONGEST_CELLS, LONGEST = ("mingru",), 262_144
"""Cells that are timed on one sequence of this length, too, which takes ten minutes."""
LENGTHS = (1_024, 4_096, 16_384, 65_536)
BATCH_SIZES = (1, 8)
FEW_ROUNDS = 32_768
"""Steps of all sequences beyond which a size is timed in two rounds in place of seven."""
LONGEST_OF_EIGHT = 16_384
"""Length up to which eight sequences are timed: the graph of the loop takes gigabytes beyond it."""
COLUMNS = ("engine loop", "engine scan", "engine shooting", "nn.LSTM", "nn.GRU", "nn.RNN")

Row = dict[str, Any]


class Size(NamedTuple):
    """What is timed."""

    cell: str
    length: int
    batch_size: int
    hidden_size: int = HIDDEN_SIZE


def all_sizes() -> list[Size]:
    """Return the sizes of the tables, without those that take too much memory."""
    sizes = [
        Size(*size) for size in product(CELLS, LENGTHS, BATCH_SIZES) if size[2] == 1 or size[1] <= LONGEST_OF_EIGHT
    ]
    sizes += [Size(cell, LONGEST, 1) for cell in LONGEST_CELLS]
    sizes.sort(key=lambda size: (CELLS.index(size.cell), size.length, size.batch_size))
    return [*sizes, *(Size(cell, WIDE_LENGTH, 1, units) for cell in WIDE_CELLS for units in WIDTHS)]


def size_of(row: Row) -> Size:
    """Return the size of a row of the results."""
    return Size(*(row[name] for name in Size._fields if name in row))


def measure(size: Size) -> Row:
    """Time a training step of a cell by all engines."""
    rounds = 2 if size.length * size.batch_size > FEW_ROUNDS else 7
    sizes = ["--cell", size.cell, "--hidden-size", size.hidden_size]
    sizes += ["--length", size.length, "--batch-size", size.batch_size]
    words = ["bench", *sizes, "--part", "train", "--rounds", rounds, "--json"]
    command = [sys.executable, "-m", "stablernn_cli", *map(str, words)]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    table = document["tables"][0]["rows"]
    times = {row["row"]: row["cpu_ms"] for row in table}
    ratios = {row["row"]: [row["ratio_low"], row["ratio"], row["ratio_high"]] for row in table}
    return {
        **size._asdict(),
        "cpu_ms": {name: times[name] for name in COLUMNS if name in times},
        # The quartiles of the ratio to the limit of the same round, and its median between them.
        "ratios": {name: ratios[name] for name in COLUMNS if name in times},
        "conditions": document["conditions"],
    }


def format_table(rows: list[Row]) -> str:
    """Return a Markdown table of milliseconds, and how many times as fast as the loop the faster engine is."""
    return _format(
        ("steps", "sequences"),
        [
            ((f"{row['length']:,}", str(row["batch_size"])), row)
            for row in rows
            if size_of(row).hidden_size == HIDDEN_SIZE
        ],
    )


def format_widths(rows: list[Row]) -> str:
    """Return the same for numbers of units."""
    chosen = [row for row in rows if (size_of(row).length, size_of(row).batch_size) == (WIDE_LENGTH, 1)]
    chosen = [row for row in chosen if row["cell"] in WIDE_CELLS]
    chosen.sort(key=lambda row: (WIDE_CELLS.index(row["cell"]), size_of(row).hidden_size))
    return _format(("units",), [((str(size_of(row).hidden_size),), row) for row in chosen])


def _format(names: tuple[str, ...], rows: list[tuple[tuple[str, ...], Row]]) -> str:
    columns = (f"`{name}`" if "nn" in name else name for name in COLUMNS)
    lines = [
        f"| {' | '.join(('cell', *names, *columns, 'faster than the loop'))} |",
        "|---" * (2 + len(names) + len(COLUMNS)) + "|",
    ]
    for values, row in rows:
        times = row["cpu_ms"]
        # Short sequences are no work for shooting.
        fast = [times[name] for name in ("engine scan", "engine shooting") if name in times]
        cells = [_format_time(times.get(name)) for name in COLUMNS]
        speed = f"{times['engine loop'] / min(fast):.1f} times" if fast else "-"
        cell = f"`{row['cell']}`"
        lines.append(f"| {' | '.join((cell, *values, *cells, speed))} |")
    return "\n".join(lines)


def _format_time(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only print the tables of the results")
    arguments = parser.parse_args()
    rows: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    known, order = {size_of(row) for row in rows}, all_sizes()
    for size in () if arguments.table else order:
        if size not in known:
            rows.append(measure(size))
            rows.sort(key=lambda row: order.index(size_of(row)))
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(format_table(rows), format_widths(rows), sep="\n\n")


if __name__ == "__main__":
    main()
