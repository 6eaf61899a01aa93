"""Upper bounds in the sentences of a certificate's document are rounded up."""

from __future__ import annotations

import pytest

from stablernn_registry.documents.rounding import format_upper


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
    ],
)
def test_an_upper_bound_is_never_printed_smaller_than_it_is(value: float, digits: int, text: str) -> None:
    assert format_upper(value, digits) == text
    assert float(text) >= value
