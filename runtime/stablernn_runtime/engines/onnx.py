"""Opens a version with ONNX Runtime: the graphs are checked before, and their inputs and outputs after."""

from __future__ import annotations

import logging

import onnxruntime as ort

from stablernn_registry import Signature, Version
from stablernn_runtime.engines.loaded_graphs import (
    ONNX,
    LoadedGraphs,
    describe_tensors,
    fixed_sizes,
    graphs_of,
    read_file,
)
from stablernn_runtime.engines.session import Device, Placement, choose_device, open_session
from stablernn_runtime.errors import DeviceError, ModelLoadError
from stablernn_runtime.graph_safety import check_graph

logger = logging.getLogger(__name__)

ONNX_RUNTIME = f"ONNX Runtime {ort.__version__}"


def open_onnx(version: Version, signature: Signature, device: Device, threads: int) -> LoadedGraphs:
    """Open the graphs of a version, whose inputs and outputs must agree with the manifest.

    Args:
        version: The version.
        signature: Signature of its manifest, which must have its graphs.
        device: ``"auto"`` is CUDA where it loads, else the CPU, which is logged.
        threads: Threads inside one run.

    Raises:
        ModelLoadError: If a file is damaged, or a graph is not one that is served.
        DeviceError: If ``cuda`` was asked for and does not load.
    """
    placement = choose_device(device)
    try:
        return _open_on(version, signature, placement, threads)
    except DeviceError as error:
        # CUDA seemed to be there, but its libraries did not load.
        if device != "auto":
            raise
        logger.warning("%s falls back to the CPU: %s", version.ref, error)
        placement = Placement("cpu", "auto: CPU, because ONNX Runtime could not load its CUDA libraries")
        return _open_on(version, signature, placement, threads)


def _open_on(version: Version, signature: Signature, placement: Placement, threads: int) -> LoadedGraphs:
    sessions = {}
    for kind, graph in graphs_of(signature):
        label = f"{kind}.onnx of '{version.ref}'"
        content = read_file(version, f"{kind}.onnx", "cannot be served")
        check_graph(content, label)
        session = open_session(content, label, placement, threads)
        for side, stated, actual in (
            ("inputs", graph.inputs, session.get_inputs()),
            ("outputs", graph.outputs, session.get_outputs()),
        ):
            # A free dimension reports its symbol; None and a differing symbol are free too, a number is not.
            tensors = {arg.name: (arg.type, fixed_sizes(arg.shape)) for arg in actual}
            if tensors != (expected := describe_tensors(stated)):
                raise ModelLoadError(
                    f"{label} has the {side} {tensors}, but the manifest's signature states {expected}."
                )
        sessions[kind] = session
    return LoadedGraphs(ONNX, ONNX_RUNTIME, placement, sessions["sequence"], sessions.get("step"))
