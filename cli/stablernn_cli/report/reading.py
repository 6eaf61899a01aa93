"""Reading of stored reports, in which any JSON may stand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def parse_object(content: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object in some bytes; None if there is none."""
    try:
        tree = json.loads(content)
    # Deep nesting ends in a RecursionError, bytes that are no text in a UnicodeDecodeError, which is a ValueError.
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, Mapping) else None


def value_at(tree: object, *keys: str) -> object:
    """Return the value under nested keys; None if one is missing."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def number_at(tree: object, *keys: str) -> float | None:
    """Return the finite number under nested keys; None if there is none."""
    value = value_at(tree, *keys)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # JSON has whole numbers that are too large for a float.
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def count_at(tree: object, *keys: str) -> int | None:
    """Return the whole number of 0 or more under nested keys; None if there is none."""
    value = value_at(tree, *keys)
    # bool is an int, but no count.
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def text_at(tree: object, *keys: str) -> str | None:
    """Return the text under nested keys; None if there is none."""
    value = value_at(tree, *keys)
    return value if isinstance(value, str) else None


def rows_at(tree: object, *keys: str) -> list[Mapping[str, Any]]:
    """Return the objects in a list under nested keys."""
    value = value_at(tree, *keys)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def first_number_at(tree: object, *keys: str) -> float | None:
    """Return the first entry of a list under nested keys, if it is a finite number."""
    value = value_at(tree, *keys)
    return number_at({"first": value[0]}, "first") if isinstance(value, list) and value else None
