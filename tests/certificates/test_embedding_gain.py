"""The gain of convolutions and embedding: no pair of patches is driven further apart, and claims that use it hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bounds.specimens import sampled
from model_helpers import mark_fitted
from stablernn import Classifier, Forecaster
from stablernn.bounds.linalg import norm_upper_bound
from stablernn.bounds.step_bound import GELU_SLOPE
from stablernn.cells._base import float64
from stablernn.certificates.certified_radius import ClassBounds, embedding_gains
from stablernn.nn.models import SequenceModel
from stablernn.robustness.attacks import PerturbedClassifier, differentiable_copy

OPTIONS: dict[str, dict[str, Any]] = {
    "one layer": {"patch_size": 4, "conv_layers": 1},
    "members, overlap": {"patch_size": 9, "patch_stride": 3, "conv_layers": 2, "members": 2},
    "mask": {"patch_size": 17, "conv_layers": 3, "mask_channel": True},
    "as wide as it is short": {"patch_size": 3, "conv_layers": 1, "conv_channels": 24},
}


def drawn(name: str, cell: str = "lru") -> Classifier:
    torch.manual_seed(0)
    options = {"conv_channels": 5, "patch_embedding": 6, **OPTIONS[name]}
    return mark_fitted(Classifier(cell, 2, 3, 4, **options)).double().eval()


def largest_slope(model: SequenceModel, number: int, searches: int = 1, steps: int = 60) -> float:
    """The largest norm of the Jacobian that gradient ascent over patches and directions finds."""
    size, largest = model.patches.output_size, 0.0

    def embedded(patch: Tensor) -> Tensor:
        return model.rnn._embedded(patch[None], number)[0]

    for seed in range(searches):
        generator = torch.Generator().manual_seed(seed)
        point, direction = (torch.randn(size, dtype=torch.float64, generator=generator) for _ in range(2))
        point, direction = point.requires_grad_(True), direction.requires_grad_(True)
        optimizer = torch.optim.Adam([point, direction], lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            _, slope = torch.func.jvp(embedded, (point,), (direction / direction.norm(),))
            (-slope.norm()).backward()
            optimizer.step()
            largest = max(largest, float(slope.detach().norm()))
    return largest


@pytest.mark.parametrize("name", sampled(OPTIONS, "members, overlap", "mask"))
def test_layers_whose_largest_directions_meet_are_close_to_the_gain(name: str) -> None:
    model = drawn(name)
    with torch.no_grad():
        for parameter in (*model.rnn.convolutions.parameters(), *model.rnn.embeddings.parameters()):
            # Sums of positive shares, in the range where the slope of GELU is near its largest.
            parameter.abs_().add_(0.0 if parameter.dim() > 1 else 0.3)
    found, gain = largest_slope(model, 0), embedding_gains(model)[0]
    assert found <= gain <= 2.5 * found


def test_a_changed_weight_changes_the_gain_and_extras_keep_theirs() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"scaling": "context", "window": 12, "season": 4, "patch_size": 5, "conv_layers": 1}
    model = Forecaster("lru", 1, 3, 4, patch_embedding=6, **options).double().eval()
    (before,) = embedding_gains(model)
    assert largest_slope(model, 0) <= before
    stage = model.rnn.convolutions[0]
    extras = stage.shape.extras
    assert extras > 0
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.zero_()
    # Now the extras alone move the embedding.
    (embedding,) = model.rnn.embeddings
    weight = float64(embedding.weight)[:, -extras:]
    assert embedding_gains(model) == pytest.approx([norm_upper_bound(weight) * GELU_SLOPE])


@pytest.mark.parametrize("name", ["one layer", "mask"])
def test_no_gradient_of_a_difference_of_classes_is_longer_than_the_proved_growth(name: str) -> None:
    model = drawn(name)
    patches = 3
    growth = ClassBounds(model).growth(patches)
    for scale in (0.1, 1.0, 10.0):
        x = scale * torch.randn(16, patches * model.patches.size, 2, dtype=torch.float64)
        change = torch.zeros_like(x, requires_grad=True)
        with differentiable_copy(model) as copied:
            logits = PerturbedClassifier(copied, x, torch.full((16,), x.shape[1]))(change)
        for first, second in ((0, 1), (2, 0)):
            difference = (logits[:, first] - logits[:, second]).sum()
            (gradient,) = torch.autograd.grad(difference, change, retain_graph=True)
            steepest = float(gradient.flatten(1).norm(dim=1).max())
            assert 0 < steepest <= growth[first, second]
