"""The wire format of protobuf, in which ONNX files are written: fields by number, whatever they mean.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; the other ones are those of groups, which ONNX has none of."""
_SIZES = {FIXED64: 8, FIXED32: 4}
_LARGEST_SHIFT = 63
"""Of the last byte of a number of 64 bits, each byte of which holds seven."""

Value = int | memoryview
"""A number, or the bytes of a field of any other wire type."""
Field = tuple[int, int, Value, memoryview]
"""Number, wire type, value, and all bytes of a field, its tag included."""


class WireError(ValueError):
    """Bytes that are not a message of the expected kind."""


def read_fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in their order.

    Raises:
        WireError: If a field does not end within the message, or has another wire type.
    """
    position = 0
    while position < len(message):
        start = position
        tag, position = read_varint(message, position)
        number, wire = tag >> 3, tag & 7
        value: Value
        if wire == VARINT:
            value, position = read_varint(message, position)
        else:
            if wire == BYTES:
                size, position = read_varint(message, position)
            elif wire in _SIZES:
                size = _SIZES[wire]
            else:
                raise WireError(f"wire type {wire} is not used by ONNX")
            if position + size > len(message):
                raise WireError("a field is longer than its message")
            value = message[position : position + size]
            position += size
        yield number, wire, value, message[start:position]


def read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the number that begins at ``position``, seven bits a byte from the lowest on, and the position behind.

    Raises:
        WireError: If the message ends within it, or it is longer than 64 bits.
    """
    value = shift = 0
    while position < len(message):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        # The last byte of a number has no high bit.
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _LARGEST_SHIFT:
            raise WireError("a number is longer than 64 bits")
    raise WireError("a number is longer than its message")


def as_bytes(value: Value) -> memoryview:
    """Return the value of a field that holds a message, a text or bytes.

    Raises:
        WireError: If it is a number.
    """
    if isinstance(value, int):
        raise WireError("a number where a message belongs")
    return value


def read_integers(values: Iterable[Value]) -> Iterator[int]:
    """Yield the numbers of a repeated field, packed or not.

    Raises:
        WireError: If packed ones do not end within their field.
    """
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        position = 0
        while position < len(value):
            number, position = read_varint(value, position)
            yield number


def encode_field(number: int, content: bytes | memoryview) -> bytes:
    """Return a field of bytes."""
    return _encode_varint(number << 3 | BYTES) + _encode_varint(len(content)) + bytes(content)


def _encode_varint(value: int) -> bytes:
    digits = []
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
