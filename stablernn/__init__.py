"""Stable recurrent networks: cells, layers, models, training and export.

Public names are imported when they are first used (PEP 562), so that ``import stablernn`` and reading data do not wait
for torch.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from stablernn._version import __version__

if TYPE_CHECKING:
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

_MODULES = {
    "Classifier": "models",
    "Forecaster": "models",
    "SequencePredictor": "models",
    "StableRNN": "layers",
    "certify": "stability.certificate",
    "create_cell": "cells",
    "export": "export",
    "list_cells": "cells",
}
"""Module below this package that defines each public name."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        # Found without this function from now on.
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
