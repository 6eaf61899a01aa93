"""Exported versions, opened and run: one sequence, a batch, a step, a stream. No HTTP, no event loop, no torch.

A classifier of a series with one feature, from a registry of the working directory:

>>> import numpy as np
>>> from stablernn_registry import Registry
>>> from stablernn_runtime import ServedModel
>>> model = ServedModel.load(Registry("registry").get("animals@production"), "cpu")
>>> model
ServedModel('animals:1', device='cpu')

A batch of sequences, ``(batch, time, features)`` in raw units; NaN is a missing value:

>>> x = np.random.default_rng(0).normal(size=(2, 50, 1)).astype(np.float32)
>>> answers = model.run_numpy(x)
>>> answers["probabilities"].shape
(2, 4)
>>> model.manifest.labels
['cat', 'dog', 'owl', 'rat']

The same as streams, one time step of both at a time, which gives the same bits on one thread of the CPU:

>>> state = {}
>>> for t in range(50):
...     outputs = model.run_step(x[:, t], state)
...     state = model.next_state(outputs)
>>> np.array_equal(outputs["probabilities"], answers["probabilities"])
True

What does not fit is an error that names what was wrong and what is allowed:

>>> model.run_numpy(np.zeros((2, 50, 3), np.float32))
Traceback (most recent call last):
stablernn_runtime.errors.InputError: x has 3 features, model 'animals:1' expects 1 (loudness).

Names are imported when they are first used, so that a part of the package does not load all of it.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Builds of ONNX Runtime send telemetry unless this is set before they are imported.
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

# Type checkers would take `__getattr__` for every name, misspelled ones too.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
