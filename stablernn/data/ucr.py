"""Reads the text formats of the UCR and UEA archives: ``.tsv`` and ``.ts``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.files import read_text
from stablernn.data.sequences import Sequences, channel_names, check_resolution, finite_float32, plain_words
from stablernn.data.windows import Float32Array
from stablernn.data.wording import counted, listing, quoted

_TRUE_FALSE = {"true": True, "false": False}
Float64Array = npt.NDArray[np.float64]


def read_tsv(path: Path) -> Sequences:
    """Reads a UCR ``.tsv`` file: a row a sequence, the label first, then its values, separated by tabs.

    Sequences of unequal length are padded with NaN behind their end in this archive, so missing values at the end of a
    row are taken for padding; ``notes["trailing_missing_cut"]`` counts them.

    Raises:
        DataError: If a cell is no number, a row has no values, or nothing is in the file.
        UnknownNameError: If there is no such file.
    """
    values: list[Float64Array] = []
    labels: list[str] = []
    cut = 0
    for number, line in _lines(read_text(path)):
        label, *cells = line.split("\t")
        sequence = _numbers(path, number, cells)
        real = len(sequence) - int(np.argmax(np.isfinite(sequence)[::-1])) if np.isfinite(sequence).any() else 0
        if not real:
            raise errors.DataError(f"'{path.name}' line {number} has a label but no values.")
        cut += len(sequence) - real
        values.append(sequence[:real, None])
        labels.append(label.strip())
    if not values:
        raise errors.DataError(f"'{path.name}' has no sequences.")
    notes = {"trailing_missing_cut": cut} if cut else {}
    return Sequences(path.name, _float32(path, values), plain_words(path.name, labels), channel_names(1), notes)


def read_ts(path: Path) -> Sequences:
    """Reads a UEA ``.ts`` file: ``#`` comments, an ``@`` header, then a row a sequence.

    Values are separated by commas, channels by colons; ``?`` is missing; the label is the last field where the header
    says ``@classLabel true``. Time stamps in the data (``@timeStamps true``) are not read.

    Raises:
        DataError: If header or rows break the format, rows differ in channels or channels in length, or a label is not
            among those of the header.
        UnknownNameError: If there is no such file.
    """
    header: dict[str, str] = {}
    rows: list[tuple[int, str]] = []
    in_data = False
    for number, line in _lines(read_text(path)):
        if line.startswith(("#", "%")):
            continue
        if in_data:
            rows.append((number, line))
        elif line.startswith("@"):
            key, _, rest = line[1:].partition(" ")
            in_data = key.lower() == "data"
            header[key.lower()] = rest.strip()
        else:
            raise errors.DataError(
                f"'{path.name}' line {number} stands before '@data' but does not begin with '@' or '#'."
            )
    if not rows:
        raise errors.DataError(f"'{path.name}' has no sequences behind '@data'.")
    allowed = _class_labels(path, header)
    values: list[Float64Array] = []
    labels: list[str] = []
    for number, line in rows:
        fields = line.split(":")
        if allowed is not None:
            labels.append(_label(path, number, fields.pop().strip(), allowed))
        values.append(_channels(path, number, fields, values[0].shape[1] if values else None))
    names = channel_names(values[0].shape[1])
    words = plain_words(path.name, labels) if allowed is not None else None
    return Sequences(path.name, _float32(path, values), words, names)


def _lines(text: str) -> list[tuple[int, str]]:
    """The lines that are not blank, numbered from 1."""
    # Not splitlines(), which also ends lines at form feeds and other separators that no editor counts.
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _class_labels(path: Path, header: dict[str, str]) -> list[str] | None:
    """The labels that the header allows; empty when it does not list them, None when rows have no label."""
    if header.get("timestamps", "false").lower() != "false":
        raise errors.DataError(f"'{path.name}' has time stamps in its data (@timeStamps true), which are not read yet.")
    if header.get("targetlabel", "false").lower() != "false":
        raise errors.DataError(
            f"'{path.name}' is for regression (@targetLabel true); classification needs class labels."
        )
    flag, *words = header.get("classlabel", "false").split()
    if flag.lower() not in _TRUE_FALSE:
        raise errors.DataError(f"'{path.name}': @classLabel must be followed by true or false, got '{flag}'.")
    return words if _TRUE_FALSE[flag.lower()] else None


def _label(path: Path, number: int, label: str, allowed: list[str]) -> str:
    if allowed and label not in allowed:
        raise errors.DataError(
            f"'{path.name}' line {number} has the label {quoted(label)}, @classLabel allows {listing(allowed)}."
        )
    return label


def _channels(path: Path, number: int, fields: list[str], expected: int | None) -> Float64Array:
    """One row as (length, channels)."""
    if expected is not None and len(fields) != expected:
        raise errors.DataError(
            f"'{path.name}' line {number} has {counted(len(fields), 'channel')}, the rows before have {expected}."
        )
    channels = [_numbers(path, number, field.split(",")) for field in fields]
    for index, channel in enumerate(channels):
        if len(channel) != len(channels[0]):
            raise errors.DataError(
                f"'{path.name}' line {number}: channel {index} has {counted(len(channel), 'value')}, "
                f"channel 0 has {len(channels[0])}."
            )
    return np.stack(channels, axis=1)


def _float32(path: Path, values: list[Float64Array]) -> list[Float32Array]:
    check_resolution(np.concatenate(values), lambda channel: f"'{path.name}': channel {channel}")
    return [sequence.astype(np.float32) for sequence in values]


def _numbers(path: Path, number: int, cells: list[str]) -> Float64Array:
    """The cells of one line, which float32 can hold; NaN for ``?`` and ``NaN``."""
    try:
        values = np.array([float("nan") if cell.strip() == "?" else float(cell) for cell in cells])
    except ValueError:
        position, cell = next((i, cell) for i, cell in enumerate(cells, start=1) if not _is_number(cell))
        raise errors.DataError(
            f"'{path.name}' line {number}, value {position}: {quoted(cell)} is not a number; "
            "a missing one is '?' or 'NaN'."
        ) from None
    finite_float32(values, lambda index: f"'{path.name}' line {number}, value {index[0] + 1}")
    return values


def _is_number(cell: str) -> bool:
    try:
        return bool(cell.strip() == "?" or float(cell) or True)
    except ValueError:
        return False
