from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from stablernn.nn.models import Classifier
from stablernn.training.loop.augmentation import Augmentation, _natural_spline
from stablernn.training.loop.losses import ClassifyObjective
from stablernn.training.loop.minibatches import Batch

MEAN, SCALE = torch.tensor([5.0, -1.0]), torch.tensor([2.0, 0.1])


def changed(x: torch.Tensor, lengths: list[int] | None = None, seed: int = 0, **strength: float) -> torch.Tensor:
    torch.manual_seed(seed)
    counted = torch.tensor(lengths or [x.shape[1]] * len(x))
    return Augmentation(**strength)(x, counted, MEAN[: x.shape[2]], SCALE[: x.shape[2]])


def ramps(count: int, time: int) -> torch.Tensor:
    """Sequences whose value is the number of the step, so that a warped one says where it was read."""
    return torch.arange(float(time)).repeat(count, 1)[..., None]


@given(length=st.integers(1, 40), padding=st.integers(0, 5), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_shifted_sequence_goes_on_at_its_beginning(length: int, padding: int, seed: int) -> None:
    x = ramps(8, length + padding)
    got = changed(x, [length] * 8, seed, shift=0.5)[..., 0]
    for sequence in got:
        first = int(sequence[0])
        assert sequence[:length].tolist() == [(first + step) % length for step in range(length)]
    # The padding stays where it is.
    assert (got[:, length:] == x[:, length:, 0]).all()


@given(length=st.integers(1, 40), padding=st.integers(0, 5), strength=st.floats(0.01, 0.49), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_warped_sequence_begins_and_ends_where_it_did(length: int, padding: int, strength: float, seed: int) -> None:
    x = ramps(8, length + padding)
    x[:, length:] = torch.nan
    got = changed(x, [length] * 8, seed, time_warp=strength)[:, :length, 0]
    assert (got[:, 0] == 0).all()
    assert (got[:, -1] == length - 1).all()
    assert ((got >= 0) & (got <= length - 1)).all()


def test_noise_is_as_large_as_it_says() -> None:
    x = torch.zeros(200, 50, 2)
    noise = changed(x, jitter=0.3).flatten(0, 1)
    torch.testing.assert_close(noise.std(dim=0), 0.3 * SCALE, rtol=0.03, atol=0)
    torch.testing.assert_close(noise.mean(dim=0), torch.zeros(2), rtol=0, atol=0.03)


def test_sequences_grow_and_shrink_around_the_mean() -> None:
    x = MEAN + torch.tensor([1.0, 3.0]) * torch.ones(4000, 3, 2)
    factor = (changed(x, rescale=0.2) - MEAN) / torch.tensor([1.0, 3.0])
    # One factor for each sequence and feature, the same at all steps.
    torch.testing.assert_close(factor, factor[:, :1].expand(-1, 3, -1), rtol=1e-4, atol=1e-5)
    assert float(factor[:, 0].std()) == pytest.approx(0.2, rel=0.05)
    assert float(factor[:, 0].mean()) == pytest.approx(1, abs=0.01)
    assert abs(float(torch.corrcoef(factor[:, 0].T)[0, 1])) < 0.05


@given(length=st.integers(1, 40), padding=st.integers(0, 5), smallest=st.floats(0.01, 0.99), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_crop_is_a_window_of_the_sequence_at_its_length(
    length: int, padding: int, smallest: float, seed: int
) -> None:
    x = ramps(8, length + padding)
    x[:, length:] = torch.nan
    windows = changed(x, [length] * 8, seed, crop=smallest)[:, :length, 0]
    begin, end = windows[:, :1], windows[:, -1:]
    assert ((begin >= 0) & (end <= length - 1)).all()
    share = (end - begin) / max(1, length - 1)
    assert length == 1 or ((share >= smallest - 1e-5) & (share <= 1)).all()
    # Evenly spaced from its first step to its last.
    expected = begin + (end - begin) * torch.arange(length) / max(1, length - 1)
    torch.testing.assert_close(windows, expected, rtol=1e-5, atol=1e-4)


def test_the_curve_is_a_natural_cubic_spline() -> None:
    knots, position = torch.randn(3, 6, 2), 5 * torch.rand(3, 50)
    position[:, :3] = torch.tensor([0.0, 2.0, 5.0])
    curves = _natural_spline(knots, position)
    for row in range(3):
        reference = CubicSpline(np.arange(6), knots[row].double().numpy(), bc_type="natural")
        expected = torch.from_numpy(reference(position[row].double().numpy()).astype(np.float32))
        torch.testing.assert_close(curves[row], expected, rtol=1e-5, atol=1e-5)


def test_a_seed_repeats_all_of_it() -> None:
    x = torch.randn(6, 20, 2)
    strength = {"time_warp": 0.1, "jitter": 0.1, "rescale": 0.1}
    strength |= {"shift": 0.1, "crop": 0.8, "magnitude_warp": 0.1, "channel_dropout": 0.2}
    assert torch.equal(changed(x, seed=4, **strength), changed(x, seed=4, **strength))
    assert not torch.equal(changed(x, seed=4, **strength), changed(x, seed=5, **strength))


def trained_on(scaling: str, x: torch.Tensor, augmentation: Augmentation | None, **options: bool) -> torch.Tensor:
    torch.manual_seed(0)
    model = Classifier("rnn", 1, 2, 4, scaling=scaling, window=8 if scaling == "context" else None, **options)
    model.fit_scaling([*x.numpy()])
    torch.manual_seed(1)
    batch = Batch(x, torch.full((len(x),), x.shape[1]), torch.arange(len(x)) % 2)
    return ClassifyObjective(augmentation=augmentation).loss(model, batch).detach()


def test_logarithms_are_what_is_changed_where_a_model_takes_them() -> None:
    x = torch.exp(3 * torch.randn(20, 12, 1))
    plain = trained_on("context", x, None, log=True)
    # Noise of a thousandth of the spread of the logarithms would carry small values below zero were it on the values.
    torch.testing.assert_close(trained_on("context", x, Augmentation(jitter=1e-4), log=True), plain, rtol=1e-3, atol=0)
    assert float(trained_on("context", x, Augmentation(jitter=0.5), log=True)) != float(plain)


def test_label_smoothing_and_class_weights_are_those_of_cross_entropy() -> None:
    x = torch.randn(6, 4, 1)
    y = torch.tensor([0, 0, 0, 0, 1, 2])
    weights = torch.tensor([0.5, 2.0, 2.0])
    model = Classifier("rnn", 1, 3, 4)
    logits = model(x)
    batch = Batch(x, torch.full((6,), 4), y)
    share = torch.log_softmax(logits, dim=1)
    nearest = -share[torch.arange(6), y]
    smooth = ClassifyObjective(label_smoothing=0.3).loss(model, batch)
    torch.testing.assert_close(smooth, (0.7 * nearest + 0.3 * -share.mean(dim=1)).mean())
    weighted = ClassifyObjective(class_weights=weights).loss(model, batch)
    torch.testing.assert_close(weighted, (weights[y] * nearest).sum() / weights[y].sum())
