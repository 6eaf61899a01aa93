"""Steps in bound buffers: the bits of steps without them, from any number of threads, and after runs that ended."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stablernn_runtime import ServedModel
from stablernn_runtime.errors import InputError, NotReadyError
from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchItem, BatchResult, run_steps
from stablernn_runtime.step_buffers import ALIGNMENT, MAX_ROWS, create_pool

Arrays = dict[str, np.ndarray]


def samples(seed: int, rows: int, steps: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(rows, steps, 3)).astype(np.float32)
    x[0, 0, 0] = np.nan
    return x


def advance(model: ServedModel, x: np.ndarray, states: Mapping[str, np.ndarray] | None = None) -> BatchResult:
    (result,) = run_steps(model.step, [model.prepare_steps({"x": x}, states or {})], None)
    assert not isinstance(result, InputError)
    return result


def one_by_one(model: ServedModel, x: np.ndarray) -> tuple[Arrays, Arrays]:
    """Outputs of all steps, and the last states, by runs without buffers."""
    state: Mapping[str, np.ndarray] = {}
    answers = []
    for time in range(x.shape[1]):
        outputs = model.run_step(x[:, time], state)
        state = model.next_state(outputs)
        answers.append(outputs)
    wanted = [name for name in model.step.outputs if name not in model.step.state_outputs]
    return {name: np.stack([step[name] for step in answers], axis=1) for name in wanted}, dict(state)


def same(found: Arrays, expected: Arrays) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 2, MAX_ROWS, MAX_ROWS + 1])
def test_buffers_give_the_bits_of_runs_without_them(flow: ServedModel, rows: int, steps: int) -> None:
    x = samples(rows, rows, steps)
    outputs, states = one_by_one(flow, x)
    first = advance(flow, x)
    assert same(first.outputs, outputs)
    assert same(first.states, states)
    # The next run overwrites the buffers, and must not reach what the first one returned.
    other = advance(flow, samples(rows + 1, rows, steps), first.states)
    assert same(first.outputs, outputs)
    assert same(first.states, states)
    assert not same(other.states, states)


def test_buffers_are_used_again(flow: ServedModel) -> None:
    taken = flow.step.take_buffers(2)
    assert taken is not None
    flow.step.put_back(taken)
    advance(flow, samples(0, 2, 3))
    assert flow.step.take_buffers(2) is taken
    assert flow.step.take_buffers(2) is not taken


def test_sessions_that_cannot_bind_have_no_buffers(flow: ServedModel) -> None:
    graph = flow.step
    assert create_pool(graph.session, graph.signature, graph.states) is not None
    assert create_pool(object(), graph.signature, graph.states) is None


def test_buffers_are_aligned_as_values_of_the_runtime(flow: ServedModel) -> None:
    buffers = flow.step.take_buffers(3)
    assert buffers is not None
    arrays = [*buffers.inputs.values(), *buffers.outputs.values(), *buffers.states.values()]
    assert all(array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous for array in arrays)


def test_threads_do_not_share_buffers(flow: ServedModel) -> None:
    sequences = [samples(seed, 1 + seed % 3, 40) for seed in range(8)]
    expected = [one_by_one(flow, x) for x in sequences]
    with ThreadPoolExecutor(8) as threads:
        results = threads.map(lambda x: advance(flow, x), sequences)
        for result, (outputs, states) in zip(results, expected, strict=True):
            assert same(result.outputs, outputs)
            assert same(result.states, states)


def test_a_run_that_was_ended_leaves_no_trace(flow: ServedModel) -> None:
    x = samples(5, 1, 4)
    expected = advance(flow, x)
    token = CancellationToken()
    token.set()
    taken = flow.step.take_buffers(1)
    assert taken is not None
    flow.step.put_back(taken)
    with pytest.raises(NotReadyError, match="The inference was ended"):
        run_steps(flow.step, [flow.prepare_steps({"x": samples(6, 1, 4)}, {})], token)
    # Nobody knows what the run left in them.
    assert flow.step.take_buffers(1) is not taken
    after = advance(flow, x)
    assert same(after.outputs, expected.outputs)
    assert same(after.states, expected.states)


def test_outputs_that_are_not_finite_are_refused_by_row(flow: ServedModel) -> None:
    states = {state.input: np.zeros((2, *state.shape[1:]), np.float32) for state in flow.states}
    name = flow.states[-1].input
    # The square is beyond float32, which alone is no reason.
    states[name][0] = 1e25
    item = BatchItem({"x": samples(7, 2, 3), **states}, 2, 3, ["mean"])
    (result,) = run_steps(flow.step, [item], None)
    assert isinstance(result, BatchResult)
    assert np.isfinite(result.outputs["mean"]).all()
    for row in (1, 0):
        states[name][row, 0] = np.nan
        (broken,) = run_steps(flow.step, [item], None)
        assert isinstance(broken, InputError)
        assert f"is not finite for sequence {row}" in str(broken)
