"""Minibatches of samples: what they know of their padding, and that the loss does not depend on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stablernn.data import SequenceSplit
from stablernn.nn.models import Classifier, Forecaster
from stablernn.training.loop import minibatches as sample_minibatches
from stablernn.training.loop.launch import Launch
from stablernn.training.loop.losses import ClassifyObjective, Objective
from stablernn.training.loop.minibatches import Batch, TensorBatches, read_scalar
from stablernn.training.loop.process_group import ProcessGroup

CPU = torch.device("cpu")
LENGTHS = np.array([5, 3, 5, 3, 1])


def sequences() -> SequenceSplit:
    x = np.random.default_rng(0).normal(size=(5, 5, 2)).astype(np.float32)
    return SequenceSplit(x, LENGTHS, np.array([0, 1, 0, 1, 1]), tuple("abcde"))


@pytest.mark.parametrize("gathered_bytes", [2**30, 0], ids=["gathered-once", "gathered-each-time"])
@pytest.mark.parametrize(
    ("rows", "steps", "is_padded"),
    [([0, 2], 5, False), ([2, 1, 0], 5, True), ([3, 1], 3, False), ([1, 4], 3, True), ([4], 1, False)],
)
def test_a_batch_knows_whether_a_sequence_is_shorter_than_the_longest(
    rows: list[int], steps: int, is_padded: bool, gathered_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_minibatches, "_GATHERED_BYTES", gathered_bytes)
    batch = TensorBatches(sequences(), CPU).take(torch.tensor(rows))
    assert batch.x.shape == (len(rows), steps, 2)
    assert batch.lengths.tolist() == LENGTHS[rows].tolist()
    assert batch.is_padded is is_padded
    assert batch.valid_lengths is (batch.lengths if is_padded else None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"members": 2, "readout": "mean"},
        {"max_dt": 2.0},
        {"mask_channel": True},
        {"patch_size": 2},
        {"resample_steps": 4},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("missing", [False, True])
def test_the_loss_of_sequences_without_padding_needs_no_lengths(options: dict[str, Any], missing: bool) -> None:
    model = Classifier("lipschitz", 2, 3, 4, **options)
    x = torch.randn(6, 5, 2)
    if missing:
        x[0, :2, 0] = x[3, 4, 1] = torch.nan
    dt = 0.5 + torch.rand(6, 5) if "max_dt" in options else None
    batch = Batch(x, torch.full((6,), 5), torch.arange(6) % 3, dt)
    assert_equal_losses(ClassifyObjective(), model, batch)


def assert_equal_losses(objective: Objective, model: Classifier | Forecaster, batch: Batch) -> None:
    """The loss has the same bits whether the batch says that nothing is padded or gives lengths that say so."""
    losses = []
    for is_padded in (True, False):
        torch.manual_seed(0)
        losses.append(objective.loss(model, batch._replace(is_padded=is_padded)).detach())
    assert torch.isfinite(losses[0])
    assert torch.equal(*losses)


def test_the_rows_of_a_process_are_padded_as_the_whole_batch_is() -> None:
    whole = TensorBatches(sequences(), CPU).take(torch.tensor([0, 2]))
    for rank, row in ((0, 0), (1, 1), (2, 0)):
        # The third process has no row, and takes the first one, which does not count.
        part = ProcessGroup(Launch(rank, 3)).shard(whole)
        assert torch.equal(part.x, whole.x[row : row + 1])
        assert (part.is_padded, part.dt, part.lengths.tolist()) == (False, None, [5])
    padded = TensorBatches(sequences(), CPU).take(torch.tensor([0, 1]))
    assert ProcessGroup(Launch(0, 2)).shard(padded).is_padded is True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_is_read_as_it_was_when_it_was_asked_for(dtype: torch.dtype) -> None:
    value = torch.tensor(0.1, dtype=dtype)
    read = read_scalar(value)
    number = float(value)
    value.fill_(2.0)
    assert read() == number
