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


def test_weights_of_a_small_alpha_are_0_or_1_and_not_one_half() -> None:
    weights = _sample_symmetric_beta(0.001, 40_000)
    inside = stats.beta(0.001, 0.001).cdf(0.99) - stats.beta(0.001, 0.001).cdf(0.01)
    # 183 of them, with a standard error of 14.
    assert float(((weights > 0.01) & (weights < 0.99)).float().mean()) == pytest.approx(inside, rel=0.3)
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.01)


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
@settings(max_examples=60, deadline=None)
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


def test_lengths_that_are_known_to_be_equal_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would be waited for."""
    x, lengths = torch.randn(8, 5, 2), torch.full((8,), 5)
    expected = mixed(x)

    def refuse(*tensors: torch.Tensor) -> bool:
        raise AssertionError("lengths were compared")

    monkeypatch.setattr(torch, "equal", refuse)
    torch.manual_seed(0)
    batch = Mixup(1.0)(x, lengths, is_padded=False)
    for result, reference in zip(batch, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=0, atol=0)
    objective, sequences = ClassifyObjective(mixup=Mixup(1.0)), Batch(x, lengths, lengths % 3, is_padded=False)
    assert objective.loss(Classifier("rnn", 2, 3, 4), sequences).isfinite()


def test_a_sequence_of_one_step_is_mixed_too() -> None:
    x = torch.tensor([[[2.0], [torch.nan], [torch.nan]], [[4.0], [4.0], [4.0]]])
    batch = mixed(x, [1, 3], seed=1)
    assert batch.partners.tolist() == [1, 0]
    for row, (first, second) in enumerate([(2, 4), (4, 2)]):
        weight, length = batch.weights[row], int(batch.lengths[row])
        torch.testing.assert_close(batch.x[row, :length, 0], (weight * first + (1 - weight) * second).repeat(length))


def test_without_a_share_a_sequence_is_its_partner_length_and_gaps_included() -> None:
    x = torch.randn(60, 9, 2)
    x[torch.rand(x.shape) < 0.3] = torch.nan
    lengths = torch.randint(1, 10, (60,))
    batch = mixed(x, lengths.tolist(), alpha=1e-6)
    assert set(batch.weights.tolist()) == {0, 1}
    rows = torch.where(batch.weights == 1, torch.arange(60), batch.partners)
    assert torch.equal(batch.lengths, lengths[rows])
    is_step = torch.arange(9) < batch.lengths[:, None]
    torch.testing.assert_close(batch.x[is_step], x[rows][is_step], rtol=0, atol=0, equal_nan=True)


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


def test_weights_of_0_and_1_leave_the_loss_of_unmixed_sequences() -> None:
    options = {"class_weights": torch.tensor([0.5, 2.0, 1.0]), "label_smoothing": 0.2}
    model = Classifier("rnn", 1, 3, 4, members=2)
    x, y = torch.randn(20, 5, 1), torch.arange(20) % 3
    mixture = mixed(x, alpha=1e-6, seed=7)
    rows = torch.where(mixture.weights == 1, torch.arange(20), mixture.partners)
    assert not torch.equal(rows, torch.arange(20))
    lengths = torch.full((20,), 5)
    torch.testing.assert_close(
        objective_loss(ClassifyObjective(**options, mixup=Mixup(1e-6)), model, Batch(x, lengths, y)),
        objective_loss(ClassifyObjective(**options), model, Batch(x[rows], lengths, y[rows])),
    )


def test_logarithms_are_mixed_where_a_model_takes_them() -> None:
    model = Classifier("rnn", 1, 2, 4, scaling="context", window=6, log=True)
    x = torch.exp(3 * torch.randn(10, 8, 1))
    model.fit_scaling([*x.numpy()])
    batch = Batch(x, torch.full((10,), 8), torch.arange(10) % 2)
    geometric = mixed(torch.log(x), alpha=1.0, seed=7)
    labels = torch.stack([batch.y, batch.y[geometric.partners]])
    logits = model(torch.exp(geometric.x), batch.lengths)
    losses = torch.stack([torch.nn.functional.cross_entropy(logits, row, reduction="none") for row in labels])
    expected = (torch.stack([geometric.weights, 1 - geometric.weights]) * losses).sum(dim=0).mean()
    got = objective_loss(ClassifyObjective(mixup=Mixup(1.0)), model, batch)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
