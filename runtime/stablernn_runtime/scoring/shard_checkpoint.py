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
import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.errors import CheckpointError
from stablernn_runtime.scoring.stream_answers import Key

Array = NDArray[Any]

_MAGIC = b"SRNSHARD"
_LAYOUT = 1
_HEAD = struct.Struct("<8sIQ")
_DTYPES = ("<f4", "<f8", "<i8", "<i4", "|u1", "|b1")
_KINDS: tuple[type[Key], ...] = (str, bytes, int)


def pack_checkpoint(fields: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return a checkpoint.

    Args:
        fields: JSON values by name.
        arrays: Arrays by name.
    """
    ordered = {name: np.ascontiguousarray(value, value.dtype.newbyteorder("<")) for name, value in arrays.items()}
    table = [[name, value.dtype.str, list(value.shape)] for name, value in ordered.items()]
    header = json.dumps({**fields, "arrays": table}).encode()
    parts: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, _LAYOUT, len(header)), header]
    parts += [value.reshape(-1).view(np.uint8).data for value in ordered.values()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def read_fields(content: bytes) -> dict[str, Any]:
    """Return the JSON values of a checkpoint; its arrays are not read.

    Raises:
        CheckpointError: If it is no checkpoint, of a later layout, cut or damaged.
    """
    if len(content) < _HEAD.size or not content.startswith(_MAGIC):
        raise CheckpointError("This is no checkpoint of streams: it does not begin with 'SRNSHARD'.")
    _, layout, length = _HEAD.unpack_from(content)
    if layout != _LAYOUT:
        raise CheckpointError(
            f"The checkpoint has the layout {layout}, and this version of stablernn reads {_LAYOUT}: update it."
        )
    if hashlib.sha256(memoryview(content)[:-32]).digest() != content[-32:]:
        raise CheckpointError(
            f"The checkpoint is cut or damaged: its {len(content):,} bytes do not have the SHA-256 at their end."
        )
    fields: dict[str, Any] = json.loads(content[_HEAD.size : _HEAD.size + length])
    return fields


def unpack_checkpoint(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
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


def pack_keys(keys: Sequence[Key]) -> dict[str, Array]:
    """Return keys as arrays of a checkpoint."""
    encoded = [key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass") for key in keys]
    return {
        "key kinds": np.array([_KINDS.index(type(key)) for key in keys], np.uint8),
        "key lengths": np.array([len(key) for key in encoded], np.int64),
        "key bytes": np.frombuffer(b"".join(encoded), np.uint8),
    }


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
