"""Early classification: how right the answer is when only the beginning of a sequence has been seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Samples
from stablernn.data.windows import SampleSource
from stablernn.training.evaluation.metrics import label_metrics
from stablernn.training.evaluation.predictors import BATCH_SIZE, Predictor, predict
from stablernn.training.evaluation.scorers import ClassificationScorer

SHARES = tuple(tenths / 10 for tenths in range(1, 11))


def early(
    predictor: Predictor, scorer: ClassificationScorer, *, batch_size: int = BATCH_SIZE
) -> list[dict[str, float]]:
    """Accuracy and macro F1 after each tenth of every sequence.

    Args:
        predictor: What is scored.
        scorer: Of the split that it is scored on.
        batch_size: Sequences that are run at once.

    Returns:
        Rows of ``share``, ``steps`` (their mean over the sequences, of each of which the share is rounded up),
        ``accuracy`` and ``macro_f1``. The last one is the score of whole sequences.
    """
    rows = []
    for share in SHARES:
        begun = Beginnings(scorer.source, share)
        predicted = predict(predictor, begun, batch_size=batch_size)["probabilities"].argmax(axis=1)
        scores = label_metrics(predicted, scorer.truth, len(scorer.classes))
        rows.append({"share": share, "steps": begun.steps_seen / len(begun), **scores})
    return rows


class Beginnings:
    """The first part of each sequence of a source, rounded up to whole steps.

    Args:
        source: Whole sequences.
        share: Of each one's length, above 0 and up to 1.

    Attributes:
        steps_seen: Steps of all the samples gathered so far.
    """

    def __init__(self, source: SampleSource, share: float) -> None:
        self._source = source
        self._share = share
        self.steps_seen = 0

    def __len__(self) -> int:
        return len(self._source)

    def gather(self, indices: npt.NDArray[np.int64]) -> Samples:
        batch = self._source.gather(indices)
        # A share such as .3 times a length such as 10 may lie just above the whole number that it is.
        lengths = np.ceil(batch.lengths * self._share - 1e-9).astype(np.int64)
        self.steps_seen += int(lengths.sum())
        longest = int(lengths.max())
        inside = np.arange(longest) < lengths[:, None]
        dt = None if batch.dt is None else np.where(inside, batch.dt[:, :longest], np.float32(1))
        x = np.where(inside[..., None], batch.x[:, :longest], np.float32(0))
        return batch._replace(x=x, lengths=lengths, dt=dt)
