"""Checkpoints of shards as bytes.

All numbers are little-endian:

    8 bytes   "SRNSHARD"
    u32       1, the version of this layout
    u64 + n   JSON after its length in bytes: what the shard is, and name, type and shape of each array
    ...       the arrays one after the other, row-major
    32 bytes  SHA-256 of everything before it

The sum finds what was cut or damaged; it is no signature, so a checkpoint is as trustworthy as the place that holds it.
Reading one runs no code from it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.errors import CheckpointError
from stablernn_runtime.scoring.stream_events import Key

Array = NDArray[Any]
Content = bytes | memoryview | mmap.mmap

_MAGIC = b"SRNSHARD"
_LAYOUT = 1
_HEAD = struct.Struct("<8sIQ")
_DTYPES = ("<f4", "<f8", "<i8", "<i4", "|u1", "|b1")
_KEYS_OF_A_PART = 1 << 14
_KINDS: tuple[type[Key], ...] = (str, bytes, int)


class KeyBytes:
    """The bytes of keys one after the other: an array of a checkpoint that is only made as it is written.

    Args:
        keys: The keys.
        size: Their bytes.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, keys: Sequence[Key], size: int) -> None:
        self._keys = keys
        self.shape = (size,)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._keys), _KEYS_OF_A_PART):
            yield b"".join(map(_encode_key, self._keys[start : start + _KEYS_OF_A_PART]))


def pack_checkpoint(fields: Mapping[str, Any], arrays: Mapping[str, Array | KeyBytes]) -> Iterator[bytes | memoryview]:
    """Yield a checkpoint in parts that follow each other. Large ones are views of the arrays, which are not copied.

    Args:
        fields: JSON values by name.
        arrays: Arrays by name, not to be changed before the last part.
    """
    types = {name: value.dtype.newbyteorder("<") for name, value in arrays.items()}
    table = [[name, types[name].str, list(value.shape)] for name, value in arrays.items()]
    header = json.dumps({**fields, "arrays": table}).encode()
    digest = hashlib.sha256()
    for part in _parts(_HEAD.pack(_MAGIC, _LAYOUT, len(header)) + header, arrays, types):
        digest.update(part)
        yield part
    yield digest.digest()


def _parts(
    header: bytes, arrays: Mapping[str, Array | KeyBytes], types: Mapping[str, np.dtype[Any]]
) -> Iterator[bytes | memoryview]:
    yield header
    for name, value in arrays.items():
        if isinstance(value, KeyBytes):
            yield from value
        else:
            yield np.ascontiguousarray(value, types[name]).reshape(-1).view(np.uint8).data


@contextmanager
def map_checkpoint(path: str | Path) -> Iterator[Content]:
    """Map the file of a checkpoint, whose pages the system reads as they are needed and drops where memory is short."""
    with Path(path).open("rb") as file:
        # An empty file cannot be mapped.
        is_empty = not os.fstat(file.fileno()).st_size
        yield b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def release_pages(content: Content) -> None:
    """Drop the pages of a mapped file from memory; those that are needed again are read again."""
    if isinstance(content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)


def read_fields(content: Content) -> dict[str, Any]:
    """Return the JSON values of a checkpoint; its arrays are not read.

    Raises:
        CheckpointError: If it is no checkpoint, of a later layout, cut or damaged.
    """
    view = memoryview(content)
    if len(view) < _HEAD.size or view[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError("This is no checkpoint of streams: it does not begin with 'SRNSHARD'.")
    _, layout, length = _HEAD.unpack_from(view)
    if layout != _LAYOUT:
        raise CheckpointError(
            f"The checkpoint has the layout {layout}, and this version of stablernn reads {_LAYOUT}: update it."
        )
    if hashlib.sha256(view[:-32]).digest() != view[-32:]:
        raise CheckpointError(
            f"The checkpoint is cut or damaged: its {len(view):,} bytes do not have the SHA-256 at their end."
        )
    release_pages(content)
    fields: dict[str, Any] = json.loads(bytes(view[_HEAD.size : _HEAD.size + length]))
    return fields


def unpack_checkpoint(content: Content) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the JSON values and the arrays of a checkpoint, which are read-only.

    Raises:
        CheckpointError: As :func:`read_fields`.
    """
    fields = read_fields(content)
    _, _, length = _HEAD.unpack_from(content)
    arrays = {}
    offset = _HEAD.size + length
    for name, dtype, shape in fields.pop("arrays"):
        if dtype not in _DTYPES:
            raise CheckpointError(f"The checkpoint has an array '{name}' of the type {dtype}, which no shard has.")
        size = prod(shape)
        value = np.frombuffer(content, dtype, size, offset).reshape(shape)
        arrays[name] = value.astype(value.dtype.newbyteorder("="), copy=False)
        offset += value.nbytes
    return fields, arrays


def pack_keys(keys: Sequence[Key]) -> dict[str, Array | KeyBytes]:
    """Return keys as arrays of a checkpoint."""
    lengths = np.fromiter((len(_encode_key(key)) for key in keys), np.int64, len(keys))
    return {
        "key kinds": np.fromiter((_KINDS.index(type(key)) for key in keys), np.uint8, len(keys)),
        "key lengths": lengths,
        "key bytes": KeyBytes(keys, int(lengths.sum())),
    }


def _encode_key(key: Key) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")


def unpack_keys(arrays: Mapping[str, Array]) -> list[Key]:
    """Return the keys of :func:`pack_keys`."""
    content = arrays["key bytes"].tobytes()
    ends = np.cumsum(arrays["key lengths"]).tolist()
    keys: list[Key] = []
    begin = 0
    for kind, end in zip(arrays["key kinds"].tolist(), ends, strict=True):
        part = content[begin:end]
        begin = end
        if kind == _KINDS.index(bytes):
            keys.append(part)
        else:
            text = part.decode("utf-8", "surrogatepass")
            keys.append(text if kind == _KINDS.index(str) else int(text))
    return keys


def check_arrays(expected: Mapping[str, Array], arrays: Mapping[str, Array], count: int) -> None:
    """Refuse arrays of a checkpoint that are not those of the streams of a version.

    Raises:
        CheckpointError: If they are not.
    """
    for name, value in expected.items():
        stored = arrays.get(name)
        if stored is None or stored.dtype != value.dtype or stored.shape != (count, *value.shape[1:]):
            shape = "none" if stored is None else f"{stored.dtype} of the shape {stored.shape}"
            raise CheckpointError(
                f"The checkpoint must hold '{name}' as {value.dtype} of the shape {(count, *value.shape[1:])}, got "
                f"{shape}: it is of streams of another size."
            )
