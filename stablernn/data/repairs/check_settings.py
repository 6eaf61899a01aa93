"""Checks of the options of repairs, which Python code may pass unchecked."""

from __future__ import annotations

from typing import get_args

from stablernn import errors
from stablernn.data.options import Repairs
from stablernn.data.repairs.local_times import check_timezone
from stablernn.data.repairs.resampling import parse_step


def check_repairs(repairs: Repairs) -> None:
    """Refuse options that cannot be used, or would have no effect.

    Raises:
        UnknownNameError: If a time zone or a frequency alias does not exist.
        ConfigError: If a value is not allowed, or an option needs another one that is not set.
    """
    for name in ("on_duplicate", "unknown_category", "aggregate"):
        allowed = get_args(Repairs.model_fields[name].annotation)
        if getattr(repairs, name) not in allowed:
            raise errors.ConfigError(f"{name} must be {_alternatives(allowed)}, got {getattr(repairs, name)!r}.")
    if repairs.decimal_mark not in (None, ",", "."):
        raise errors.ConfigError(f"decimal_mark must be ',' or '.', got {repairs.decimal_mark!r}.")
    if repairs.thousands_mark not in (None, ",", ".", " ", "'"):
        raise errors.ConfigError(
            f"thousands_mark must be ',', '.', ' ' or an apostrophe, got {repairs.thousands_mark!r}."
        )
    if repairs.decimal_mark is not None and repairs.decimal_mark == repairs.thousands_mark:
        raise errors.ConfigError(
            f"decimal_mark and thousands_mark are both '{repairs.decimal_mark}', and must differ. Change one of them."
        )
    if repairs.aggregate != "mean" and repairs.resample is None:
        raise errors.ConfigError(
            f"aggregate={repairs.aggregate} needs resample, the step to aggregate to. Set it, or leave aggregate out."
        )
    if repairs.unknown_category != "zeros" and not repairs.categories:
        raise errors.ConfigError(
            f"unknown_category={repairs.unknown_category} needs categories, the columns of text. Set them, or leave "
            "unknown_category out."
        )
    if repairs.min_length is not None and repairs.min_length < 1:
        raise errors.ConfigError(f"min_length must be 1 or more, got {repairs.min_length}.")
    if repairs.timezone is not None:
        check_timezone(repairs.timezone)
    if repairs.resample is not None:
        parse_step(repairs.resample)


def _alternatives(values: tuple[str, ...]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"
