"""The numbers that a loss keeps as tensors fit every model that it is taken of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn.training.loop.augmentation import Mixup
from stablernn.training.loop.losses import ClassifyObjective, ForecastObjective, Objective
from stablernn.training.loop.minibatches import Batch

ROWS = 6
WEIGHTS = torch.tensor([1 / 3, 1.0, 2.1], dtype=torch.float64)


def windows(dtype: torch.dtype) -> Batch:
    x, y = torch.linspace(-1, 1, ROWS * 5).view(ROWS, 5, 1), torch.linspace(-2, 1, ROWS * 2).view(ROWS, 2, 1)
    return Batch(x.to(dtype), torch.full((ROWS,), 5), y.to(dtype))


def sequences(dtype: torch.dtype) -> Batch:
    return windows(dtype)._replace(y=torch.arange(ROWS) % 3)


CASES: dict[str, tuple[Callable[[], SequenceModel], Callable[[], Objective], Callable[[torch.dtype], Batch]]] = {
    "classes": (lambda: Classifier("rnn", 1, 3, 4), lambda: ClassifyObjective(WEIGHTS), sequences),
    "mixtures": (lambda: Classifier("rnn", 1, 3, 4), lambda: ClassifyObjective(WEIGHTS, mixup=Mixup(0.5)), sequences),
    "windows": (lambda: Forecaster("rnn", 1, 2, 4, quantiles=(0.1, 0.7)), ForecastObjective, windows),
}


def gradients(model: SequenceModel, objective: Objective, batch: Batch) -> list[Tensor]:
    """The loss and the gradients."""
    torch.manual_seed(0)
    loss = objective.loss(model, batch)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("case", CASES)
def test_an_objective_may_be_taken_of_models_of_several_dtypes(case: str) -> None:
    build, build_objective, draw = CASES[case]
    model, objective = build(), build_objective()
    # What is made in inference mode has no part in a gradient.
    with torch.inference_mode():
        objective.loss(model, draw(torch.float32))
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        expected = gradients(model, build_objective(), draw(dtype))
        assert {tensor.dtype for tensor in expected} == {dtype}
        torch.testing.assert_close(gradients(model, objective, draw(dtype)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("class_weights", [None, WEIGHTS], ids=["equal classes", "class weights"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_weight_of_two_is_a_sequence_twice_and_of_none_no_sequence(
    class_weights: Tensor | None, smoothing: float
) -> None:
    model = Classifier("rnn", 1, 3, 4, members=2).double()
    objective = ClassifyObjective(class_weights, label_smoothing=smoothing)
    batch = sequences(torch.float64)
    weights = torch.tensor([2, 0, 1, 1, 3, 0], dtype=torch.float64)
    rows = torch.arange(ROWS).repeat_interleave(weights.long())
    repeated = batch._replace(x=batch.x[rows], lengths=batch.lengths[rows], y=batch.y[rows])
    weighted = batch._replace(y_weight=weights)
    torch.testing.assert_close(gradients(model, objective, weighted), gradients(model, objective, repeated))
    # Processes that share a batch weigh their parts by it.
    assert objective.normalizer(model, weighted) == pytest.approx(objective.normalizer(model, repeated))


def test_the_sequence_that_is_mixed_in_brings_its_weight() -> None:
    model = Classifier("rnn", 1, 3, 4).double()
    weights = torch.tensor([0, 0, 0, 0, 0, 1], dtype=torch.float64)
    batch = sequences(torch.float64)._replace(y_weight=weights)
    torch.manual_seed(1)
    mixed = ClassifyObjective(mixup=Mixup(1.0)).prepare(model, batch)
    assert mixed.y_weight is not None
    assert mixed.partner_weight is not None
    assert torch.count_nonzero(mixed.y_weight) == torch.count_nonzero(mixed.partner_weight) == 1
    assert mixed.partner_y is not None
    assert mixed.partner_y[mixed.partner_weight > 0].item() == batch.y[5]
