"""Stable recurrent networks: cells, layers, models, training and export."""

from __future__ import annotations

from stablernn._version import __version__
from stablernn.cells import create_cell, list_cells
from stablernn.export import export
from stablernn.layers import StableRNN
from stablernn.models import Classifier, Forecaster, SequencePredictor
from stablernn.stability.certificate import certify

__all__ = [
    "Classifier",
    "Forecaster",
    "SequencePredictor",
    "StableRNN",
    "__version__",
    "certify",
    "create_cell",
    "export",
    "list_cells",
]
