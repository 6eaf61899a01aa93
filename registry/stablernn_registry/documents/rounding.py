"""Bounds as text, rounded to the side on which they still hold."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def format_upper(value: float, digits: int) -> str:
    """Return an upper bound with so many significant digits, rounded up, so that what is printed holds as well."""
    return _format_rounded(value, digits, ROUND_CEILING)


def format_lower(value: float, digits: int) -> str:
    """Return a lower bound with so many significant digits, rounded down, so that what is printed holds as well."""
    return _format_rounded(value, digits, ROUND_FLOOR)


def _format_rounded(value: float, digits: int, rounding: str) -> str:
    # Decimal cannot shift the digits of infinity, and zero has none.
    if not value or not math.isfinite(value):
        return f"{value:g}"
    # The shortest decimal that reads back as the same float: 0.1 is printed as it is, and not as 0.100001.
    number = Decimal(repr(float(value)))
    rounded = number.quantize(Decimal(1).scaleb(number.adjusted() - digits + 1), rounding)
    return f"{float(rounded):.{digits}g}"
