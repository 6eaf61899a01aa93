"""Exported versions, opened and run: one sequence, a batch, a step, a stream. No HTTP, no event loop, no torch.

>>> from stablernn_registry import Registry
>>> from stablernn_runtime import ServedModel
>>> model = ServedModel.load(Registry("registry").get("digits@production"))  # doctest: +SKIP

Names are imported when they are first used, so that a part of the package does not load all of it.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Builds of ONNX Runtime report to their maker unless this is set before they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from stablernn_runtime.errors import ServingError
    from stablernn_runtime.served_model import ServedModel
    from stablernn_runtime.state_token import StateTokens, StreamSnapshot
    from stablernn_runtime.stream_spec import StreamFormat, StreamSpec

__all__ = ["ServedModel", "ServingError", "StateTokens", "StreamFormat", "StreamSnapshot", "StreamSpec"]

_MODULES = {
    "ServedModel": "served_model",
    "ServingError": "errors",
    "StateTokens": "state_token",
    "StreamFormat": "stream_spec",
    "StreamSnapshot": "state_token",
    "StreamSpec": "stream_spec",
}

if not TYPE_CHECKING:  # type checkers would take it for every name, misspelled ones too

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
