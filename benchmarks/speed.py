"""Time of a training step by engine, of inference and of one streamed step, beside the limit and the peers.

    python benchmarks/speed.py --short         # one row a table, 3 minutes
    python benchmarks/speed.py                 # the whole grid; goes on where it was stopped
    python benchmarks/speed.py --only lengths  # the tables whose name begins so
    python benchmarks/speed.py --page          # writes docs/speed.md from the results

``stablernn bench`` measures the same rows at sizes of your own.

A step is forward, backward and Adam, of one recurrent layer with a linear classifier on the last state, one input
feature, float32, one thread. All rows of a table are timed in turn, round after round, so that a slow moment of the
machine falls on each of them; what is compared is the ratio to the limit of the same rounds. The limit of a step is
the time of its matrix products alone, at their own shapes and without anything in between: h K^T and g K for each
time step, and one product for the gradient of K; twice that for a cell with two matrices, four times for two matrices
in two stages. Denormal numbers are flushed to zero for everybody: with them the backward pass of nn.LSTM is several
times slower, that of the cells here is not.

The tables ``inference`` are whole sequences through ``sequence.onnx``, with the runtime's settings, and the tables
``step`` a thousand steps of one stream through ``step.onnx``, so that their milliseconds are microseconds of a step.
Their limit is the products of the forward pass. JAX runs in a process of its own, between the other rows of each
round; ``STABLERNN_BENCH_JAX`` names its folder where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from speed_inference import inference_table, step_table

import stablernn as srn
from stablernn_cli.bench.limit import Sizes, training_limit
from stablernn_cli.bench.timing import LIMIT, Run, conditions, measure, pinned
from stablernn_cli.bench.training import EnsembleState, supported_engines, training_rows, training_step

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "speed.json"
PAGE = ROOT / "docs" / "speed.md"
ROUNDS = 9
INFERENCE_ROUNDS = 15
"""A run takes a few milliseconds, so that a slow moment of the machine weighs more."""

Table = tuple[str, dict[str, Any], Callable[..., dict[str, Run]]]


def train_table(cell: str, batch: int, time_steps: int, hidden: int) -> dict[str, Run]:
    """Return the rows of a table: equal lengths."""
    return training_rows(Sizes(cell, hidden, batch, time_steps))


def lengths_table(cell: str, batch: int, time_steps: int, hidden: int) -> dict[str, Run]:
    """Return the rows of a table: full and mixed lengths, uniform from 1 on, and irregular steps."""
    sizes = Sizes(cell, hidden, batch, time_steps)
    x, generator = torch.randn(batch, time_steps, 1), torch.Generator().manual_seed(0)
    lengths = torch.randint(1, time_steps + 1, (batch,), generator=generator)
    rows: dict[str, Run] = {LIMIT: training_limit(sizes)}
    for engine in supported_engines(sizes, timed=True):
        timed = EnsembleState(sizes, engine, max_dt=1.0)
        rows[f"engine {engine}"] = training_step(EnsembleState(sizes, engine), x)
        rows[f"engine {engine}, mixed lengths"] = training_step(EnsembleState(sizes, engine), x, lengths=lengths)
        rows[f"engine {engine}, dt"] = training_step(timed, x, dt=torch.rand(batch, time_steps))
    return rows


def tables(short: bool) -> Iterator[Table]:
    """Yield name, sizes and rows of each table."""
    families = (
        ("antisymmetric",) if short else ("antisymmetric", "lipschitz", "lipschitz_rk2", "antisymmetric_g", "rnn")
    )
    for cell in families:
        for batch in (128,) if short else (1, 32, 128):
            for hidden in (128,) if short else (32, 128, 256):
                for time_steps in (784,) if short else (64, 784):
                    sizes = {"cell": cell, "batch": batch, "time_steps": time_steps, "hidden": hidden}
                    yield f"train {cell} B={batch} T={time_steps} N={hidden}", sizes, train_table
    for cell in ("antisymmetric",) if short else ("antisymmetric", "lipschitz"):
        sizes = {"cell": cell, "batch": 128, "time_steps": 784, "hidden": 128}
        yield f"lengths {cell} B=128 T=784 N=128", sizes, lengths_table
    yield from inference_tables(short)
    if not short:
        for cell in srn.list_cells():
            sizes = {"cell": cell, "batch": 32, "time_steps": 128, "hidden": 64}
            yield f"cells {cell} B=32 T=128 N=64", sizes, train_table


def inference_tables(short: bool) -> Iterator[Table]:
    """Yield the tables of inference: with the cells' own step sizes, and with one that is a power of two."""
    cells: tuple[tuple[str, float | None], ...] = (("antisymmetric", None),)
    if not short:
        cells = (*cells, ("antisymmetric", 0.25), ("lipschitz", None), ("lipschitz", 0.3))
    for cell, step_size in cells:
        label = cell if step_size is None else f"{cell} step_size={step_size}"
        sizes = {"cell": cell, "hidden": 128, "step_size": step_size}
        for batch in (1,) if short else (1, 32, 128):
            name = f"inference {label} B={batch} T=784 N=128"
            yield name, {**sizes, "batch": batch, "time_steps": 784}, inference_table
        yield f"step {label} B=1 N=128", sizes, step_table


