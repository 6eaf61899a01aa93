"""A version whose graphs are open, whatever runs them, and what opening them takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stablernn_registry import GraphSignature, RegistryError, Signature, TensorSignature, Version
from stablernn_runtime.engines.session import Placement, Session
from stablernn_runtime.errors import ModelLoadError

ONNX = "onnx"
ONNX_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


@dataclass(frozen=True)
class LoadedGraphs:
    """A version with what runs it; its sequences and its steps always go through the same engine.

    Attributes:
        engine: ``onnx``, or the name of an entry point.
        note: What that is and, where ``auto`` chose, why.
        placement: The device.
        sequence: Runs whole sequences.
        step: Runs single steps.
    """

    engine: str
    note: str
    placement: Placement
    sequence: Session
    step: Session


def graphs_of(signature: Signature) -> tuple[tuple[str, GraphSignature], tuple[str, GraphSignature]]:
    """The graphs over sequences and over a step with their names; the signature has both."""
    assert signature.sequence is not None
    assert signature.step is not None
    return ("sequence", signature.sequence), ("step", signature.step)


def described(tensors: Sequence[TensorSignature]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and sizes of tensors by name, in the words of ONNX Runtime; -1 is a free size."""
    return {tensor.name: (ONNX_TYPES[tensor.dtype], sizes(tensor.shape)) for tensor in tensors}


def sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape with -1 for whatever is no number: a symbol, or None."""
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def read_file(version: Version, file: str, refusal: str) -> bytes:
    """The bytes of a file of a version, checked against its hash.

    Args:
        version: The version.
        file: Name of the file.
        refusal: What cannot be done without it, as a verb of the version.

    Raises:
        ModelLoadError: If it is missing or damaged.
    """
    try:
        return version.read(file)
    except RegistryError as error:
        raise ModelLoadError(f"'{version.ref}' {refusal}: {error}") from error


def first_line(error: Exception) -> str:
    """What an exception says, as a sentence of one line."""
    lines = str(error).splitlines()
    return (lines[0].rstrip(".") if lines else type(error).__name__) + "."
