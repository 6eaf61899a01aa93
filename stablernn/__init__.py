"""Stable recurrent networks: cells, layers, models, training and export.

Public names are imported when they are first used (PEP 562), so that ``import stablernn`` and reading data do not wait
for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablernn._lazy import lazy_names
from stablernn._version import __version__

if TYPE_CHECKING:
    from stablernn.cells import StableCell, create_cell, list_cells, register_cell
    from stablernn.certificates.certificate import certify
    from stablernn.estimators import StableClassifier, StableForecaster
    from stablernn.export import export
    from stablernn.nn.from_torch import from_torch
    from stablernn.nn.layers import StableRNN
    from stablernn.nn.models import Classifier, Forecaster, SequencePredictor

__all__ = [
    "Classifier",
    "Forecaster",
    "SequencePredictor",
    "StableCell",
    "StableClassifier",
    "StableForecaster",
    "StableRNN",
    "__version__",
    "certify",
    "create_cell",
    "export",
    "from_torch",
    "list_cells",
    "register_cell",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Classifier": "nn.models",
        "Forecaster": "nn.models",
        "SequencePredictor": "nn.models",
        "StableCell": "cells",
        "StableClassifier": "estimators",
        "StableForecaster": "estimators",
        "StableRNN": "nn.layers",
        "certify": "certificates.certificate",
        "create_cell": "cells",
        "export": "export",
        "from_torch": "nn.from_torch",
        "list_cells": "cells",
        "register_cell": "cells",
    },
)