def run(short: bool, only: str | None) -> None:
    stored: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() and not short else {"tables": {}}
    stored["conditions"] = {
        **conditions(is_flushed=True),
        "rounds": ROUNDS,
        "inference_rounds": INFERENCE_ROUNDS,
    }
    for name, sizes, make in tables(short):
        if (only and not name.startswith(only)) or (not only and name in stored["tables"]):
            continue
        torch.manual_seed(0)
        is_inference = name.startswith(("inference", "step"))
        rounds = INFERENCE_ROUNDS if is_inference else ROUNDS
        stored["tables"][name] = {"sizes": sizes, "rows": measure(make(**sizes), rounds, is_warmed=is_inference)}
        print(name, file=sys.stderr, flush=True)
        for row, figures in stored["tables"][name]["rows"].items():
            print(f"  {row:32}{figures['cpu_ms']:10.1f} ms{figures['ratio']:8.2f}", file=sys.stderr)
        if not short:
            RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    if short:
        print(json.dumps(stored, indent=1))


def page() -> str:
    """Return docs/speed.md."""
    stored = json.loads(RESULTS.read_text())
    facts = stored["conditions"]
    lines = [
        "# Speed",
        "",
        "Written by `python benchmarks/speed.py --page` from `benchmarks/results/speed.json`; do not edit. "
        "`python benchmarks/speed.py` measures.",
        "",
        *[line.replace("``", "`") for line in (__doc__ or "").strip().split("\n\n", 2)[2].splitlines()],
        "",
        f"{facts['date']}, {facts['machine']}, {facts['cores']} shared cores, {facts['threads']} thread, "
        f"torch {facts['torch']} ({facts['cpu_capability']}), medians of {facts['rounds']} rounds "
        f"({facts['inference_rounds']} of inference). A ratio is the processor time of a step over that of its limit "
        "in the same round; between brackets its quartiles.",
        "",
        "T time steps, B sequences in a minibatch, N units.",
    ]
    for name, table in stored["tables"].items():
        lines += ["", f"## {name}", "", "| | ms | ratio |", "| --- | --- | --- |"]
        for row, figures in table["rows"].items():
            spread = f" ({figures['ratio_low']:.2f} to {figures['ratio_high']:.2f})"
            lines.append(f"| {row} | {figures['cpu_ms']:.1f} | {figures['ratio']:.2f}{spread} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one row a table, printed and not stored")
    parser.add_argument("--only", help="only tables whose name begins so, measured again")
    parser.add_argument("--page", action="store_true", help="write docs/speed.md from the results")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    with pinned(threads=1) as is_flushed:
        if not is_flushed:
            raise SystemExit("This processor cannot flush denormal numbers, without which the rows do not compare.")
        run(arguments.short, arguments.only)


if __name__ == "__main__":
    main()
