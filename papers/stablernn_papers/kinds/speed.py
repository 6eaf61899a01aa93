"""Tables of the time of a training epoch, by engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stablernn.engines import select_engine
from stablernn.errors import ConfigError, UnknownNameError
from stablernn.nn.models import Classifier
from stablernn.training.loop.device import torch_settings
from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import MeasuredKind, Request
from stablernn_papers.table import Row

_CLASSES = 10
_TRAINING_IMAGES = 55_000
_TORCH = "torch"
"""Engine of the rows that are torch's own layer instead of a cell of this library."""

Step = Callable[[], None]


class SpeedKind(MeasuredKind):
    """Processor time of training steps; all rows are timed in turn, so that a busy machine slows each of them.

    Rows that were measured stay as they are; a row whose engine is missing is measured once it is there.
    """

    def measure(self, request: Request, runs: list[Run]) -> list[tuple[Run, dict[str, Any]]]:
        options = request.rules.options
        with torch_settings(torch.device("cpu"), seed=0, threads=1):
            models = {run.path: model for run in runs if (model := _build(run.row)) is not None}
            if not models:
                return []
            # A ratio needs the reference in the same rounds, also where an earlier call measured it.
            references = [run for run in request.runs if run.row.options["engine"] == _TORCH]
            models |= {run.path: model for run in references if (model := _build(run.row)) is not None}
            x = torch.rand(options["batch_size"], options["time_steps"], 1)
            y = torch.randint(_CLASSES, (len(x),))
            steps = {path: _training_step(model, x, y) for path, model in models.items()}
            for step in steps.values():
                step()
            times: dict[Any, list[float]] = {path: [] for path in steps}
            for _ in range(options["rounds"]):
                for path, step in steps.items():
                    start = time.thread_time()
                    step()
                    times[path].append(time.thread_time() - start)
        reference = next((times[run.path] for run in references), None)
        epoch_steps = -(-_TRAINING_IMAGES // len(x))
        return [
            (run, _document(models[run.path], run.row.hidden_size, times[run.path], reference, epoch_steps))
            for run in runs
            if run.path in times
        ]


def _build(row: Row) -> nn.Module | None:
    """Return the model of a row; None if its engine is missing or cannot run the cell."""
    engine = row.options["engine"]
    assert row.hidden_size is not None
    if engine == _TORCH:
        return _TorchClassifier(row.hidden_size)
    model = Classifier(row.cell, 1, _CLASSES, row.hidden_size, preset="paper", scaling="none")
    try:
        select_engine(engine, model.rnn.cells[0], torch.zeros(1))
    except (ConfigError, UnknownNameError):
        return None
    model.rnn.use_engine(engine)
    return model


class _TorchClassifier(nn.Module):
    """Torch's own LSTM with a linear classifier on its last output."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(1, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(x)[0][:, -1])
        return logits


def _training_step(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _document(
    model: nn.Module, hidden_size: int | None, times: list[float], reference: list[float] | None, epoch_steps: int
) -> dict[str, Any]:
    median = statistics.median(times)
    ratios = None if reference is None else [seconds / other for seconds, other in zip(times, reference, strict=True)]
    return {
        "hidden_size": hidden_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": sum(times),
        "step_seconds": times,
        "figures": {
            "epoch_seconds": median * epoch_steps,
            "step_milliseconds": 1000 * median,
            "ratio_to_torch_lstm": None if ratios is None else statistics.median(ratios),
        },
    }
