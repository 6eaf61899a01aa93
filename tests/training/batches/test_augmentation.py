from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.nn.models import Classifier
from stablernn.training.batches.augmentation import Augmentation
from stablernn.training.batches.losses import Batch, ClassifyObjective

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
    still = changed(x, jitter=0.1, rescale=0.1)
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


def test_a_seed_repeats_all_of_it() -> None:
    x = torch.randn(6, 20, 2)
    strength = {"time_warp": 0.1, "jitter": 0.1, "rescale": 0.1}
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


@pytest.mark.parametrize("key", ["time_warp", "jitter", "rescale", "shift"])
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
