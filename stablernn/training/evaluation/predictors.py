"""Predictors and their outputs, batch by batch, or at every step of sequences in segments.

Predictions of an exported graph come through here too, so nothing here imports torch. No split has to fit in memory
with the outputs of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Samples
from stablernn.data.step_data import Segment, StepSplit, segments, streams
from stablernn.data.windows import SampleSource

Array = npt.NDArray[Any]
Outputs = dict[str, Array]

BATCH_SIZE = 256


class Predictor(Protocol):
    """Anything that predicts a batch of sequences in raw units."""

    def run_numpy(self, x: Array, lengths: Array | None = None, *, dt: Array | None = None) -> Outputs:
        """Return the outputs for a batch of sequences.

        Args:
            x: (batch, time, features) float32 in raw units, NaN for a missing value.
            lengths: (batch,), steps of each sequence before its padding; all steps if omitted.
            dt: (batch, time) float32, the time from the step before, for models that take it.

        Returns:
            ``probabilities`` (batch, classes), or ``mean`` (batch, horizon, targets) and, if the model has them,
            ``quantiles`` (batch, horizon, targets, levels).
        """
        ...


@runtime_checkable
class CachesWeights(Protocol):
    """A predictor that can compute its weights from its parameters once for several runs, such as a torch model."""

    def cached_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters must not change."""
        ...


class StatefulPredictor(Protocol):
    """A predictor that can continue from the state after a sequence."""

    @property
    def states(self) -> Sequence[Any]:
        """Names of each tensor of the state, with ``input``, ``output`` and ``role`` as in :class:`StateName`."""
        ...

    @property
    def patch_stride(self) -> int:
        """Samples between two steps of the state."""
        ...

    def run_sequence(
        self, x: Array, lengths: Array | None = None, state: Mapping[str, Array] | None = None, **optional: Array
    ) -> Outputs: ...

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]: ...


def predict(predictor: Predictor, source: SampleSource, *, batch_size: int = BATCH_SIZE) -> Outputs:
    """Return the predictor's outputs for every sample of a source, in order; empty for an empty source."""
    parts: list[Outputs] = []
    with cached_weights(predictor):
        for start in range(0, len(source), batch_size):
            batch = source.gather(np.arange(start, min(start + batch_size, len(source))))
            parts.append(predictor.run_numpy(batch.x, batch.lengths, **optional_inputs(batch)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def cached_weights(predictor: object) -> AbstractContextManager[None]:
    """Return a context for several runs of a predictor with the same parameters."""
    # The weights of an exported graph are constants: there is nothing to cache.
    return predictor.cached_weights() if isinstance(predictor, CachesWeights) else nullcontext()


def optional_inputs(batch: Samples) -> dict[str, Array]:
    """Return the inputs of samples in addition to values and lengths, by name: those of ``dt, static, future``."""
    fields = {"dt": batch.dt, "static": batch.static, "future": batch.future}
    return {name: value for name, value in fields.items() if value is not None}


STREAMS = 10
"""Parallel streams in which a running text is run, each from the zero state."""
ROWS = 64
"""Sequences of a batch."""
LONGEST = 1000
"""Steps of a segment at most; fewer where the outputs of a batch would exceed :data:`NUMBERS`."""
NUMBERS = 2**22


class StepPredictor(Protocol):
    """A predictor of segments of sequences that starts from a state, such as a model by torch or by ONNX Runtime."""

    def run_sequence(self, x: Array, lengths: Array | None = None, state: Mapping[str, Array] | None = None) -> Outputs:
        """Return the outputs of every step, ``logits`` or ``mean`` (batch, time, outputs), and the final states."""
        ...

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the states among the outputs, by their names as inputs."""
        ...


def predict_segments(
    predictor: StepPredictor, split: StepSplit, outputs: int, *, continuous: bool
) -> Iterator[tuple[Segment, Array]]:
    """Run a predictor over every sequence of a split in segments, the state carried from each to the next.

    Args:
        predictor: The predictor.
        split: The sequences.
        outputs: Numbers that it predicts at a step.
        continuous: True if the split is one running text; it is then cut into :data:`STREAMS` parallel ones.

    Yields:
        A segment and its logits or means, (rows, steps, outputs); of a row only its ``lengths`` first steps count.
    """
    steps = min(LONGEST, max(1, NUMBERS // (ROWS * outputs)))
    lengths = np.asarray(split.lengths)
    # The longest first, as `segments` needs them.
    order = np.argsort(-lengths, kind="stable")
    with cached_weights(predictor):
        for start in range(0, 1 if continuous else len(order), ROWS):
            rows = order[start : start + ROWS]
            samples = streams(split, STREAMS) if continuous else split.gather(rows)
            numbers = np.arange(len(samples.lengths)) if continuous else rows
            state: Mapping[str, Array] | None = None
            for segment in segments(samples, numbers, steps):
                # Sequences that have ended are the last rows: the state of the others goes on.
                if state is not None:
                    state = {name: values[: len(segment.x)] for name, values in state.items()}
                predicted = predictor.run_sequence(segment.x, segment.lengths, state)
                state = predictor.next_state(predicted)
                yield segment, predicted["mean" if "mean" in predicted else "logits"]


def predict_steps(predictor: StepPredictor, split: StepSplit, outputs: int) -> list[npt.NDArray[np.float64]]:
    """Return the logits or means (time, outputs) of each sequence of a split, each run from its beginning.

    Args:
        predictor: The predictor.
        split: The sequences.
        outputs: Numbers that it predicts at a step.
    """
    parts: dict[int, list[npt.NDArray[np.float64]]] = {}
    # The stretches of the sequences of a batch come interleaved.
    for segment, answers in predict_segments(predictor, split, outputs, continuous=False):
        for row, length, answer in zip(segment.rows, segment.lengths, answers, strict=True):
            parts.setdefault(int(row), []).append(answer[:length].astype(np.float64))
    return [np.concatenate(parts[number]) for number in sorted(parts)]
