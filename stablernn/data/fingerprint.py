"""One hash for the content of a dataset, equal wherever and however its file is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK_NUMBERS = 1 << 20

Part = str | int | tuple[str, ...] | npt.NDArray[Any]


def fingerprint(parts: Iterable[Part]) -> str:
    """Return ``sha256:`` and the hash over the parts in their order: texts, numbers, tuples of texts, arrays.

    Arrays enter with shape and type as little-endian C order, every NaN as the same bits; so equal content gives an
    equal hash on every machine.
    """
    digest = hashlib.sha256()
    for part in parts:
        # The header of an array tells it from others with the same bytes.
        header: Any = [part.dtype.newbyteorder("<").str, list(part.shape)] if isinstance(part, np.ndarray) else part
        digest.update(json.dumps(header, ensure_ascii=True).encode() + b"\n")
        if isinstance(part, np.ndarray):
            for block in _blocks(part):
                digest.update(block.tobytes())
    return f"sha256:{digest.hexdigest()}"


def _blocks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the array in blocks, since it may be larger than the memory; little-endian, every NaN as the same bits."""
    rows = max(1, _BLOCK_NUMBERS // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        if block.dtype.kind == "f":
            block = np.where(np.isnan(block), np.nan, block).astype(block.dtype)
        yield np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))
