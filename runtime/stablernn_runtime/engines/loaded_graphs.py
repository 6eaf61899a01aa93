"""The open graphs of a version, in whichever engine, and helpers to open them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stablernn_registry import GraphSignature, RegistryError, Signature, TensorSignature, Version
from stablernn_runtime.engines.session import Placement, Session
from stablernn_runtime.errors import ModelLoadError

ONNX = "onnx"
# The types that a signature can state.
ONNX_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


@dataclass(frozen=True)
class LoadedGraphs:
    """The sessions of both graphs; sequences and steps of a version always go through the same engine.

    Attributes:
        engine: ``onnx``, or the name of an entry point.
        reason: Version of the engine and, where ``auto`` chose it, why.
        placement: The device; CUDA if any kind of work runs there.
        sequence: Runs whole sequences.
        step: Runs single steps; None for a version of complete sequences.
    """

    engine: str
    reason: str
    placement: Placement
    sequence: Session
    step: Session | None


def has_graphs(signature: Signature) -> bool:
    """Return whether a signature has all graphs of its kind: one for complete sequences, else that of a step too."""
    return signature.sequence is not None and (signature.step is not None or signature.resample_steps is not None)


def graphs_of(signature: Signature) -> list[tuple[str, GraphSignature]]:
    """Return the graphs over sequences and, if there is one, over a step, with their names."""
    graphs = [("sequence", signature.sequence), ("step", signature.step)]
    return [(name, graph) for name, graph in graphs if graph is not None]


def describe_tensors(tensors: Sequence[TensorSignature]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type, as ONNX Runtime names it, and the sizes of tensors by name; -1 is a free size."""
    return {tensor.name: (ONNX_TYPES[tensor.dtype], fixed_sizes(tensor.shape)) for tensor in tensors}


def fixed_sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape with -1 for each free size, which is a symbol or None."""
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def read_file(version: Version, file: str, refusal: str) -> bytes:
    """Return the bytes of a file of a version, checked against its hash.

    Args:
        version: The version.
        file: Name of the file.
        refusal: The consequence if it cannot be read, as the predicate of a sentence about the version.

    Raises:
        ModelLoadError: If it is missing or damaged.
    """
    try:
        return version.read(file)
    except RegistryError as error:
        raise ModelLoadError(f"'{version.ref}' {refusal}: {error}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, as a sentence."""
    # Some exceptions have no message.
    lines = str(error).splitlines()
    return (lines[0].rstrip(".") if lines else type(error).__name__) + "."
