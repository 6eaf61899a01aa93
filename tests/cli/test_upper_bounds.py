"""Bounds are printed rounded to the side on which they still hold."""

from __future__ import annotations

import math

import pytest

from stablernn_registry.certificates import format_lower, format_upper


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (6_723_447_172.0, 4, "6.724e+09"),
        (0.9962388, 6, "0.996239"),
        (0.99623801, 6, "0.996239"),
        (1.0, 3, "1"),
        (119.2, 3, "120"),
        (0.0, 3, "0"),
        (9.999, 2, "10"),
        # The nearest floats lie above and below these decimals.
        (0.1, 6, "0.1"),
        (0.29, 6, "0.29"),
        (-0.0037649, 4, "-0.003764"),
        (math.inf, 4, "inf"),
    ],
)
def test_an_upper_bound_is_never_printed_smaller_than_it_is(value: float, digits: int, text: str) -> None:
    assert format_upper(value, digits) == text
    assert float(text) >= value


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0319999, 4, "0.03199"),
        (0.34, 4, "0.34"),
        (0.29, 4, "0.29"),
        (1 - 2**-22, 8, "0.99999976"),
        (666.66667, 6, "666.666"),
        (0.0, 4, "0"),
        (-1.25e-8, 2, "-1.3e-08"),
    ],
)
def test_a_lower_bound_is_never_printed_larger_than_it_is(value: float, digits: int, text: str) -> None:
    assert format_lower(value, digits) == text
    assert float(text) <= value
