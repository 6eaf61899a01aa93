"""Checks of ONNX files before anything else reads them."""

from __future__ import annotations

from stablernn_runtime.graph_safety.check import check_graph

__all__ = ["check_graph"]
