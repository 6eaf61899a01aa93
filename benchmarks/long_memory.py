"""Long memory by real training: the copy task over 100 blanks and the adding task over 200 steps.

    python benchmarks/long_memory.py --jobs 2
    python benchmarks/long_memory.py --page

The first line trains every row of ``SETTINGS`` with each seed, one thread a run, and writes
``benchmarks/results/long_memory.json``; the second writes ``docs/long_memory.md`` and its images from that file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from harness import given_command
from long_memory_page import write_page
from long_memory_settings import EVALUATE_EVERY, HELD_OUT, HELD_OUT_SEED, SETTINGS, SHARE, SYMBOLS, TASKS, Settings

if TYPE_CHECKING:
    from torch import Tensor

RESULTS = Path(__file__).parent / "results" / "long_memory.json"


def copy_tensors(size: int, random: Any) -> tuple[Tensor, Tensor]:
    """Sequences of the library's copy task, one-hot, and the classes to be answered."""
    import torch

    from stablernn_papers.datasets.memory import copy_batch

    task = TASKS["copy"]
    read, said = (torch.from_numpy(array) for array in copy_batch(size, task.delay, random))
    return torch.nn.functional.one_hot(read, task.input_size).float(), said


def adding_tensors(size: int, random: Any) -> tuple[Tensor, Tensor]:
    """Sequences of the library's adding task, and the sums."""
    import torch

    from stablernn_papers.datasets.memory import adding_batch

    x, sums = adding_batch(size, TASKS["adding"].delay, random)
    return torch.from_numpy(x), torch.from_numpy(sums)


