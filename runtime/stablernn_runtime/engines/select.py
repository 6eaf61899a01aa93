"""Selects the engine of a version: ONNX Runtime, a named one, or the faster one where it is ``auto``."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from stablernn_registry import Signature, Version
from stablernn_runtime.engines.benchmark import STEPS, Timing, measure
from stablernn_runtime.engines.loaded_graphs import ONNX, LoadedGraphs, first_line, graphs_of
from stablernn_runtime.engines.onnx import ONNX_RUNTIME, open_onnx
from stablernn_runtime.engines.plugins import AUTO, TORCH, entry_points, open_named
from stablernn_runtime.engines.session import Device, EngineFailure, Placement, cuda_devices
from stablernn_runtime.errors import DeviceError, ModelLoadError

_AUTO_CHOICES: dict[tuple[str, Device], tuple[str, str]] = {}
"""Engine and reason by a version's digest and the device."""


def open_version(version: Version, signature: Signature, device: Device, engine: str, threads: int) -> LoadedGraphs:
    """Open the graphs of a version.

    Args:
        version: The version; every byte that is used is checked against the manifest's hash first.
        signature: Signature of its manifest, which must have its graphs.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where it can be used, else the CPU.
        engine: ``"onnx"``, the name of an entry point, or ``"auto"``: ONNX Runtime on the CPU; on a GPU, where torch
            is installed, the faster of ONNX Runtime and the engine ``torch``.
        threads: Threads inside one run.

    Raises:
        SettingsError: If there is no such engine.
        ModelLoadError: If a file is damaged, the graphs are not those of the signature, or the engine does not work
            here.
        DeviceError: If ``cuda`` was asked for and cannot be used.
    """
    if engine == ONNX:
        return open_onnx(version, signature, device, threads)
    if engine != AUTO:
        return open_named(version, signature, device, engine, threads)
    if device == "cpu" or not cuda_devices():
        graphs = open_onnx(version, signature, device, threads)
        return replace(graphs, reason=f"auto: {ONNX_RUNTIME}, as always on the CPU")
    return _open_auto(version, signature, device, threads)


def select_faster(first: LoadedGraphs, second: LoadedGraphs, signature: Signature, steps: int = STEPS) -> LoadedGraphs:
    """Measure two engines, and return the faster one with the figures of both in its reason.

    Args:
        first: Wins a tie.
        second: The other one.
        signature: Signature of their version.
        steps: Time steps of the measured sequences.

    Raises:
        RUNTIME_ERRORS: If a run fails.
    """
    rows = [(graphs, _measure(graphs, signature, steps)) for graphs in (first, second)]
    (best, best_timing), (other, other_timing) = rows if rows[0][1].mean_ms <= rows[1][1].mean_ms else rows[::-1]
    figures = f"measured on {best.placement.device}: {best_timing}; {other.reason}: {other_timing}"
    return replace(best, reason=f"auto: {best.reason}, {figures}")


def open_faster(version: Version, signature: Signature, device: Device, threads: int) -> LoadedGraphs:
    """Open a version with the faster of ONNX Runtime and torch; with ONNX Runtime where torch cannot be used.

    They are measured once: a stream of a version that is closed and opened again continues with the same engine.

    Raises:
        ModelLoadError: If the version cannot be served by ONNX Runtime.
        DeviceError: If ONNX Runtime cannot use the device.
    """
    key = version.digest, device
    if key in _AUTO_CHOICES:
        engine, reason = _AUTO_CHOICES[key]
        return replace(open_version(version, signature, device, engine, threads), reason=reason)
    onnx = open_onnx(version, signature, device, threads)
    try:
        torch = open_named(version, signature, device, TORCH, threads)
        graphs = select_faster(onnx, torch, signature, min(version.manifest.context_length or STEPS, STEPS))
    except (DeviceError, ModelLoadError, EngineFailure, MemoryError) as error:
        # Whatever keeps torch from running, ONNX Runtime is open already.
        graphs = replace(onnx, reason=f"auto: {ONNX_RUNTIME}, because torch cannot be used: {first_line(error)}")
    _AUTO_CHOICES[key] = graphs.engine, graphs.reason
    return graphs


def _open_auto(version: Version, signature: Signature, device: Device, threads: int) -> LoadedGraphs:
    """Open a version with ONNX Runtime or torch, on a machine with a GPU."""
    # find_spec does not import torch, which takes seconds.
    if not (TORCH in entry_points() and importlib.util.find_spec(TORCH)):
        graphs = open_onnx(version, signature, device, threads)
        return replace(graphs, reason=f"auto: {ONNX_RUNTIME}, because torch is not installed here")
    try:
        graphs = open_faster(version, signature, "cuda", threads)
    except DeviceError as onnx_error:
        # torch may bring the CUDA libraries that ONNX Runtime lacks.
        try:
            torch = open_named(version, signature, "cuda", TORCH, threads)
        except (DeviceError, ModelLoadError) as error:
            if device == "cuda":
                raise onnx_error from error
            graphs = open_onnx(version, signature, device, threads)
            return replace(graphs, reason=f"auto: {ONNX_RUNTIME}, as always on the CPU")
        reason = f"auto: {torch.reason}, because ONNX Runtime cannot use CUDA here: {first_line(onnx_error)}"
        graphs = replace(torch, reason=reason)
    device_reason = "auto: CUDA was found" if device == "auto" else ""
    return replace(graphs, placement=Placement("cuda", device_reason))


def _measure(graphs: LoadedGraphs, signature: Signature, steps: int) -> Timing:
    by_name = dict(graphs_of(signature))
    step = None if graphs.step is None else (graphs.step, by_name["step"])
    return measure((graphs.sequence, by_name["sequence"]), step, steps)
