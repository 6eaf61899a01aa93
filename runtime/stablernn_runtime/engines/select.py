"""Selects engine and device of a version: as named, or the fastest where they are ``auto``."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stablernn_registry import Signature, Version
from stablernn_runtime.engines.benchmark import (
    BATCH,
    LIMIT_SECONDS,
    STEPS,
    Timing,
    measure,
    sequence_steps,
    workloads,
)
from stablernn_runtime.engines.device_choice import DeviceChoice, SessionByRows, best_mean_ms, choose_devices
from stablernn_runtime.engines.gpus import count_gpus
from stablernn_runtime.engines.loaded_graphs import ONNX, LoadedGraphs, first_line
from stablernn_runtime.engines.onnx import ONNX_RUNTIME, open_onnx
from stablernn_runtime.engines.plugins import AUTO, TORCH, entry_points, open_named
from stablernn_runtime.engines.session import (
    NO_GPU_OPTIONS,
    Device,
    EngineFailure,
    GpuOptions,
    Session,
    check_gpu_options,
)
from stablernn_runtime.errors import DeviceError, ModelLoadError

logger = logging.getLogger(__name__)

Candidate = tuple[str, Device]
"""Name of an engine, and the device that it runs on."""


@dataclass(frozen=True)
class Request:
    """The version to open, and what all candidates for it have in common.

    Attributes:
        version: The version; every byte that is used is checked against the manifest's hash first.
        signature: Signature of its manifest, which must have its graphs.
        threads: Threads inside one run.
        gpu: Settings of the GPU.
    """

    version: Version
    signature: Signature
    threads: int = 1
    gpu: GpuOptions = NO_GPU_OPTIONS

    def open(self, engine: str, device: Device) -> LoadedGraphs:
        """Open the version with one engine on one device; errors: see :func:`open_version`."""
        gpu = NO_GPU_OPTIONS if device == "cpu" else self.gpu
        if engine == ONNX:
            return open_onnx(self.version, self.signature, device, self.threads, gpu)
        return open_named(self.version, self.signature, device, engine, self.threads, gpu)


@dataclass(frozen=True)
class _Selection:
    """An engine with the device of each kind of work, and the figures that selected it."""

    engine: str
    choice: DeviceChoice
    engine_reason: str
    device_reason: str
    measured_ms: Mapping[str, Mapping[str, float | None]]


_SELECTIONS: dict[tuple[str, tuple[Candidate, ...], GpuOptions], _Selection] = {}
"""By a version's digest, the candidates and the GPU."""


def open_version(
    version: Version,
    signature: Signature,
    device: Device,
    engine: str,
    threads: int,
    gpu: GpuOptions = NO_GPU_OPTIONS,
    *,
    keeps_memory: bool = False,
) -> LoadedGraphs:
    """Open the graphs of a version.

    Args:
        version: The version; every byte that is used is checked against the manifest's hash first.
        signature: Signature of its manifest, which must have its graphs.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: the CPU without a GPU that can be used; with one, the faster of
            both for each kind of work.
        engine: ``"onnx"``, the name of an entry point, or ``"auto"``: ONNX Runtime on the CPU; on a GPU, where torch
            is installed, the faster of ONNX Runtime and the engine ``torch``.
        threads: Threads inside one run.
        gpu: Settings of the GPU.
        keeps_memory: As for :func:`~stablernn_runtime.engines.session.open_session`; on machines without a GPU.

    Raises:
        SettingsError: If there is no such engine, or settings of a GPU do not fit the engine or the device.
        ModelLoadError: If a file is damaged, the graphs are not those of the signature, or the engine does not work
            here.
        DeviceError: If the GPU that was asked for does not exist or cannot be used.
    """
    check_gpu_options(device, gpu)
    request = Request(version, signature, threads, gpu)
    if engine not in (ONNX, TORCH, AUTO):
        # Engines of packages choose their device themselves.
        return open_named(version, signature, device, engine, threads, gpu)
    if device == "cpu" or not count_gpus():
        if engine == TORCH:
            return open_named(version, signature, device, TORCH, threads, gpu)
        graphs = open_onnx(version, signature, device, threads, gpu, keeps_memory=keeps_memory)
        return graphs if engine == ONNX else replace(graphs, reason=f"auto: {ONNX_RUNTIME}, as always on the CPU")
    return open_fastest(request, candidates_for(engine, device))


