"""Engines run a cell's step over time; every engine equals ``loop`` in values and gradients."""

from __future__ import annotations

from stablernn.engines.base import Engine, EnsembleEngine, InputEngine

# 'auto' prefers the one registered last of those that run a cell.
from stablernn.engines.cuda_graph import CUDAGraphEngine  # isort: skip
from stablernn.engines.torch_rnn import TorchRNNEngine  # isort: skip
from stablernn.engines.base import check_engine, list_engines, register_engine, select_engine
from stablernn.engines.fused import FusedEngine
from stablernn.engines.pooled import PooledEngine
from stablernn.engines.scan import ScanEngine
from stablernn.engines.shooting import ShootingEngine
from stablernn.engines.structured import StructuredEngine
from stablernn.engines.triton.engine import TritonEngine

__all__ = [
    "StructuredEngine",
    "CUDAGraphEngine",
    "Engine",
    "EnsembleEngine",
    "FusedEngine",
    "InputEngine",
    "PooledEngine",
    "ScanEngine",
    "ShootingEngine",
    "TorchRNNEngine",
    "TritonEngine",
    "check_engine",
    "list_engines",
    "register_engine",
    "select_engine",
]
