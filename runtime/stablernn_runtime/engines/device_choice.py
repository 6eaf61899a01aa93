"""The device of each kind of work of a version, chosen by measurement.

A GPU launches a kernel for every node of every time step, which may take longer than one sequence on the CPU; with
many sequences at a time it is the other way round. Which one is faster depends on the model and the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_runtime.engines.benchmark import Timing, Workload, geometric_mean
from stablernn_runtime.engines.session import Session

Array = NDArray[Any]


class SessionByRows:
    """Runs few sequences with one session, and more of them with another.

    Args:
        small: For runs of fewer than ``min_rows`` sequences.
        large: For the others.
        min_rows: Sequences from which a run goes to ``large``.
    """

    def __init__(self, small: Session, large: Session, min_rows: int) -> None:
        self.small, self.large, self.min_rows = small, large, min_rows

    def run(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: ort.RunOptions | None = None, /
    ) -> Sequence[Any]:
        """Run as :meth:`Session.run`, with the session for as many sequences."""
        # All inputs have the batch as their first axis.
        rows = len(next(iter(feeds.values())))
        return (self.small if rows < self.min_rows else self.large).run(names, feeds, options)


@dataclass(frozen=True)
class DeviceChoice:
    """The device of each kind of work, by name.

    Attributes:
        single: Of a whole sequence alone.
        batch: Of a batch of whole sequences.
        min_batch_rows: Sequences from which a run goes to the device of batches; 1 where both are the same.
        step: Of steps of streams; None for a version without streams.
    """

    single: str
    batch: str
    min_batch_rows: int
    step: str | None

    @property
    def devices(self) -> set[str]:
        """The devices that the choice needs."""
        return {device for device in (self.single, self.batch, self.step) if device is not None}

    def describe(self) -> dict[str, Any]:
        """Return the choice as JSON types."""
        return {
            "single": self.single,
            "batch": self.batch,
            "min_batch_rows": self.min_batch_rows,
            "step": self.step,
        }

    def __str__(self) -> str:
        sequences = f"sequences on {self.single}"
        if self.batch != self.single:
            sequences = f"up to {self.min_batch_rows - 1} sequences on {self.single}, more on {self.batch}"
        return sequences if self.step is None else f"{sequences}, steps on {self.step}"


def choose_devices(timings: Mapping[str, Timing]) -> DeviceChoice:
    """Choose the fastest device for each kind of work.

    Sequences are chosen for by their number, alone or in a batch. All steps of streams share a device, that of the
    smallest geometric mean over one stream and many, since a stream would else change devices between two steps.

    Args:
        timings: By device; the first one wins a tie. All have the same kinds of work.
    """
    kinds = list(next(iter(timings.values())).milliseconds)
    sequences = [kind for kind in kinds if not kind.is_step]
    steps = [kind for kind in kinds if kind.is_step]
    smallest, largest = min(sequences, key=_rows), max(sequences, key=_rows)
    single, batch = _fastest(timings, [smallest]), _fastest(timings, [largest])
    min_rows = 1 if single == batch else _crossing(timings[single], timings[batch], smallest, largest)
    return DeviceChoice(single, batch, min_rows, _fastest(timings, steps) if steps else None)


def best_mean_ms(timings: Mapping[str, Timing]) -> float:
    """Return the geometric mean of the times of all kinds of work, each on its fastest device."""
    kinds = next(iter(timings.values())).milliseconds
    return geometric_mean(min(timing.milliseconds[kind] for timing in timings.values()) for kind in kinds)


def _rows(kind: Workload) -> int:
    return kind.rows


def _fastest(timings: Mapping[str, Timing], kinds: Sequence[Workload]) -> str:
    return min(timings, key=lambda device: geometric_mean(timings[device].milliseconds[kind] for kind in kinds))


def _crossing(small: Timing, large: Timing, smallest: Workload, largest: Workload) -> int:
    """Return the number of sequences from which ``large`` is faster, for times that grow linearly with them."""
    loss = large.milliseconds[smallest] - small.milliseconds[smallest]
    gain = small.milliseconds[largest] - large.milliseconds[largest]
    if not math.isfinite(gain):
        # Only one of them runs a batch at all; nothing tells what the other one would do with a smaller one.
        return smallest.rows + 1
    if not math.isfinite(loss):
        return largest.rows
    share = loss / (loss + gain) if loss + gain > 0 else 0.0
    return min(largest.rows, smallest.rows + max(1, math.ceil(share * (largest.rows - smallest.rows))))
