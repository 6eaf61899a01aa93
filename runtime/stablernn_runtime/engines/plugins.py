"""Opens a version with an engine that an installed package registers as an entry point of ``stablernn.engines``.

An entry point is a factory ``(version folder, device) -> Engine``. It is imported only when it is named, since some
import torch.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from pydantic import ValidationError

from stablernn_registry import Signature, Version
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.engines.loaded_graphs import (
    ONNX,
    LoadedGraphs,
    describe_tensors,
    first_line,
    graphs_of,
    has_graphs,
    read_file,
)
from stablernn_runtime.engines.session import NO_GPU_OPTIONS, Device, EngineFailure, GpuOptions, Placement
from stablernn_runtime.errors import DeviceError, ModelLoadError, SettingsError, cut

Array = NDArray[Any]
GROUP = "stablernn.engines"
AUTO, TORCH, NATIVE = "auto", "torch", "native"
FILES = ("config.json", "weights.safetensors", "step.onnx", "sequence.onnx")
"""The files that a factory gets in the folder, as far as the version has them."""


class EngineGraph(Protocol):
    """A graph of a version in an engine; safe to call from several threads at once."""

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> Sequence[Array]:
        """Return the outputs ``names`` in their order, from all inputs of the graph in its dtypes and shapes."""
        ...


class EngineBuffers(Protocol):
    """Fixed memory for steps of a number of streams, for one thread at a time.

    Attributes:
        inputs: Arrays of the inputs apart from the states, by name, to be filled before a run.
        states: Arrays of the states, by the name of their input; a run overwrites them.
        outputs: Arrays of the outputs apart from the states, by name, of the last run.
    """

    inputs: Mapping[str, Array]
    states: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def run(self) -> None:
        """Run one step."""
        ...


@runtime_checkable
class BufferedGraph(EngineGraph, Protocol):
    """A graph over a step that can keep the states of streams from step to step."""

    def create_buffers(self, rows: int) -> EngineBuffers:
        """Return memory for steps of ``rows`` streams."""
        ...


class Engine(Protocol):
    """The result of a factory ``(version folder, device)``; ``docs/reference/server.md`` lists what that may raise.

    Attributes:
        version: Name and version of the engine, for people.
        device: ``"cpu"`` or ``"cuda"``.
        device_note: The reason for the device, where it was ``auto``.
        signature: Inputs, outputs and states, as in a manifest.
        sequence: Computes what ``sequence.onnx`` does.
        step: Computes what ``step.onnx`` does; None for a version of complete sequences, which has none.
    """

    version: str
    device: Literal["cpu", "cuda"]
    device_note: str
    signature: Mapping[str, Any]

    @property
    def sequence(self) -> EngineGraph: ...

    @property
    def step(self) -> EngineGraph | None: ...

    def set_threads(self, count: int) -> None:
        """Set how many CPU threads one run may use."""
        ...


class EngineSession:
    """A graph of an engine with the interface of a session of ONNX Runtime.

    Args:
        graph: The graph of the engine.
        label: The graph as errors name it.
    """

    def __init__(self, graph: EngineGraph, label: str) -> None:
        self._graph = graph
        self._label = label

    def run(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: ort.RunOptions | None = None, /
    ) -> Sequence[Array]:
        """Run as :meth:`Session.run`; ``options`` can only prevent that a run begins."""
        if options is not None and options.terminate:
            raise EngineFailure(f"The run of {self._label} was ended before it began.")
        try:
            return self._graph.run(names, feeds)
        except MemoryError:
            # Not a failure of the engine, see `Session.run`.
            raise
        except Exception as error:
            # Engines raise exceptions of their own, which callers could not name.
            raise EngineFailure(f"{self._label} failed: {first_line(error)}") from error

    def buffers_factory(self) -> Callable[[int], EngineStepBuffers] | None:
        """Return a function that creates fixed memory for steps of a number of streams; None if the engine has none."""
        graph = self._graph
        if not isinstance(graph, BufferedGraph):
            return None
        return lambda rows: EngineStepBuffers(graph.create_buffers(rows), rows, self._label)


class EngineStepBuffers:
    """Buffers of an engine with the interface of :class:`~stablernn_runtime.step_buffers.StepBuffers`.

    Args:
        buffers: Those of the engine.
        rows: Number of streams.
        label: The graph as errors name it.
    """

    def __init__(self, buffers: EngineBuffers, rows: int, label: str) -> None:
        self.rows = rows
        self.inputs = buffers.inputs
        self._buffers = buffers
        self._label = label

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The outputs apart from the states, by name; the next run overwrites them."""
        return self._buffers.outputs

    @property
    def states(self) -> Mapping[str, Array]:
        """The buffers of the states, by the name of their input: those that the last run wrote."""
        return self._buffers.states

    def read_states(self, names: Collection[str]) -> Mapping[str, Array]:
        """Return all states, which need no copy."""
        return self._buffers.states

    def set_states(self, states: Mapping[str, Array]) -> None:
        """Copy the states from which the next run goes on, ``(rows, ...)`` by the name of their input."""
        for name, buffer in self._buffers.states.items():
            np.copyto(buffer, states[name])

    def run(self, options: ort.RunOptions) -> None:
        """Run one step; ``options`` can only prevent that it begins.

        Raises:
            EngineFailure: If the run fails, or was ended before it began.
        """
        if options.terminate:
            raise EngineFailure(f"The run of {self._label} was ended before it began.")
        try:
            self._buffers.run()
        except MemoryError:
            raise
        except Exception as error:
            raise EngineFailure(f"{self._label} failed: {first_line(error)}") from error


