"""Inputs, outputs and states bound to a device: the CPU in place of a GPU, through the same code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from bound_sessions import bind_sessions
from engine_helpers import EACH_KIND, random_inputs, zeros
from published_models import Published
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.session import BoundSession
from stablernn_runtime.errors import InputError, NotReadyError
from stablernn_runtime.graph import CancellationToken, Graph
from stablernn_runtime.run_batch import BatchResult, run_steps
from stablernn_runtime.state_guard import StateGuard
from stablernn_runtime.step_buffers import MAX_FREE_ON_GPU, MAX_ROWS, DeviceBuffers

Arrays = dict[str, np.ndarray]


@pytest.fixture
def bound_flow(published: Published, monkeypatch: pytest.MonkeyPatch) -> ServedModel:
    return load_bound(published, "flow:1", monkeypatch)


def load_bound(published: Published, ref: str, monkeypatch: pytest.MonkeyPatch) -> ServedModel:
    with monkeypatch.context() as patch:
        bind_sessions(patch)
        model = ServedModel.load(published.registry.get(ref), "cpu")
    assert isinstance(model.sequence.session, BoundSession)
    return model


def advance(model: ServedModel, x: np.ndarray, states: Mapping[str, np.ndarray] | None = None) -> BatchResult:
    (result,) = run_steps(model.step, [model.prepare_steps({"x": x}, states or {})], None)
    assert not isinstance(result, InputError)
    return result


def samples(seed: int, rows: int, steps: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(rows, steps, 3)).astype(np.float32)
    x[0, 0, 0] = np.nan
    return x


def assert_same(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (value.dtype, value.shape), name
        assert np.array_equal(actual[name], value), name


@pytest.mark.parametrize("kind", EACH_KIND)
def test_bound_sequences_give_the_bits_of_unbound_ones(
    zoo: Published, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bound = ServedModel.load(zoo.registry.get(kind), "cpu"), load_bound(zoo, f"{kind}:1", monkeypatch)
    for seed, batch, steps in ((1, 5, 23), (2, 1, 7), (3, 17, 40)):
        inputs, _ = random_inputs(zoo.torch_models[f"{kind}:1"], seed, batch, steps)
        feeds = {**inputs, **zeros(model, batch)}
        assert_same(bound.run(bound.sequence, feeds), model.run(model.sequence, feeds))


def test_a_bound_session_returns_the_outputs_that_are_asked_for_in_their_order(bound_flow: ServedModel) -> None:
    x = samples(1, 2, 5)
    outputs = bound_flow.run_sequence(x)
    names = list(outputs)[::-1]
    feeds = {"x": x, "lengths": np.array([5, 5]), **zeros(bound_flow, 2)}
    values = bound_flow.sequence.session.run(names, feeds)
    assert_same(dict(zip(names, values, strict=True)), {name: outputs[name] for name in names})


def test_outputs_of_a_run_do_not_change_with_the_next(bound_flow: ServedModel) -> None:
    first = bound_flow.run_sequence(samples(1, 3, 20))
    copies = {name: value.copy() for name, value in first.items()}
    bound_flow.run_sequence(samples(2, 3, 20))
    assert_same(first, copies)


def test_a_thousand_steps_with_states_on_the_device(flow: ServedModel, bound_flow: ServedModel) -> None:
    # Parts of different lengths, so that states go in and out as well as from step to step.
    x = samples(3, 2, 1000)
    states: Mapping[str, np.ndarray] = {}
    parts: list[Arrays] = []
    for start, end in ((0, 1), (1, 8), (8, 400), (400, 1000)):
        result = advance(bound_flow, x[:, start:end], states)
        states = result.states
        parts.append(result.outputs)
    outputs = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    expected = advance(flow, x)
    assert_same(outputs, expected.outputs)
    assert_same(dict(states), expected.states)
    whole = flow.run_sequence(x)
    assert_same({name: value[:, -1] for name, value in outputs.items()}, {name: whole[name] for name in outputs})


def test_batches_of_any_size_one_after_another(flow: ServedModel, bound_flow: ServedModel) -> None:
    sizes = [1, 7, 64, 2, MAX_ROWS + 1, 64, 1, 300, 3]
    for seed, rows in enumerate(sizes):
        x = samples(seed, rows, 1 + seed % 4)
        actual, expected = advance(bound_flow, x), advance(flow, x)
        assert_same(actual.outputs, expected.outputs)
        assert_same(actual.states, expected.states)
    assert isinstance(bound_flow.step.take_buffers(300), DeviceBuffers)


def test_the_pool_keeps_the_sizes_that_were_used_last(bound_flow: ServedModel) -> None:
    for rows in range(1, MAX_FREE_ON_GPU + 4):
        advance(bound_flow, samples(rows, rows, 1))
    pool = bound_flow.step._buffers
    assert pool is not None
    kept = [buffers.rows for buffers in pool._recent]  # type: ignore[attr-defined]
    assert kept == list(range(4, MAX_FREE_ON_GPU + 4))
    taken = bound_flow.step.take_buffers(5)
    assert taken is not None
    assert [buffers.rows for buffers in pool._recent] == [4, *range(6, MAX_FREE_ON_GPU + 4)]  # type: ignore[attr-defined]
    bound_flow.step.put_back(taken)
    assert bound_flow.step.take_buffers(5) is taken


RADIUS = 0.01


def guarded(model: ServedModel) -> Graph:
    """The graph over steps, as of a model whose certificate has a ball for its first state."""
    name = model.states[0].input
    ball = {"state": name, "norm": "linf", "centre": 0.0, "radius": RADIUS}
    guard = StateGuard({"state_balls": [ball]}, [state.input for state in model.states])
    return Graph(model.step.signature, model.step.session, model.states, guard, model.ref)


def test_states_stay_on_the_device_between_steps(bound_flow: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[list[str]] = []
    read_states = DeviceBuffers.read_states

    def record(self: DeviceBuffers, names: list[str]) -> Mapping[str, np.ndarray]:
        reads.append(list(names))
        return read_states(self, names)

    monkeypatch.setattr(DeviceBuffers, "read_states", record)
    every = [state.input for state in bound_flow.states]
    assert len(every) > 1
    item = bound_flow.prepare_steps({"x": samples(1, 2, 5)}, {})
    run_steps(bound_flow.step, [item], None)
    assert reads == [[]] * 4 + [every]
    reads.clear()
    # A state with a ball is compared with it at each step.
    run_steps(guarded(bound_flow), [item], None)
    assert reads == [every[:1]] * 4 + [every]


def test_states_outside_their_balls_are_noticed_as_without_binding(flow: ServedModel, bound_flow: ServedModel) -> None:
    x = samples(4, 3, 6)
    x[1:] = 0
    counts = []
    for model in (flow, bound_flow):
        graph = guarded(model)
        (result,) = run_steps(graph, [model.prepare_steps({"x": x}, {})], None)
        assert isinstance(result, BatchResult)
        assert result.violations == {model.states[0].input}
        counts.append(graph.guard.violation_count)
    assert counts[0] == counts[1] == 6


def test_a_run_that_was_ended_leaves_no_trace(bound_flow: ServedModel) -> None:
    x = samples(6, 1, 4)
    expected = advance(bound_flow, x)
    token = CancellationToken()
    token.set()
    with pytest.raises(NotReadyError, match="The inference was ended"):
        run_steps(bound_flow.step, [bound_flow.prepare_steps({"x": x}, {})], token)
    with pytest.raises(NotReadyError, match="The inference was ended"):
        bound_flow.run_numpy(x, cancellation=token)
    after = advance(bound_flow, x)
    assert_same(after.outputs, expected.outputs)
    assert_same(after.states, expected.states)
