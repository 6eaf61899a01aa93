"""Search over ranges of settings by Optuna: `stablernn tune`.

Optuna is an optional dependency. This module and :mod:`stablernn.training.tune.space` do without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablernn._lazy import lazy_names

if TYPE_CHECKING:
    from stablernn.training.tune.run_study import TuneOptions, tune
    from stablernn.training.tune.study import default_output

__all__ = ["TuneOptions", "default_output", "tune"]

__getattr__, __dir__ = lazy_names(
    __name__, {"TuneOptions": "run_study", "default_output": "study", "tune": "run_study"}
)
