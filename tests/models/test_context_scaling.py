"""Scaling by the last steps: its statistics against numpy, one patch against whole sequences, units, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stablernn.nn.preprocessing import ContextScaling, create_scaling

FLOOR, LIMIT = 0.05, 8.0


def fitted(features: int = 2, *, level: float = 40.0, **options: Any) -> ContextScaling:
    made = ContextScaling(features, **options)
    made.fit([level + np.random.default_rng(7).uniform(-9, 9, (60, features)) for _ in range(3)])
    return made


def start(made: ContextScaling, batch: int) -> tuple[Tensor, ...]:
    return tuple(made.mean.new_zeros(batch, size) for _, size in made.state_roles())


def gappy(seed: int, *shape: int, share: float = 0.3) -> Tensor:
    generator = np.random.default_rng(seed)
    values = generator.uniform(20, 60, shape)
    values[generator.random(shape) < share] = np.nan
    return torch.from_numpy(values)


def remembered(values: np.ndarray, made: ContextScaling, feature: int) -> np.ndarray:
    """The values that count of one feature of float64 ``(time,)``, in training units, at most ``window`` of them."""
    observed = np.flatnonzero(~np.isnan(values))
    if not len(observed):
        return np.zeros(0)
    filled = values[observed[0] :].copy()
    for time in range(1, len(filled)):
        if np.isnan(filled[time]):
            filled[time] = filled[time - 1]
    raw = np.log(np.maximum(filled, float(made.floor[feature]))) if made.log else filled
    return ((raw - float(made.mean[feature])) / float(made.scale[feature]))[-made.window :]


def statistics(values: np.ndarray, made: ContextScaling, feature: int) -> tuple[float, float]:
    """Mean and scale, straight from the words of the docstring."""
    last = remembered(values, made, feature)
    if not len(last):
        return 0.0, FLOOR
    if len(last) <= made.season:
        return float(last.mean()), float(last.std()) + FLOOR
    return float(last.mean()), float(np.abs(last[made.season :] - last[: -made.season]).mean()) + FLOOR


OPTIONS: list[dict[str, Any]] = [
    {"window": 2, "season": 1},
    {"window": 6, "season": 1},
    {"window": 6, "season": 5},
    {"window": 24, "season": 4},
    {"window": 6, "season": 2, "log": True},
]
options_and_steps = given(
    options=st.sampled_from(OPTIONS),
    steps=st.integers(1, 17),
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.0, 0.4, 0.9, 1.0]),
)


@settings(max_examples=80, deadline=None)
@options_and_steps
def test_the_anchor_is_the_mean_and_the_seasonal_change_of_the_last_values(
    options: dict[str, Any], steps: int, seed: int, share: float
) -> None:
    made = fitted(**options).double()
    x = gappy(seed, 1, steps, 2, share=share)
    _, _, state = made.patches(x, start(made, 1), 1)
    location, scale = made.anchor(state)
    context = made.context(state)
    for feature in range(2):
        values = x[0, :, feature].numpy()
        mean, deviation = statistics(values, made, feature)
        unit = float(made.scale[feature])
        assert float(location[0, feature]) == pytest.approx(float(made.mean[feature]) + unit * mean, rel=1e-9)
        assert float(scale[0, feature]) == pytest.approx(unit * deviation, rel=1e-9)
        expected = np.zeros(made.window)
        last = (remembered(values, made, feature) - mean) / deviation
        expected[made.window - len(last) :] = last
        assert context[0, :, feature].numpy() == pytest.approx(expected, rel=1e-7, abs=1e-9)


@settings(max_examples=60, deadline=None)
@options_and_steps
def test_the_layers_see_the_distance_from_the_mean_and_how_it_and_the_scale_move(
    options: dict[str, Any], steps: int, seed: int, share: float
) -> None:
    made, stride = fitted(**options, mask_channel=True).double(), 3
    x = gappy(seed, 1, 3 * steps, 2, share=share)
    channels, extras, _ = made.patches(x, start(made, 1), stride)
    assert extras is not None
    for feature in range(2):
        values = x[0, :, feature].numpy()
        before = None
        for patch in range(steps):
            end = stride * (patch + 1)
            mean, deviation = statistics(values[:end], made, feature)
            seen = remembered(values[:end], made, feature)
            recent = np.zeros(stride) if not len(seen) else np.concatenate([np.zeros(stride), seen])[-stride:]
            expected = np.clip((recent - mean) / deviation, -LIMIT, LIMIT)
            got = channels[0, end - stride : end]
            # A window shorter than a patch has forgotten the patch's first samples, which the layers see all the same.
            kept = min(stride, made.window)
            assert got[-kept:, feature].numpy() == pytest.approx(expected[-kept:], rel=1e-6, abs=1e-7)
            assert got[:, 2 + feature].tolist() == (~np.isnan(values[end - stride : end])).tolist()
            moved = 0.0 if before is None else np.clip((mean - before) / deviation, -LIMIT, LIMIT)
            assert extras[0, patch, feature].item() == pytest.approx(np.log(deviation), rel=1e-6, abs=1e-9)
            assert extras[0, patch, 2 + feature].item() == pytest.approx(moved, rel=1e-6, abs=1e-9)
            before = mean if len(seen) else None


@settings(max_examples=80, deadline=None)
@given(
    options=st.sampled_from(OPTIONS),
    stride=st.sampled_from([1, 2, 3, 5, 8]),
    counts=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.0, 0.4, 0.9]),
)
def test_patches_of_unequal_sequences_are_one_patch_after_the_other(
    options: dict[str, Any], stride: int, counts: list[int], seed: int, share: float
) -> None:
    made = fitted(**options).double()
    earlier = gappy(seed + 1, 3, 4, 2, share=0.5)
    _, _, begun = made.patches(earlier, start(made, 3), 2)
    x = gappy(seed, 3, 5 * stride, 2, share=share)
    for row, count in enumerate(counts):
        x[row, count * stride :] = torch.nan
    channels, extras, state = made.patches(x, begun, stride, torch.tensor(counts))
    assert extras is not None
    for row, count in enumerate(counts):
        following = tuple(tensor[row : row + 1] for tensor in begun)
        for patch in range(count):
            part = slice(patch * stride, (patch + 1) * stride)
            got, further, following = made.patch(x[row : row + 1, part], following)
            assert further is not None
            torch.testing.assert_close(got, channels[row : row + 1, part], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(further, extras[row : row + 1, patch], rtol=1e-9, atol=1e-9)
        for one, other in zip(following, state, strict=True):
            torch.testing.assert_close(one, other[row : row + 1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["context", "window"])
@pytest.mark.parametrize("steps", [1, 3, 9], ids=["one value", "less than a season", "seasons"])
def test_the_anchor_of_a_flat_stretch_has_finite_gradients(kind: str, steps: int) -> None:
    made = create_scaling(kind, 1, window=8, season=4 if kind == "context" else None, mask_channel=False)
    made.fit([np.arange(20.0)[:, None]])
    x = torch.full((1, steps, 1), 7.0, requires_grad=True)
    state = start(made, 1)
    for sample in x.unbind(dim=1):
        _, _, state = made.patch(sample[:, None], state)
    location, scale = made.anchor(state)
    (location + scale).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    # The level is that of the values, or of the last one; a flat stretch has no width that could grow or shrink.
    assert float(x.grad.sum()) == pytest.approx(1, abs=2e-4)


def test_a_small_spread_far_from_the_training_mean_is_not_lost() -> None:
    made = ContextScaling(1, window=32, season=30)
    x = (123_456.78 + 0.1 * torch.randn(1, 20, 1, dtype=torch.float64)).float()
    _, extras, state = made.patches(x, start(made, 1), 1)
    expected = np.log(x[0, :, 0].double().numpy().std() + FLOOR)
    assert extras is not None
    assert extras[0, -1, 0].item() == pytest.approx(expected, rel=1e-5)
    assert made.anchor(state)[1].item() == pytest.approx(np.exp(expected), rel=1e-5)


def test_the_unit_is_the_median_series_mean_seasonal_change() -> None:
    made = ContextScaling(1, window=5, season=2)
    series = [
        np.array([0.0, 0, 1, 1, 2, 2]),
        np.array([5.0, 5, 8, np.nan, 11, 9]),
        np.array([100.0, 100, 200, 200]),
        np.array([7.0, 7, 7, 7]),
        np.array([1.0]),
    ]
    made.fit([values[:, None] for values in series])
    assert made.scale.tolist() == [pytest.approx(np.median([1.0, 3.0, 100.0]))]
    assert made.mean.tolist() == [pytest.approx(np.nanmean(np.concatenate(series)))]


def test_what_rounding_leaves_of_a_perfect_season_is_no_unit() -> None:
    wave = 5 + np.sin(2 * np.pi * np.arange(480) / 24)[:, None]
    assert np.abs(wave[24:] - wave[:-24]).max() > 0
    made = ContextScaling(1, window=48, season=24)
    made.fit([wave])
    assert made.scale.tolist() == [pytest.approx(wave.std())]


def test_logarithms_are_cut_off_below_the_smallest_training_value() -> None:
    made = ContextScaling(2, window=4, log=True)
    made.fit([np.array([[2.0, 70.0], [8.0, np.nan]]), np.array([[4.0, 50.0]])])
    assert made.floor.tolist() == pytest.approx([0.2, 5.0])
    values = torch.tensor([[-3.0, 1e-9], [0.5, 60.0]])
    assert made.transform(values).exp().flatten().tolist() == pytest.approx([0.2, 5.0, 0.5, 60.0])
    assert made.transform(values[:, 1:], [1]).exp().flatten().tolist() == pytest.approx([5.0, 60.0])
    torch.testing.assert_close(made.inverse(made.transform(values[1])), values[1])
    assert torch.isnan(made.transform(torch.tensor([torch.nan, 1.0]))).tolist() == [True, False]
