"""States and the balls of their certificate: what is refused, and what is counted only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exports import exported
from stablernn.nn.models import Classifier
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.errors import InputError
from stablernn_runtime.graph import Graph
from stablernn_runtime.run_batch import BatchResult, run_items, run_steps
from stablernn_runtime.state_guard import StateGuard

TIGHT = 1e-3


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """``kept-tight``, a classifier whose certificate has a ball that its states leave."""
    registry = Registry(tmp_path_factory.mktemp("registry"))
    torch.manual_seed(0)
    report = exported(Classifier("rnn", 1, 2, hidden_size=6).eval(), tmp_path_factory.mktemp("export"))
    certificate = dict(report.certificate)
    certificate["state_balls"] = [{**ball, "radius": TIGHT} for ball in certificate["state_balls"]]
    fields = {"task": "classify", "labels": ["a", "b"], "features": ["x"], "cell": certificate["cell"]}
    registry.publish("kept-tight", report.files, {**fields, "signature": report.signature, "certificate": certificate})
    return registry


def test_a_state_that_the_model_computed_is_never_refused_on_the_way(registry: Registry) -> None:
    model = ServedModel.load(registry.get("kept-tight"), "cpu")
    x, outside = np.ones((2, 4, 1), np.float32), set[str]()
    first = model.run_sequence(x)
    state = model.next_state(first)
    model.run_sequence(x, state=state)
    before = model.guard.violation_count
    model.run(model.step, {"x": x[:, 0], **state}, violations=outside)
    assert (model.guard.violation_count, outside) == (before + 1, {"state_1"})
    with pytest.raises(InputError, match="no input leads this model beyond 0.001"):
        model.run(model.step, {"x": x[:, 0], **state}, from_client=True)


@pytest.mark.parametrize("kind", ["sequence", "step"])
def test_a_state_outside_its_ball_is_reported_to_its_own_request_alone(registry: Registry, kind: str) -> None:
    model = ServedModel.load(registry.get("kept-tight"), "cpu")
    zeros = np.zeros((1, 4, 1), np.float32)
    values = [zeros, 50 * np.ones((2, 4, 1), np.float32), zeros]
    graph = model.sequence if kind == "sequence" else model.step
    norms = [np.linalg.norm(model.run_sequence(x)["state_1_out"], axis=1).max() for x in values[:2]]
    assert norms[0] < norms[1]
    ball = {"state": "state_1", "norm": "l2", "centre": 0.0, "radius": float(np.mean(norms))}
    guarded = Graph(
        graph.signature, graph.session, model.states, StateGuard({"state_balls": [ball]}, ["state_1"]), model.ref
    )
    if kind == "sequence":
        results = run_items(guarded, [model.prepare(guarded, {"x": x}) for x in values], None)
    else:
        results = run_steps(guarded, [model.prepare_steps({"x": x}, {}) for x in values], None)
    assert [isinstance(result, BatchResult) and result.violations for result in results] == [set(), {"state_1"}, set()]


def test_a_certificate_of_other_states_does_not_open() -> None:
    ball = {"state": "state_9", "norm": "l2", "centre": 0.0, "radius": 1.0}
    with pytest.raises(ValueError, match="its certificate speaks of the state 'state_9', which its graphs do not have"):
        StateGuard({"state_balls": [ball]}, ["state_0"])
    with pytest.raises(ValueError, match="its certificate has state_balls that cannot be read"):
        StateGuard({"state_balls": [{**ball, "norm": "l1"}]}, ["state_9"])
