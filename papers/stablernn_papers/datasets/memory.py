"""Copy and adding tasks, which measure memory; their sequences are generated on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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


class GeneratedSplit:
    """Sequences of one length that are generated from the seed, the split and their index.

    Args:
        count: Number of sequences.
        steps: Their length.
        seed: Seed and number of the split.
        draw: Draws one sequence, ``(1, steps)`` or ``(1, steps, features)``, and its targets at all steps.
    """

    def __init__(
        self,
        count: int,
        steps: int,
        seed: tuple[int, int],
        draw: Callable[[np.random.RandomState], tuple[Int64Array, Int64Array] | tuple[Float32Array, Float32Array]],
    ) -> None:
        self.lengths: Int64Array = np.full(count, steps, np.int64)
        self._seed, self._draw = seed, draw

    def __len__(self) -> int:
        return len(self.lengths)

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """Generate the sequences with these indices."""
        # Indexing raises for indices out of range.
        rows = np.arange(len(self))[np.asarray(indices, np.int64)]
        # One generator per sequence, so that a sequence does not depend on the batch that it is in.
        pairs = [self._draw(np.random.RandomState([*self._seed, int(row)])) for row in rows]
        x, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        return Samples(x, self.lengths[rows], y)


def _adding_steps(length: int, random: np.random.RandomState) -> tuple[Float32Array, Float32Array]:
    """Generate a sequence of the adding task with targets at all steps; NaN marks steps without a target."""
    x, sums = adding_batch(1, length, random)
    y = np.full((1, length, 1), np.nan, np.float32)
    y[:, -1] = sums
    return x, y


def load_copy(request: Request) -> StepData:
    """Load the copy task; ``length`` is the delay."""
    delay = _length(request, minimum=1)
    symbols = ("blank", *(str(kind) for kind in range(1, KINDS + 1)), "marker")
    return StepData(
        **_parts(
            request, delay, delay + 2 * SYMBOLS, copy_baseline(delay), lambda random: copy_batch(1, delay, random)
        ),
        output="categorical",
        tokens=True,
        features=symbols,
        outputs=symbols[:-1],
        headline="loss",
        answer_steps=SYMBOLS,
    )


def load_adding(request: Request) -> StepData:
    """Load the adding task; ``length`` is the number of steps."""
    length = _length(request, minimum=2)
    return StepData(
        **_parts(request, length, length, ADDING_BASELINE, partial(_adding_steps, length)),
        output="real",
        tokens=False,
        features=("number", "flag"),
        outputs=("sum",),
        headline="mse",
    )


def _length(request: Request, minimum: int) -> int:
    length = request.options.length or request.info.settings["length"]
    if length < minimum:
        raise errors.ConfigError(f"length of '{request.info.key}' must be {minimum} or more, got {length}.")
    return length


def _parts(request: Request, length: int, steps: int, baseline: float, draw: Callable[..., Any]) -> dict[str, Any]:
    """Return what both tasks have: splits, notes and fingerprint."""
    key, seed = request.info.key, request.options.seed
    splits: dict[str, GeneratedSplit] = {
        name: GeneratedSplit(COUNTS[name], steps, (seed, number), draw) for number, name in enumerate(SPLITS)
    }
    notes = {"sequences": dict(COUNTS), "length": length, "seed": seed, "memoryless_baseline": baseline}
    content = fingerprint(["named", key, length, seed])
    return {"name": key, **splits, "continuous": False, "notes": notes, "fingerprint": content}


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