def candidates_for(engine: str, device: Device) -> list[Candidate]:
    """Return the engines and devices to choose from on a machine with a GPU; the first one wins a tie.

    Args:
        engine: ``"onnx"``, ``"torch"`` or ``"auto"``.
        device: ``"cuda"`` or ``"auto"``.
    """
    devices: list[Device] = ["cuda"] if device == "cuda" else ["cpu", "cuda"]
    candidates: list[Candidate] = [(ONNX if engine == AUTO else engine, each) for each in devices]
    # On the CPU, auto is always ONNX Runtime. find_spec does not import torch, which takes seconds.
    if engine == AUTO and TORCH in entry_points() and importlib.util.find_spec(TORCH):
        candidates.append((TORCH, "cuda"))
    return candidates


def open_fastest(request: Request, candidates: Sequence[Candidate]) -> LoadedGraphs:
    """Open a version with the fastest of several engines and devices; with those that work here.

    They are measured once: a version that is closed and opened again, or that another alias names, keeps engine and
    devices.

    Args:
        request: The version.
        candidates: Engines and devices; the first one wins a tie.

    Raises:
        ModelLoadError: If no candidate can serve the version, or ONNX Runtime refuses its graphs.
        DeviceError: If no candidate can use its device.
    """
    key = request.version.digest, tuple(candidates), request.gpu
    if (selection := _SELECTIONS.get(key)) is not None:
        try:
            return _assemble(
                selection,
                {device: request.open(selection.engine, _device(device)) for device in selection.choice.devices},
            )
        except DeviceError as error:
            # A GPU that has failed since.
            logger.warning("%s is measured again: %s", request.version.ref, error)
    opened, failures = _open_all(request, candidates)
    if len(opened) == 1:
        return _explain_only(opened[0], failures, request.gpu)
    selection = _select(opened, request.signature, sequence_steps(request.version.manifest), request.gpu.batch)
    if failures:
        notes = "; ".join(_explain_failure(candidate, error) for candidate, error in failures.items())
        selection = replace(selection, engine_reason=f"{selection.engine_reason}; {notes}")
    _SELECTIONS[key] = selection
    return _assemble(selection, _by_device(opened, selection.engine))


def select_fastest(
    opened: Sequence[LoadedGraphs],
    signature: Signature,
    steps: int = STEPS,
    batch: int = BATCH,
    limit_seconds: float = LIMIT_SECONDS,
) -> LoadedGraphs:
    """Measure engines and devices, and return the fastest with the figures of all in its reasons.

    The engine is the one with the smallest geometric mean over all kinds of work, since sequences and steps of a
    version go through the same engine. Each kind of work then gets the fastest device of that engine.

    Args:
        opened: The open graphs of one version; the first one wins a tie.
        signature: Signature of the version.
        steps: Time steps of the measured sequences.
        batch: Sequences and streams of a measured batch.
        limit_seconds: Time for all measurements.
    """
    selection = _select(opened, signature, steps, batch, limit_seconds)
    return _assemble(selection, _by_device(opened, selection.engine))


def _open_all(
    request: Request, candidates: Sequence[Candidate]
) -> tuple[list[LoadedGraphs], dict[Candidate, Exception]]:
    """Return the open graphs of all candidates that work here, and why the others do not."""
    opened: list[LoadedGraphs] = []
    failures: dict[Candidate, Exception] = {}
    for engine, device in candidates:
        try:
            opened.append(request.open(engine, device))
        except ModelLoadError as error:
            # A version that ONNX Runtime refuses is refused; torch may lack a package.
            if engine == ONNX and not opened:
                raise
            failures[engine, device] = error
        except (DeviceError, EngineFailure, MemoryError) as error:
            failures[engine, device] = error
    if not opened:
        raise next(iter(failures.values()))
    for (engine, device), failure in failures.items():
        logger.warning("%s cannot be run by '%s' on %s: %s", request.version.ref, engine, device, failure)
    return opened, failures


