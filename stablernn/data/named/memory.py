"""Copy and adding: the tasks that measure memory, generated on demand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from stablernn import errors
from stablernn.data.arrays import SPLITS, Float32Array, Int64Array, Samples, SplitName
from stablernn.data.fingerprint import fingerprint
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.step_data import StepData

#: Symbols to be remembered in the copy task, and how many kinds of them there are.
SYMBOLS, KINDS = 10, 8
BLANK, MARKER = 0, KINDS + 1
COUNTS: dict[SplitName, int] = {"train": 100_000, "validation": 1000, "test": 10_000}


def copy_batch(count: int, delay: int, random: np.random.RandomState) -> tuple[Int64Array, Int64Array]:
    """Ten symbols of 1 to 8, ``delay - 1`` blanks, a marker, ten blanks; answered by blanks and then the symbols.

    Returns:
        int64 (count, delay + 20) each: what is read, and what is to be said at each step.
    """
    read = np.zeros((count, delay + 2 * SYMBOLS), np.int64)
    read[:, :SYMBOLS] = random.randint(1, KINDS + 1, (count, SYMBOLS))
    read[:, SYMBOLS + delay - 1] = MARKER
    said = np.full_like(read, BLANK)
    said[:, -SYMBOLS:] = read[:, :SYMBOLS]
    return read, said


def adding_batch(count: int, length: int, random: np.random.RandomState) -> tuple[Float32Array, Float32Array]:
    """A number in [0, 1) and a flag at each step, one flag in each half; answered by the sum of the two flagged.

    Returns:
        float32 (count, length, 2), and the sums, float32 (count, 1).
    """
    x = np.zeros((count, length, 2), np.float32)
    x[:, :, 0] = random.uniform(size=(count, length))
    half = length // 2
    for first, behind in ((0, half), (half, length)):
        x[np.arange(count), random.randint(first, behind, count), 1] = 1
    return x, (x[:, :, 0] * x[:, :, 1]).sum(axis=1, keepdims=True)


def copy_baseline(delay: int) -> float:
    """Mean cross-entropy over all steps of the best answer that remembers nothing: blanks, then a guess."""
    return SYMBOLS * math.log(KINDS) / (delay + 2 * SYMBOLS)


#: Mean squared error of the best answer to the adding task that remembers nothing: always 1.
ADDING_BASELINE = 1 / 6


class _Generated:
    """Sequences of one length made from the seed, the split and their number."""

    def __init__(self, count: int, steps: int, seed: tuple[int, int]) -> None:
        self.lengths: Int64Array = np.full(count, steps, np.int64)
        self._seed = seed

    def __len__(self) -> int:
        return len(self.lengths)

    def _streams(self, indices: Int64Array) -> list[np.random.RandomState]:
        return [np.random.RandomState([*self._seed, int(index)]) for index in indices]


class CopySplit(_Generated):
    """Sequences of the copy task; the inputs are tokens."""

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        chosen = np.arange(len(self))[np.asarray(indices, np.int64)]
        delay = int(self.lengths[0]) - 2 * SYMBOLS
        pairs = [copy_batch(1, delay, random) for random in self._streams(chosen)]
        read, said = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        return Samples(read, self.lengths[chosen], said)


class AddingSplit(_Generated):
    """Sequences of the adding task; only the last step has a target."""

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        chosen = np.arange(len(self))[np.asarray(indices, np.int64)]
        steps = int(self.lengths[0])
        pairs = [adding_batch(1, steps, random) for random in self._streams(chosen)]
        x, sums = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        y = np.full((len(x), steps, 1), np.nan, np.float32)
        y[:, -1] = sums
        return Samples(x, self.lengths[chosen], y)


def load_copy(request: Request) -> StepData:
    delay = _length(request, least=1)
    train, validation, test = (
        CopySplit(COUNTS[split], delay + 2 * SYMBOLS, (request.options.seed, number))
        for number, split in enumerate(SPLITS)
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
    length = _length(request, least=2)
    train, validation, test = (
        AddingSplit(COUNTS[split], length, (request.options.seed, number)) for number, split in enumerate(SPLITS)
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


def _length(request: Request, least: int) -> int:
    length = request.options.length or request.info.settings["length"]
    if length < least:
        raise errors.ConfigError(f"length of '{request.info.key}' must be {least} or more, got {length}.")
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

DATASETS = (
    _ENTRY(
        key="copy",
        title="Copy task: ten symbols remembered over 100 steps",
        source="S. Hochreiter, J. Schmidhuber, 1997, in the form of M. Arjovsky, A. Shah, Y. Bengio, 2016",
        settings={"length": 100},
        load=load_copy,
    ),
    _ENTRY(
        key="adding",
        title="Adding task: two flagged numbers of 200, summed",
        source="S. Hochreiter, J. Schmidhuber, 1997, in the form of M. Arjovsky, A. Shah, Y. Bengio, 2016",
        settings={"length": 200},
        load=load_adding,
    ),
)
