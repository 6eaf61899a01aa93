"""Reads ``.tsv``, the text format of the UCR archive, and has what readers of archives' text have in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.files import read_text
from stablernn.data.sequences import (
    NO_LABEL,
    Sequences,
    channel_names,
    check_resolution,
    finite_float32,
    plain_words,
)
from stablernn.data.windows import Float32Array
from stablernn.data.wording import listing, quoted

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
    for number, line in numbered_lines(read_text(path)):
        label, *cells = line.split("\t")
        sequence = without_padding(path, number, numbers(path, number, cells)[:, None])
        cut += len(cells) - len(sequence)
        values.append(sequence)
        labels.append(label.strip())
    if not values:
        raise errors.DataError(f"'{path.name}' has no sequences.")
    notes = {"trailing_missing_cut": cut} if cut else {}
    return Sequences(path.name, as_float32(path, values), plain_words(path.name, labels), channel_names(1), notes)


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """The lines that are not blank, numbered from 1."""
    # Not splitlines(), which also ends lines at form feeds and other separators that no editor counts.
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def without_padding(path: Path, number: int, sequence: Float64Array) -> Float64Array:
    """The sequence (length, channels) of a line up to the last step at which any channel has a value.

    Raises:
        DataError: If none has.
    """
    present = np.asarray(np.isfinite(sequence).any(axis=1))
    if not present.any():
        raise errors.DataError(f"'{path.name}' line {number} has a label but no values.")
    return sequence[: len(sequence) - int(np.argmax(present[::-1]))]


def allowed_label(path: Path, number: int, label: str, allowed: list[str], where: str) -> str:
    """The label of a line, if it is among those that the header lists ``where``.

    Raises:
        DataError: If the header lists some, and not this one.
    """
    if allowed and label not in (*allowed, *NO_LABEL):
        raise errors.DataError(
            f"'{path.name}' line {number} has the label {quoted(label)}, {where} allows {listing(allowed)}."
        )
    return label


def as_float32(path: Path, values: list[Float64Array]) -> list[Float32Array]:
    """The sequences (length, channels) in single precision.

    Raises:
        DataError: If a channel's differences would be lost.
    """
    check_resolution(np.concatenate(values), lambda channel: f"'{path.name}': channel {channel}")
    return [sequence.astype(np.float32) for sequence in values]


def numbers(path: Path, number: int, cells: list[str]) -> Float64Array:
    """The cells of one line, which float32 can hold; NaN for ``?`` and ``NaN``.

    Raises:
        DataError: If a cell is no number.
    """
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
