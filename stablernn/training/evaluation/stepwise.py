"""Outputs of a predictor at every step of sequences, computed in segments: no split has to fit in memory with them.

Predictions of an exported graph come through here too, so nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from stablernn.data.segments import Segment, segments, streams
from stablernn.data.step_data import StepSplit
from stablernn.training.evaluation.predictors import Array, Outputs, cached_weights

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
