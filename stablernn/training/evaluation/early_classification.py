"""Early classification: scores of predictions from the first part of each sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Samples
from stablernn.data.windows import SampleSource
from stablernn.errors import ConfigError
from stablernn.training.evaluation.metrics import label_metrics
from stablernn.training.evaluation.predictors import BATCH_SIZE, Predictor, predict
from stablernn.training.evaluation.scorers import ClassificationScorer

SHARES = tuple(tenths / 10 for tenths in range(1, 11))
"""Shares of a sequence's length after which predictions are scored."""


def early(
    predictor: Predictor, scorer: ClassificationScorer, *, batch_size: int = BATCH_SIZE
) -> list[dict[str, float]]:
    """Return accuracy and macro F1 after each tenth of every sequence.

    Args:
        predictor: Predictor to score.
        scorer: Scorer of the split.
        batch_size: Sequences per run.

    Returns:
        Rows of ``share``, ``steps`` (the mean over the sequences of the share in steps, rounded up), ``accuracy`` and
        ``macro_f1``. The last row is the score of whole sequences.
    """
    rows = []
    for share in SHARES:
        beginnings = Beginnings(scorer.source, share)
        predicted = predict(predictor, beginnings, batch_size=batch_size)["probabilities"].argmax(axis=1)
        scores = label_metrics(predicted, scorer.truth, len(scorer.classes))
        rows.append({"share": share, "steps": beginnings.steps_seen / len(beginnings), **scores})
    return rows


def refuse_early(predictor: Predictor) -> None:
    """Refuse predictors of complete sequences.

    Raises:
        ConfigError: If it is one: the beginning of a sequence would be resampled as a whole one, shorter than it is.
    """
    steps = getattr(predictor, "resample_steps", None)
    if steps is not None:
        raise ConfigError(
            f"The model resamples complete sequences to {steps} samples and has no answer before the last one. Leave "
            "out early classification, or train without model.resample_steps."
        )


class Beginnings:
    """The first part of each sequence of a source, rounded up to whole steps.

    Args:
        source: Whole sequences.
        share: Share of each sequence's length, above 0 and up to 1.

    Attributes:
        steps_seen: Steps of all samples that have been gathered.
    """

    def __init__(self, source: SampleSource, share: float) -> None:
        self._source = source
        self._share = share
        self.steps_seen = 0

    def __len__(self) -> int:
        return len(self._source)

    def gather(self, indices: npt.NDArray[np.int64]) -> Samples:
        batch = self._source.gather(indices)
        # Rounding can lift a product such as .3 * 10 just above the whole number that it is.
        lengths = np.ceil(batch.lengths * self._share - 1e-9).astype(np.int64)
        self.steps_seen += int(lengths.sum())
        longest = int(lengths.max())
        # Steps after the part must not leak into it: they become padding, 0 with intervals of 1.
        is_inside = np.arange(longest) < lengths[:, None]
        dt = None if batch.dt is None else np.where(is_inside, batch.dt[:, :longest], np.float32(1))
        x = np.where(is_inside[..., None], batch.x[:, :longest], np.float32(0))
        return batch._replace(x=x, lengths=lengths, dt=dt)
