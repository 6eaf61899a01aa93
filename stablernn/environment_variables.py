"""Numbers from environment variables."""

from __future__ import annotations

import math
import os

from stablernn.errors import ConfigError


def read_positive_number(variable: str, default: float, limits: tuple[float, float] | None = None) -> float:
    """Return the number in an environment variable, or the default if the variable is not set or empty.

    Args:
        variable: Name of the variable.
        default: The number without it, in the same unit.
        limits: Smallest and largest number that it may be; None for every finite number above 0.

    Raises:
        ConfigError: If it is not such a number.
    """
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        # No comparison with NaN holds, so it is rejected below.
        number = math.nan
    smallest, largest = limits or (0.0, math.inf)
    if not (smallest <= number <= largest and 0 < number < math.inf):
        allowed = f"from {smallest:g} to {largest:g}" if limits else "above 0"
        raise ConfigError(f"{variable} must be a number {allowed}, got '{text:.100}'.")
    return number
