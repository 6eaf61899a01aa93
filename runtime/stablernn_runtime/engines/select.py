"""What runs a version: ONNX Runtime, an engine that was named, or the one of the two that ``auto`` takes."""

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

_CHOSEN: dict[tuple[str, Device], tuple[str, str]] = {}
"""Engine and note by a version's digest and the device."""


def open_version(version: Version, signature: Signature, device: Device, engine: str, threads: int) -> LoadedGraphs:
    """Open both graphs of a version.

    Args:
        version: Every byte that is used is checked against the manifest's hash first.
        signature: What its manifest says of the two graphs; it has both.
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
        opened = open_onnx(version, signature, device, threads)
        return replace(opened, note=f"auto: {ONNX_RUNTIME}, as always on the CPU")
    return _open_auto(version, signature, device, threads)


def faster(first: LoadedGraphs, second: LoadedGraphs, signature: Signature, steps: int = STEPS) -> LoadedGraphs:
    """The faster of two, measured, which its note says.

    Args:
        first: Wins a tie.
        second: The other.
        signature: Of their version.
        steps: Time steps of the measured sequences.

    Raises:
        RUNTIME_ERRORS: If a run fails.
    """
    rows = [(opened, _timing(opened, signature, steps)) for opened in (first, second)]
    (best, best_timing), (_, slower) = rows if rows[0][1].mean_ms <= rows[1][1].mean_ms else rows[::-1]
    other = second if best is first else first
    return replace(
        best, note=f"auto: {best.note}, measured on {best.placement.device}: {best_timing}; {other.note}: {slower}"
    )


def compared(version: Version, signature: Signature, device: Device, threads: int) -> LoadedGraphs:
    """The faster of ONNX Runtime and torch; ONNX Runtime where torch cannot be used.

    It is measured once: a stream of a version that is closed and opened again goes on with the same engine.

    Raises:
        ModelLoadError: If the version cannot be served by ONNX Runtime.
        DeviceError: If ONNX Runtime cannot use the device.
    """
    key = version.digest, device
    if key in _CHOSEN:
        engine, note = _CHOSEN[key]
        return replace(open_version(version, signature, device, engine, threads), note=note)
    onnx = open_onnx(version, signature, device, threads)
    try:
        torch = open_named(version, signature, device, TORCH, threads)
        chosen = faster(onnx, torch, signature, min(version.manifest.context_length or STEPS, STEPS))
    except (DeviceError, ModelLoadError, EngineFailure, MemoryError) as error:
        chosen = replace(onnx, note=f"auto: {ONNX_RUNTIME}, because torch cannot be used: {first_line(error)}")
    _CHOSEN[key] = chosen.engine, chosen.note
    return chosen


def _open_auto(version: Version, signature: Signature, device: Device, threads: int) -> LoadedGraphs:
    """ONNX Runtime or torch, on a machine with a GPU."""
    if not (TORCH in entry_points() and importlib.util.find_spec(TORCH)):
        opened = open_onnx(version, signature, device, threads)
        return replace(opened, note=f"auto: {ONNX_RUNTIME}, because torch is not installed here")
    try:
        opened = compared(version, signature, "cuda", threads)
    except DeviceError as reason:
        try:
            torch = open_named(version, signature, "cuda", TORCH, threads)
        except (DeviceError, ModelLoadError) as error:
            if device == "cuda":
                raise reason from error
            opened = open_onnx(version, signature, device, threads)
            return replace(opened, note=f"auto: {ONNX_RUNTIME}, as always on the CPU")
        note = f"auto: {torch.note}, because ONNX Runtime cannot use CUDA here: {first_line(reason)}"
        opened = replace(torch, note=note)
    found = "auto: CUDA was found" if device == "auto" else ""
    return replace(opened, placement=Placement("cuda", found))


def _timing(opened: LoadedGraphs, signature: Signature, steps: int) -> Timing:
    (_, sequence), (_, step) = graphs_of(signature)
    return measure((opened.sequence, sequence), (opened.step, step), steps)
