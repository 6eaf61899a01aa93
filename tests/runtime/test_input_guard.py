"""Samples and the range of inputs of the certificate: what counts as outside, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stablernn_runtime.errors import InputError
from stablernn_runtime.state_guard import InputGuard


def certificate(lower: Any, upper: Any) -> dict[str, Any]:
    return {"bounded_inputs": {"inputs": {"lower": lower, "upper": upper}}}


def check(guard: InputGuard, x: Any, lengths: Any = None, *, is_refused: bool = False) -> int:
    lengths = None if lengths is None else np.array(lengths)
    return guard.check(np.array(x, np.float32), lengths, "m:1", is_refused=is_refused)


def test_each_feature_has_its_range_and_a_sample_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = InputGuard(certificate([-1.0, 980.0], [1.0, 1046.0]))
    assert guard.ranges == [(-1.0, 1.0), (980.0, 1046.0)]
    assert check(guard, [[[1.0, 980.0], [-1.0, 1046.0], [np.nan, np.nan]]]) == 0
    assert not caplog.text
    assert check(guard, [[[0.0, 0.0], [2.0, 0.0]], [[0.0, 1000.0], [1.5, 1000.0]]]) == 3
    assert guard.outside_count == 3
    assert "m:1: sample 0 of sequence 0 has the value 0 of feature 1, outside 980 to 1046" in caplog.text


def test_an_end_of_the_range_as_float32_has_it_is_inside() -> None:
    guard = InputGuard(certificate([-0.3], [0.3]))
    assert float(np.float32(0.3)) > 0.3
    assert check(guard, [[[0.3], [-0.3]]]) == 0
    assert check(guard, [[[0.30001]]]) == 1


def test_padding_does_not_count() -> None:
    guard = InputGuard(certificate([1.0], [2.0]))
    assert check(guard, [[[1.5], [0.0]], [[1.5], [0.0]]], lengths=[1, 2]) == 1
    # Samples of patches, (batch, patches, stride, features).
    assert check(guard, [[[[1.5], [0.0]], [[0.0], [0.0]]]]) == 3


def test_what_is_outside_can_be_refused() -> None:
    guard = InputGuard(certificate([-1.0], [1.0]))
    assert check(guard, [[[1.0]]], is_refused=True) == 0
    with pytest.raises(InputError, match=r"Sample 1 of sequence 0 has the value 25\.3 of feature 0, outside -1 to"):
        check(guard, [[[0.0], [25.3]]], is_refused=True)
    assert guard.outside_count == 0


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((1, 2)),
        np.full((1, 2, 1), "a"),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_left_to_the_checks_of_the_model(x: Any) -> None:
    assert InputGuard(certificate([-1.0], [1.0])).check(x, None, "m:1", is_refused=True) == 0


@pytest.mark.parametrize(
    "bounded",
    [
        [],
        {"inputs": None},
        {"inputs": {"lower": [1.0], "upper": []}},
        {"inputs": {"lower": [1.0], "upper": [1.0]}},
        {"inputs": {"lower": [0.0], "upper": [10**400]}},
        {"inputs": {"lower": [float("nan")], "upper": [1.0]}},
    ],
)
def test_a_range_that_cannot_be_read_does_not_open(bounded: Any) -> None:
    with pytest.raises(ValueError, match="bounded_inputs without a range of inputs that can be read"):
        InputGuard({"bounded_inputs": bounded})
