"""Resampling of complete sequences: against numpy.interp, with gaps, in batches, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stablernn as srn
from stablernn.certificates.certified_radius import certified_radii
from stablernn.errors import UntrainedWarning
from stablernn.nn.preprocessing import Resampling

PATCHED: dict[str, Any] = {"patch_size": 8, "patch_stride": 2, "patch_embedding": 8, "readout": "all"}


def draw(*lengths: int, features: int = 2, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(3, 2, (length, features)).astype(np.float32) for length in lengths]


def padded(sequences: list[np.ndarray], time: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences in a batch with numbers after their ends that must not matter."""
    x = torch.full((len(sequences), time, sequences[0].shape[1]), 1e6)
    for row, values in zip(x, sequences, strict=True):
        row[: len(values)] = torch.from_numpy(values)
    return x, torch.tensor([len(values) for values in sequences])


def fitted(**options: Any) -> srn.Classifier:
    torch.manual_seed(0)
    model = srn.Classifier("lru", 2, 3, 8, **{"resample_steps": 20, **PATCHED, **options})
    model.fit_scaling(draw(5, 20, 33, 61))
    return model.eval()


@pytest.mark.parametrize("steps", [2, 7, 50])
@pytest.mark.parametrize("length", [1, 2, 7, 49, 123])
def test_samples_are_those_of_numpy_interp(steps: int, length: int) -> None:
    (values,) = draw(length)
    resampled = Resampling(steps).double()(torch.from_numpy(values).double()[None])[0].numpy()
    places = np.linspace(0, length - 1, steps)
    for feature in range(2):
        expected = np.interp(places, np.arange(length), values[:, feature].astype(np.float64))
        np.testing.assert_allclose(resampled[:, feature], expected, rtol=1e-12)


def test_a_sequence_of_as_many_samples_is_not_changed() -> None:
    (values,) = draw(50)
    values[[0, 17, 18, 49]] = np.nan
    resampled = Resampling(50)(torch.from_numpy(values)[None])[0, :, :2]
    np.testing.assert_array_equal(resampled.numpy(), values)


def test_beside_a_gap_stands_the_observed_neighbor_and_within_it_nothing() -> None:
    x = torch.tensor([1.0, torch.nan, torch.nan, 4.0])[None, :, None]
    # At 0, .5, 1, 1.5, 2, 2.5 and 3.
    resampled = Resampling(7)(x)[0, :, 0]
    np.testing.assert_array_equal(resampled.numpy(), [1, 1, np.nan, np.nan, np.nan, 4, 4])


def test_the_length_is_a_standardized_channel_within_the_range_of_training() -> None:
    resampling = Resampling(4)
    list(resampling.fit(draw(10, 20, 40)))
    scores = resampling.length_scores(torch.tensor([1, 10, 20, 40, 4000]))
    logarithms = np.log([10, 20, 40])
    expected = (logarithms - logarithms.mean()) / logarithms.std()
    np.testing.assert_allclose(scores[1:4].numpy(), expected, atol=1e-6)
    assert (scores[0], scores[4]) == (scores[1], scores[3])
    channel = resampling(torch.zeros(1, 20, 1))[0, :, 1]
    assert channel.tolist() == [float(scores[2])] * 4


def test_equal_lengths_leave_a_channel_of_zeros() -> None:
    model = srn.Classifier("lru", 2, 2, 4, resample_steps=5)
    model.fit_scaling(draw(9, 9, 9))
    assert model.resampling is not None
    assert model.resampling(torch.zeros(1, 30, 2))[..., 2].abs().max() < 1e-6
    assert srn.certify(model, inputs_within=20.0).kind == "contracting"


def test_padding_and_the_batch_do_not_matter() -> None:
    model, sequences = fitted(), draw(1, 5, 33, 61, seed=1)
    together = model(*padded(sequences, 80))
    alone = torch.cat([model(torch.from_numpy(values)[None]) for values in sequences])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_gradients_reach_the_weights_and_the_samples() -> None:
    model = fitted()
    x, lengths = padded(draw(33, 61), 61)
    x.requires_grad_(True)
    # As an attack reads them; training needs no gradient of the samples.
    resampled, _ = model.resample(x, lengths)
    resampled[..., :2].sum().backward()
    assert x.grad is not None
    # Every resampled value is a mean, whose weights have the sum 1: 20 samples of 2 features.
    torch.testing.assert_close(x.grad.sum(dim=(1, 2)), torch.full((2,), 40.0))
    assert not x.grad[0, 33:].any()
    model.train()(x.detach(), lengths).sum().backward()
    assert all(parameter.grad is not None for parameter in model.rnn.parameters())


@pytest.mark.parametrize("time", [61, 300])
def test_no_perturbation_within_the_certified_radius_changes_a_label(time: int) -> None:
    model = fitted(patch_size=4, patch_stride=4, patch_embedding=0, readout="mean")
    sequences = draw(12, 33, time, seed=2)
    sequences[1][5:9] = np.nan
    x, lengths = padded(sequences, time)
    radii = certified_radii(model, x, lengths)
    assert np.isfinite(radii).all()
    _, scale = model.feature_scaling()
    labels = model(x, lengths).argmax(dim=1)
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        change = torch.randn(x.shape, generator=random)
        change *= (torch.arange(time)[None, :, None] < lengths[:, None, None]) & ~x.isnan()
        change *= torch.from_numpy(radii).float()[:, None, None] / change.flatten(1).norm(dim=1)[:, None, None]
        assert torch.equal(model(x + 0.999 * change * scale, lengths).argmax(dim=1), labels)


@pytest.mark.parametrize("length", [7, 20, 61, 500])
def test_the_gain_of_the_resampling_is_covered(length: int) -> None:
    model = fitted(patch_size=1, patch_stride=1, patch_embedding=0)
    from stablernn.certificates.certified_radius import _repetitions

    x = torch.zeros(1, length, 2)
    _, (repeats,) = _repetitions(model, x, None)
    # The matrix of the resampling, column by column.
    matrix = Resampling(20)(torch.eye(length)[None])[0, :, :length].double()
    assert torch.linalg.matrix_norm(matrix, 2) <= repeats**0.5


def test_a_resampling_that_was_not_fitted_is_named() -> None:
    model = srn.Classifier("lru", 2, 2, resample_steps=10, scaling="none")
    with pytest.warns(UntrainedWarning, match="never fitted"):
        srn.certify(model)