class Network:
    """One recurrent layer with a linear decoder, and the optimizer of both."""

    def __init__(self, task: str, cell: str, settings: Settings) -> None:
        import torch

        from stablernn import StableRNN

        self.is_copy = task == "copy"
        self.settings = settings
        self.layer = StableRNN(cell, TASKS[task].input_size, settings.hidden, engine="auto", **settings.options)
        with torch.no_grad():
            self.layer.cells[0].get_parameter("weight_ih").mul_(settings.input_gain)
        self.decoder = torch.nn.Linear(self.layer.output_size, TASKS[task].classes)
        self.parameters = [*self.layer.parameters(), *self.decoder.parameters()]
        groups = self.layer.parameter_groups()
        per_group = [
            {"params": [*groups["other"], *self.decoder.parameters()], "lr": settings.lr},
            {"params": list(groups["orthogonal"]), "lr": settings.lr_orthogonal},
        ]
        per_group = [group for group in per_group if group["params"]]
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(per_group) if settings.optimizer == "adam" else torch.optim.RMSprop(per_group, alpha=0.9)
        )

    def loss(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the logits ``(batch, time, classes)`` of the copy task or the sums ``(batch, 1)``."""
        import torch

        output, _ = self.layer(x)
        if self.is_copy:
            logits = self.decoder(output)
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()), logits
        prediction = self.decoder(output[:, -1])
        return torch.nn.functional.mse_loss(prediction, target), prediction

    def evaluate(self, x: Tensor, target: Tensor) -> tuple[float, float | None]:
        """The held-out loss and, on the copy task, the share of the ten symbols that are right."""
        import torch

        self.layer.eval()
        with torch.no_grad():
            loss, answer = self.loss(x, target)
        self.layer.train()
        if not self.is_copy:
            return float(loss), None
        right = answer[:, -SYMBOLS:].argmax(dim=2) == target[:, -SYMBOLS:]
        return float(loss), float(right.float().mean())

    def optimize(self, x: Tensor, target: Tensor, step: int, steps: int) -> None:
        """Take one step of the optimizer; ``step`` counts from 1."""
        import torch

        loss, _ = self.loss(x, target)
        penalty = self.layer.penalty()
        self.optimizer.zero_grad()
        (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.optimizer.step()
        with torch.no_grad():
            self.layer.after_step(step, steps)


def train(row: dict[str, Any]) -> dict[str, Any]:
    """Train one row; fresh random sequences at every iteration, a loss on 500 held-out ones every 100."""
    import torch

    torch.set_num_threads(1)
    task, settings = TASKS[row["task"]], Settings(**row["settings"])
    draw = copy_tensors if row["task"] == "copy" else adding_tensors
    held_out = draw(HELD_OUT, np.random.RandomState(HELD_OUT_SEED))
    random = np.random.RandomState(row["seed"])
    torch.manual_seed(row["seed"])
    network = Network(row["task"], row["cell"], settings)
    goal = SHARE * task.baseline
    curve: list[tuple[int, float]] = []
    accuracy = None
    reached = None
    started = time.perf_counter()
    for step in range(row["iterations"] + 1):
        if step % EVALUATE_EVERY == 0:
            loss, accuracy = network.evaluate(*held_out)
            curve.append((step, loss))
            _report(row, step, loss / task.baseline, accuracy, time.perf_counter() - started)
            if not math.isfinite(loss):
                break
            if len(curve) > 1 and loss < goal and curve[-2][1] < goal:
                reached = curve[-2][0]
                break
        if step == row["iterations"]:
            break
        network.optimize(*draw(settings.batch, random), step + 1, row["iterations"])
    finite = [loss for _, loss in curve if math.isfinite(loss)]
    return {
        **row,
        "random": "numpy",
        "parameters": sum(parameter.numel() for parameter in network.parameters),
        "reached": reached,
        "best_ratio": min(finite) / task.baseline,
        "accuracy": accuracy,
        "seconds": round(time.perf_counter() - started, 1),
        "curve": [(step, loss if math.isfinite(loss) else None) for step, loss in curve],
    }


def _report(row: dict[str, Any], step: int, ratio: float, accuracy: float | None, seconds: float) -> None:
    right = "" if accuracy is None else f"  last ten right {accuracy:.3f}"
    print(
        f"{row['task']:7}{row['cell']:9}seed {row['seed']} {step:6} "
        f" {ratio:.4f} of the baseline{right}  {seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def rows_of(
    tasks: list[str], cells: list[str] | None, seeds: list[int], iterations: int | None
) -> list[dict[str, Any]]:
    """One row for each training run."""
    return [
        {
            "task": task,
            "cell": cell,
            "seed": seed,
            "iterations": iterations or TASKS[task].iterations,
            "settings": asdict(settings),
        }
        for (task, cell), settings in SETTINGS.items()
        if task in tasks and (cells is None or cell in cells)
        for seed in seeds
    ]


def _key(row: dict[str, Any]) -> tuple[int, int, int]:
    """The order of ``SETTINGS``."""
    place = list(SETTINGS).index((row["task"], row["cell"]))
    return list(TASKS).index(row["task"]), place, row["seed"]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    names = [platform.processor() or platform.machine()]
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")] or names
    return {
        "processor": names[0],
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": version("torch"),
        "python": platform.python_version(),
        "threads": 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), action="append", help="this task only; default: both")
    parser.add_argument("--cells", help="these cells only, as a,b,c; rows of other cells in the file are kept")
    parser.add_argument("--iterations", type=int, help="default: 4,000 for copy and 6,000 for adding")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument(
        "--page", action="store_true", help="train nothing; write the page and its images from the file"
    )
    arguments = parser.parse_args()
    if arguments.page:
        write_page(json.loads(arguments.output.read_text(encoding="utf-8")))
        return
    cells = arguments.cells.split(",") if arguments.cells else None
    wanted = rows_of(arguments.task or list(TASKS), cells, arguments.seeds, arguments.iterations)
    known = {row["cell"] for row in wanted}
    if not wanted or (cells and set(cells) - known):
        parser.error(f"no settings for {', '.join(sorted(set(cells or []) - known)) or 'that'}; see SETTINGS")
    kept = []
    if arguments.output.is_file():
        again = {(row["task"], row["cell"], row["seed"]) for row in wanted}
        rows = json.loads(arguments.output.read_text(encoding="utf-8"))["runs"]
        kept = [
            row
            for row in rows
            if (row["task"], row["cell"]) in SETTINGS and (row["task"], row["cell"], row["seed"]) not in again
        ]
    command = given_command({"--output": "FILE"})
    # A fresh interpreter for each worker: torch must not have started threads before the fork.
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        done = [{**row, "command": command, **machine()} for row in pool.map(train, wanted)]
    arguments.output.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in sorted(kept + done, key=_key))
    arguments.output.write_text(f'{{"runs": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
