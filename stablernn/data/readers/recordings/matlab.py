"""Arrays of numbers from MATLAB's files of level 5, as versions 5 to 7 write them.

scipy reads these files, too, but a damaged one ends the process: it trusts the lengths that the file states. Here they
are checked against the file and each other, and only real arrays are read; anything else is skipped.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stablernn import errors

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
# Types of stored numbers, which may be smaller than those of the array, and classes of numeric arrays.
_STORED_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_NUMERIC_CLASSES = range(6, 16)
_COMPLEX_FLAG = 0x0800
# Flags, dimensions and name, before the numbers.
_FLAG_BYTES, _DIMENSION_BYTES = 8, 4


class _Element(NamedTuple):
    """A tagged part of the file.

    Attributes:
        kind: Its type.
        content: Its bytes.
    """

    kind: int
    content: bytes


def read_matlab_arrays(name: str, content: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of real numbers in a file, by the name of their variable.

    Args:
        name: Name of the file, for messages.
        content: Its bytes.

    Raises:
        DataError: If it is not a whole file of level 5.
    """
    if content.startswith(b"MATLAB 7.3"):
        raise errors.DataError(f"'{name}' is a file of MATLAB 7.3. Save it by save('-v7', ...).")
    order = {b"IM": "<", b"MI": ">"}.get(content[_HEADER_BYTES - 2 : _HEADER_BYTES])
    if order is None:
        raise errors.DataError(f"'{name}' is no MATLAB file of level 5. Save it by save('-v7', ...).")
    arrays: dict[str, npt.NDArray[Any]] = {}
    try:
        for element in _elements(content[_HEADER_BYTES:], order):
            if element.kind == _COMPRESSED:
                [element] = _elements(zlib.decompress(element.content), order)
            if element.kind == _MATRIX and element.content:
                arrays |= _read_matrix(element.content, order)
    except (ValueError, zlib.error) as error:
        raise errors.DataError(f"'{name}' is damaged ({error}). Save it again.") from error
    return arrays


def _elements(content: bytes, order: str) -> Iterator[_Element]:
    """Yield the elements that follow each other.

    Raises:
        ValueError: If one does not end within the content.
    """
    position = 0
    while position < len(content):
        tag = np.frombuffer(content[position : position + 8].ljust(8, b"\0"), dtype=f"{order}u4")
        kind, length, start = int(tag[0]), int(tag[1]), position + 8
        if kind >> 16:
            # Up to four bytes stand in the tag itself.
            kind, length, start = kind & 0xFFFF, kind >> 16, position + 4
            position += 8
        else:
            # Compressed elements are not padded.
            position = start + (length if kind == _COMPRESSED else -(-length // 8) * 8)
        if start + length > len(content) or (start == position - 4 and length > 4):
            raise ValueError(f"an element of {length} bytes goes beyond its end")
        yield _Element(kind, content[start : start + length])


def _read_matrix(content: bytes, order: str) -> dict[str, npt.NDArray[Any]]:
    """Return an array by its name; nothing if it is not one of real numbers."""
    flags, dimensions, name, *parts = _elements(content, order)
    if len(flags.content) != _FLAG_BYTES or len(dimensions.content) % _DIMENSION_BYTES:
        raise ValueError("a variable has no valid description")
    description = int(np.frombuffer(flags.content, dtype=f"{order}u4")[0])
    if description & 0xFF not in _NUMERIC_CLASSES or description & _COMPLEX_FLAG:
        return {}
    shape = np.frombuffer(dimensions.content, dtype=f"{order}i4").tolist()
    if len(parts) != 1 or parts[0].kind not in _STORED_TYPES:
        raise ValueError("a variable has no numbers")
    values = np.frombuffer(parts[0].content, dtype=f"{order}{_STORED_TYPES[parts[0].kind]}")
    if min(shape, default=-1) < 0 or math.prod(shape) != len(values):
        raise ValueError(f"a variable of shape {tuple(shape)} has {len(values)} numbers")
    return {name.content.decode("ascii", errors="replace"): values.reshape(shape, order="F")}
