"""Time of a training step by engine, of inference and of one streamed step, beside the limit and the peers.

    python benchmarks/speed.py --short         # one row a table, 3 minutes
    python benchmarks/speed.py                 # the whole grid; goes on where it was stopped
    python benchmarks/speed.py --only lengths  # the tables whose name begins so
    python benchmarks/speed.py --page          # writes docs/speed.md from the results

A step is forward, backward and Adam, of one recurrent layer with a linear classifier on the last state, one input
feature, float32, one thread. All rows of a table are timed in turn, round after round, so that a slow moment of the
machine falls on each of them; what is compared is the ratio to the limit of the same rounds. The limit of a step is
the time of its matrix products alone, at their own shapes and without anything in between: h K^T and g K for each
time step, and one product for the gradient of K; twice that for a cell with two matrices. Denormal numbers are
flushed to zero for everybody: with them the backward pass of nn.LSTM is several times slower, that of the cells here
is not.

The tables ``inference`` are whole sequences through ``sequence.onnx``, with the runtime's settings, and the tables
``step`` a thousand steps of one stream through ``step.onnx``, so that their milliseconds are microseconds of a step.
Their limit is the products of the forward pass. JAX runs in a process of its own, between the other rows of each
round; ``STABLERNN_BENCH_JAX`` names its folder where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from speed_inference import Times, inference_table, step_table
from torch import Tensor, nn

import stablernn as srn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "speed.json"
PAGE = ROOT / "docs" / "speed.md"
CLASSES = 10
ROUNDS = 9
INFERENCE_ROUNDS = 15
"""A run takes a few milliseconds, so that a slow moment of the machine weighs more."""
MATRICES = {"lipschitz": 2, "lipschitz_rk2": 4}
"""Matrix products with the state in a step, where there is more than one."""

Step = Callable[[], object]
Table = tuple[str, dict[str, Any], Callable[..., dict[str, Step]]]


class HandWritten(nn.Module):
    """The loop that anyone would write by hand, of the cells ``antisymmetric`` and ``lipschitz``."""

    def __init__(self, cell: str, hidden: int) -> None:
        super().__init__()
        self.cell = srn.StableRNN(cell, 1, hidden).cells[0]

    def forward(self, x: Tensor) -> Tensor:
        form = self.cell.step_form(self.cell.materialize())
        assert form is not None
        projected = self.cell.drive(x)
        h = x.new_zeros(len(x), self.cell.hidden_size)
        for step in range(x.shape[1]):
            velocity = torch.tanh(nn.functional.linear(h, form.recurrent) + projected[:, step])
            if form.linear is not None:
                velocity = velocity + nn.functional.linear(h, form.linear)
            h = h + form.step_size * velocity
        return h


class Layer(nn.Module):
    """A layer whose last state is the result: ours or torch's."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.layer(x)
        last: Tensor = state[0] if isinstance(state, tuple) else state
        return last[-1]


class Ours(nn.Module):
    """A layer of a cell; only the last output is computed, as by a model with the readout ``last``."""

    def __init__(self, cell: str, hidden: int, engine: str, num_layers: int = 1, max_dt: float | None = None) -> None:
        super().__init__()
        self.rnn = srn.StableRNN(cell, 1, hidden, num_layers, engine=engine, max_dt=max_dt)

    def forward(self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None) -> Tensor:
        _, state = self.rnn.run(x, self.rnn.initial_state(len(x)), lengths, dt, every_output=False)
        return state[-1]


def training_step(model: nn.Module, hidden: int, x: Tensor, **inputs: Tensor) -> Step:
    """Return a function that trains the model by one minibatch."""
    head = nn.Linear(hidden, CLASSES)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    labels = torch.randint(0, CLASSES, (len(x),))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(model(x, **inputs)), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def limit(batch: int, time_steps: int, hidden: int, matrices: int = 1) -> Step:
    """Return the matrix products of a training step alone."""
    state, matrix = torch.randn(batch, hidden), torch.randn(hidden, hidden)
    states, out, gradient = (
        torch.randn(time_steps * batch, hidden),
        torch.empty(batch, hidden),
        torch.empty(hidden, hidden),
    )

    def step() -> None:
        for _ in range(matrices):
            for _ in range(2 * time_steps):
                torch.mm(state, matrix, out=out)
            torch.mm(states.t(), states, out=gradient)

    return step


