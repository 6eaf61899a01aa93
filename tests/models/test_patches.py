"""Patches: what the layers see against a definition in numpy, and a stream of patches against whole sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stablernn as srn
from stablernn.cells import cell_info
from stablernn.nn.models import READOUTS, SequenceModel
from stablernn.nn.preprocessing import Patches, Scaling, create_scaling

SCALINGS: dict[str, dict[str, Any]] = {
    "standard": {"scaling": "standard"},
    "window": {"scaling": "window", "window": 6},
    "context": {"scaling": "context", "window": 7, "season": 3},
    "log": {"scaling": "context", "window": 5, "log": True},
}
SHAPES = [(1, 1), (3, 3), (4, 2), (5, 3), (6, 1), (9, 9)]


def scaling(*, mask_channel: bool = False) -> Scaling:
    made = Scaling(2, mask_channel=mask_channel)
    made.fit([np.array([[1.0, 10.0], [3.0, 30.0], [2.0, 20.0]])])
    return made


def start(made: Patches, batch: int) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(batch, size) for _, size in made.state_roles())


def defined(values: np.ndarray, patches: Patches) -> np.ndarray:
    """The patches of one sequence of float64 ``(time, F)``, straight from the words of the docstring."""
    made, size, stride = patches.scaling, patches.size, patches.stride
    absent = np.full((-len(values) % stride, values.shape[1]), np.nan)
    values = np.concatenate([absent, values] if patches.end_aligned else [values, absent])
    rows, held = [np.zeros(made.output_size)] * (size - stride), np.zeros(values.shape[1])
    for sample in values:
        observed = ~np.isnan(sample)
        held = np.where(observed, (sample - made.mean.numpy()) / made.scale.numpy(), held)
        rows.append(np.concatenate([held, observed]) if made.mask_channel else held)
    count = len(values) // stride
    return np.stack([np.concatenate(rows[k * stride : k * stride + size]) for k in range(count)])


@pytest.mark.parametrize("end_aligned", [False, True], ids=["begin", "end"])
@pytest.mark.parametrize("mask_channel", [False, True], ids=["plain", "mask"])
@settings(max_examples=60, deadline=None)
@given(shape=st.sampled_from(SHAPES), steps=st.integers(1, 14), seed=st.integers(0, 10_000))
def test_patches_are_the_last_samples_side_by_side(
    mask_channel: bool, end_aligned: bool, shape: tuple[int, int], steps: int, seed: int
) -> None:
    stride = shape[1]
    made = Patches(scaling(mask_channel=mask_channel), *shape, end_aligned=end_aligned)
    generator = np.random.default_rng(seed)
    values = generator.normal(5, 3, (3, steps, 2)).astype(np.float32)
    values[generator.random(values.shape) < 0.3] = np.nan
    lengths = generator.integers(0, steps + 1, 3)
    valid = torch.arange(steps) < torch.from_numpy(lengths)[:, None]

    features, groups, _ = made.sequence(torch.from_numpy(values), valid, start(made, 3))
    assert features.shape == (3, -(-steps // stride), made.output_size)
    assert groups is not None
    assert groups.tolist() == [-(-length // stride) for length in lengths]
    for row, length in enumerate(lengths):
        if length:
            expected = defined(values[row, :length].astype(np.float64), made)
            assert features[row, : len(expected)].numpy() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_last_patch_of_a_forecaster_is_whole_and_the_first_of_a_classifier() -> None:
    assert srn.Forecaster("rnn", 1, 2, patch_size=4).patches.end_aligned
    assert not srn.Classifier("rnn", 1, 2, patch_size=4).patches.end_aligned


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(SCALINGS)),
    shape=st.sampled_from(SHAPES),
    end_aligned=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_one_patch_after_the_other_is_the_whole_sequence(
    kind: str, shape: tuple[int, int], end_aligned: bool, seed: int
) -> None:
    options = {key: value for key, value in SCALINGS[kind].items() if key != "scaling"}
    made_scaling = create_scaling(SCALINGS[kind]["scaling"], 2, **{"window": None, "mask_channel": True, **options})
    generator = np.random.default_rng(seed)
    made_scaling.fit([generator.uniform(1, 90, (30, 2))])
    made = Patches(made_scaling, *shape, end_aligned=end_aligned)
    values = generator.uniform(1, 90, (2, 11, 2)).astype(np.float32)
    values[generator.random(values.shape) < 0.3] = np.nan
    x = torch.from_numpy(values)
    features, _, state = made.sequence(x, None, start(made, 2))

    following = start(made, 2)
    rest = -11 % shape[1]
    padded = torch.nn.functional.pad(x, (0, 0, rest, 0) if end_aligned else (0, 0, 0, rest), value=torch.nan)
    for number, patch in enumerate(padded.split(shape[1], dim=1)):
        step, following = made.step(patch, following)
        torch.testing.assert_close(step, features[:, number], rtol=2e-5, atol=2e-5)
    for got, want in zip(following, state, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_the_time_of_a_patch_is_the_mean_of_its_samples() -> None:
    made = Patches(scaling(), 4, 3)
    times = made.time(torch.tensor([[1.0, 2.0, 6.0, 0.5, 2.5], [3.0, 3.0, 1.0, 1.0, 1.0]]), None)
    assert times.tolist() == [
        [pytest.approx(3.0), pytest.approx(4 / 3)],
        [pytest.approx(7 / 3), pytest.approx(1.0)],
    ]
    valid = torch.tensor([[True] * 5, [True, True, True, True, False]])
    ending = Patches(scaling(), 4, 3, end_aligned=True)
    times = ending.time(torch.tensor([[1.0, 2.0, 6.0, 0.5, 2.5], [3.0, 5.0, 3.0, 4.0, 1.0]]), valid)
    assert times.tolist() == [
        [pytest.approx(4 / 3), pytest.approx(3.0)],
        [pytest.approx(5 / 3), pytest.approx(4.0)],
    ]


def stepped(model: SequenceModel, x: Tensor, dt: Tensor | None) -> tuple[Tensor, ...]:
    """The state after one sequence, one patch after the other, the last or the first of them completed by hand."""
    stride, state, weights = model.patches.stride, model.initial_state(1), model.materialize()
    rest = -x.shape[1] % stride
    rests = (rest, 0) if model.patches.end_aligned else (0, rest)
    x = torch.nn.functional.pad(x, (0, 0, *rests), value=torch.nan)
    if dt is not None:
        dt = torch.nn.functional.pad(dt, rests, value=1.0)
    for time in range(0, x.shape[1], stride):
        patch = x[:, time : time + stride]
        times = None if dt is None else dt[:, time : time + stride]
        if model.patches.size == 1:
            patch, times = patch[:, 0], None if times is None else times[:, 0]
        state = model.transition(weights, patch, state, times)
    return state


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("kind", SCALINGS)
def test_a_padded_batch_equals_each_sequence_patch_by_patch(kind: str, readout: str, members: int) -> None:
    for size, stride in ((1, 1), (4, 4), (5, 2)):
        model = srn.Classifier(
            "lstm",
            2,
            3,
            4,
            **SCALINGS[kind],
            num_layers=2,
            readout=readout,
            mask_channel=True,
            patch_size=size,
            patch_stride=stride,
            patch_embedding=3 if members == 2 else 0,
            members=members,
        )
        model.double().fit_scaling([np.random.default_rng(0).uniform(1, 9, (40, 2))])
        x = torch.rand(5, 11, 2, dtype=torch.float64) * 8 + 1
        x[torch.rand(x.shape) < 0.2] = torch.nan
        lengths = torch.tensor([11, 1, 4, 7, 0])
        with torch.no_grad():
            state = model.eval().final_state(x, lengths)
            for row, length in enumerate(lengths.tolist()):
                expected = stepped(model, x[row : row + 1, :length], None)
                for got, want in zip(state, expected, strict=True):
                    torch.testing.assert_close(got[row : row + 1], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [srn.Classifier, srn.Forecaster])
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 3), (5, 2)])
def test_a_padded_batch_with_times_equals_each_sequence_patch_by_patch(size: int, stride: int, kind: Any) -> None:
    options: dict[str, Any] = {"max_dt": 5.0, "patch_size": size, "patch_stride": stride}
    model = kind("cfc", 2, 3, 4, **options).double().eval()
    x, dt = torch.randn(4, 8, 2, dtype=torch.float64), torch.rand(4, 8, dtype=torch.float64) * 5
    lengths = torch.tensor([8, 3, 7, 0])
    with torch.no_grad():
        state = model.final_state(x, lengths, dt=dt)
        for row, length in enumerate(lengths.tolist()):
            expected = stepped(model, x[row : row + 1, :length], dt[row : row + 1, :length])
            for got, want in zip(state, expected, strict=True):
                torch.testing.assert_close(got[row : row + 1], want, rtol=1e-9, atol=1e-9)


TAKING = [key for key in srn.list_cells() if cell_info(key).cell.takes_missing]


@pytest.mark.parametrize("cell", TAKING)
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (4, 4), (4, 2)])
def test_no_state_is_missing(cell: str, size: int, stride: int) -> None:
    model = srn.Classifier(cell, 1, 2, 4, patch_size=size, patch_stride=stride)
    x = torch.randn(2, 8, 1)
    x[:, 7] = torch.nan
    features, _, _ = model.patches.sequence(x, None, model._split(model.initial_state(2))[0])
    assert bool(torch.isnan(features).any()) is (size == stride)
    assert not any(torch.isnan(state).any() for state in model.final_state(x))


@pytest.mark.parametrize("cell", TAKING)
def test_one_missing_value_does_not_take_its_patch_along(cell: str) -> None:
    """A cell that takes missing values takes those of channels; of an embedding all would be missing, or none."""
    model = srn.Classifier(cell, 1, 2, 4, patch_size=4, patch_embedding=5)
    x = torch.randn(2, 8, 1)
    x[:, 2] = torch.nan
    features, _, _ = model.patches.sequence(x, None, model._split(model.initial_state(2))[0])
    assert not torch.isnan(features).any()
    model(x).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)


def test_times_behind_the_end_are_not_looked_at() -> None:
    model = srn.Classifier("cfc", 1, 2, 4, max_dt=4.0, patch_size=3)
    x, lengths = torch.randn(2, 6, 1), torch.tensor([6, 4])
    dt = torch.rand(2, 6) * 4
    expected = model(x, lengths, dt)
    dt[1, 4:] = torch.tensor([-1.0, 99.0])
    assert torch.equal(model(x, lengths, dt), expected)
    whole = torch.ones(2, 6, dtype=torch.int64)
    assert torch.equal(model(x, lengths, whole), model(x, lengths))
