"""Opens a version with an engine that an installed package registers as an entry point of ``stablernn.engines``.

An entry point is a factory ``(version folder, device) -> Engine``. It is imported when it is named and at no other
time: some bring torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import onnxruntime as ort
from numpy.typing import NDArray
from pydantic import ValidationError

from stablernn_registry import Signature, Version
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.engines.loaded_graphs import ONNX, LoadedGraphs, described, first_line, graphs_of, read_file
from stablernn_runtime.engines.session import Device, EngineFailure, Placement
from stablernn_runtime.errors import DeviceError, ModelLoadError, SettingsError, cut

Array = NDArray[Any]
GROUP = "stablernn.engines"
AUTO, TORCH = "auto", "torch"
FILES = ("config.json", "weights.safetensors", "step.onnx", "sequence.onnx")
"""What a factory finds in the folder, as far as the version has it."""


class EngineGraph(Protocol):
    """One function of a version, as an engine runs it; safe to call from several threads at once."""

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> Sequence[Array]:
        """Outputs ``names`` in their order, from every input of the graph in its dtype and shape."""
        ...


class Engine(Protocol):
    """What a factory ``(version folder, device)`` returns; ``docs/serving.md`` says what it may raise.

    Attributes:
        version: What runs, for people.
        device: ``"cpu"`` or ``"cuda"``.
        device_note: Why, where the device was ``auto``.
        signature: Inputs, outputs and states, as in a manifest.
        sequence: What ``sequence.onnx`` computes.
        step: What ``step.onnx`` computes.
    """

    version: str
    device: Literal["cpu", "cuda"]
    device_note: str
    signature: Mapping[str, Any]

    @property
    def sequence(self) -> EngineGraph: ...

    @property
    def step(self) -> EngineGraph: ...

    def set_threads(self, count: int) -> None:
        """How many CPU threads one run may use."""
        ...


class EngineSession:
    """A graph of an engine, called as a session of ONNX Runtime is.

    Args:
        graph: What the engine gave.
        what: What to call it in errors.
    """

    def __init__(self, graph: EngineGraph, what: str) -> None:
        self._graph = graph
        self._what = what

    def run(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: ort.RunOptions | None = None, /
    ) -> Sequence[Array]:
        """As :meth:`Session.run`; ``options`` can only keep a run from beginning."""
        if options is not None and options.terminate:
            raise EngineFailure(f"The run of {self._what} was ended before it began.")
        try:
            return self._graph.run(names, feeds)
        except MemoryError:
            raise
        except Exception as error:
            raise EngineFailure(f"{self._what} failed: {first_line(error)}") from error


def open_named(version: Version, signature: Signature, device: Device, name: str, threads: int) -> LoadedGraphs:
    """Both graphs of a version, run by the engine called ``name``.

    Args:
        version: Its files are checked against their hashes before the engine sees them.
        signature: What its manifest says of the two graphs, which the engine must agree with; it has both.
        device: What the factory is given.
        name: Of an entry point.
        threads: CPU threads inside one run.

    Raises:
        SettingsError: If there is no such engine.
        ModelLoadError: If a package is missing, a file is damaged, or the files do not make the model of the signature.
        DeviceError: If the engine cannot use the device.
    """
    factory = _factory(name)
    refusal = f"cannot be served by the engine '{name}'"
    with _unpacked(version, refusal) as folder:
        try:
            engine: Engine = factory(folder, device)
        except RuntimeError as error:
            raise DeviceError(_sentence(error)) from error
        except ImportError as error:
            raise _missing_package(name, error) from error
        except (ValueError, LookupError, OSError) as error:
            raise ModelLoadError(f"'{version.ref}' {refusal}: {_sentence(error)}") from error
    own = _signature(engine, f"'{version.ref}' {refusal}")
    for (kind, stated), (_, found) in zip(graphs_of(signature), graphs_of(own), strict=True):
        for side in ("inputs", "outputs"):
            got, wanted = described(getattr(found, side)), described(getattr(stated, side))
            if got != wanted:
                raise ModelLoadError(
                    f"'{version.ref}' {refusal}: its {kind} has the {side} {got} there, but the manifest's signature "
                    f"states {wanted}."
                )
    engine.set_threads(threads)
    return LoadedGraphs(
        name,
        engine.version,
        Placement(engine.device, engine.device_note),
        EngineSession(engine.sequence, f"the engine '{name}' over sequences of '{version.ref}'"),
        EngineSession(engine.step, f"the engine '{name}' over steps of '{version.ref}'"),
    )


def _signature(engine: Engine, refusal: str) -> Signature:
    try:
        found = Signature.model_validate(engine.signature)
    except ValidationError as error:
        raise ModelLoadError(f"{refusal}: the signature that it states is none.") from error
    if found.sequence is None or found.step is None:
        raise ModelLoadError(f"{refusal}: the signature that it states lacks 'sequence' or 'step'.")
    return found


def _factory(name: str) -> Any:
    found = entry_points().get(name)
    if found is None:
        raise _unknown(name)
    try:
        return found.load()
    except ImportError as error:
        raise _missing_package(name, error) from error
    except AttributeError as error:
        raise ModelLoadError(
            f"The engine '{name}' cannot be loaded: its entry point '{found.value}' names nothing. Install its package "
            "again."
        ) from error


def entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """The engines of all installed packages, by name; none is imported."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def _unknown(name: str) -> SettingsError:
    known = [AUTO, ONNX, *sorted(entry_points())]
    listed = f"Allowed here: {', '.join(known)}."
    if name == TORCH:
        return SettingsError(
            f"The engine 'torch' is not registered in this environment: no installed package has it in the entry-point "
            f"group '{GROUP}'. Install the library with 'pip install stablernn'. {listed}"
        )
    return SettingsError(
        f"Unknown engine '{cut(name)}'.{did_you_mean(name, [*known, TORCH])} {listed} Further ones come with packages "
        f"that register them in the entry-point group '{GROUP}'."
    )


def _missing_package(name: str, error: ImportError) -> ModelLoadError:
    point = entry_points().get(name)
    package = point.dist.name if point is not None and point.dist is not None else name
    reason = str(error)
    if isinstance(error, ModuleNotFoundError):
        reason = f"the package '{error.name}' is not installed here"
    return ModelLoadError(
        f"The engine '{name}' cannot be used: {reason.rstrip('.')}. Install '{package}' with all that it needs "
        f"('pip install {package}'), or use --engine onnx."
    )


@contextmanager
def _unpacked(version: Version, refusal: str) -> Iterator[Path]:
    """A folder with the files of a version, each checked against its hash, for as long as the block runs."""
    try:
        with tempfile.TemporaryDirectory(prefix="stablernn-") as name:
            folder = Path(name)
            for file in FILES:
                if file in version.manifest.files:
                    (folder / file).write_bytes(read_file(version, file, refusal))
            yield folder
    except OSError as error:
        raise ModelLoadError(
            f"'{version.ref}' {refusal}: its files cannot be laid out in {tempfile.gettempdir()} "
            f"({error.strerror or error})."
        ) from error


def _sentence(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"it has no file '{Path(os.fsdecode(error.filename)).name}'."
    return (str(error).rstrip(".") or type(error).__name__) + "."
