"""Layers, ensembles, preprocessing and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablernn._lazy import lazy_names

if TYPE_CHECKING:
    from stablernn.nn.layers import StableRNN
    from stablernn.nn.models import Classifier, Forecaster, SequencePredictor

__all__ = ["Classifier", "Forecaster", "SequencePredictor", "StableRNN"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"Classifier": "models", "Forecaster": "models", "SequencePredictor": "models", "StableRNN": "layers"},
)