def train_table(cell: str, batch: int, time_steps: int, hidden: int) -> dict[str, Step]:
    """Return the rows of a table: equal lengths."""
    x = torch.randn(batch, time_steps, 1)
    rows: dict[str, Step] = {"limit": limit(batch, time_steps, hidden, MATRICES.get(cell, 1))}
    for engine in srn_engines(cell):
        rows[f"engine {engine}"] = training_step(Ours(cell, hidden, engine), hidden, x)
    if cell in ("antisymmetric", "lipschitz"):
        rows["hand-written loop"] = training_step(HandWritten(cell, hidden), hidden, x)
    for peer in (nn.LSTM, nn.GRU, nn.RNN):
        rows[f"nn.{peer.__name__}"] = training_step(Layer(peer(1, hidden, batch_first=True)), hidden, x)
    return rows


def lengths_table(cell: str, batch: int, time_steps: int, hidden: int) -> dict[str, Step]:
    """Return the rows of a table: full and mixed lengths, uniform from 1 on, and irregular steps."""
    x, generator = torch.randn(batch, time_steps, 1), torch.Generator().manual_seed(0)
    lengths = torch.randint(1, time_steps + 1, (batch,), generator=generator)
    rows: dict[str, Step] = {"limit": limit(batch, time_steps, hidden, MATRICES.get(cell, 1))}
    for engine in srn_engines(cell):
        model = Ours(cell, hidden, engine, max_dt=1.0)
        rows[f"engine {engine}"] = training_step(Ours(cell, hidden, engine), hidden, x)
        rows[f"engine {engine}, mixed lengths"] = training_step(Ours(cell, hidden, engine), hidden, x, lengths=lengths)
        rows[f"engine {engine}, dt"] = training_step(model, hidden, x, dt=torch.rand(batch, time_steps))
    return rows


def srn_engines(cell: str) -> list[str]:
    """Return the engines that run a cell."""
    from stablernn.engines import list_engines

    known = srn.StableRNN(cell, 1, 2).cells[0]
    return [name for name in list_engines() if name == "loop" or known.has_step_form]


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
        sizes = {"cell": cell, "hidden": 128, "matrices": MATRICES.get(cell, 1), "step_size": step_size}
        for batch in (1,) if short else (1, 32, 128):
            name = f"inference {label} B={batch} T=784 N=128"
            yield name, {**sizes, "batch": batch, "time_steps": 784}, inference_table
        yield f"step {label} B=1 N=128", sizes, step_table


def measure(rows: dict[str, Step], rounds: int, *, is_warmed: bool = False) -> dict[str, dict[str, float]]:
    """Return the median times of each row in milliseconds, and the median and quartiles of its ratio to the limit.

    Args:
        rows: By name, with one of the name ``limit``.
        rounds: How often each row is timed.
        is_warmed: Whether each row runs once before it is timed: a run of a millisecond depends on what the row before
            it left in the caches.
    """
    for step in rows.values():
        step()
    cpu: dict[str, list[float]] = {name: [] for name in rows}
    wall: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, step in rows.items():
            if is_warmed:
                step()
            started, started_cpu = time.perf_counter(), time.process_time()
            result = step()
            times = Times(1e3 * (time.perf_counter() - started), 1e3 * (time.process_time() - started_cpu))
            if isinstance(result, Times):
                # Of a row in another process.
                times = result
            wall[name].append(times.wall_ms)
            cpu[name].append(times.cpu_ms)
    result = {}
    for name, times in cpu.items():
        ratios = [value / reference for value, reference in zip(times, cpu["limit"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        result[name] = {
            "cpu_ms": round(statistics.median(times), 3),
            "wall_ms": round(statistics.median(wall[name]), 3),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_low": round(low, 3),
            "ratio_high": round(high, 3),
        }
    return result


def conditions() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "denormals": "flushed",
        "rounds": ROUNDS,
        "inference_rounds": INFERENCE_ROUNDS,
    }


def run(short: bool, only: str | None) -> None:
    stored: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() and not short else {"tables": {}}
    stored["conditions"] = conditions()
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
    torch.set_num_threads(1)
    if not torch.set_flush_denormal(True):
        raise SystemExit("This processor cannot flush denormal numbers, without which the rows do not compare.")
    run(arguments.short, arguments.only)


if __name__ == "__main__":
    main()
