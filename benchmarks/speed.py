"""Time training steps, inference and streamed steps, beside a lower limit and beside other implementations.

    pip install -e '.[bench]' && make native     # JAX and torchrecurrent; the compiled engine
    python benchmarks/speed.py --short           # one table of each kind, in minutes, printed and not stored
    python benchmarks/speed.py                   # all tables; continues where it was stopped
    python benchmarks/speed.py --only lengths    # only tables whose name begins with this; --again repeats them
    python benchmarks/speed.py --page            # writes docs/speed.md and its plot from the stored results

``stablernn bench`` prints the same rows for sizes of your choice.

A training step is the forward pass, the backward pass and an Adam update of one recurrent layer with a linear
classifier on the last state, in float32, with one input feature and one thread. The rows of a table are timed in turn,
round after round, so that a slow moment of the machine affects all of them, and rows are compared by their ratio to the
limit of the same round. The limit is the time of the matrix products alone: ``h K^T`` and ``g K`` at each time step,
and one product for the gradient of ``K``; twice that for a cell with two matrices, four times that for two matrices and
two stages. Denormal numbers are flushed to zero in every row. Without flushing, the backward pass of ``nn.LSTM`` is
several times slower, and that of the cells here is not.

JAX runs ``lax.scan`` under ``jit``; loss, gradient and Adam are one compiled function. It runs in its own process, and
its rows are timed in the same rounds; set ``STABLERNN_BENCH_JAX`` to its folder if it is installed elsewhere. Its
parameters are the matrices themselves, whereas the cells here compute them from unconstrained parameters in every step.
torchrecurrent has no compiled path and lacks some of the cells. ``nn.LSTM`` takes up to three times as long while the C
allocator maps fresh memory for its workspace in every step, and in a process that also runs other rows this changes
from table to table. The tables ``allocator`` therefore measure it in processes of their own, by default and with memory
that is kept.

Times are processor times, except in the tables ``threads``, which have wall times. Mixed lengths are uniform between 1
and T. In very unequal lengths all sequences but one have a sixteenth of T. Memory is the peak of a process of its own
during two training steps, less what it held before; one state tensor is ``(T, B, N)``.

The tables ``inference`` run whole sequences through ``sequence.onnx`` with the settings of the server. The tables
``step`` run a stream of a thousand steps through ``step.onnx``, so that milliseconds are microseconds per step. Their
limit is the products of the forward pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from speed_grid import Table, tables
from speed_page import write_page

from stablernn.atomic_files import write_bytes
from stablernn.engines import list_engines
from stablernn_cli.bench.timing import conditions, pinned

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "speed.json"


def read_results(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {"tables": {}}


def pending(stored: dict[str, Any], *, only: str, again: bool) -> list[Table]:
    """Return the tables that are still to be measured.

    Args:
        stored: The results so far.
        only: The beginning of their names.
        again: Whether stored tables are measured again.
    """
    chosen = [table for table in tables(short=False) if table.name.startswith(only)]
    if again:
        return chosen
    return [table for table in chosen if stored["tables"].get(table.name, {}).get("revision") != table.revision]


def measured(table: Table, *, is_flushed: bool) -> dict[str, Any]:
    """Measure a table, and return it as it is stored."""
    return {
        "sizes": table.sizes,
        "revision": table.revision,
        "auto": table.auto,
        "conditions": {
            **conditions(is_flushed=is_flushed),
            "engines": list_engines(),
            "clock": table.clock,
            "rounds": table.rounds,
        },
        "rows": table.measure(),
    }


def show(name: str, table: dict[str, Any]) -> None:
    print(name, file=sys.stderr)
    for row, figures in table["rows"].items():
        print(f"  {row:44}" + "".join(f"{key:>16}{value:10.2f}" for key, value in figures.items()), file=sys.stderr)
    sys.stderr.flush()


def run(*, short: bool, only: str, again: bool, is_flushed: bool) -> None:
    if short:
        results: dict[str, Any] = {}
        for table in tables(short=True):
            results[table.name] = measured(table, is_flushed=is_flushed)
            show(table.name, results[table.name])
        print(json.dumps({"tables": results}, indent=1))
        return
    stored = read_results(RESULTS)
    waiting = pending(stored, only=only, again=again)
    for number, table in enumerate(waiting, start=1):
        print(f"{number} of {len(waiting)}: ", end="", file=sys.stderr)
        stored["tables"][table.name] = measured(table, is_flushed=is_flushed)
        show(table.name, stored["tables"][table.name])
        # After each table, so that the run can be stopped at any time.
        write_bytes(RESULTS, (json.dumps(stored, indent=1) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one table of each kind, printed and not stored")
    parser.add_argument("--only", default="", help="only tables whose name begins with this")
    parser.add_argument("--again", action="store_true", help="repeat tables that are stored already")
    parser.add_argument("--page", action="store_true", help="write docs/speed.md from the results")
    arguments = parser.parse_args()
    if arguments.page:
        write_page(read_results(RESULTS), (__doc__ or "").strip().split("\n\n", 2)[2])
        return
    with pinned(threads=1) as is_flushed:
        if not is_flushed:
            raise SystemExit("This processor cannot flush denormal numbers, without which the rows do not compare.")
        run(short=arguments.short, only=arguments.only, again=arguments.again, is_flushed=is_flushed)


if __name__ == "__main__":
    main()
