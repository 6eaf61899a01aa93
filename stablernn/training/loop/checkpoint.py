"""Checkpoints: tensors and plain numbers in one safetensors file, without pickle.

A checkpoint is one file, so that it is replaced in one move: tensors under their names, everything else (step, epoch,
optimizer settings) as JSON in the file's own metadata. The ``.json`` next to it is a copy of that metadata for people
and other programs; nothing here reads it, since a kill between the two writes may leave it one checkpoint behind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.optim import Optimizer

from stablernn.atomic_files import write_bytes, write_json
from stablernn.errors import CheckpointError

FORMAT = "stablernn-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """Content of one file.

    Attributes:
        tensors: Tensors by dotted name, such as ``model.head.weight``; on the CPU.
        state: Everything else, as JSON types.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors below ``prefix.``, under their names without it."""
        start = f"{prefix}."
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write ``path`` (``.safetensors``) in one move, then the readable ``.json`` next to it.

    Raises:
        CheckpointError: If the folder cannot be written to.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    # json keeps every float64 exactly: Python writes the shortest text that reads back to the same number.
    # One entry only: safetensors writes several in an order that changes from process to process.
    write_bytes(path, save(tensors, {FORMAT: json.dumps(checkpoint.state)}))
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    write_json(path.with_suffix(".json"), {"format": FORMAT, **checkpoint.state, "tensors": shapes})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a file that :func:`save_checkpoint` wrote.

    Raises:
        CheckpointError: If the file is missing, is damaged, or is not a checkpoint of this library.
    """
    return decode_checkpoint(read_checkpoint(path), path)


def read_checkpoint(path: Path) -> bytes:
    """Return the content of a checkpoint's file.

    Raises:
        CheckpointError: If the file is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint '{path}'.") from None
    except OSError as error:
        raise CheckpointError(f"Cannot read the checkpoint '{path}': {error.strerror}.") from error


def decode_checkpoint(content: bytes, path: Path) -> Checkpoint:
    """Return the checkpoint in the content of a file.

    Args:
        content: The content.
        path: Name of the file in errors.

    Raises:
        CheckpointError: If it is damaged, or is not a checkpoint of this library.
    """
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise CheckpointError(f"The checkpoint '{path}' is damaged: {error}.") from error
    # The length of the header as 8 bytes, then the header: `load` has checked both, and leaves the metadata out.
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header.get("__metadata__", {})
    if FORMAT not in metadata:
        raise CheckpointError(f"'{path}' is not a checkpoint of this library's format '{FORMAT}'.")
    return Checkpoint(tensors, json.loads(metadata[FORMAT]))


def optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state as named tensors (``3.exp_avg``) and as JSON types."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                numbers.setdefault(str(index), {})[name] = value
    return tensors, {"groups": state["param_groups"], "numbers": numbers}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Load a state that :func:`optimizer_state` returned."""
    # JSON has turned the numbers of the parameters into strings.
    entries: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in state["numbers"].items()}
    for name, tensor in tensors.items():
        index, entry = name.split(".", 1)
        entries.setdefault(int(index), {})[entry] = tensor
    groups = [dict(group) for group in state["groups"]]
    for group, current in zip(groups, optimizer.param_groups, strict=True):
        # Whether one kernel updates all parameters depends on the device, which may be another one now.
        if "fused" in current:
            group["fused"] = current["fused"]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})
