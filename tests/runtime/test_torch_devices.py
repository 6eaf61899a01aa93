"""The engine torch on a device other than the CPU: all tensors are moved there, and outputs come back."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from engine_helpers import EACH_KIND, random_inputs
from published_models import Published
from simulated_device import DEVICE, simulated_device
from stablernn.export.parity import _split_steps
from stablernn.server_engine import TorchEngine
from stablernn_registry import GraphSignature, Signature


def with_states(graph: GraphSignature | None, inputs: dict[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    """Fill in zeros for the states of a graph."""
    assert graph is not None
    zeros = {
        spec.name: np.zeros([batch if size == "batch" else int(size) for size in spec.shape], spec.dtype)
        for spec in graph.inputs
        if spec.name not in inputs and "time" not in spec.shape
    }
    return {**zeros, **inputs}


@pytest.mark.parametrize("kind", EACH_KIND)
def test_sequences_and_steps_run_on_another_device(zoo: Published, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.torch_models[f"{kind}:1"]
    inputs, known = random_inputs(model, seed=1)
    engine = TorchEngine(copy_of(zoo, kind), "cpu")
    signature = Signature.model_validate(engine.signature)
    sequence = with_states(signature.sequence, inputs, 5)
    step_inputs = {name: value for name, value in inputs.items() if name not in (*known, "lengths")}
    step = with_states(signature.step, {**_split_steps(model, step_inputs)[0], **known}, 5)
    expected = {}
    for name, graph, feeds in (("sequence", engine.sequence, sequence), ("step", engine.step, step)):
        outputs = [spec.name for spec in getattr(signature, name).outputs]
        assert graph is not None
        expected[name] = dict(zip(outputs, graph.run(outputs, feeds), strict=True))
    with simulated_device(monkeypatch):
        moved = TorchEngine(copy_of(zoo, kind), cast(Any, DEVICE.type))
        for name, graph, feeds in (("sequence", moved.sequence, sequence), ("step", moved.step, step)):
            assert graph is not None
            values = graph.run(list(expected[name]), feeds)
            for output, value in zip(expected[name], values, strict=True):
                assert isinstance(value, np.ndarray)
                # Beside the CPU, other engines run the cells.
                np.testing.assert_allclose(value, expected[name][output], rtol=1e-5, atol=1e-5, err_msg=output)


def copy_of(zoo: Published, kind: str) -> Any:
    """The model as the engine builds it from the files of its version."""
    from stablernn.export.load_exported import reload

    version = zoo.registry.get(kind)
    return reload(version.read("config.json"), version.read("weights.safetensors"))
