"""Time of a training step by engine, of inference and of one streamed step, beside the limit and the peers.

    pip install -e '.[bench]' && make native     # JAX and torchrecurrent; the compiled engine
    python benchmarks/speed.py --short           # one table of each kind, 3 minutes, printed
    python benchmarks/speed.py                   # the whole grid; goes on where it was stopped
    python benchmarks/speed.py --only lengths    # the tables whose name begins so; --again measures them again
    python benchmarks/speed.py --page            # writes docs/speed.md and its image from the results

``stablernn bench`` measures the same rows at sizes of your own.

A step is forward, backward and Adam, of one recurrent layer with a linear classifier on the last state, one input
feature, float32, one thread. All rows of a table are timed in turn, round after round, so that a slow moment of the
machine falls on each of them; what is compared is the ratio to the limit of the same rounds. The limit of a step is
the time of its matrix products alone, at their own shapes and without anything in between: h K^T and g K for each
time step, and one product for the gradient of K; twice that for a cell with two matrices, four times for two matrices
in two stages. Denormal numbers are flushed to zero for everybody: with them the backward pass of nn.LSTM is several
times slower, that of the cells here is not.

JAX runs ``lax.scan`` under jit, in training with value, gradient and Adam in one compiled function, in a process of
its own, between the other rows of each round; ``STABLERNN_BENCH_JAX`` names its folder where it is not installed. Its
parameters are the matrices of a step themselves, which the cells here build from free ones. torchrecurrent has no
compiled steps, and not every cell.

Of the tables ``threads`` times are wall times, elsewhere processor times. Mixed lengths are uniform from 1 on; very
unequal ones are a sixteenth of the full length for all sequences but one. Memory is what a process of its own holds
at most during two training steps, beyond what it held before, and a state tensor one number for each time step,
sequence and unit.

The tables ``inference`` are whole sequences through ``sequence.onnx``, with the runtime's settings, and the tables
``step`` a thousand steps of one stream through ``step.onnx``, so that their milliseconds are microseconds of a step.
Their limit is the products of the forward pass.
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
        only: How their names begin.
        again: Whether those are measured again that have their rows already.
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
    parser.add_argument("--only", default="", help="only tables whose name begins so")
    parser.add_argument("--again", action="store_true", help="also measure tables again that are stored")
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
