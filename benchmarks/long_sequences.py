"""Training steps on long sequences: engines that run parts of time at once next to the loop and layers of torch.

    python benchmarks/long_sequences.py

times them by ``stablernn bench``, writes ``benchmarks/results/long_sequences.json`` after each size and prints the
tables of benchmarks/long_sequences.md, as ``--table`` does alone. Sizes that the file has are not timed again.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import NamedTuple

import harness
from harness import Row, read_results, run_json, stored, table, write_results

CELLS = ("gru", "lstm", "lem", "lru", "mingru", "minlstm")
HIDDEN_SIZE = 64
WIDE_CELLS, WIDE_LENGTH, WIDTHS = ("gru", "lru", "mingru"), 4_096, (16, 256)
"""Cells that are timed with other numbers of units, too, on one sequence of this length."""
LONGEST_CELL, LONGEST = "mingru", 262_144
"""Cell that is timed on one sequence of this length, too, which takes ten minutes."""
LENGTHS = (1_024, 4_096, 16_384, 65_536)
FEW_ROUNDS = 32_768
"""Steps of all sequences beyond which a size is timed in two rounds in place of seven."""
LONGEST_OF_EIGHT = 16_384
"""Length up to which eight sequences are timed: the graph of the loop takes gigabytes beyond it."""
COLUMNS = ("engine loop", "engine scan", "engine shooting", "nn.LSTM", "nn.GRU", "nn.RNN")


class Size(NamedTuple):
    """What is timed."""

    cell: str
    length: int
    batch_size: int
    hidden_size: int = HIDDEN_SIZE


def all_sizes() -> list[Size]:
    """Return the sizes of the tables, without those that take too much memory."""
    sizes = [Size(*size) for size in product(CELLS, LENGTHS, (1, 8)) if size[2] == 1 or size[1] <= LONGEST_OF_EIGHT]
    sizes.append(Size(LONGEST_CELL, LONGEST, 1))
    sizes.sort(key=lambda size: (CELLS.index(size.cell), size.length, size.batch_size))
    return [*sizes, *(Size(cell, WIDE_LENGTH, 1, units) for cell in WIDE_CELLS for units in WIDTHS)]


def measure(size: Size) -> Row:
    """Time a training step of a cell by all engines."""
    rounds = 2 if size.length * size.batch_size > FEW_ROUNDS else 7
    options = {f"--{name.replace('_', '-')}": value for name, value in {**size._asdict(), "rounds": rounds}.items()}
    words = [str(word) for pair in options.items() for word in pair]
    document = run_json(["bench", *words, "--part", "train"])
    rows = {row["row"]: row for row in document["tables"][0]["rows"] if row["row"] in COLUMNS}
    return {
        **size._asdict(),
        "cpu_ms": {name: row["cpu_ms"] for name, row in rows.items()},
        # The quartiles of the ratio to the limit of the same round, and its median between them.
        "ratios": {name: [row[f"ratio{end}"] for end in ("_low", "", "_high")] for name, row in rows.items()},
        "conditions": document["conditions"],
    }


def format_table(names: tuple[str, ...], rows: dict[Size, Row], keys: tuple[str, ...]) -> str:
    """Return milliseconds, and how many times as fast as the loop the faster engine is."""
    lines = []
    for size, row in rows.items():
        times = row["cpu_ms"]
        # Short sequences are no work for shooting.
        fast = [times[name] for name in ("engine scan", "engine shooting") if name in times]
        cells = [f"{times[name]:,.0f}" if times.get(name, 0) >= 100 else f"{times[name]:.3g}" for name in times]
        shown = dict(zip(times, cells, strict=True))
        speed = f"{times['engine loop'] / min(fast):.1f} times" if fast else "-"
        values = (f"{getattr(size, key):,}" for key in keys)
        lines.append((f"`{size.cell}`", *values, *(shown.get(name, "-") for name in COLUMNS), speed))
    columns = (f"`{name}`" if "nn" in name else name for name in COLUMNS)
    return table(("cell", *names, *columns, "faster than the loop"), lines)


def main() -> None:
    parser = harness.arguments_parser(__doc__)
    parser.add_argument("--results", type=Path, default=stored("long_sequences"), help="the file of all times")
    parser.add_argument("--table", action="store_true", help="only print the tables of the results")
    arguments = parser.parse_args()
    order = all_sizes()
    known = {
        Size(*(row[name] for name in Size._fields if name in row)): row for row in read_results(arguments.results, [])
    }
    for size in () if arguments.table else order:
        if size not in known:
            known[size] = measure(size)
            write_results(arguments.results, [known[one] for one in order if one in known])
    rows = {size: known[size] for size in order if size in known}
    usual = {size: row for size, row in rows.items() if size.hidden_size == HIDDEN_SIZE}
    wide = [size for size in rows if size.cell in WIDE_CELLS and size[1:3] == (WIDE_LENGTH, 1)]
    wide.sort(key=lambda size: (WIDE_CELLS.index(size.cell), size.hidden_size))
    print(format_table(("steps", "sequences"), usual, ("length", "batch_size")))
    print(f"\n{format_table(('units',), {size: rows[size] for size in wide}, ('hidden_size',))}")


if __name__ == "__main__":
    main()
