"""Time of a step of one stream through the exported graph, as a server or a device runs it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

from stablernn.export.parity import open_session
from stablernn.export.scan import step_graph
from stablernn.export.step import export_parts, state_names
from stablernn.nn.models import SequenceModel

_STEPS = 200
_REPEATS = 5


def step_milliseconds(model: SequenceModel) -> float:
    """Return the median time of a step of a batch of one, in milliseconds, on one thread of ONNX Runtime.

    A step reads as many samples as a patch of the model has strides.

    Args:
        model: A trained model, in evaluation mode, on the CPU.
    """
    session = open_session(step_graph(export_parts(model)).SerializeToString())
    states = {name: state.numpy() for name, state in zip(state_names(model), model.initial_state(1), strict=True)}
    feeds: dict[str, Any] = {**_zero_inputs(session, states), **states}
    outputs = [output.name for output in session.get_outputs()]
    next_states = [outputs.index(f"{name}_out") for name in states]
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        for _ in range(_STEPS):
            values = session.run(outputs, feeds)
            feeds.update(zip(states, (values[index] for index in next_states), strict=True))
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)) / _STEPS * 1e3


def _zero_inputs(session: ort.InferenceSession, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return zeros for the inputs of a graph that are not states; a named size is one sequence."""
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    return {
        entry.name: np.zeros([size if isinstance(size, int) else 1 for size in entry.shape], types[entry.type])
        for entry in session.get_inputs()
        if entry.name not in states
    }
