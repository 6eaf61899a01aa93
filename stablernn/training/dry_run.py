"""What training would do with data, told before it does it: splits, windows, model, steps, memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablernn.data import ClassificationData, ForecastData, SequenceSplit
from stablernn.data.arrays import SPLITS, Samples
from stablernn.data.check import DataReport, Finding, check_data
from stablernn.data.messages import pluralize
from stablernn.data.step_data import StepData, StoredSteps
from stablernn.errors import StableRNNError
from stablernn.nn.models import SequenceModel
from stablernn.training.run import Data, create_model, data_options, prepared
from stablernn.training.settings.config import Config
from stablernn.training.settings.predict_next_defaults import step_epoch
from stablernn.training.settings.resolve import resolve, training_samples

_FLOAT_BYTES = 4
# Below this many validation sequences one of them moves the accuracy by more than 3 percent.
_FEW_VALIDATED = 30
# Parameters, their gradients, and the two moments that Adam keeps of each.
_COPIES = {"adamw": 4, "adam": 4, "sgd": 3, "rmsprop": 4}
# Lengths at which sequences are run to learn what a step of them keeps for the way back.
_SHORT, _LONG = 32, 64
# The peak of a pass forth and back, by what autograd keeps: 2.5 to 2.9 was measured (lipschitz, lstm, lem; a state of
# 128, batches of 1,000). The rest is outputs and gradients in passing.
_PEAK = 2.7


def check_run(config: Config) -> tuple[DataReport, dict[str, Any] | None]:
    """A look at the data that settings name, and what :func:`train` would do with them.

    Where the data are fine and the settings of the model do not go with them, the sentence that says so is the last
    problem of the report.

    Returns:
        The report, and :func:`plan_training`; None where there is nothing to train on.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file.
    """
    report = check_data(config.data.source, **data_options(config))
    if report.data is None:
        return report, None
    data = report.data
    report = replace(report, warnings=(*report.warnings, *_small_set(config, data)))
    try:
        return report, plan_training(config, data)
    except StableRNNError as error:
        return replace(report, problems=(*report.problems, Finding("refused_model", str(error)))), None


def _small_set(config: Config, data: Data) -> tuple[Finding, ...]:
    """A warning for so few labelled sequences that the validation split decides nothing, with what helps."""
    if not isinstance(data, ClassificationData) or len(data.validation) >= _FEW_VALIDATED:
        return ()
    remedies = [] if config.model.members > 1 else ["--members 4"]
    if not config.training.refit:
        remedies.append("--set training.refit=true")
    if not remedies:
        return ()
    text = (
        f"Only {pluralize(len(data.validation), 'sequence')} of {len(data.train) + len(data.validation)} can validate, "
        f"each of them {1 / len(data.validation):.1%} of the accuracy. Train several networks and on all "
        f"sequences: {' '.join(remedies)}."
    )
    return (Finding("small_set", text),)


def plan_training(config: Config, data: Data) -> dict[str, Any]:
    """What :func:`train` would do with data that is loaded.

    Args:
        config: The settings, as for :func:`train`.
        data: What they name.

    Returns:
        ``task``, ``samples`` of each split, ``cell``, ``parameters``, ``inputs`` (scaling, mask channel, time),
        ``batch_size``, ``steps_per_epoch``, ``epochs``, ``steps``, ``memory``; of a forecast also ``horizon``,
        ``context_length``, ``season``.

    Raises:
        ConfigError: If a setting does not go with the data, or the model does not fit into memory.
        UnknownNameError: If the cell is not in the catalog.
    """
    data = prepared(data, config)
    settings = resolve(config, data)
    with torch.random.fork_rng(devices=[]):
        model = create_model(settings, data)
    training = settings.training
    assert training.batch_size is not None
    per_epoch = _epoch_steps(data, training.batch_size, training.bptt_steps or 0)
    samples = training_samples(data)
    plan: dict[str, Any] = {
        "task": settings.task.name,
        "samples": _samples(data),
        "cell": settings.model.cell,
        "hidden_size": settings.model.hidden_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "inputs": {
            "features": list(data.channels if isinstance(data, ForecastData) else data.features),
            "scaling": settings.model.scaling,
            "mask_channel": settings.model.mask_channel is True,
            "time": settings.model.time,
        },
        "optimizer": training.optimizer,
        "lr": training.lr,
        "batch_size": training.batch_size,
        "steps_per_epoch": per_epoch,
        "epochs": training.epochs,
        "steps": training.max_steps or (training.epochs or 0) * per_epoch,
    }
    if isinstance(data, ForecastData):
        plan |= {"horizon": data.horizon, "context_length": data.context_length, "season": data.season}
        plan |= {"targets": list(data.targets), "quantiles": list(settings.task.quantiles or ())}
    elif isinstance(data, ClassificationData):
        plan |= {"classes": list(data.labels)}
    else:
        plan |= {"outputs": len(data.outputs), "bptt_steps": training.bptt_steps}
    sample, steps = _longest(data, training.bptt_steps or 0, training.warm_up or 0)
    memory = {
        "data_bytes": _held_bytes(data),
        "model_bytes": sum(one.numel() for one in model.parameters()) * _FLOAT_BYTES * _COPIES[str(training.optimizer)],
        "batch_bytes": _batch_bytes(model, sample, steps, min(training.batch_size, samples)),
    }
    return {**plan, "memory": {**memory, "total_bytes": sum(memory.values())}}


def _samples(data: Data) -> dict[str, int]:
    if isinstance(data, ForecastData):
        return {word: int(count["kept"]) for word, count in data.notes["windows"].items()}
    return {
        word: len(split)
        for word, split in zip(SPLITS, (data.train, data.validation, data.test), strict=True)
        if split is not None
    }


def _epoch_steps(data: Data, batch_size: int, bptt_steps: int) -> int:
    if isinstance(data, StepData):
        return step_epoch(data, batch_size, bptt_steps)
    return math.ceil(training_samples(data) / batch_size)


def _held_bytes(data: Data) -> int:
    """What the data take in memory; of sequences that are made when they are wanted, nothing."""
    if isinstance(data, ForecastData):
        return sum(one.values.nbytes + one.ds.nbytes for one in data.series)
    splits = (data.train, data.validation, data.test)
    sequences = sum(split.held_bytes for split in splits if isinstance(split, SequenceSplit))
    held = [array for split in splits for array in _arrays(split)]
    return sequences + sum({id(array): array.nbytes for array in held}.values())


def _arrays(split: object) -> list[np.ndarray]:
    return [*split.inputs, *split.targets] if isinstance(split, StoredSteps) else []


def _longest(data: Data, bptt_steps: int, warm_up: int) -> tuple[Samples, int]:
    """The training sample that asks for most memory, and its steps that are kept for the way back."""
    if isinstance(data, ForecastData):
        windows = data.windows("train")
        return windows.gather_longer([len(windows) - 1], warm_up), data.context_length + warm_up
    lengths = np.asarray(data.train.lengths)
    longest = int(lengths.argmax())
    steps = int(lengths[longest])
    return data.train.gather([longest]), min(steps, bptt_steps) if bptt_steps else steps


def _batch_bytes(model: SequenceModel, sample: Samples, steps: int, batch_size: int) -> int:
    """What a batch takes at its peak.

    What autograd keeps is measured for one and two sequences at two lengths and drawn out to the whole batch.
    """
    short, long = min(steps, _SHORT), min(steps, _LONG)
    alone = _kept_at(model, sample, 1, long)
    more = [_kept_at(model, sample, 2, length) - _kept_at(model, sample, 1, length) for length in (short, long)]
    each = more[1] + (more[1] - more[0]) * (steps - long) / max(long - short, 1)
    return int(_PEAK * (alone - more[1] + batch_size * (each + sample.x[0, :steps].nbytes)))


def _kept_at(model: SequenceModel, sample: Samples, batch_size: int, steps: int) -> int:
    seen: dict[int, int] = {parameter.untyped_storage().data_ptr(): 0 for parameter in model.parameters()}
    held: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen.setdefault(storage.data_ptr(), storage.nbytes())
        # Kept until the sum is taken: what is freed could lend its address to another tensor.
        held.append(tensor)
        return tensor

    def repeated(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.repeat(array[:1, :steps], batch_size, axis=0))

    x = repeated(sample.x)
    seen[x.untyped_storage().data_ptr()] = 0
    dt = None if sample.dt is None or model.max_dt is None else repeated(sample.dt)
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train().final_state(x, torch.full((batch_size,), steps), dt=dt)
    return sum(seen.values())