def _explain_only(graphs: LoadedGraphs, failures: Mapping[Candidate, Exception], gpu: GpuOptions) -> LoadedGraphs:
    """Return the only graphs that could be opened, with the reason why there was nothing to measure."""
    notes = "; ".join(_explain_failure(candidate, error) for candidate, error in failures.items())
    if any(engine != graphs.engine for engine, _ in failures):
        reason = "as always on the CPU" if graphs.placement.device == "cpu" else f"because {notes}"
        graphs = replace(graphs, reason=f"auto: {graphs.reason}, {reason}")
    if any(device != graphs.placement.device for _, device in failures):
        name = "CPU" if graphs.placement.device == "cpu" else "CUDA"
        unused = f"; {gpu} has no effect" if name == "CPU" and str(gpu) else ""
        graphs = replace(graphs, placement=replace(graphs.placement, reason=f"auto: {name}, because {notes}{unused}"))
    return graphs


def _explain_failure(candidate: Candidate, error: Exception) -> str:
    engine, device = candidate
    # What the sentence of a failed `--device cuda` adds to the reason.
    reason = first_line(error).removeprefix("The device 'cuda' cannot be used: ").rstrip(".")
    for advice in (". Use --device cpu or auto", ", or use --device cpu or auto"):
        reason = reason.removesuffix(advice)
    return f"{engine} cannot be used on {device} ({reason})"


def _select(
    opened: Sequence[LoadedGraphs],
    signature: Signature,
    steps: int,
    batch: int,
    limit_seconds: float = LIMIT_SECONDS,
) -> _Selection:
    has_one_device = len({graphs.placement.device for graphs in opened}) == 1
    labels = [graphs.reason if has_one_device else f"{graphs.reason} on {graphs.placement.device}" for graphs in opened]
    timings = measure(
        dict(zip(labels, opened, strict=True)), signature, workloads(signature, steps, batch), limit_seconds
    )
    by_engine: dict[str, dict[str, Timing]] = {}
    for label, graphs in zip(labels, opened, strict=True):
        by_engine.setdefault(graphs.engine, {})[graphs.placement.device] = timings[label]
    engine = min(by_engine, key=lambda name: best_mean_ms(by_engine[name]))
    choice = choose_devices(by_engine[engine])
    best = next(graphs for graphs in opened if graphs.engine == engine)
    # The selected one first.
    order = sorted(zip(labels, opened, strict=True), key=lambda row: row[1].engine != engine)
    figures = "; ".join(f"{label}: {timings[label]}" for label, _ in order)
    engine_reason = best.reason
    if len(by_engine) > 1:
        where = f" on {best.placement.device}" if has_one_device else ""
        # The label of the first one is the selected engine itself where all run on the same device.
        shown = figures.removeprefix(f"{best.reason}: ") if has_one_device else figures
        engine_reason = f"auto: {best.reason}, measured{where}: {shown}"
    return _Selection(
        engine,
        choice,
        engine_reason,
        "" if has_one_device else f"auto: {choice}; measured: {figures}",
        {
            label: {
                str(kind): round(time, 4) if math.isfinite(time) else None
                for kind, time in timings[label].milliseconds.items()
            }
            for label, _ in order
        },
    )


def _assemble(selection: _Selection, by_device: Mapping[str, LoadedGraphs]) -> LoadedGraphs:
    """Return graphs that run each kind of work on its device."""
    choice = selection.choice
    single, batch = by_device[choice.single], by_device[choice.batch]
    sequence: Session = single.sequence
    if choice.single != choice.batch:
        sequence = SessionByRows(single.sequence, batch.sequence, choice.min_batch_rows)
    # The GPU, if anything runs on one.
    main = by_device["cuda" if "cuda" in choice.devices else choice.single]
    return replace(
        main,
        reason=selection.engine_reason,
        placement=replace(
            main.placement,
            reason=selection.device_reason or main.placement.reason,
            by_work=choice.describe(),
            measured_ms=selection.measured_ms,
        ),
        sequence=sequence,
        step=None if choice.step is None else by_device[choice.step].step,
    )


def _by_device(opened: Sequence[LoadedGraphs], engine: str) -> dict[str, LoadedGraphs]:
    return {graphs.placement.device: graphs for graphs in opened if graphs.engine == engine}


def _device(name: str) -> Device:
    return "cuda" if name == "cuda" else "cpu"