def open_named(
    version: Version,
    signature: Signature,
    device: Device,
    name: str,
    threads: int,
    gpu: GpuOptions = NO_GPU_OPTIONS,
) -> LoadedGraphs:
    """Open the graphs of a version with the engine ``name``.

    Args:
        version: The version, whose files are checked against their hashes before the engine sees them.
        signature: Signature of its manifest, which must have its graphs, and which the engine must agree with.
        device: Device for the factory.
        name: Name of an entry point.
        threads: CPU threads inside one run.
        gpu: Settings of the GPU, as keyword arguments of the factory.

    Raises:
        SettingsError: If there is no such engine, or its factory does not take a setting of the GPU.
        ModelLoadError: If a package is missing, a file is damaged, or the files do not make the model of the signature.
        DeviceError: If the engine cannot use the device.
    """
    factory = _load_factory(name)
    gpu_arguments = _gpu_arguments(factory, name, gpu)
    refusal = f"cannot be served by the engine '{name}'"
    with _unpacked(version, refusal) as folder:
        # The exceptions of a factory and their meaning are documented in docs/reference/server.md.
        try:
            engine: Engine = factory(folder, device, **gpu_arguments)
        except RuntimeError as error:
            raise DeviceError(_reason(error)) from error
        except ImportError as error:
            raise _missing_package(name, error) from error
        except (ValueError, LookupError, OSError) as error:
            raise ModelLoadError(f"'{version.ref}' {refusal}: {_reason(error)}") from error
    engine_signature = _read_signature(engine, f"'{version.ref}' {refusal}")
    if (signature.step is None) != (engine_signature.step is None):
        raise ModelLoadError(
            f"'{version.ref}' {refusal}: it has {'no ' if signature.step is None else 'a '}step graph, and the engine "
            "states otherwise."
        )
    for (kind, stated), (_, actual) in zip(graphs_of(signature), graphs_of(engine_signature), strict=True):
        for side in ("inputs", "outputs"):
            tensors, expected = describe_tensors(getattr(actual, side)), describe_tensors(getattr(stated, side))
            if tensors != expected:
                raise ModelLoadError(
                    f"'{version.ref}' {refusal}: its {kind} has the {side} {tensors} there, but the manifest's "
                    f"signature states {expected}."
                )
    # The files are gone by now; an engine has read what it needs.
    engine.set_threads(threads)
    return LoadedGraphs(
        name,
        engine.version,
        Placement(
            engine.device,
            engine.device_note,
            (gpu.device_id or 0) if engine.device == "cuda" else 0,
            gpu.memory_limit if engine.device == "cuda" else None,
        ),
        EngineSession(engine.sequence, f"the engine '{name}' over sequences of '{version.ref}'"),
        None
        if signature.step is None or engine.step is None
        else EngineSession(engine.step, f"the engine '{name}' over steps of '{version.ref}'"),
    )


