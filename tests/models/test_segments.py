"""Padded batches, run in segments of time over which fewer sequences run, give what each sequence gives alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.segments import MAX_SEGMENTS, MIN_STEPS, Batch, Results, run_segments, segment_ends
from step_forms import needs_native

TIME = 100
LENGTHS = torch.tensor([7, 100, 0, 41, 41, 63, 22, 90, 1, 55])


def run(rnn: srn.StableRNN, x: Tensor, **inputs: Any) -> list[Tensor]:
    """Outputs, the tensors of the state and the gradients by input and parameters."""
    x = x.clone().requires_grad_()
    output, state = rnn(x, **inputs)
    states = state if isinstance(state, tuple) else (state,)
    loss = output.square().sum() + torch.stack([tensor.square().sum() for tensor in states]).sum()
    return [output, *states, *torch.autograd.grad(loss, [x, *rnn.parameters()], materialize_grads=True)]


def alone(rnn: srn.StableRNN, x: Tensor, state: Tensor, dt: Tensor | None) -> list[Tensor]:
    """What :func:`run` returns, one sequence after the other without padding."""
    outputs, states, leaf = [], [], x.clone().requires_grad_()
    for row, length in enumerate(LENGTHS.tolist()):
        before = state[:, row : row + 1]
        if length:
            steps = None if dt is None else dt[row : row + 1, :length]
            output, before = rnn(leaf[row : row + 1, :length], before, dt=steps)
            outputs.append(torch.cat([output, output[:, -1:].expand(-1, TIME - length, -1)], dim=1))
        else:
            outputs.append(before[-1][:, None].expand(-1, TIME, -1))
        states.append(before)
    joined, last = torch.cat(outputs), torch.cat(states, dim=1)
    loss = joined.square().sum() + last.square().sum()
    return [joined, last, *torch.autograd.grad(loss, [leaf, *rnn.parameters()])]


@pytest.mark.parametrize("recompute_every", [None, 13])
@pytest.mark.parametrize("timed", [False, True], ids=["regular", "dt"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("engine", ["fused", "loop", pytest.param("native", marks=needs_native)])
def test_each_sequence_gives_what_it_gives_alone(
    engine: str, layers: int, timed: bool, recompute_every: int | None
) -> None:
    assert len(segment_ends(sorted(LENGTHS.tolist(), reverse=True))) > 3
    # With max_dt, sub-steps do not depend on the batch.
    rnn = srn.StableRNN("lipschitz", 3, 7, layers, engine=engine, max_dt=2.0 if timed else None).double()
    x, state = torch.randn(len(LENGTHS), TIME, 3).double(), torch.randn(layers, len(LENGTHS), 7).double()
    dt = 2 * torch.rand(len(LENGTHS), TIME).double() if timed else None
    expected = alone(rnn, x, state, dt)
    rnn.recompute_every = recompute_every
    # Neither values nor gradients may come from padding.
    padding = torch.arange(TIME) >= LENGTHS[:, None]
    x[padding] = float("nan")
    if dt is not None:
        dt[padding] = float("nan")
    for value, reference in zip(run(rnn, x, state=state, lengths=LENGTHS, dt=dt), expected, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("cell", ["lstm", "lem"])
def test_states_of_several_tensors_are_put_back_in_order(cell: str) -> None:
    rnn = srn.StableRNN(cell, 3, 7, 2).double()
    x = torch.randn(len(LENGTHS), TIME, 3).double()
    output, states = rnn(x, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        if length:
            expected, last = rnn(x[row, :length])
            torch.testing.assert_close(output[row, :length], expected, rtol=1e-10, atol=1e-12)
            for tensor, reference in zip(states, last, strict=True):
                torch.testing.assert_close(tensor[:, row], reference, rtol=1e-10, atol=1e-12)


def test_members_of_an_ensemble_run_the_same_segments() -> None:
    ensemble = Ensemble(3, "antisymmetric", 2, 5, 2).double()
    x = torch.randn(len(LENGTHS), TIME, 2).double()
    state = tuple(torch.randn(len(LENGTHS), size).double() for _, size in ensemble.state_roles())
    outputs, last = ensemble.run(x, state, LENGTHS)
    assert outputs is not None
    for number, member in enumerate(ensemble.stacks):
        assert isinstance(member, srn.StableRNN)
        own = slice(number * 2, number * 2 + 2)
        expected, expected_last = member.run(x, state[own], LENGTHS)
        torch.testing.assert_close(outputs[..., number * 5 : number * 5 + 5], expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(last[own], expected_last, rtol=1e-10, atol=1e-12)


def test_second_derivatives_pass_through_the_segments() -> None:
    rnn, lengths = srn.StableRNN("antisymmetric", 2, 3).double(), torch.tensor([40, 3, 20])
    x = torch.randn(3, 40, 2).double().requires_grad_()
    assert len(segment_ends([40, 20, 3])) > 1
    assert torch.autograd.gradgradcheck(lambda x: rnn(x, lengths=lengths)[0], x, fast_mode=True)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([100], [100]),
        ([100] * 9 + [10], [100]),
        ([1000] + [10] * 99, [1000]),
        ([1000] + [20] * 99, [20, 1000]),
        (list(range(800, 0, -1)), [100, 200, 300, 400, 500, 600, 700, 800]),
    ],
)
def test_segments_end_where_equally_many_sequences_have_ended(lengths: list[int], expected: list[int]) -> None:
    ends = segment_ends(lengths)
    assert ends == expected
    assert len(ends) <= MAX_SEGMENTS
    assert all(end - start >= MIN_STEPS for start, end in zip(ends, ends[1:], strict=False))


def test_a_batch_with_little_padding_runs_at_once() -> None:
    calls = []

    def record(batch: Batch) -> Results:
        calls.append(batch)
        return [(None, batch.states[0])]

    x, state = torch.zeros(4, TIME, 1), (torch.zeros(4, 2),)
    for shortest, count in ((TIME - 10, 1), (20, 2)):
        calls.clear()
        valid = torch.arange(TIME) < torch.tensor([TIME, TIME, TIME, shortest])[:, None]
        run_segments(record, Batch([x], [state], valid, None), None, -1)
        assert len(calls) == count, shortest
