"""Dry runs: what training would do with data, before it does it: splits, windows, model, steps, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablernn.data.arrays import Samples
from stablernn.data.check import DataReport, Finding
from stablernn.data.step_data import Data
from stablernn.engines import TorchRNNEngine, select_engine
from stablernn.errors import StableRNNError
from stablernn.nn.models import SequenceModel
from stablernn.training.build import create_model
from stablernn.training.loop.closed_form import regression_bytes
from stablernn.training.resolve import resolve
from stablernn.training.run_data import prepare_data
from stablernn.training.settings.config import Config, TrainingConfig
from stablernn.training.settings.defaults import is_solved
from stablernn.training.tasks import Task, task_for

_FLOAT_BYTES = 4
_COPIES = {"adamw": 4, "adam": 4, "sgd": 3, "rmsprop": 4, "adagrad": 3}
"""Copies of the parameters by optimizer: themselves, their gradients, and the moments that it keeps of each."""
_SHORT, _LONG = 32, 64
"""Lengths at which sequences are run to measure what autograd keeps of a step."""
_PEAK = 2.7
"""Peak of a forward and backward pass over what autograd keeps: 2.5 to 2.9 was measured (lipschitz, lstm, lem; a state
of 128, batches of 1,000). The rest is outputs and gradients in passing."""


def add_plan(report: DataReport, config: Config) -> tuple[DataReport, dict[str, Any] | None]:
    """Return the report of :func:`check_run_data` and the plan of :func:`plan_training`; None without data.

    If the data is fine but does not fit the settings of the model, the message that says so becomes the last problem of
    the report.
    """
    if report.data is None:
        return report, None
    try:
        return report, plan_training(config, report.data)
    except StableRNNError as error:
        return replace(report, problems=(*report.problems, Finding("refused_model", str(error)))), None


def plan_training(config: Config, data: Data) -> dict[str, Any]:
    """Plan what :func:`train` would do with loaded data.

    Args:
        config: The settings, as for :func:`train`.
        data: Data that they name.

    Returns:
        ``task``, ``samples`` of each split, ``cell``, ``parameters``, ``inputs`` (scaling, mask channel, time),
        ``method``, ``batch_size``, ``steps_per_epoch``, ``epochs``, ``steps``, ``memory``; of a forecast also
        ``horizon``, ``context_length``, ``season``.

    Raises:
        ConfigError: If a setting does not go with the data, or the model does not fit into memory.
        UnknownNameError: If the cell is not in the catalog.
    """
    data = prepare_data(data, config)
    task = task_for(data)
    settings = resolve(config, task)
    # A plan must not change the numbers of a training that follows it.
    with torch.random.fork_rng(devices=[]):
        model = create_model(settings, data)
    training = settings.training
    # A fit in closed form has no minibatches, and no optimizer that keeps copies of the parameters.
    is_closed_form = is_solved(training)
    steps_per_epoch = 0 if is_closed_form else task.steps_per_epoch(training.batch_size or 1, training.bptt_steps or 0)
    samples = {name: len(split) for name, split in data.splits().items()}
    sizes = [parameter.numel() for parameter in model.parameters()]
    memory = {
        "data_bytes": data.held_bytes,
        "model_bytes": sum(sizes) * _FLOAT_BYTES * (1 if is_closed_form else _COPIES[str(training.optimizer)]),
        "batch_bytes": regression_bytes(model) if is_closed_form else _batch_bytes(task, model, training),
    }
    return {
        "task": settings.task.name,
        "samples": samples,
        "cell": settings.model.cell,
        "hidden_size": settings.model.hidden_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "inputs": {
            "features": list(data.features),
            "scaling": settings.model.scaling,
            "mask_channel": settings.model.mask_channel is True,
            "time": settings.model.time,
        },
        "method": training.method,
        "optimizer": training.optimizer,
        "lr": training.lr,
        "batch_size": training.batch_size,
        "steps_per_epoch": steps_per_epoch,
        "epochs": training.epochs,
        "steps": training.max_steps or (training.epochs or 0) * steps_per_epoch,
        **task.plan(settings),
        "memory": {**memory, "total_bytes": sum(memory.values())},
    }


def _batch_bytes(task: Task, model: SequenceModel, training: TrainingConfig) -> int:
    """Return the memory of a batch at its peak.

    What autograd keeps is measured for one and two sequences at two lengths and extrapolated to the whole batch.

    Args:
        task: The task, with the data.
        model: The model.
        training: The resolved section ``training``.
    """
    assert training.batch_size is not None
    sample, steps = task.largest_sample(training)
    batch_size = min(training.batch_size, len(task.data.splits()["train"]))
    recompute_every = training.recompute_every
    segment = steps if recompute_every is None else min(steps, recompute_every * model.patches.stride)
    short, long = min(segment, _SHORT), min(segment, _LONG)
    single = _kept_bytes(model, sample, 1, long)
    # What a second sequence adds, at either length; the rest of a single one does not depend on the batch.
    added = [_kept_bytes(model, sample, 2, length) - _kept_bytes(model, sample, 1, length) for length in (short, long)]
    # The difference of the lengths is what their further steps add; short sequences have none.
    sequence = added[1] + (added[1] - added[0]) * (segment - long) / max(long - short, 1)
    if segment < steps:
        sequence += _FLOAT_BYTES * sum(size for _, size in model.rnn.state_roles()) * steps / segment
    return int(_PEAK * (single - added[1] + batch_size * (sequence + sample.x[0, :steps].nbytes)))


def _kept_bytes(model: SequenceModel, sample: Samples, batch_size: int, steps: int) -> int:
    """Return the bytes that autograd keeps of a forward pass, without parameters and inputs."""
    sizes: dict[int, int] = {parameter.untyped_storage().data_ptr(): 0 for parameter in model.parameters()}
    tensors: list[Tensor] = []

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # Several tensors may be views of one storage, which is kept once.
        sizes.setdefault(storage.data_ptr(), storage.nbytes())
        # Referenced until the sum is taken: what is freed could lend its address to another tensor.
        tensors.append(tensor)
        return tensor

    def repeat(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.repeat(array[:1, :steps], batch_size, axis=0))

    x = repeat(sample.x)
    sizes[x.untyped_storage().data_ptr()] = 0
    dt = None if sample.dt is None or model.max_dt is None else repeat(sample.dt)
    # The kernels of 'torch-rnn' reserve blocks that they use in part, and the peak of a pass is about that of the loop:
    # 751 and 834 MiB (lstm, 128 units, 1,000 sequences of 100 steps).
    engine: Any = model.rnn.stacks[0].engine
    if select_engine(engine, model.rnn.cells[0], x).name == TorchRNNEngine.name:
        model.rnn.use_engine("loop")
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model.train().final_state(x, torch.full((batch_size,), steps), dt=dt)
    model.rnn.use_engine(engine)
    return sum(sizes.values())
