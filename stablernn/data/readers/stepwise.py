"""Files of sequences with a target at every step: plain text by characters, and ``.npz``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import SPLITS, SplitName, fingerprint
from stablernn.data.files import check_regular, is_text_file, read_text
from stablernn.data.messages import format_names, quote
from stablernn.data.readers.npz import read_arrays, read_lengths, read_numbers
from stablernn.data.sequences import default_channel_names
from stablernn.data.step_data import NO_TARGET, Output, StepData, StoredSteps
from stablernn.data.types import Notes

Array = npt.NDArray[Any]

_TABLE_CHECK_LENGTH = 4096
"""Characters at the beginning that are searched for the columns of a table."""
_KEYS = ("x", "y", "lengths", "features", "outputs")
_HEADLINES: dict[Output, str] = {"categorical": "nll", "bernoulli": "nll", "real": "mse"}


def require_step_file(path: Path) -> Path:
    """Return the path, if its ending is one that is read for the task 'predict-next'.

    Raises:
        DataError: If it is not.
    """
    check_regular(path)
    if not is_text_file(path) and path.suffix.lower() != ".npz":
        raise errors.DataError(f"'{path.name}' is not for task 'predict-next', which reads .txt and .npz.")
    return path


def check_not_table(path: Path) -> None:
    """Refuse a text that looks like a table of numbers.

    Raises:
        DataError: If its first lines have the same number of columns, and the last cell is a number.
    """
    # The last line may be cut off.
    lines = [line for line in read_text(path)[:_TABLE_CHECK_LENGTH].split("\n") if line.strip()][:-1][:5]
    for separator, name in ((",", "commas"), ("\t", "tabs"), (";", "semicolons"), (None, "blanks")):
        rows = [line.split(separator) for line in lines]
        # Sentences may have as many words, and end with a number.
        numbers = rows[-1][-1:] if separator and rows else [cell for row in rows for cell in row]
        if (
            len(rows) > 1
            and len({len(row) for row in rows}) == 1
            and len(rows[0]) > 1
            and all(map(_is_number, numbers))
        ):
            advice = "rename it" if separator else "write it so"
            raise errors.DataError(
                f"'{path.name}' looks like a table ({len(rows[0])} columns separated by {name}), which is read from "
                f".csv; {advice}, or say task 'predict-next' to read it by characters."
            )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class StepFile:
    """The sequences of one file.

    Attributes:
        name: The file's name.
        steps: Inputs and targets; without targets in the file, the target of a step is the next input.
        output: Kind of the answer at a step.
        tokens: Whether inputs are tokens (whole numbers) instead of numbers on channels.
        features: Names of the channels; of tokens the vocabulary.
        outputs: Names of the classes, binary targets or numbers.
        headline: The metric for model selection.
        notes: Counts of the reader.
        has_targets: Whether the file has targets.
    """

    name: str
    steps: StoredSteps
    output: Output
    tokens: bool
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    headline: str
    notes: Notes
    has_targets: bool = False


def read_steps(path: Path, features: Sequence[str] | None = None, *, for_model: bool = False) -> StepFile:
    """Read a text by characters, or ``x`` and, if present, ``y, lengths, features, outputs`` of an ``.npz``.

    Args:
        path: ``.txt``, also compressed, or ``.npz``.
        features: Vocabulary or channels of the model that the file is for; None: those of the file.
        for_model: Whether a model is to answer every step of the file, also the last, which has no next step.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If the content cannot be used, or does not fit ``features``.
    """
    return _read_text(path, features, for_model) if is_text_file(path) else _read_npz(path, features, for_model)


def load_steps(
    path: Path,
    *,
    test: Path | None = None,
    features: Sequence[str] | None = None,
    validation_fraction: float,
    seed: int,
) -> StepData:
    """Load a dataset from one file, or from one and a file of its test split.

    A file of one sequence is a running text, split by time: test at the end, validation before it. Of several sequences
    some are drawn.

    Args:
        path: The file.
        test: The file of the test split; None: a part of the first file as large as validation.
        features: As for :func:`read_steps`.
        validation_fraction: Share of validation, and of the test if it has no file.
        seed: Seed of the draw of the sequences.

    Raises:
        DataError: If there are too few steps or sequences to split, or as for :func:`read_steps`.
    """
    file = read_steps(path, features)
    test_file = None if test is None else read_steps(test, file.features)
    if test_file is not None and (test_file.output, test_file.outputs) != (file.output, file.outputs):
        raise errors.DataError(
            f"'{test_file.name}' answers {format_names(test_file.outputs)} ({test_file.output}), '{file.name}' "
            f"{format_names(file.outputs)} ({file.output}); both must answer the same."
        )
    # A single sequence is a running text, whose state is carried over from batch to batch.
    continuous = len(file.steps) == 1
    splits = _split(file, validation_fraction, seed, with_test=test_file is None)
    if test_file is not None:
        splits["test"] = test_file.steps
    draw: Notes = {"how": "the last steps" if continuous else "drawn sequences", "fraction": validation_fraction}
    content = [
        array for split in splits.values() for pair in zip(split.inputs, split.targets, strict=True) for array in pair
    ]
    return StepData(
        name=file.name,
        output=file.output,
        tokens=file.tokens,
        features=file.features,
        outputs=file.outputs,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        continuous=continuous,
        headline=file.headline,
        notes={
            "sequences": {name: len(split) for name, split in splits.items()},
            "steps": {name: int(split.lengths.sum()) for name, split in splits.items()},
            "validation": draw if continuous else {**draw, "seed": seed},
            **file.notes,
        },
        fingerprint=fingerprint(["predict-next", file.output, file.features, file.outputs, *content]),
    )


def _split(file: StepFile, fraction: float, seed: int, *, with_test: bool) -> dict[SplitName, StoredSteps]:
    """Return the splits of a running text by time, of several sequences by a draw; without a test the last is empty."""
    continuous = len(file.steps) == 1
    x, y = file.steps.inputs, file.steps.targets
    count = len(x[0]) if continuous else len(x)
    num_held_out = round(fraction * count) if continuous else max(1, round(fraction * count))
    start = count - num_held_out * (2 if with_test else 1)
    if continuous and (num_held_out < 1 or start < 1):
        raise errors.DataError(
            f"'{file.name}' has {count} steps, too few to hold out a share of {fraction:g} for validation and test. "
            "Give a longer one, or another data.validation_fraction."
        )
    if start < 1:
        raise errors.DataError(
            f"'{file.name}' has {count} sequences, too few to hold out {num_held_out} for validation and as many for "
            "the test. Add sequences, or give another data.validation_fraction."
        )
    # RandomState's stream is frozen by numpy's compatibility policy; that of default_rng may change with a release.
    order = np.arange(count) if continuous else np.random.RandomState(seed).permutation(count)
    splits: dict[SplitName, StoredSteps] = {}
    for name, members in zip(SPLITS, np.split(order, [start, start + num_held_out]), strict=True):
        if continuous:
            # A view of the text, not a copy.
            part = slice(members[0], members[-1] + 1) if len(members) else slice(0, 0)
            splits[name] = StoredSteps([x[0][part]], [y[0][part]])
        else:
            splits[name] = StoredSteps([x[i] for i in np.sort(members)], [y[i] for i in np.sort(members)])
    return splits


def _read_text(path: Path, vocabulary: Sequence[str] | None, for_model: bool) -> StepFile:
    text = read_text(path)
    if len(text) < 2 and not for_model:
        raise errors.DataError(f"'{path.name}' has one character only; there is none that comes next.")
    # UTF-32 has four bytes for each character, so that numpy can count them.
    code_points, inverse = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), return_inverse=True)
    characters = tuple(chr(point) for point in code_points)
    names = characters if vocabulary is None else tuple(vocabulary)
    token_of = {name: index for index, name in enumerate(names)}
    unknown = [character for character in characters if character not in token_of]
    if unknown:
        raise errors.DataError(
            f"'{path.name}' has the character {quote(unknown[0])}, which the model was not trained on; it knows "
            f"{len(names)} characters."
        )
    tokens = np.array([token_of[character] for character in characters], dtype=np.int64)[inverse]
    # The smallest type that holds the vocabulary: a byte per character for most texts.
    tokens = tokens.astype(np.min_scalar_type(max(1, len(names) - 1)))
    steps = _next_steps([tokens], for_model)
    return StepFile(path.name, steps, "categorical", True, names, names, "bpc", {"characters": len(text)})


def _next_steps(rows: Sequence[Array], for_model: bool) -> StoredSteps:
    """Return each step with the next one as its target; the last step has none, and is left out except for a model."""
    if not for_model:
        return StoredSteps([row[:-1] for row in rows], [row[1:] for row in rows])
    is_token = rows[0].dtype.kind in "iu"
    no_target, dtype = (NO_TARGET, np.int64) if is_token else (np.nan, None)
    last = [np.full_like(row[:1], no_target, dtype=dtype) for row in rows]
    return StoredSteps(rows, [np.concatenate([row[1:], end]) for row, end in zip(rows, last, strict=True)])


def _read_npz(path: Path, expected: Sequence[str] | None, for_model: bool) -> StepFile:
    arrays = read_arrays(path)
    if "x" not in arrays:
        raise errors.DataError(
            f"'{path.name}' has no array 'x' (samples, time, features), or (samples, time) of tokens; its arrays: "
            f"{format_names(list(arrays)) or 'none'}."
        )
    inputs = arrays["x"]
    tokens = inputs.ndim == 2 and inputs.dtype.kind in "iu"
    if tokens and (0 in inputs.shape or inputs.min() < 0):
        raise errors.DataError(f"'{path.name}': the tokens 'x' must be whole numbers from 0, and at least one.")
    x: Array
    x, lengths = (inputs, read_lengths(path, arrays, inputs)) if tokens else read_numbers(path, arrays, None)
    sequences = [row[:length] for row, length in zip(x, lengths, strict=True)]
    size = max(int(row.max()) for row in sequences) + 1 if tokens else x.shape[2]
    features = _read_names(path, arrays, "features", size, expected, tokens=tokens)
    ignored = sorted(set(arrays) - set(_KEYS))
    notes: Notes = {"ignored_arrays": ignored} if ignored else {}
    if "y" not in arrays:
        usable = sequences if for_model else [row for row in sequences if len(row) > 1]
        num_short = len(sequences) - len(usable)
        if not usable:
            raise errors.DataError(f"'{path.name}' has no 'y' and no sequence of two steps, so nothing comes next.")
        if num_short:
            notes["sequences_without_a_next_step"] = num_short
        output: Output = "categorical" if tokens else "bernoulli" if inputs.dtype.kind == "b" else "real"
        steps = _next_steps(usable, for_model)
        return StepFile(path.name, steps, output, tokens, features, features, _HEADLINES[output], notes)
    y = arrays["y"]
    output, targets, count = _read_targets(path, y, x.shape[:2])
    names = _read_names(path, arrays, "outputs", count, None, tokens=output == "categorical")
    rows = [row[:length] for row, length in zip(targets, lengths, strict=True)]
    steps = StoredSteps(sequences, rows)
    return StepFile(path.name, steps, output, tokens, features, names, _HEADLINES[output], notes, has_targets=True)


def _read_targets(path: Path, y: Array, shape: tuple[int, ...]) -> tuple[Output, Array, int]:
    """Return the kind of the targets, the targets as splits hold them, and the number of classes or numbers."""
    if y.shape[:2] != shape or y.ndim not in (2, 3) or y.dtype.kind not in "iufb" or 0 in y.shape:
        raise errors.DataError(
            f"'{path.name}': 'y' must hold a target for each step, of the shape {shape} or {(*shape, 'outputs')}: "
            f"classes as whole numbers (-1: none), numbers (NaN: none), or true and false; got {y.dtype} {y.shape}."
        )
    if y.dtype.kind in "iu" and y.ndim == 2:
        if y.min() < NO_TARGET or y.max() < 1:
            raise errors.DataError(
                f"'{path.name}': classes 'y' must be whole numbers from 0, two or more, and {NO_TARGET} where there is "
                f"no target; got {int(y.min())} to {int(y.max())}."
            )
        return "categorical", y.astype(np.int64), int(y.max()) + 1
    cube = (y if y.ndim == 3 else y[:, :, None]).astype(np.float32)
    if np.isinf(cube).any():
        raise errors.DataError(f"'{path.name}': 'y' has an infinite value; a target that is not there is NaN.")
    return ("bernoulli" if y.dtype.kind == "b" else "real"), cube, cube.shape[2]


def _read_names(
    path: Path, arrays: dict[str, Array], key: str, count: int, expected: Sequence[str] | None, *, tokens: bool
) -> tuple[str, ...]:
    """Return names of the file, else the expected ones, else numbers or positions."""
    if key in arrays:
        names = tuple(str(name) for name in arrays[key].reshape(-1))
    elif expected is not None:
        names = tuple(expected)
    else:
        names = tuple(map(str, range(count))) if tokens else default_channel_names(count)
    if len(set(names)) < len(names) or (len(names) < count if tokens else len(names) != count):
        # A vocabulary may have tokens that do not occur in this file.
        least = "at least " if tokens else ""
        raise errors.DataError(
            f"'{path.name}': '{key}' must name {least}{count} different ones, got {format_names(names)} ({len(names)})."
        )
    if expected is not None and names != tuple(expected):
        raise errors.DataError(
            f"'{path.name}' has the inputs {format_names(names)} ({len(names)}), the model was trained with "
            f"{format_names(expected)} ({len(expected)})."
        )
    return names
