"""Mixtures of sequences and of their labels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stablernn.nn.models import Classifier
from stablernn.training.loop.augmentation import MixedBatch, Mixup, _sample_symmetric_beta, _stretch
from stablernn.training.loop.losses import ClassifyObjective
from stablernn.training.loop.minibatches import Batch


def mixed(x: torch.Tensor, lengths: list[int] | None = None, *, alpha: float = 1.0, seed: int = 0) -> MixedBatch:
    torch.manual_seed(seed)
    return Mixup(alpha)(x, torch.tensor(lengths or [x.shape[1]] * len(x)))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_weights_have_the_beta_distribution(alpha: float) -> None:
    weights = _sample_symmetric_beta(alpha, 4000)
    assert stats.kstest(weights.double().numpy(), stats.beta(alpha, alpha).cdf).pvalue > 0.001


def test_a_pair_is_mixed_by_a_weight_of_its_own() -> None:
    x = torch.randn(40, 7, 2)
    batch = mixed(x)
    assert sorted(batch.partners.tolist()) == list(range(40))
    assert ((batch.weights >= 0) & (batch.weights <= 1)).all()
    assert len(set(batch.weights.tolist())) == 40
    share = batch.weights[:, None, None]
    torch.testing.assert_close(batch.x, share * x + (1 - share) * x[batch.partners])
    assert (batch.lengths == 7).all()


@given(lengths=st.lists(st.integers(2, 30), min_size=2, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_unequal_sequences_are_stretched_to_their_mean_length(lengths: list[int], seed: int) -> None:
    counts = torch.tensor(lengths)
    # Each rises from 0 at its first step to 1 at its last, so that every mixture does; there is only NaN beyond.
    x = (torch.arange(max(lengths)) / (counts[:, None] - 1))[..., None]
    x[x > 1] = torch.nan
    batch = mixed(x, lengths, seed=seed)
    other = counts[batch.partners]
    assert (batch.lengths == (batch.weights * counts + (1 - batch.weights) * other).round()).all()
    assert ((batch.lengths >= torch.minimum(counts, other)) & (batch.lengths <= torch.maximum(counts, other))).all()
    for sequence, length in zip(batch.x[..., 0], batch.lengths.tolist(), strict=True):
        torch.testing.assert_close(sequence[:length], torch.linspace(0, 1, length), rtol=1e-5, atol=1e-5)


def test_stretching_to_the_same_length_changes_no_bit() -> None:
    """So that a GPU, which does not look for pairs of unequal lengths, gives the same mixtures."""
    x = torch.randn(50, 31, 2)
    x[torch.rand(x.shape) < 0.3] = torch.nan
    lengths = torch.randint(1, 32, (50,))
    is_step = torch.arange(31) < lengths[:, None]
    torch.testing.assert_close(_stretch(x, lengths, lengths)[is_step], x[is_step], rtol=0, atol=0, equal_nan=True)


def test_the_larger_weight_decides_where_one_of_a_pair_is_missing() -> None:
    x = torch.randn(200, 6, 1)
    x[torch.rand(x.shape) < 0.3] = torch.nan
    batch = mixed(x)
    other = x[batch.partners]
    heavier = torch.where(batch.weights[:, None, None] >= 0.5, x, other)
    is_missing = torch.isnan(x) | torch.isnan(other)
    assert torch.equal(torch.isnan(batch.x), torch.isnan(heavier))
    torch.testing.assert_close(batch.x[is_missing], heavier[is_missing], rtol=0, atol=0, equal_nan=True)


def objective_loss(objective: ClassifyObjective, model: Classifier, batch: Batch) -> torch.Tensor:
    torch.manual_seed(7)
    return objective.loss(model, batch).detach()


def test_targets_are_mixed_as_the_sequences_are() -> None:
    x, y = torch.randn(12, 5, 1), torch.arange(12) % 3
    weights, smoothing = torch.tensor([0.5, 2.0, 1.0]), 0.3
    model = Classifier("rnn", 1, 3, 4, members=2)
    batch = Batch(x, torch.full((12,), 5), y)
    mixture = mixed(x, alpha=0.7, seed=7)
    # Negative log-likelihoods, (batch, members, classes), and targets, (batch, 1, classes).
    surprise = -torch.log_softmax(model.member_logits(model.final_state(mixture.x, mixture.lengths)), dim=2)
    labels = torch.nn.functional.one_hot(y, 3).float()
    share = mixture.weights[:, None]
    targets = (share * labels + (1 - share) * labels[mixture.partners])[:, None]
    assert torch.allclose(targets.sum(dim=2), torch.ones(12, 1))

    plain = objective_loss(ClassifyObjective(mixup=Mixup(0.7)), model, batch)
    torch.testing.assert_close(plain, (targets * surprise).sum(dim=2).mean())
    smooth = objective_loss(ClassifyObjective(label_smoothing=smoothing, mixup=Mixup(0.7)), model, batch)
    torch.testing.assert_close(smooth, (((1 - smoothing) * targets + smoothing / 3) * surprise).sum(dim=2).mean())
    weighted = objective_loss(ClassifyObjective(class_weights=weights, mixup=Mixup(0.7)), model, batch)
    expected = (weights * targets * surprise).sum() / (weights * targets).expand_as(surprise).sum()
    torch.testing.assert_close(weighted, expected)
