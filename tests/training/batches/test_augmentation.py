from __future__ import annotations

import math

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


def test_without_strength_nothing_changes() -> None:
    x = torch.randn(3, 5, 2)
    x[1, 2] = torch.nan
    assert changed(x, [5, 4, 1]) is x


@given(length=st.integers(1, 40), padding=st.integers(0, 5), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_shifted_sequence_goes_on_at_its_beginning(length: int, padding: int, seed: int) -> None:
    x = ramps(8, length + padding)
    got = changed(x, [length] * 8, seed, shift=0.5)[..., 0]
    for sequence in got:
        first = int(sequence[0])
        assert sequence[:length].tolist() == [(first + step) % length for step in range(length)]
    # The padding stays where it is.
    assert (got[:, length:] == x[:, length:, 0]).all()


def test_a_shift_goes_either_way_up_to_its_share() -> None:
    starts = changed(ramps(2000, 100), shift=0.1)[:, 0, 0]
    # A start behind the middle is one that was shifted back.
    steps = torch.where(starts > 50, starts - 100, starts)
    assert (float(steps.min()), float(steps.max())) == (-10, 10)
    assert float(steps.mean()) == pytest.approx(0, abs=0.5)


@given(length=st.integers(1, 40), padding=st.integers(0, 5), strength=st.floats(0.01, 0.49), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_warped_sequence_begins_and_ends_where_it_did(length: int, padding: int, strength: float, seed: int) -> None:
    x = ramps(8, length + padding)
    x[:, length:] = torch.nan
    got = changed(x, [length] * 8, seed, time_warp=strength)[:, :length, 0]
    assert (got[:, 0] == 0).all()
    assert (got[:, -1] == length - 1).all()
    assert ((got >= 0) & (got <= length - 1)).all()


def test_each_length_has_waves_of_its_own() -> None:
    x = ramps(200, 30)
    lengths = [12, 30] * 100
    got = changed(x, lengths, time_warp=0.1)[..., 0]
    for length in (12, 30):
        mine = got[torch.tensor(lengths) == length]
        assert (mine[:, length - 1] == length - 1).all()
        assert (mine[:, : length - 1] <= length - 1).all()
        moved = (mine[:, :length] - x[0, :length, 0]).std(dim=0) / length
        # In the middle only the first and the third wave count, for one sequence in two.
        middle = 0.1 * math.sqrt((1 + 1 / 9) / 2)
        assert float(moved[length // 2]) == pytest.approx(middle, rel=0.35)


def test_a_sequence_is_moved_as_far_from_its_end_as_from_its_beginning() -> None:
    got = changed(ramps(4000, 10), time_warp=0.03)[..., 0]
    near = [float((got[:, step] - step).abs().mean()) for step in range(10)]
    assert near[0] == near[9] == 0
    for step in range(1, 5):
        assert near[9 - step] == pytest.approx(near[step], rel=0.1)


def test_half_of_the_sequences_are_seen_as_they_are() -> None:
    got = changed(ramps(1000, 20), time_warp=0.05)
    same = (got == ramps(1, 20)).flatten(1).all(dim=1)
    assert 430 < int(same.sum()) < 570


def test_what_is_missing_is_moved_and_does_not_spread() -> None:
    x = torch.randn(400, 40, 1)
    x[:, 20] = torch.nan
    x[:, 30:32] = torch.nan
    holes = torch.isnan(changed(x, time_warp=0.05)).sum(dim=1).float()
    # Read more slowly a gap is longer, read faster it is shorter; interpolation would add a step to each of them.
    assert float(holes.mean()) == pytest.approx(3, abs=0.15)
    still = changed(x, jitter=0.1, rescale=0.1, magnitude_warp=0.1)
    assert (torch.isnan(still) == torch.isnan(x)).all()


def test_values_between_two_samples_are_interpolated() -> None:
    x = ramps(50, 30)
    got = changed(x, time_warp=0.02)[..., 0]
    assert bool((got != got.round()).any())
    doubled = changed(2 * x, time_warp=0.02)[..., 0]
    torch.testing.assert_close(doubled, 2 * got)


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
@settings(max_examples=60, deadline=None)
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


def test_windows_have_all_shares_and_all_starts() -> None:
    windows = changed(ramps(4000, 101), crop=0.6)[..., 0] / 100
    share = windows[:, -1] - windows[:, 0]
    start = windows[:, 0] / (1 - share)
    for numbers, lowest, highest in ((share, 0.6, 1), (start, 0, 1)):
        deciles = torch.quantile(numbers, torch.arange(1, 10) / 10)
        # The standard error of a median of 4000 uniform numbers is 0.008 of their range.
        expected = lowest + (highest - lowest) * torch.arange(1, 10) / 10
        torch.testing.assert_close(deciles, expected, rtol=0, atol=0.03 * (highest - lowest))
    assert abs(float(torch.corrcoef(torch.stack([share, start]))[0, 1])) < 0.06


def test_gaps_are_as_frequent_in_a_window_as_in_the_sequence() -> None:
    x = torch.randn(400, 60, 1)
    x[torch.rand(x.shape) < 0.2] = torch.nan
    # Interpolation with a missing neighbor would leave nearly twice as many.
    assert float(torch.isnan(changed(x, crop=0.5)).float().mean()) == pytest.approx(0.2, abs=0.02)


def test_the_curve_is_a_natural_cubic_spline() -> None:
    knots, position = torch.randn(3, 6, 2), 5 * torch.rand(3, 50)
    position[:, :3] = torch.tensor([0.0, 2.0, 5.0])
    curves = _natural_spline(knots, position)
    for row in range(3):
        reference = CubicSpline(np.arange(6), knots[row].double().numpy(), bc_type="natural")
        expected = torch.from_numpy(reference(position[row].double().numpy()).astype(np.float32))
        torch.testing.assert_close(curves[row], expected, rtol=1e-5, atol=1e-5)


def test_a_magnitude_is_warped_around_the_mean_by_a_curve_of_each_feature() -> None:
    distance = torch.tensor([1.0, 3.0])
    factors = (changed(MEAN + distance * torch.ones(4000, 26, 2), magnitude_warp=0.2) - MEAN) / distance
    # Six knots lie five steps apart, and the curve is less variable between them.
    torch.testing.assert_close(factors[:, ::5].std(dim=0), torch.full((6, 2), 0.2), rtol=0.06, atol=0)
    assert 0.15 < float(factors.std(dim=0).min()) < float(factors.std(dim=0).max()) < 0.215
    torch.testing.assert_close(factors.mean(dim=0), torch.ones(26, 2), rtol=0, atol=0.015)
    assert abs(float(torch.corrcoef(factors[:, 10].T)[0, 1])) < 0.06
    # Smooth: neighbors of a curve are nearly the same.
    assert float(factors.diff(dim=1).std()) < 0.1
    assert float(factors.diff(n=2, dim=1).std()) < 0.04


def test_a_curve_spans_the_steps_of_its_sequence_alone() -> None:
    whole = changed(torch.zeros(1, 21, 2), [21], magnitude_warp=0.3)
    half = changed(torch.zeros(1, 21, 2), [11], magnitude_warp=0.3)
    torch.testing.assert_close(half[:, :11], whole[:, ::2], rtol=1e-5, atol=1e-5)


def test_channels_are_dropped_to_their_mean_with_the_probability_but_for_one() -> None:
    mean = torch.tensor([5.0, -1.0, 0.0])
    x = torch.randn(6000, 4, 3)
    torch.manual_seed(0)
    dropped = Augmentation(channel_dropout=0.5)(x, torch.full((6000,), 4), mean, torch.ones(3)) == mean
    is_dropped = dropped.all(dim=1)
    # In all steps or in none.
    assert torch.equal(is_dropped, dropped.any(dim=1))
    assert not is_dropped.all(dim=1).any()
    # One time in 0.5**3 all three would be, and one of them stays; the standard error is 0.0065.
    torch.testing.assert_close(is_dropped.float().mean(dim=0), torch.full((3,), 0.5 - 0.5**3 / 3), rtol=0, atol=0.026)


def test_the_channel_that_stays_is_a_random_one() -> None:
    x = torch.randn(3000, 4, 2)
    stays = (changed(x, channel_dropout=0.9999) == x).all(dim=1)
    assert (stays.sum(dim=1) == 1).all()
    assert float(stays[:, 0].float().mean()) == pytest.approx(0.5, abs=0.04)


def test_a_dropped_channel_has_neither_noise_nor_gaps() -> None:
    x = torch.randn(50, 6, 2)
    x[:, 3] = torch.nan
    got = changed(x, channel_dropout=0.5, jitter=0.1, rescale=0.1)
    is_dropped = (got[:, 0] == MEAN).unsqueeze(1).expand_as(got)
    assert 20 < int(is_dropped[:, 0].sum()) < 60
    assert (got[is_dropped] == MEAN.expand_as(got)[is_dropped]).all()
    assert torch.equal(torch.isnan(got), torch.isnan(x) & ~is_dropped)


def test_the_only_channel_is_never_dropped() -> None:
    x = torch.randn(20, 5, 1)
    assert torch.equal(changed(x, channel_dropout=0.9), x)


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


@pytest.mark.parametrize("key", ["time_warp", "jitter", "rescale", "shift", "crop", "magnitude_warp"])
def test_a_loss_is_of_changed_sequences(key: str) -> None:
    x = torch.randn(20, 12, 1)
    plain = trained_on("standard", x, None)
    assert float(trained_on("standard", x, Augmentation())) == float(plain)
    assert float(trained_on("standard", x, Augmentation(**{key: 0.2}))) != float(plain)


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
