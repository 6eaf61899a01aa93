"""Rows of published tables at full size, on random data of the shape of their data sets."""

from __future__ import annotations

import numpy as np
import torch

from stablernn.data import ClassificationData
from stablernn.data.named.entry import LazySplit
from stablernn.data.step_data import Data, StepData, StoredSteps
from stablernn.nn.models import SequenceModel
from stablernn.training.build import create_model
from stablernn.training.loop.device import torch_settings
from stablernn.training.loop.trainer import build_optimizer
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate
from stablernn.training.tasks import Task, task_for
from stablernn_papers.table import FULL, DataSet, Row, Table

LENGTH = 32
SEQUENCES = 2
# Inputs and classes of the data sets of sequences.
LABELED = {
    "mnist": (1, 10),
    "pmnist": (1, 10),
    "mnist-rows": (8, 10),
    "digits": (1, 10),
    "cifar10": (3, 10),
    "cifar10-noise-padded": (96, 10),
}
# Inputs, outputs, kind of the outputs, and the metric of the data sets with an answer at every step.
STEPWISE = {
    "copy": (10, 9, "categorical", "loss"),
    "ptb-char": (50, 50, "categorical", "bpc"),
    "ptb-word": (10_000, 10_000, "categorical", "perplexity"),
    "jsb": (88, 88, "bernoulli", "nll"),
    "musedata": (88, 88, "bernoulli", "nll"),
    "timit": (129, 129, "real", "mse"),
    "fsdd-frames": (129, 129, "real", "mse"),
}


def random_data(source: str) -> Data:
    """Two random sequences of 32 steps a split, of the shape of a named data set."""
    random = np.random.default_rng(0)
    if source in LABELED:
        inputs, classes = LABELED[source]
        x = random.random((SEQUENCES, LENGTH, inputs), np.float32)
        lengths = np.full(SEQUENCES, LENGTH, np.int64)
        labels = np.arange(SEQUENCES, dtype=np.int64)
        split = LazySplit(lambda indices: x[indices], x.nbytes, lengths, labels, ("a", "b"))
        features = tuple(f"x{number}" for number in range(inputs))
        return ClassificationData(
            source, tuple(map(str, range(classes))), features, split, split, split, {}, "sha256:random"
        )
    inputs, outputs, kind, headline = STEPWISE[source]
    if kind == "categorical":
        x = random.integers(0, inputs, (SEQUENCES, LENGTH))
        y = random.integers(0, outputs, (SEQUENCES, LENGTH))
    else:
        x = (random.random((SEQUENCES, LENGTH, inputs)) < 0.1).astype(np.float32)
        y = x
    stored = StoredSteps(list(x), list(y))
    return StepData(
        name=source,
        output=kind,
        tokens=kind == "categorical",
        features=tuple(f"x{number}" for number in range(inputs)),
        outputs=tuple(f"y{number}" for number in range(outputs)),
        train=stored,
        validation=stored,
        test=stored,
        continuous=False,
        headline=headline,
        notes={},
        fingerprint="sha256:random",
    )


def plan_row(table: Table, row: Row, data: DataSet, hidden_size: int) -> tuple[Task, Config]:
    """Return the task on random data, and the resolved settings of a row for two steps of the full protocol."""
    tree = table.run_tree(row, data, FULL)
    training = {key: value for key, value in tree["training"].items() if key not in ("epochs", "bptt_steps")}
    tree["model"] |= {"hidden_size": hidden_size}
    tree["training"] = {**training, "seed": 0, "batch_size": SEQUENCES, "max_steps": 2}
    tree["data"] = {"source": tree["data"]["source"]}
    task = task_for(random_data(tree["data"]["source"]))
    return task, resolve(validate(tree), task)


def count_parameters(model: SequenceModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def train_two_steps(task: Task, config: Config) -> tuple[SequenceModel, list[float]]:
    """Build a model and take two optimizer steps; without the validation of a run, whose bounds take longer."""
    with torch_settings(torch.device("cpu"), seed=0, threads=1):
        model = create_model(config, task.data)
        minibatches, objective = task.minibatches(model, config.training), task.objective(config.training)
        optimizer = build_optimizer(model.parameter_groups(), config.training)
        minibatches.shuffle(torch.Generator().manual_seed(0))
        losses = []
        for step in range(2):
            optimizer.zero_grad()
            loss, _ = objective.advance(model, minibatches.take(0).batch, None)
            loss.backward()
            optimizer.step()
            model.after_step(step + 1, 2)
            losses.append(float(loss.detach()))
    return model, losses
