"""Curvature: quadratics whose spectrum is known, and the whole Hessian of a small classifier."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bounds.specimens import sampled
from stablernn import Classifier
from stablernn.robustness.hessian import hutchinson, lanczos, loss_hessian
from stablernn.training.loop.losses import ClassifyObjective
from stablernn.training.loop.minibatches import Batch

MEMBERS = {"members": 2, "patch_embedding": 3, "patch_size": 2}


def symmetric(values: np.ndarray, seed: int = 0) -> np.ndarray:
    turned, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    return (turned * values) @ turned.T


def test_lanczos_finds_both_ends() -> None:
    values = np.concatenate([np.linspace(-1, 1, 298), [-4.0, 20.0]])
    matrix = symmetric(values)
    ends = lanczos(lambda vector: matrix @ vector, 300)
    assert ends.converged
    assert ends.steps < 40
    assert ends.largest == pytest.approx(20, rel=1e-6)
    assert ends.smallest == pytest.approx(-4, rel=1e-3)
    assert max(ends.residuals) <= 1e-3 * 20


def test_lanczos_says_when_its_steps_did_not_do() -> None:
    matrix = symmetric(np.linspace(-1, 1, 400))
    ends = lanczos(lambda vector: matrix @ vector, 400, steps=5)
    assert not ends.converged
    assert ends.steps == 5
    assert -1 <= ends.smallest < ends.largest <= 1
    assert all(
        np.abs(np.linspace(-1, 1, 400) - end).min() <= rest
        for end, rest in zip((ends.largest, ends.smallest), ends.residuals, strict=True)
    )


def test_hutchinson_is_exact_on_a_diagonal_and_else_within_its_standard_error() -> None:
    diagonal = np.arange(50.0)
    assert hutchinson(lambda vector: diagonal * vector, 50) == (pytest.approx(diagonal.sum()), pytest.approx(0), 10)
    matrix = symmetric(np.linspace(0, 1, 80))
    found = [hutchinson(lambda vector: matrix @ vector, 80, seed=seed) for seed in range(20)]
    away = [(mean - 40) / error for mean, error, _ in found]
    assert {draws for _, _, draws in found} == {100}
    assert np.sqrt(np.mean(np.square(away))) == pytest.approx(1, abs=0.4)


@pytest.mark.parametrize(
    ("cell", "options"),
    sampled(itertools.product(["gru", "exprnn", "lipschitz"], [{}, MEMBERS]), ("exprnn", MEMBERS)),
)
def test_a_small_classifier_against_its_whole_hessian(cell: str, options: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = Classifier(cell, 1, 3, 3, **options)  # type: ignore[arg-type]
    x = torch.randn(70, 6, 1)
    batch = Batch(x, torch.randint(1, 7, (70,)), torch.randint(3, (70,)))
    report = loss_hessian(model, batch)
    exact = model.double().eval()
    parameters = {f"rnn.stacks.{name}": value for name, value in exact.rnn.stacks.named_parameters()}
    sizes = [value.numel() for value in parameters.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = dict(zip(parameters, flat.split(sizes), strict=True))
        named = {f"model.{name}": piece.reshape(parameters[name].shape) for name, piece in pieces.items()}
        found: Tensor = torch.func.functional_call(Whole(exact), named, (batch,))
        return found

    flat = torch.cat([value.detach().flatten() for value in parameters.values()])
    whole = torch.autograd.functional.hessian(loss, flat).numpy()
    values = np.linalg.eigvalsh(whole)
    assert report["parameters"] == len(values)
    assert report["sequences"] == 70
    assert report["converged"]
    assert report["largest"] == pytest.approx(values[-1], rel=2e-3)
    assert report["smallest"] == pytest.approx(values[0], rel=2e-3)
    assert report["condition_number"] == pytest.approx(values[-1] / abs(values[0]), rel=5e-3)
    assert abs(report["trace"] - values.sum()) <= 4 * report["trace_standard_error"]
    assert math.isfinite(report["trace_standard_error"])


class Whole(nn.Module):
    """The training loss of a model as a module, for ``functional_call``."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        return ClassifyObjective().loss(self.model, batch._replace(x=batch.x.double()))
