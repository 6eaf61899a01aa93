"""Opens a version with ONNX Runtime: the graphs are checked before, and their inputs and outputs after."""

from __future__ import annotations

import onnxruntime as ort

from stablernn_registry import Signature, Version
from stablernn_runtime.engines.bound_session import BoundSession
from stablernn_runtime.engines.loaded_graphs import (
    ONNX,
    LoadedGraphs,
    describe_tensors,
    fixed_sizes,
    graphs_of,
    read_file,
)
from stablernn_runtime.engines.session import (
    NO_GPU_OPTIONS,
    Device,
    GpuOptions,
    Session,
    choose_device,
    open_session,
)
from stablernn_runtime.errors import ModelLoadError
from stablernn_runtime.graph_safety import check_graph

ONNX_RUNTIME = f"ONNX Runtime {ort.__version__}"


def open_onnx(
    version: Version,
    signature: Signature,
    device: Device,
    threads: int,
    gpu: GpuOptions = NO_GPU_OPTIONS,
    *,
    keeps_memory: bool = False,
) -> LoadedGraphs:
    """Open the graphs of a version, whose inputs and outputs must agree with the manifest.

    Args:
        version: The version.
        signature: Signature of its manifest, which must have its graphs.
        device: ``"auto"`` is CUDA where nothing is known to be missing, else the CPU.
        threads: Threads inside one run.
        gpu: Settings of the GPU.
        keeps_memory: As for :func:`~stablernn_runtime.engines.session.open_session`.

    Raises:
        ModelLoadError: If a file is damaged, or a graph is not one that is served.
        DeviceError: If CUDA does not load.
        SettingsError: If there are settings of a GPU for the CPU.
    """
    placement = choose_device(device, gpu)
    sessions: dict[str, Session] = {}
    for kind, graph in graphs_of(signature):
        label = f"{kind}.onnx of '{version.ref}'"
        content = read_file(version, f"{kind}.onnx", "cannot be served")
        check_graph(content, label)
        session = open_session(content, label, placement, threads, keeps_memory=keeps_memory)
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
        # On the CPU, arrays are read in place, and bound buffers save time for steps of few streams alone.
        sessions[kind] = session if placement.device == "cpu" else BoundSession(session, placement)
    return LoadedGraphs(ONNX, ONNX_RUNTIME, placement, sessions["sequence"], sessions.get("step"))
