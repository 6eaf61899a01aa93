"""Compiled recurrence of stablernn's cells.

``stablernn_native.bindings`` calls the kernels on addresses of memory and needs no other package;
``stablernn_native.engine`` is the training engine ``native`` of stablernn.
"""

from __future__ import annotations

from stablernn_native.bindings import NativeError, available_paths, current_path

__all__ = ["NativeError", "available_paths", "current_path"]