def _read_signature(engine: Engine, refusal: str) -> Signature:
    try:
        signature = Signature.model_validate(engine.signature)
    except ValidationError as error:
        raise ModelLoadError(f"{refusal}: the signature that it states is none.") from error
    if not has_graphs(signature):
        raise ModelLoadError(f"{refusal}: the signature that it states lacks 'sequence' or 'step'.")
    return signature


def _load_factory(name: str) -> Any:
    entry_point = entry_points().get(name)
    if entry_point is None:
        raise _unknown_engine(name)
    try:
        return entry_point.load()
    except ImportError as error:
        raise _missing_package(name, error) from error
    except AttributeError as error:
        # The module is there, but not the name in it.
        raise ModelLoadError(
            f"The engine '{name}' cannot be loaded: its entry point '{entry_point.value}' names nothing. Install its "
            "package again."
        ) from error


def _gpu_arguments(factory: Callable[..., Any], name: str, gpu: GpuOptions) -> dict[str, int]:
    """Return the settings of the GPU that are set, as the factory takes them."""
    values = {"device_id": gpu.device_id, "memory_limit": gpu.memory_limit}
    arguments = {key: value for key, value in values.items() if value is not None}
    parameters = inspect.signature(factory).parameters if arguments else {}
    if any(key not in parameters for key in arguments):
        raise SettingsError(
            f"The engine '{name}' does not take {gpu}. Leave it out, or use --engine {ONNX} or {TORCH}."
        )
    return arguments


def entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of the engines of all installed packages, by name; none is imported."""
    return {entry_point.name: entry_point for entry_point in importlib.metadata.entry_points(group=GROUP)}


def _unknown_engine(name: str) -> SettingsError:
    names = [AUTO, ONNX, *sorted(entry_points())]
    allowed = f"Allowed here: {', '.join(names)}."
    if name == TORCH:
        return SettingsError(
            f"The engine 'torch' is not registered in this environment: no installed package has it in the entry-point "
            f"group '{GROUP}'. Install the library with 'pip install .' in the checkout. {allowed}"
        )
    return SettingsError(
        f"Unknown engine '{cut(name)}'.{did_you_mean(name, [*names, TORCH])} {allowed} Further ones come with packages "
        f"that register them in the entry-point group '{GROUP}'."
    )


def _missing_package(name: str, error: ImportError) -> ModelLoadError:
    entry_point = entry_points().get(name)
    package = entry_point.dist.name if entry_point is not None and entry_point.dist is not None else name
    command = "'pip install .' in the checkout" if package == "stablernn" else f"'pip install {package}'"
    reason = str(error)
    if isinstance(error, ModuleNotFoundError):
        reason = f"the package '{error.name}' is not installed here"
    return ModelLoadError(
        f"The engine '{name}' cannot be used: {reason.rstrip('.')}. Install '{package}' with all that it needs "
        f"({command}), or use --engine onnx."
    )


@contextmanager
def _unpacked(version: Version, refusal: str) -> Iterator[Path]:
    """Provide a folder with the files of a version, each checked against its hash, until the block ends."""
    try:
        with tempfile.TemporaryDirectory(prefix="stablernn-") as path:
            folder = Path(path)
            for file in FILES:
                if file in version.manifest.files:
                    (folder / file).write_bytes(read_file(version, file, refusal))
            yield folder
    except OSError as error:
        # Such as a full disk. The body of the block handles its own errors.
        raise ModelLoadError(
            f"'{version.ref}' {refusal}: its files cannot be laid out in {tempfile.gettempdir()} "
            f"({error.strerror or error})."
        ) from error


def _reason(error: Exception) -> str:
    # The path of the temporary folder would mean nothing to a reader.
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"it has no file '{Path(os.fsdecode(error.filename)).name}'."
    return (str(error).rstrip(".") or type(error).__name__) + "."
