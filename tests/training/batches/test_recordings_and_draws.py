"""Random numbers in recorded passes: none of the CPU, and none in states that are computed again."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from cuda_graphs import run_again
from stablernn.nn.models import Classifier
from stablernn.training.loop import trainer as graphed_passes
from stablernn.training.loop.losses import ClassifyObjective
from stablernn.training.loop.minibatches import Batch
from stablernn.training.loop.trainer import EAGER_PASSES, GraphedPasses


def recomputing(every: int | None) -> Classifier:
    model = Classifier("lru", 2, 3, 4)
    model.rnn.use_engine("scan")
    model.rnn.recompute_every(every)
    return model


def classes() -> Batch:
    return Batch(torch.randn(6, 9, 2), torch.full((6,), 9), torch.randint(3, (6,)), is_padded=False)


@pytest.mark.parametrize(("every", "count"), [(None, 1), (4, 0)])
def test_states_are_not_computed_again_with_random_numbers_of_a_gpu(
    every: int | None, count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The state of a GPU's generator is a number here, which a pass raises."""
    objective, drawn = ClassifyObjective(), torch.zeros(())

    def advance(*arguments: Any) -> Any:
        drawn.add_(1)
        return ClassifyObjective.advance(objective, *arguments)

    monkeypatch.setattr(objective, "advance", advance)
    monkeypatch.setattr(graphed_passes, "_random_states", lambda device: [torch.get_rng_state(), drawn.clone()])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: drawn.copy_(state))
    passes = GraphedPasses(recomputing(every), objective, run_again)
    with caplog.at_level(logging.INFO, "stablernn.training"):
        for _ in range(EAGER_PASSES + 1):
            passes.run(classes(), None)
    assert passes.count == count
    reason = "it draws random numbers, which computing states again would not repeat"
    assert [record.message.endswith(reason) for record in caplog.records] == [True] * (1 - count)
