"""Files of sequences with a target at every step: plain text by characters, and ``.npz``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import SplitName
from stablernn.data.fingerprint import fingerprint
from stablernn.data.messages import format_names, quote
from stablernn.data.readers.npz import read_arrays, read_lengths, read_numbers
from stablernn.data.readers.paths import is_text_file, read_text
from stablernn.data.sequences import default_channel_names
from stablernn.data.step_data import NO_TARGET, Output, StepData, StoredSteps
from stablernn.data.types import Notes

Array = npt.NDArray[Any]

_LOOKED_AT = 4096
"""Characters at the beginning by which a table is told from a text."""
_KEYS = ("x", "y", "lengths", "features", "outputs")
_HEADLINES: dict[Output, str] = {"categorical": "nll", "bernoulli": "nll", "real": "mse"}


def require_step_file(path: Path) -> Path:
    """The path, if its ending is one of those that are read for the task 'predict-next'.

    Raises:
        DataError: Otherwise.
    """
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    if not is_text_file(path) and path.suffix.lower() != ".npz":
        raise errors.DataError(f"'{path.name}' is not for task 'predict-next', which reads .txt and .npz.")
    return path


def check_not_table(path: Path) -> None:
    """Refuse a text that is a table of numbers, unless the user says that it is to be read by characters.

    Raises:
        DataError: If its first lines are as many numbers each.
    """
    lines = [line for line in read_text(path)[:_LOOKED_AT].split("\n") if line.strip()][:-1][:5]
    for separator, word in ((",", "commas"), ("\t", "tabs"), (";", "semicolons")):
        rows = [line.split(separator) for line in lines]
        if len(rows) > 1 and len({len(row) for row in rows}) == 1 and len(rows[0]) > 1 and _is_number(rows[-1][-1]):
            raise errors.DataError(
                f"'{path.name}' looks like a table ({len(rows[0])} columns separated by {word}), which is read from "
                ".csv; rename it, or say task 'predict-next' to read it by characters."
            )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class StepFile:
    """What one file holds.

    Attributes:
        name: The file's name.
        steps: Inputs and targets; of a file without targets each step's target is the input after it.
        output: What is said at a step.
        tokens: Whether inputs are whole numbers in place of numbers on channels.
        features: Names of the channels; of tokens the vocabulary.
        outputs: Names of the classes, switches or numbers.
        headline: The metric to choose by.
        notes: What was counted.
        given: Whether the targets stand in the file.
    """

    name: str
    steps: StoredSteps
    output: Output
    tokens: bool
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    headline: str
    notes: Notes
    given: bool = False


def read_steps(path: Path, features: Sequence[str] | None = None, *, for_model: bool = False) -> StepFile:
    """Reads a text by characters, or ``x`` and, where they are, ``y, lengths, features, outputs`` of an ``.npz``.

    Args:
        path: ``.txt``, also packed, or ``.npz``.
        features: Vocabulary or channels of a model that the file is for; None: those of the file.
        for_model: Whether every step of the file is to be answered, also the last, which nothing comes after.

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
    """A dataset from one file, or from one and that of its test split.

    A file of one sequence is a running text, cut by time: test at the end, validation before it. Of several sequences
    some are drawn.

    Args:
        path: The file.
        test: That of the test split; None: a part of the first one as large as validation.
        features: As in :func:`read_steps`.
        validation_fraction: Share of validation, and of the test where it has no file.
        seed: Draws the sequences.

    Raises:
        DataError: If there are too few steps or sequences to split, or as for :func:`read_steps`.
    """
    found = read_steps(path, features)
    later = None if test is None else read_steps(test, found.features)
    if later is not None and (later.output, later.outputs) != (found.output, found.outputs):
        raise errors.DataError(
            f"'{later.name}' answers {format_names(later.outputs)} ({later.output}), '{found.name}' "
            f"{format_names(found.outputs)} ({found.output}); both must answer the same."
        )
    continuous = len(found.steps) == 1
    parts = _by_time if continuous else _by_draw
    train, validation, rest = parts(found, validation_fraction, seed, with_test=later is None)
    splits: dict[SplitName, StoredSteps] = {
        "train": train,
        "validation": validation,
        "test": rest if later is None else later.steps,
    }
    counted = {name: int(split.lengths.sum()) for name, split in splits.items()}
    drawn: Notes = {"how": "the last steps" if continuous else "drawn sequences", "fraction": validation_fraction}
    content = [
        array for split in splits.values() for both in zip(split.inputs, split.targets, strict=True) for array in both
    ]
    return StepData(
        name=found.name,
        output=found.output,
        tokens=found.tokens,
        features=found.features,
        outputs=found.outputs,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        continuous=continuous,
        headline=found.headline,
        notes={
            "sequences": {name: len(split) for name, split in splits.items()},
            "steps": counted,
            "validation": drawn if continuous else {**drawn, "seed": seed},
            **found.notes,
        },
        fingerprint=fingerprint(["predict-next", found.output, found.features, found.outputs, *content]),
    )


def _by_time(
    found: StepFile, fraction: float, seed: int, *, with_test: bool
) -> tuple[StoredSteps, StoredSteps, StoredSteps]:
    x, y = found.steps.inputs[0], found.steps.targets[0]
    held = round(fraction * len(x))
    start = len(x) - held * (2 if with_test else 1)
    if held < 1 or start < 1:
        raise errors.DataError(
            f"'{found.name}' has {len(x)} steps, too few to hold out a share of {fraction:g} for validation and test. "
            "Give a longer one, or another data.validation_fraction."
        )
    ends = (0, start, start + held, len(x))
    train, validation, test = (
        StoredSteps([x[begin:end]], [y[begin:end]]) for begin, end in zip(ends[:-1], ends[1:], strict=True)
    )
    return train, validation, test


