"""Scaling: whole sequences against single steps, missing values, padding, plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.errors import DataError
from stablernn.nn.preprocessing import Scaling, create_scaling

KINDS = ["standard", "none", "log", "window"]


def scaling(kind: str, *, mask_channel: bool = False, window: int = 6) -> Scaling:
    made = create_scaling(kind, 2, window=window if kind == "window" else None, mask_channel=mask_channel)
    made.fit([np.array([[1.0, 10.0], [3.0, 30.0], [np.nan, 20.0]])])
    return made


def zeros(made: Scaling, batch: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.zeros(batch, size) for _, size in made.state_roles())


def stepped(made: Scaling, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    state, outputs = zeros(made, len(x)), []
    for sample in x.unbind(1):
        output, state = made.step(sample, state)
        outputs.append(output)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("mask_channel", [False, True], ids=["plain", "mask"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), steps=st.integers(1, 15), missing=st.sampled_from([0.0, 0.3, 1.0]))
def test_a_sequence_equals_its_steps_to_the_bit(
    kind: str, mask_channel: bool, seed: int, steps: int, missing: float
) -> None:
    made = scaling(kind, mask_channel=mask_channel)
    generator = np.random.default_rng(seed)
    values = generator.normal(5, 3, (3, steps, 2)).astype(np.float32)
    values[generator.random(values.shape) < missing] = np.nan
    x = torch.from_numpy(values)
    lengths = torch.from_numpy(generator.integers(1, steps + 1, 3))
    valid = torch.arange(steps) < lengths[:, None]

    output, state = made.sequence(x, zeros(made, 3), valid)
    for row, length in enumerate(lengths.tolist()):
        expected, expected_state = stepped(made, x[row : row + 1, :length])
        assert torch.equal(output[row : row + 1, :length], expected)
        assert all(torch.equal(got[row : row + 1], want) for got, want in zip(state, expected_state, strict=True))


def test_standard_scaling_is_the_standard_score_of_the_training_values() -> None:
    made = scaling("standard")
    output, _ = made.step(torch.tensor([[1.0, 30.0]]), zeros(made, 1))
    deviation = np.std([10.0, 30.0, 20.0])
    assert output.tolist() == [pytest.approx([-1.0, 10 / deviation])]


def test_log_scaling_is_that_of_the_logarithms_from_a_tenth_of_the_smallest_value_on() -> None:
    made = scaling("log")
    output, _ = made.step(torch.tensor([[0.0, 30.0]]), zeros(made, 1))
    logs = np.log([10.0, 30.0, 20.0])
    assert output.tolist() == [pytest.approx([2 * np.log(0.1) / np.log(3) - 1, (logs[1] - logs.mean()) / logs.std()])]
    with pytest.raises(DataError, match=r"^Feature 1 goes down to 0, .* positive values only; set model.scaling"):
        made.fit([np.array([[1.0, 10.0], [3.0, 0.0]])])


def test_a_missing_value_repeats_the_last_observed_and_starts_at_the_mean() -> None:
    made = scaling("standard", mask_channel=True)
    x = torch.tensor([[[np.nan, 20.0], [3.0, np.nan], [np.nan, 10.0]]])
    output, _ = made.sequence(x, zeros(made, 1), None)
    assert output[0, :, 0].tolist() == [0.0, 1.0, 1.0]
    assert output[0, :, 2].tolist() == [0.0, 1.0, 0.0]
    assert output[0, :, 3].tolist() == [1.0, 0.0, 1.0]
    assert output[0, 1, 1] == output[0, 0, 1]


def test_window_scaling_equals_running_statistics_by_numpy() -> None:
    made = scaling("window", window=50)
    values = np.random.default_rng(0).normal(100, 7, (20, 2)).astype(np.float32)
    output, _ = made.sequence(torch.from_numpy(values)[None], zeros(made, 1), None)
    for step in range(1, 20):
        seen = values[: step + 1].astype(np.float64)
        expected = (values[step] - seen.mean(0)) / seen.std(0)
        assert output[0, step].numpy() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", ["standard", "none", "window"])
def test_the_anchor_is_the_last_observed_value_in_raw_units(kind: str) -> None:
    made = scaling(kind)
    x = torch.tensor([[[1.0, 10.0], [4.0, np.nan], [np.nan, 12.0]]])
    _, state = made.sequence(x, zeros(made, 1), None)
    location, _ = made.anchor(state)
    assert location.tolist() == [pytest.approx([4.0, 12.0], rel=1e-6)]


@pytest.mark.parametrize("unit", [1e-13, 1.0, 1e13], ids=["pico", "one", "tera"])
def test_standard_scaling_works_in_any_unit(unit: float) -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, (50, 1)) * unit
    made = Scaling(1)
    made.fit([values])
    scaled, _ = made.sequence(torch.from_numpy(values.astype(np.float32))[None], zeros(made, 1), None)
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scaled.std(correction=0)) == pytest.approx(1, rel=1e-5)


def test_a_feature_that_never_changes_keeps_scale_one() -> None:
    made = Scaling(1)
    made.fit([np.full((5, 1), 0.1), np.full((3, 1), 0.1)])
    assert made.scale.tolist() == [1.0]
    assert made.mean.tolist() == pytest.approx([0.1])
