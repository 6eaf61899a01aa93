"""Buffers that are used again, but by nobody else while they are in use."""

from __future__ import annotations

import gc
import weakref

import torch

import stablernn as srn
from stablernn.buffers import MIN_BYTES, BufferPool, pool_of

COUNT = MIN_BYTES // 4


def test_a_free_buffer_is_used_again() -> None:
    pool, like = BufferPool(), torch.zeros(1)
    address = pool.take(like, 2, COUNT).data_ptr()
    assert pool.take(like, COUNT, 2).data_ptr() == address
    # A shorter batch takes part of it.
    assert pool.take(like, COUNT + 5).data_ptr() == address


def test_a_buffer_in_use_is_left_alone() -> None:
    pool, like = BufferPool(), torch.zeros(1)
    first = pool.take(like, COUNT)
    view = first[5:]
    del first
    assert pool.take(like, COUNT).data_ptr() != view.data_ptr() - 5 * 4


def test_dtypes_do_not_share() -> None:
    pool = BufferPool()
    pool.take(torch.zeros(1), COUNT)
    assert pool.take(torch.zeros(1, dtype=torch.float64), COUNT).dtype == torch.float64


def test_a_pool_ends_with_its_cell() -> None:
    cell = srn.StableRNN("rnn", 2, 3).cells[0]
    pool = weakref.ref(pool_of(cell))
    assert pool() is pool_of(cell)
    del cell
    gc.collect()
    assert pool() is None


def test_a_buffer_of_inference_mode_can_be_trained_with() -> None:
    rnn, x = srn.StableRNN("antisymmetric", 2, 64, engine="fused"), torch.randn(64, 80, 2)
    with torch.inference_mode():
        expected, _ = rnn(x)
        expected = expected.clone()
    outputs, _ = rnn(x)
    outputs.sum().backward()
    assert torch.equal(outputs.detach(), expected)
    assert all(parameter.grad is not None for parameter in rnn.parameters())
