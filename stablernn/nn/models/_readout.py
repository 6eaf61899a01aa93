"""Between the layers and the head: statistics of the outputs so far, which the state keeps, and layers of the head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stablernn.errors import ConfigError, did_you_mean

READOUTS = ("last", "mean", "max", "all")
STATISTICS = {"last": (), "mean": ("mean",), "max": ("max",), "all": ("mean", "max")}
"""The statistics in the state of each readout; a count of the outputs follows them if there are any."""
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
"""Activations between linear maps of a head, with the options that they have by default."""


def build_head_layers(size: int, layers: Sequence[int | str], members: int) -> nn.Sequential:
    """Return the layers between the readout and the last linear map of a head.

    Args:
        size: Length of the readout.
        layers: Lengths of linear maps, and names of activations.
        members: Networks of the ensemble.

    Raises:
        ConfigError: If a length is below 1, a name is unknown, or there are several members.
    """
    if layers and members > 1:
        raise ConfigError(f"head_layers are for one network, got members={members}. Leave one of them out.")
    modules: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, str):
            if layer not in ACTIVATIONS:
                raise ConfigError(
                    f"Unknown activation '{layer}' in head_layers.{did_you_mean(layer, ACTIVATIONS)} It is one of "
                    f"{', '.join(ACTIVATIONS)}."
                )
            modules.append(ACTIVATIONS[layer]())
            continue
        if layer < 1:
            raise ConfigError(f"A linear map in head_layers has 1 output or more, got {layer}.")
        modules.append(nn.Linear(size, layer))
        size = layer
    return nn.Sequential(*modules)


def step_statistics(readout: str, output: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the statistics after one more output.

    Args:
        readout: One of ``READOUTS`` that keeps statistics.
        output: The last layer's output, ``(batch, output_size)``.
        state: The statistics before, each ``(batch, output_size)``, and the count, ``(batch, 1)``.
    """
    *statistics, count = state
    # A maximum of no outputs is none: the zeros of the initial state must not enter it.
    updated = [
        value + (output - value) / (count + 1)
        if statistic == "mean"
        else torch.where(count > 0, torch.maximum(value, output), output)
        for statistic, value in zip(STATISTICS[readout], statistics, strict=True)
    ]
    return (*updated, count + 1)


def sequence_statistics(
    readout: str, outputs: Tensor, state: tuple[Tensor, ...], valid: Tensor | None
) -> tuple[Tensor, ...]:
    """Return the statistics after the outputs of further steps.

    Args:
        readout: One of ``READOUTS`` that keeps statistics.
        outputs: The last layer's outputs, ``(batch, time, output_size)``.
        state: As :func:`step_statistics` takes it.
        valid: A mask of the steps that count, ``(batch, time)``; None if all do.
    """
    *statistics, count = state
    steps = outputs.new_full(count.shape, outputs.shape[1]) if valid is None else valid.sum(1, True).to(count.dtype)
    updated = []
    for statistic, value in zip(STATISTICS[readout], statistics, strict=True):
        if statistic == "mean":
            masked = outputs if valid is None else outputs * valid[..., None]
            updated.append((value * count + masked.sum(dim=1)) / (count + steps).clamp_min(1))
            continue
        masked = outputs if valid is None else outputs.masked_fill(~valid[..., None], -torch.inf)
        # A sequence of no steps leaves its maximum, and the first outputs replace the initial zeros.
        largest = torch.where(steps > 0, masked.amax(dim=1), value)
        updated.append(torch.where(count > 0, torch.maximum(value, largest), largest))
    return (*updated, count + steps)