def _by_draw(
    found: StepFile, fraction: float, seed: int, *, with_test: bool
) -> tuple[StoredSteps, StoredSteps, StoredSteps]:
    count = len(found.steps)
    held = max(1, round(fraction * count))
    start = count - held * (2 if with_test else 1)
    if start < 1:
        raise errors.DataError(
            f"'{found.name}' has {count} sequences, too few to hold out {held} for validation and as many for the test."
            " Add sequences, or give another data.validation_fraction."
        )
    # RandomState's stream is frozen by numpy's compatibility policy; that of default_rng may change with a release.
    order = np.random.RandomState(seed).permutation(count)
    ends = (0, start, start + held, count)
    train, validation, test = (
        _chosen(found.steps, np.sort(order[begin:end])) for begin, end in zip(ends[:-1], ends[1:], strict=True)
    )
    return train, validation, test


def _chosen(steps: StoredSteps, numbers: Array) -> StoredSteps:
    return StoredSteps([steps.inputs[i] for i in numbers], [steps.targets[i] for i in numbers])


def _read_text(path: Path, vocabulary: Sequence[str] | None, for_model: bool) -> StepFile:
    text = read_text(path)
    if len(text) < 2 and not for_model:
        raise errors.DataError(f"'{path.name}' has one character only; there is none that comes next.")
    points, numbers = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), return_inverse=True)
    characters = tuple(chr(point) for point in points)
    names = characters if vocabulary is None else tuple(vocabulary)
    place = {name: index for index, name in enumerate(names)}
    strange = [character for character in characters if character not in place]
    if strange:
        raise errors.DataError(
            f"'{path.name}' has the character {quote(strange[0])}, which the model was not trained on; it knows "
            f"{len(names)} characters."
        )
    tokens = np.array([place[character] for character in characters], dtype=np.int64)[numbers]
    kind = np.min_scalar_type(max(1, len(names) - 1))
    tokens = tokens.astype(kind)
    steps = _next_steps([tokens], for_model)
    return StepFile(path.name, steps, "categorical", True, names, names, "bpc", {"characters": len(text)})


def _next_steps(rows: Sequence[Array], for_model: bool) -> StoredSteps:
    """Each step with the one after it as its target; the last has none and is kept for a model only."""
    if not for_model:
        return StoredSteps([row[:-1] for row in rows], [row[1:] for row in rows])
    whole = rows[0].dtype.kind in "iu"
    last = [np.full_like(row[:1], NO_TARGET if whole else np.nan, dtype=np.int64 if whole else None) for row in rows]
    return StoredSteps(rows, [np.concatenate([row[1:], end]) for row, end in zip(rows, last, strict=True)])


def _read_npz(path: Path, expected: Sequence[str] | None, for_model: bool) -> StepFile:
    arrays = read_arrays(path)
    if "x" not in arrays:
        raise errors.DataError(
            f"'{path.name}' has no array 'x' (samples, time, features), or (samples, time) of tokens; its arrays: "
            f"{format_names(list(arrays)) or 'none'}."
        )
    given = arrays["x"]
    tokens = given.ndim == 2 and given.dtype.kind in "iu"
    x: Array = given if tokens else read_numbers(path, given, None)
    if tokens and (0 in given.shape or given.min() < 0):
        raise errors.DataError(f"'{path.name}': the tokens 'x' must be whole numbers from 0, and at least one.")
    lengths = read_lengths(path, arrays, x)
    cut = [row[:length] for row, length in zip(x, lengths, strict=True)]
    size = max(int(row.max()) for row in cut) + 1 if tokens else x.shape[2]
    features = _named(path, arrays, "features", size, expected, tokens=tokens)
    ignored = sorted(set(arrays) - set(_KEYS))
    notes: Notes = {"ignored_arrays": ignored} if ignored else {}
    if "y" not in arrays:
        kept = cut if for_model else [row for row in cut if len(row) > 1]
        short = len(cut) - len(kept)
        if not kept:
            raise errors.DataError(f"'{path.name}' has no 'y' and no sequence of two steps, so nothing comes next.")
        if short:
            notes["sequences_without_a_next_step"] = short
        output: Output = "categorical" if tokens else "bernoulli" if given.dtype.kind == "b" else "real"
        steps = _next_steps(kept, for_model)
        return StepFile(path.name, steps, output, tokens, features, features, _HEADLINES[output], notes)
    y = arrays["y"]
    output, targets, count = _targets(path, y, x.shape[:2])
    names = _named(path, arrays, "outputs", count, None, tokens=output == "categorical")
    rows = [row[:length] for row, length in zip(targets, lengths, strict=True)]
    steps = StoredSteps(cut, rows)
    return StepFile(path.name, steps, output, tokens, features, names, _HEADLINES[output], notes, given=True)


def _targets(path: Path, y: Array, shape: tuple[int, ...]) -> tuple[Output, Array, int]:
    """What the targets are, as the splits hold them, and how many classes or numbers there are."""
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


def _named(
    path: Path, arrays: dict[str, Array], key: str, count: int, expected: Sequence[str] | None, *, tokens: bool
) -> tuple[str, ...]:
    """Names of the file, else those that are expected, else numbers or positions."""
    if key in arrays:
        names = tuple(str(name) for name in arrays[key].reshape(-1))
    elif expected is not None:
        names = tuple(expected)
    else:
        names = tuple(map(str, range(count))) if tokens else default_channel_names(count)
    if len(set(names)) < len(names) or (len(names) < count if tokens else len(names) != count):
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
