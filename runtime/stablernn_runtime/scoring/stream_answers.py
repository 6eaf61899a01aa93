"""The answers to events of many streams, and the counts of what came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

Key = str | bytes | int
"""The name of a stream."""


@dataclass
class StreamCounts:
    """Counts of the events of a shard since it began, restarts from checkpoints included.

    Attributes:
        events: Events that came, repeated and late ones included.
        answered_again: Events that repeated the last one of their key, and got its answer.
        duplicates: Events that repeated one which was still waiting for its turn; the first of them is answered.
        late: Events older than the last of their key, which were dropped.
        gaps: Numbers that were skipped because their events did not come in time.
        errors: Events whose answer is an error.
    """

    events: int = 0
    answered_again: int = 0
    duplicates: int = 0
    late: int = 0
    gaps: int = 0
    errors: int = 0


@dataclass(frozen=True)
class StreamAnswers:
    """Answers to events, a row each; those of one key are in the order of their numbers.

    Attributes:
        keys: The key of each event.
        numbers: Its number within the key, ``(answers,)``.
        outputs: Outputs of the model by name, ``(answers, ...)``; NaN where there is an error.
        gaps: How many numbers were skipped since the answer before, ``(answers,)``.
        is_again: True where the event had been answered before, ``(answers,)``.
        errors: Why there is no answer; None where there is one.
    """

    keys: list[Key]
    numbers: Array
    outputs: dict[str, Array]
    gaps: Array
    is_again: Array
    errors: list[str | None]

    def __len__(self) -> int:
        return len(self.keys)

    def columns(self) -> dict[str, Any]:
        """Return the answers as columns: ``key``, ``number``, the outputs by name, ``gap``, ``again``, ``error``."""
        return {
            "key": self.keys,
            "number": self.numbers,
            **self.outputs,
            "gap": self.gaps,
            "again": self.is_again,
            "error": self.errors,
        }

    @classmethod
    def concatenate(cls, parts: Sequence[StreamAnswers]) -> StreamAnswers:
        """Return the answers of one part after the other; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            [key for part in parts for key in part.keys],
            np.concatenate([part.numbers for part in parts]),
            {name: np.concatenate([part.outputs[name] for part in parts]) for name in parts[0].outputs},
            np.concatenate([part.gaps for part in parts]),
            np.concatenate([part.is_again for part in parts]),
            [error for part in parts for error in part.errors],
        )
