"""Opens a version with ONNX Runtime: graphs that are checked before and after."""

from __future__ import annotations

import logging

import onnxruntime as ort

from stablernn_registry import Signature, Version
from stablernn_runtime.engines.loaded_graphs import ONNX, LoadedGraphs, described, graphs_of, read_file, sizes
from stablernn_runtime.engines.session import Device, Placement, choose_device, open_session
from stablernn_runtime.errors import DeviceError, ModelLoadError
from stablernn_runtime.graph_safety import check_graph

logger = logging.getLogger(__name__)

ONNX_RUNTIME = f"ONNX Runtime {ort.__version__}"


def open_onnx(version: Version, signature: Signature, device: Device, threads: int) -> LoadedGraphs:
    """Both graphs of a version in ONNX Runtime; their inputs and outputs agree with the manifest, or they do not open.

    Args:
        version: The version.
        signature: What its manifest says of the two graphs; it has both.
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
        if device != "auto":
            raise
        logger.warning("%s falls back to the CPU: %s", version.ref, error)
        placement = Placement("cpu", "auto: CPU, because ONNX Runtime could not load its CUDA libraries")
        return _open_on(version, signature, placement, threads)


def _open_on(version: Version, signature: Signature, placement: Placement, threads: int) -> LoadedGraphs:
    sessions = {}
    for kind, graph in graphs_of(signature):
        what = f"{kind}.onnx of '{version.ref}'"
        content = read_file(version, f"{kind}.onnx", "cannot be served")
        check_graph(content, what)
        session = open_session(content, what, placement, threads)
        for side, stated, actual in (
            ("inputs", graph.inputs, session.get_inputs()),
            ("outputs", graph.outputs, session.get_outputs()),
        ):
            # A free dimension reports its symbol; None and a differing symbol are free too, a number is not.
            found = {arg.name: (arg.type, sizes(arg.shape)) for arg in actual}
            if found != (wanted := described(stated)):
                raise ModelLoadError(f"{what} has the {side} {found}, but the manifest's signature states {wanted}.")
        sessions[kind] = session
    return LoadedGraphs(ONNX, ONNX_RUNTIME, placement, **sessions)
