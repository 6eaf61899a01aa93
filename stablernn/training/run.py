"""Deprecated name of the modules of a run, kept for one release."""

from __future__ import annotations

from stablernn._lazy import deprecated_module

__getattr__, __dir__ = deprecated_module(
    __name__,
    "stablernn.training.build_model",
    "stablernn.training.describe",
    "stablernn.training.loaded_run",
    "stablernn.training.run_data",
    "stablernn.training.run_directory",
    "stablernn.training.train_model",
)
