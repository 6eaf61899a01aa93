"""Long memory by real training: the copy task over 100 blanks and the adding task over 200 steps.

    python benchmarks/long_memory.py --jobs 2
    python benchmarks/long_memory.py --page

The first line trains every row of ``SETTINGS`` with each seed, one thread a run, and writes
``benchmarks/results/long_memory.json``; the second writes the tables and images of ``benchmarks/long_memory.md`` from
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import torch
from harness import Row, log, read_results, stored, table, write_results
from torch import Tensor, nn
from torch.nn import functional as F

from stablernn import StableRNN
from stablernn_papers.datasets.memory import ADDING_BASELINE, adding_batch, copy_baseline, copy_batch

STORED = stored("long_memory")
EVALUATE_EVERY = 100
HELD_OUT, HELD_OUT_SEED = 500, 1_000_003
SHARE = 0.1
"""Part of the memoryless baseline at which a run has reached its goal."""
SYMBOLS = 10


class Task(NamedTuple):
    """What is learnt, and for how long.

    Attributes:
        length: T of the copy task; the length of an adding sequence.
        input_size: Features.
        outputs: Classes, or numbers.
        baseline: Loss of the best answer that remembers nothing.
        iterations: Updates at most.
        label: Name of the loss.
        draw: Draws sequences and what is to be answered.
    """

    length: int
    input_size: int
    outputs: int
    baseline: float
    iterations: int
    label: str
    draw: Callable[..., tuple[Any, Any]]


TASKS = {
    "copy": Task(100, 10, 9, copy_baseline(100), 4000, "cross entropy, held out", copy_batch),
    "adding": Task(200, 2, 1, ADDING_BASELINE, 6000, "mean squared error, held out", adding_batch),
}


@dataclass(frozen=True)
class Settings:
    """One row of the table.

    Attributes:
        hidden: Units.
        optimizer: ``rmsprop`` (alpha .9) or ``adam``, constant learning rates.
        lr: Learning rate.
        lr_orthogonal: That of the parameters of orthogonal and unitary matrices.
        batch: Sequences of an update.
        clip: Norm at which the gradient is cut, 0 = never.
        options: Of the cell, beside its ``practical`` preset.
        input_gain: What the cell's first input weights are multiplied by.
        source: Where the settings come from.
    """

    hidden: int
    optimizer: str
    lr: float
    lr_orthogonal: float
    batch: int
    clip: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    input_gain: float = 1.0
    source: str = "ours"


MODRELU = {"nonlinearity": "modrelu"}
PAPER = {"source": "paper's code"}
SETTINGS: dict[tuple[str, str], Settings] = {
    ("copy", "exprnn"): Settings(190, "rmsprop", 2e-4, 2e-5, 128, options={"init": "henaff", **MODRELU}, **PAPER),
    ("copy", "scornn"): Settings(190, "rmsprop", 1e-3, 1e-4, 20, options={"negative_signs": 95, **MODRELU}, **PAPER),
    ("copy", "lvf_mid"): Settings(128, "rmsprop", 1e-3, 2e-6, 20, options={"step_size": 60.0}),
    ("copy", "urnn"): Settings(128, "rmsprop", 1e-3, 1e-3, 20, options=MODRELU, **PAPER),
    ("copy", "eunn"): Settings(128, "rmsprop", 1e-3, 1e-3, 20, options={"capacity": 4, "input_scale": 0.01, **MODRELU}),
    ("copy", "rnn"): Settings(190, "rmsprop", 1e-3, 1e-3, 20, 1.0),
    ("adding", "lstm"): Settings(64, "adam", 1e-2, 1e-2, 50, 1.0, {"forget_bias": 3.0}),
    ("adding", "exprnn"): Settings(128, "adam", 1e-2, 1e-3, 50, 1.0, {"init": "cayley", **MODRELU}),
    ("adding", "cornn"): Settings(
        128, "adam", 5e-3, 5e-3, 50, 1.0, {"step_size": 0.14, "stiffness": 0.3, "damping": 7.0}, input_gain=5.0
    ),
    ("adding", "lem"): Settings(64, "adam", 5e-3, 5e-3, 32, 1.0),
}


class Network(nn.Module):
    """One recurrent layer with a linear decoder, and the optimizer of both."""

    def __init__(self, task: str, cell: str, settings: Settings) -> None:
        super().__init__()
        self.task, self.is_copy, self.settings = TASKS[task], task == "copy", settings
        self.layer = StableRNN(cell, self.task.input_size, settings.hidden, engine="auto", **settings.options)
        with torch.no_grad():
            self.layer.cells[0].get_parameter("weight_ih").mul_(settings.input_gain)
        self.decoder = nn.Linear(self.layer.output_size, self.task.outputs)
        groups = self.layer.parameter_groups()
        per_group = [
            {"params": [*groups["other"], *self.decoder.parameters()], "lr": settings.lr},
            {"params": list(groups["orthogonal"]), "lr": settings.lr_orthogonal},
        ]
        per_group = [group for group in per_group if group["params"]]
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(per_group) if settings.optimizer == "adam" else torch.optim.RMSprop(per_group, alpha=0.9)
        )

    def draw(self, size: int, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
        """Return sequences of the library's task, those of the copy task one-hot, and what is to be answered."""
        x, target = (torch.from_numpy(array) for array in self.task.draw(size, self.task.length, random))
        return F.one_hot(x, self.task.input_size).float() if self.is_copy else x, target

    def loss(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and the logits ``(batch, time, classes)`` of the copy task or the sums ``(batch, 1)``."""
        output, _ = self.layer(x)
        answer: Tensor = self.decoder(output if self.is_copy else output[:, -1])
        if self.is_copy:
            return F.cross_entropy(answer.flatten(0, 1), target.flatten()), answer
        return F.mse_loss(answer, target), answer

    @torch.no_grad()
    def evaluate(self, x: Tensor, target: Tensor) -> tuple[float, float | None]:
        """Return the held-out loss and, on the copy task, the share of the ten symbols that are right."""
        self.eval()
        loss, answer = self.loss(x, target)
        self.train()
        if not self.is_copy:
            return float(loss), None
        right = answer[:, -SYMBOLS:].argmax(dim=2) == target[:, -SYMBOLS:]
        return float(loss), float(right.float().mean())

    def optimize(self, x: Tensor, target: Tensor, step: int, steps: int) -> None:
        """Take one step of the optimizer; ``step`` counts from 1."""
        loss, _ = self.loss(x, target)
        penalty = self.layer.penalty()
        self.optimizer.zero_grad()
        (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.parameters(), self.settings.clip)
        self.optimizer.step()
        with torch.no_grad():
            self.layer.after_step(step, steps)


def train(row: Row) -> Row:
    """Train one row; fresh random sequences at every iteration, a loss on 500 held-out ones every 100."""
    torch.set_num_threads(1)
    torch.manual_seed(row["seed"])
    task, network = TASKS[row["task"]], Network(row["task"], row["cell"], Settings(**row["settings"]))
    held_out = network.draw(HELD_OUT, np.random.RandomState(HELD_OUT_SEED))
    random = np.random.RandomState(row["seed"])
    curve: list[tuple[int, float]] = []
    reached, accuracy, started = None, None, time.perf_counter()
    for step in range(row["iterations"] + 1):
        if step % EVALUATE_EVERY == 0:
            loss, accuracy = network.evaluate(*held_out)
            curve.append((step, loss))
            log(row["task"], row["cell"], row["seed"], step, f"{loss / task.baseline:.4f} of the baseline", accuracy)
            if len(curve) > 1 and max(loss, curve[-2][1]) < SHARE * task.baseline:
                reached = curve[-2][0]
            if reached is not None or not math.isfinite(loss):
                break
        if step < row["iterations"]:
            network.optimize(*network.draw(row["settings"]["batch"], random), step + 1, row["iterations"])
    return {
        **row,
        "random": "numpy",
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "reached": reached,
        "best_ratio": min(loss for _, loss in curve if math.isfinite(loss)) / task.baseline,
        "accuracy": accuracy,
        "seconds": round(time.perf_counter() - started, 1),
        "curve": [(step, loss if math.isfinite(loss) else None) for step, loss in curve],
    }


def results_table(rows: list[Row]) -> str:
    """Return a line for each run of a task."""
    is_copy = rows[0]["task"] == "copy"
    lines = [
        (
            f"`{row['cell']}`",
            row["seed"],
            f"not in {row['iterations']:,}" if row["reached"] is None else f"{row['reached']:,}",
            *(f"{row['best_ratio']:.3f}", f"{row['seconds']:.0f}", f"{row['parameters']:,}"),
            *([f"{100 * row['accuracy']:.1f} %"] if is_copy else []),
        )
        for row in rows
    ]
    header = ("cell", "seed", "iterations to a tenth", "best loss / baseline", "seconds", "parameters")
    return table((*header, *(["last ten right"] if is_copy else [])), lines)


def draw(name: str, rows: list[Row], path: Path) -> None:
    """Draw the loss curves of all runs of one task, as an SVG."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = name
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for row in rows:
        steps, losses = zip(*((step, loss) for step, loss in row["curve"] if loss is not None), strict=True)
        axes.plot(steps, losses, marker="o", markevery=[-1], label=f"{row['cell']}, seed {row['seed']}")
    task = TASKS[name]
    for level, words in ((task.baseline, "memoryless baseline"), (SHARE * task.baseline, "a tenth of it")):
        axes.axhline(level, color="gray", linestyle="--")
        axes.annotate(words, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set(yscale="log", xlabel="iterations", ylabel=task.label)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def write_page(runs: list[Row]) -> None:
    """Write the tables of ``benchmarks/long_memory.md`` and one image for each task."""
    tables = {}
    for task in TASKS:
        rows = [row for row in runs if row["task"] == task]
        tables[task] = results_table(rows)
        draw(task, rows, harness.RESULTS / f"long_memory_{task}.svg")
    harness.print_tables(tables)


def main() -> None:
    parser = harness.page_parser(__doc__, STORED)
    parser.add_argument("--task", choices=list(TASKS), action="append", help="this task only; default: both")
    parser.add_argument("--cells", nargs="+", help="these cells only; rows of other cells in the file are kept")
    parser.add_argument("--iterations", type=int, help="default: 4,000 for copy and 6,000 for adding")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    arguments = parser.parse_args()
    rows = {_key(row): row for row in read_results(arguments.results, {"runs": []})["runs"]}
    if not arguments.page:
        wanted = [
            {"task": task, "cell": cell, "seed": seed, "settings": asdict(settings)}
            | {"iterations": arguments.iterations or TASKS[task].iterations}
            for ((task, cell), settings), seed in product(SETTINGS.items(), arguments.seeds)
            if task in (arguments.task or TASKS) and cell in (arguments.cells or [cell])
        ]
        conditions = harness.conditions("torch")
        # A fresh interpreter for each worker: torch must not have started threads before the fork.
        with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
            for row in pool.map(train, wanted):
                rows[_key(row)] = {**row, **conditions}
                write_results(arguments.results, {"runs": [rows[key] for key in sorted(rows)]})
    if arguments.results == STORED:
        write_page([rows[key] for key in sorted(rows)])


def _key(row: Row) -> tuple[int, int]:
    """Return the order of ``SETTINGS``, and the seed."""
    return list(SETTINGS).index((row["task"], row["cell"])), row["seed"]


if __name__ == "__main__":
    main()
