"""Data, settings and trainers of the task 'predict-next'."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stablernn.data.step_data import Output, StepData, StoredSteps
from stablernn.training import load_config
from stablernn.training.build import create_model
from stablernn.training.loop.losses import PredictNextObjective
from stablernn.training.loop.minibatches import SegmentMinibatches
from stablernn.training.loop.trainer import Trainer
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import Config, TrainingConfig
from stablernn.training.tasks import task_for
from stablernn.training.tasks.predict_next import StepScorer

CPU = torch.device("cpu")
LETTERS = tuple("abcd")


def text(length: int, *, seed: int = 0, period: int | None = None) -> StoredSteps:
    tokens = np.random.default_rng(seed).integers(4, size=length).astype(np.uint8)
    if period is not None:
        tokens = np.resize(tokens[:period], length)
    return StoredSteps([tokens[:-1]], [tokens[1:]])


def running(length: int = 200, **given: Any) -> StepData:
    split = [text(length, seed=seed, **given) for seed in range(3)]
    return StepData(
        "letters", "categorical", True, LETTERS, LETTERS, *split, continuous=True, headline="bpc", notes={},
        fingerprint="sha256:0",
    )  # fmt: skip


def frames(lengths: tuple[int, ...] = (7, 3, 5, 7, 1), output: Output = "real", seed: int = 0) -> StepData:
    random = np.random.default_rng(seed)

    def split() -> StoredSteps:
        inputs = [random.normal(2.0, 1.0, (length, 2)).astype(np.float32) for length in lengths]
        if output == "categorical":
            targets = [random.integers(3, size=length) for length in lengths]
        elif output == "bernoulli":
            targets = [(random.random((length, 3)) < 0.3).astype(np.float32) for length in lengths]
        else:
            targets = [np.concatenate([x[1:], np.full((1, 2), np.nan, np.float32)]) for x in inputs]
        return StoredSteps(inputs, targets)

    names = ("left", "right") if output == "real" else ("x", "y", "z")
    headline = "mse" if output == "real" else "nll"
    return StepData(
        "frames", output, False, ("left", "right"), names, split(), split(), split(), continuous=False,
        headline=headline, notes={}, fingerprint="sha256:0",
    )  # fmt: skip


def settings(*overrides: str, cell: str = "lstm") -> Config:
    return load_config(overrides=["data.source=x", f"model.cell={cell}", "model.hidden_size=6", *overrides])


class Recorder:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def record(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def save(self, name: str, checkpoint: object) -> None:
        pass


def trainer(data: StepData, **given: Any) -> tuple[Trainer, Recorder]:
    config = {
        "batch_size": 4, "lr": 0.01, "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant", "bptt_steps": 5,
        "epochs": 2, **given,
    }  # fmt: skip
    torch.manual_seed(3)
    model = create_model(resolve(settings(), task_for(data)), data)
    chosen = TrainingConfig.model_validate(config)
    minibatches = SegmentMinibatches(
        data.train, chosen.batch_size or 0, chosen.bptt_steps or 0, continuous=data.continuous, device=CPU
    )
    recorder = Recorder()
    return Trainer(
        model, minibatches, PredictNextObjective(data.headline), StepScorer(data, "validation"), chosen, recorder
    ), recorder
