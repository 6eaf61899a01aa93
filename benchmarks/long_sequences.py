"""Training steps on long sequences: engines that run parts of time at once next to the loop and layers of torch.

    python benchmarks/long_sequences.py

times them by ``stablernn bench``, writes ``benchmarks/results/long_sequences.json`` after each size and prints the
table of docs/long_sequences.md, as ``--table`` does alone. Sizes that the file has are not timed again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "long_sequences.json"
CELLS = ("gru", "lstm", "lem", "lru", "mingru", "minlstm")
HIDDEN_SIZE = 64
LENGTHS = (1_024, 4_096, 16_384, 65_536)
BATCH_SIZES = (1, 8)
FEW_ROUNDS = 32_768
"""Steps of all sequences beyond which a size is timed in two rounds in place of seven."""
LONGEST_OF_EIGHT = 16_384
"""Length up to which eight sequences are timed: the graph of the loop takes gigabytes beyond it."""
COLUMNS = ("engine loop", "engine scan", "engine shooting", "nn.LSTM", "nn.GRU", "nn.RNN")

Row = dict[str, Any]


def measure(cell: str, length: int, batch_size: int) -> Row:
    """Time a training step of a cell by all engines."""
    rounds = 2 if length * batch_size > FEW_ROUNDS else 7
    sizes = ["--cell", cell, "--hidden-size", HIDDEN_SIZE, "--length", length, "--batch-size", batch_size]
    words = ["bench", *sizes, "--part", "train", "--rounds", rounds, "--json"]
    command = [sys.executable, "-m", "stablernn_cli", *map(str, words)]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    table = document["tables"][0]["rows"]
    times = {row["row"]: row["cpu_ms"] for row in table}
    ratios = {row["row"]: [row["ratio_low"], row["ratio"], row["ratio_high"]] for row in table}
    return {
        "cell": cell,
        "length": length,
        "batch_size": batch_size,
        "cpu_ms": {name: times[name] for name in COLUMNS if name in times},
        # The quartiles of the ratio to the limit of the same round, and its median between them.
        "ratios": {name: ratios[name] for name in COLUMNS if name in times},
        "conditions": document["conditions"],
    }


def format_table(rows: list[Row]) -> str:
    """Return a Markdown table of milliseconds, and how many times as fast as the loop the faster engine is."""
    lines = [
        f"| cell | steps | sequences | {' | '.join(f'`{name}`' if 'nn' in name else name for name in COLUMNS)} "
        "| faster than the loop |",
        "|---" * (4 + len(COLUMNS)) + "|",
    ]
    for row in rows:
        times = row["cpu_ms"]
        # Short sequences are no work for shooting.
        fast = [times[name] for name in ("engine scan", "engine shooting") if name in times]
        cells = [_format_time(times.get(name)) for name in COLUMNS]
        speed = f"{times['engine loop'] / min(fast):.1f} times" if fast else "-"
        lines.append(f"| `{row['cell']}` | {row['length']:,} | {row['batch_size']} | {' | '.join(cells)} | {speed} |")
    return "\n".join(lines)


def _format_time(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    arguments = parser.parse_args()
    rows: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    known = {(row["cell"], row["length"], row["batch_size"]) for row in rows}
    for size in () if arguments.table else product(CELLS, LENGTHS, BATCH_SIZES):
        _, length, batch_size = size
        if size in known or (batch_size > 1 and length > LONGEST_OF_EIGHT):
            continue
        rows.append(measure(*size))
        rows.sort(key=lambda row: (CELLS.index(row["cell"]), row["length"], row["batch_size"]))
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(format_table(rows))


if __name__ == "__main__":
    main()
