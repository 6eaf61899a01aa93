"""Copy and adding tasks, which measure memory; their sequences are generated on demand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from stablernn import errors
from stablernn.data.arrays import SPLITS, Float32Array, Int64Array, Samples, SplitName, fingerprint
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.step_data import StepData

#: Length of the string to remember in the copy task, and size of its alphabet.
SYMBOLS, KINDS = 10, 8
BLANK, MARKER = 0, KINDS + 1
COUNTS: dict[SplitName, int] = {"train": 100_000, "validation": 1000, "test": 10_000}


def copy_batch(count: int, delay: int, random: np.random.RandomState) -> tuple[Int64Array, Int64Array]:
    """Generate sequences of the copy task.

    Inputs are ten symbols of 1 to 8, ``delay - 1`` blanks, a marker and ten blanks; targets are blanks, then the
    symbols.

    Returns:
        Inputs and targets, int64 (count, delay + 20) each.
    """
    inputs = np.zeros((count, delay + 2 * SYMBOLS), np.int64)
    inputs[:, :SYMBOLS] = random.randint(1, KINDS + 1, (count, SYMBOLS))
    inputs[:, SYMBOLS + delay - 1] = MARKER
    targets = np.full_like(inputs, BLANK)
    targets[:, -SYMBOLS:] = inputs[:, :SYMBOLS]
    return inputs, targets


def adding_batch(count: int, length: int, random: np.random.RandomState) -> tuple[Float32Array, Float32Array]:
    """Generate sequences of the adding task.

    Each step has a number in [0, 1) and a flag, which is set once in each half; the target is the sum of the two
    flagged numbers.

    Returns:
        Inputs, float32 (count, length, 2), and targets, float32 (count, 1).
    """
    x = np.zeros((count, length, 2), np.float32)
    x[:, :, 0] = random.uniform(size=(count, length))
    half = length // 2
    for start, end in ((0, half), (half, length)):
        x[np.arange(count), random.randint(start, end, count), 1] = 1
    return x, (x[:, :, 0] * x[:, :, 1]).sum(axis=1, keepdims=True)


def copy_baseline(delay: int) -> float:
    """Return the mean cross-entropy over all steps of the best memoryless prediction: blanks, then uniform guesses."""
    return SYMBOLS * math.log(KINDS) / (delay + 2 * SYMBOLS)


#: Mean squared error of the best memoryless prediction in the adding task, which is always 1.
ADDING_BASELINE = 1 / 6


class _GeneratedSplit:
    """Base of splits whose sequences have one length and are generated from the seed, the split and their index."""

    def __init__(self, count: int, steps: int, seed: tuple[int, int]) -> None:
        self.lengths: Int64Array = np.full(count, steps, np.int64)
        self._seed = seed

    def __len__(self) -> int:
        return len(self.lengths)

    def _random_states(self, indices: Int64Array) -> list[np.random.RandomState]:
        # One generator per sequence, so that a sequence does not depend on the batch that it is in.
        return [np.random.RandomState([*self._seed, int(index)]) for index in indices]


class CopySplit(_GeneratedSplit):
    """Sequences of the copy task; inputs are tokens."""

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """Generate the sequences with these indices."""
        # Indexing raises for indices out of range.
        rows = np.arange(len(self))[np.asarray(indices, np.int64)]
        delay = int(self.lengths[0]) - 2 * SYMBOLS
        pairs = [copy_batch(1, delay, random) for random in self._random_states(rows)]
        inputs, targets = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        return Samples(inputs, self.lengths[rows], targets)


class AddingSplit(_GeneratedSplit):
    """Sequences of the adding task; only the last step has a target."""

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """Generate the sequences with these indices."""
        # Indexing raises for indices out of range.
        rows = np.arange(len(self))[np.asarray(indices, np.int64)]
        steps = int(self.lengths[0])
        pairs = [adding_batch(1, steps, random) for random in self._random_states(rows)]
        x, sums = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        # NaN marks steps without a target.
        y = np.full((len(x), steps, 1), np.nan, np.float32)
        y[:, -1] = sums
        return Samples(x, self.lengths[rows], y)


def load_copy(request: Request) -> StepData:
    """Load the copy task; ``length`` is the delay."""
    delay = _length(request, minimum=1)
    train, validation, test = (
        CopySplit(COUNTS[split], delay + 2 * SYMBOLS, (request.options.seed, split_index))
        for split_index, split in enumerate(SPLITS)
    )
    symbols = ("blank", *(str(kind) for kind in range(1, KINDS + 1)), "marker")
    return StepData(
        name="copy",
        output="categorical",
        tokens=True,
        features=symbols,
        outputs=symbols[:-1],
        train=train,
        validation=validation,
        test=test,
        continuous=False,
        headline="loss",
        answer_steps=SYMBOLS,
        notes=_notes(request, delay, copy_baseline(delay)),
        fingerprint=fingerprint(["named", "copy", delay, request.options.seed]),
    )


def load_adding(request: Request) -> StepData:
    """Load the adding task; ``length`` is the number of steps."""
    length = _length(request, minimum=2)
    train, validation, test = (
        AddingSplit(COUNTS[split], length, (request.options.seed, split_index))
        for split_index, split in enumerate(SPLITS)
    )
    return StepData(
        name="adding",
        output="real",
        tokens=False,
        features=("number", "flag"),
        outputs=("sum",),
        train=train,
        validation=validation,
        test=test,
        continuous=False,
        headline="mse",
        notes=_notes(request, length, ADDING_BASELINE),
        fingerprint=fingerprint(["named", "adding", length, request.options.seed]),
    )


def _length(request: Request, minimum: int) -> int:
    length = request.options.length or request.info.settings["length"]
    if length < minimum:
        raise errors.ConfigError(f"length of '{request.info.key}' must be {minimum} or more, got {length}.")
    return length


def _notes(request: Request, length: int, baseline: float) -> dict[str, object]:
    return {
        "sequences": dict(COUNTS),
        "length": length,
        "seed": request.options.seed,
        "memoryless_baseline": baseline,
    }


_ENTRY = partial(
    DatasetInfo,
    task="predict-next",
    licence="generated, no terms",
    splits=f"{COUNTS['train']:,}, {COUNTS['validation']:,} and {COUNTS['test']:,} sequences",
    options=("length",),
)

COPY = _ENTRY(
    key="copy",
    title="Copy task: ten symbols remembered over 100 steps",
    source="S. Hochreiter, J. Schmidhuber, 1997, in the form of M. Arjovsky, A. Shah, Y. Bengio, 2016",
    settings={"length": 100},
    load=load_copy,
)
ADDING = _ENTRY(
    key="adding",
    title="Adding task: two flagged numbers of 200, summed",
    source="S. Hochreiter, J. Schmidhuber, 1997, in the form of M. Arjovsky, A. Shah, Y. Bengio, 2016",
    settings={"length": 200},
    load=load_adding,
)
