"""Streams and stretches of the task 'predict-next'."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from predict_next_helpers import CPU, text
from stablernn.data.step_data import StoredSteps
from stablernn.training.loop.minibatches import SegmentMinibatches, count_segment_minibatches


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    batch=st.integers(1, 5),
    bptt=st.integers(0, 7),
    seed=st.integers(0, 3),
)
def test_the_pieces_of_an_epoch_are_every_sequence_once(lengths: list[int], batch: int, bptt: int, seed: int) -> None:
    inputs = [100 * number + np.arange(length) for number, length in enumerate(lengths)]
    split = StoredSteps(inputs, inputs)
    minibatches = SegmentMinibatches(split, batch, bptt, continuous=False, device=CPU)
    assert minibatches.steps == count_segment_minibatches(split, batch, bptt, continuous=False)
    minibatches.shuffle(torch.Generator().manual_seed(seed))
    followed: list[list[int]] = []
    going: list[list[int]] = []
    for number in range(minibatches.steps):
        minibatch = minibatches.take(number)
        assert minibatch.batch.x.shape[1] <= (bptt or max(lengths))
        assert minibatch.weight == int(minibatch.batch.lengths.sum())
        if minibatch.is_first:
            going = [[] for _ in minibatch.batch.x]
            followed += going
        assert len(minibatch.batch.x) <= len(going)
        for row, values, count in zip(going, minibatch.batch.x, minibatch.batch.lengths, strict=False):
            row += values[:count].tolist()
    assert sorted(followed) == sorted(sequence.tolist() for sequence in inputs)


def test_steps_of_a_text_are_counted_without_reading_it() -> None:
    for batch, bptt in ((4, 10), (7, 3), (1, 0), (32, 150)):
        minibatches = SegmentMinibatches(text(101), batch, bptt, continuous=True, device=CPU)
        assert minibatches.steps == count_segment_minibatches(text(101), batch, bptt, continuous=True)


def test_the_order_of_sequences_is_drawn_and_that_of_a_text_is_not() -> None:
    split = StoredSteps([np.full(3, number) for number in range(20)], [np.zeros(3, np.int64)] * 20)
    minibatches = SegmentMinibatches(split, 4, 0, continuous=False, device=CPU)
    orders = []
    for seed in (0, 0, 1):
        minibatches.shuffle(torch.Generator().manual_seed(seed))
        orders.append([minibatches.take(number).batch.x[:, 0].tolist() for number in range(minibatches.steps)])
    assert orders[0] == orders[1] != orders[2]
    minibatches = SegmentMinibatches(text(50), 4, 5, continuous=True, device=CPU)
    before = minibatches.take(1).batch.x.clone()
    minibatches.shuffle(torch.Generator().manual_seed(5))
    assert torch.equal(minibatches.take(1).batch.x, before)
