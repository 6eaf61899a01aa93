"""Checks of a training by several processes: its settings go with them, and all processes have the same."""

from __future__ import annotations

import torch

from stablernn.data.step_data import Data
from stablernn.errors import ConfigError, DataError
from stablernn.training.loop.launch import refuse_several_processes
from stablernn.training.loop.process_group import ProcessGroup
from stablernn.training.settings.closed_form import CLOSED_FORM
from stablernn.training.settings.config import AUTO, Config

_RECORDED = "cuda-graph"
"""The engine whose recordings of a GPU were never run while NCCL is at work in the same process."""


def refuse_settings_of_one_process(config: Config) -> None:
    """Refuse settings that several processes cannot share, before anything is read or written.

    Raises:
        ConfigError: If there are several processes, and such a setting.
    """
    if config.model.cell == AUTO:
        refuse_several_processes(
            "The search for a cell (--cell auto)",
            "Run it without torchrun, and train the command that it prints with torchrun; or name a cell by --cell.",
        )
    if config.training.method == CLOSED_FORM:
        refuse_several_processes(
            f"training.method={CLOSED_FORM}", "It solves for the head in one pass; run it without torchrun."
        )


def check_processes(processes: ProcessGroup, config: Config, data: Data, device: torch.device) -> None:
    """Refuse processes that would not train the same model on the same data, before anything is written.

    Args:
        processes: The processes.
        config: The resolved settings of this one.
        data: The data that it has read.
        device: Its device.

    Raises:
        ConfigError: If a setting differs between processes, which the device can decide, a minibatch is too small, or
            the engine cannot run in several.
        DataError: If the data differ.
    """
    if processes.world_size == 1:
        return
    if device.type == "cuda" and config.model.engine in (_RECORDED, "auto"):
        raise ConfigError(
            f"The engine '{_RECORDED}' records what a GPU does, and was never run in several processes. Take "
            "--engine loop, or another that runs the cell (see docs/gpu.md)."
        )
    rows = config.training.batch_size or 1
    if rows < processes.world_size:
        raise ConfigError(
            f"{processes.world_size} processes cannot share minibatches of {rows}. Start at most {rows}, or set a "
            "larger training.batch_size."
        )
    everyone = processes.all_gather([data.fingerprint, device.type, config.by_key()])
    fingerprint, kind, settings = everyone[0]
    for rank, (other_fingerprint, other_kind, other_settings) in enumerate(everyone):
        if other_fingerprint != fingerprint:
            raise DataError(
                f"Process {rank} has read other data than process 0 (fingerprint {other_fingerprint}, not "
                f"{fingerprint}). Give all machines the same files."
            )
        if other_kind != kind:
            raise ConfigError(
                f"Process {rank} trains on {other_kind} and process 0 on {kind}. Set --device to one that all have."
            )
        changed = [key for key in sorted(settings) if other_settings.get(key) != settings[key]]
        if changed:
            key = changed[0]
            raise ConfigError(
                f"'{key}' is {other_settings.get(key)!r} in process {rank} and {settings[key]!r} in process 0. Set it, "
                "so that all processes train the same model."
            )
