"""Attacks: closed forms on linear models, balls that are never left, and what may be changed of a sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stablernn import Classifier
from stablernn.robustness.attacks import Box, PerturbedClassifier, change_norms, deepfool, differentiable_copy, pgd
from stablernn.robustness.settings import Norm

BOTH = pytest.mark.parametrize("norm", ["linf", "l2"])


class Linear:
    """Logits ``W (x + change) + b`` of flat sequences, in place of a model."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        self.x, self.weight, self.bias = x, weight, bias

    def __call__(self, change: Tensor) -> Tensor:
        return (self.x + change).flatten(1) @ self.weight.T + self.bias

    @property
    def mask(self) -> Tensor:
        return torch.ones_like(self.x, dtype=torch.bool)

    def distance(self, truth: Tensor, norm: Norm) -> Tensor:
        """From each sequence to the nearest boundary, (batch,)."""
        logits = self(torch.zeros_like(self.x))
        apart = self.weight[truth][:, None] - self.weight
        dual = apart.abs().sum(dim=2) if norm == "linf" else apart.norm(dim=2)
        gap = logits.gather(1, truth[:, None]) - logits
        return torch.where(dual > 0, gap / dual, torch.inf).amin(dim=1)


def linear(classes: int = 2, seed: int = 0) -> Linear:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 5, 3, generator=generator)
    return Linear(x, torch.randn(classes, 15, generator=generator), torch.randn(classes, generator=generator))


def predicted(logits: Linear | PerturbedClassifier, change: Tensor) -> Tensor:
    with torch.no_grad():
        return logits(change).argmax(dim=1)


@BOTH
@pytest.mark.parametrize("classes", [2, 5])
def test_pgd_flips_a_linear_model_exactly_beyond_the_distance_of_its_boundary(norm: Norm, classes: int) -> None:
    model = linear(classes)
    truth = predicted(model, torch.zeros_like(model.x))
    distance = model.distance(truth, norm)
    for share in (0.99, 1.01) if classes == 2 else (0.99,):
        change = pgd(model, truth, model.mask, norm=norm, budget=share * distance, steps=30)
        assert bool(((predicted(model, change) != truth) == (share > 1)).all())


@BOTH
@pytest.mark.parametrize("classes", [2, 5])
def test_deepfool_needs_one_step_of_a_linear_model(norm: Norm, classes: int) -> None:
    model = linear(classes)
    truth = predicted(model, torch.zeros_like(model.x))
    change, flipped = deepfool(model, model.mask, norm=norm, steps=1)
    assert bool(flipped.all())
    assert torch.allclose(change_norms(change, norm).float(), 1.02 * model.distance(truth, norm), rtol=1e-4)


def small(readout: str = "all", **options: object) -> Classifier:
    torch.manual_seed(3)
    model = Classifier("gru", 2, 3, 6, readout=readout, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        model.scaling.mean.copy_(torch.tensor([5.0, -1.0]))
        model.scaling.scale.copy_(torch.tensor([2.0, 0.5]))
        for weight in model.head.parameters():
            weight.mul_(5)
    return model.eval()


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 9, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([2.0, 0.5])
    x = x + torch.tensor([5.0, -1.0])
    x[3, 2:5, 0] = torch.nan
    x[4, 0] = torch.nan
    lengths = torch.tensor([9, 9, 4, 9, 9, 7, 1, 9, 9, 3, 9, 9])
    return x, lengths


@given(
    norm=st.sampled_from(["linf", "l2"]),
    budget=st.floats(1e-4, 3.0),
    steps=st.integers(0, 6),
    step=st.floats(0.01, 3.0),
    random_start=st.booleans(),
    clip=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_pgd_never_leaves_its_ball(
    norm: Norm, budget: float, steps: int, step: float, random_start: bool, clip: bool
) -> None:
    x, lengths = batch()
    generator = torch.Generator().manual_seed(steps)
    with differentiable_copy(small()) as model:
        attacked = PerturbedClassifier(model, x, lengths)
        box = Box.around(attacked.scaled(), torch.full((2,), -1.0), torch.full((2,), 1.5)) if clip else None
        change = pgd(
            attacked,
            torch.zeros(12, dtype=torch.int64),
            attacked.mask,
            norm=norm,
            budget=budget,
            steps=steps,
            step=step,
            random_start=random_start,
            generator=generator,
            box=box,
        )
    assert float(change_norms(change, norm).max()) <= budget
    assert bool((change[~attacked.mask] == 0).all())
    if box is not None:
        assert bool(((change >= box.low) & (change <= box.high))[attacked.mask].all())


@BOTH
def test_further_steps_never_help_the_defender(norm: Norm) -> None:
    x, lengths = batch()
    with differentiable_copy(small()) as model:
        attacked = PerturbedClassifier(model, x, lengths)
        truth = predicted(attacked, torch.zeros_like(x))
        fooled = [
            predicted(attacked, pgd(attacked, truth, attacked.mask, norm=norm, budget=0.4, steps=steps)) != truth
            for steps in range(12)
        ]
    for fewer, more in zip(fooled, fooled[1:], strict=False):
        assert bool((more | ~fewer).all())
    assert bool(fooled[-1].any())


@BOTH
@pytest.mark.parametrize("options", [{}, {"patch_size": 3, "patch_stride": 2, "patch_embedding": 4}, {"members": 2}])
def test_deepfool_changes_only_what_is_there_and_flips(norm: Norm, options: dict[str, int]) -> None:
    x, lengths = batch()
    plain = small(**options)
    with differentiable_copy(plain) as model:
        attacked = PerturbedClassifier(model, x, lengths)
        change, flipped = deepfool(attacked, attacked.mask, norm=norm, steps=50)
    assert bool((change[~attacked.mask] == 0).all())
    # The change is one of the raw values that the model itself is fooled by.
    moved = x + plain.scaling.scale * change
    with torch.no_grad():
        assert torch.equal(plain(moved, lengths).argmax(1) != plain(x, lengths).argmax(1), flipped)
    assert int(flipped.sum()) >= 10
    assert torch.isnan(moved).equal(torch.isnan(x))


def test_gradients_are_those_of_the_raw_input_in_units_of_the_scale() -> None:
    x, lengths = batch()
    plain = small("last", patch_size=3, patch_stride=2).double()
    x = x.double()
    with differentiable_copy(plain) as model:
        attacked = PerturbedClassifier(model, x, lengths)
        change = torch.zeros_like(x, requires_grad=True)
        (slope,) = torch.autograd.grad(attacked(change)[:, 0].sum(), change)
    with torch.no_grad():
        for place in ((0, 0, 1), (1, 8, 0), (3, 1, 0), (5, 4, 1)):
            moved = torch.zeros_like(x)
            moved[place] = 1e-5
            differences = [plain(x + sign * plain.scaling.scale * moved, lengths)[place[0], 0] for sign in (1, -1)]
            assert float(slope[place]) == pytest.approx(float(differences[0] - differences[1]) / 2e-5, rel=1e-4)
    assert math.isfinite(float(slope.abs().sum()))
    assert np.count_nonzero(slope[2, 4:]) == 0


def test_the_model_itself_is_not_changed() -> None:
    plain = small()
    x, lengths = batch()
    with differentiable_copy(plain) as model:
        attacked = PerturbedClassifier(model, x, lengths)
        pgd(attacked, torch.zeros(12, dtype=torch.int64), attacked.mask, norm="l2", budget=0.1, steps=1)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in plain.parameters())
    assert plain(x, lengths).requires_grad
