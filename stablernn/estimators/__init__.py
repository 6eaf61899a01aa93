"""Estimators with ``fit`` and ``predict``: scikit-learn's interface over the training of this library.

They need the extra ``sklearn``. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablernn._lazy import lazy_names

if TYPE_CHECKING:
    from stablernn.estimators.classifier import StableClassifier
    from stablernn.estimators.forecaster import StableForecaster
    from stablernn.estimators.stream import Stream

__all__ = ["StableClassifier", "StableForecaster", "Stream"]

__getattr__, __dir__ = lazy_names(
    __name__, {"StableClassifier": "classifier", "StableForecaster": "forecaster", "Stream": "stream"}
)
