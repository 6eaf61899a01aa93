"""Scores of a predictor on data of any task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stablernn.data.step_data import Data
from stablernn.training.evaluation.predictors import BATCH_SIZE, Predictor
from stablernn.training.evaluation.scorers import PredictorNames
from stablernn.training.evaluation.stepwise import StepPredictor
from stablernn.training.tasks import task_for


def evaluate(
    predictor: Predictor | StepPredictor,
    data: Data,
    split: str = "test",
    *,
    quantiles: Sequence[float] | None = None,
    labels: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Return the scores on one split.

    Args:
        predictor: Predictor to score.
        data: Data to score it on.
        split: train, validation or test.
        quantiles: Levels of the predictor's quantiles; None where it has none.
        labels: The classes or outputs that the predictor knows, in its order; None: those of the data.
        features: The features that the predictor was trained on, in its order; None: those of the data.
        batch_size: Samples that are predicted at once.

    Returns:
        Classify: see :func:`~stablernn.training.evaluation.metrics.classification_metrics`; ``ridge`` and ``majority``
        with the scores of :class:`~stablernn.training.evaluation.baselines.Baselines` on the same sequences.

        Forecast: see :func:`~stablernn.training.evaluation.metrics.forecast_metrics` and
        :func:`~stablernn.training.evaluation.metrics.quantile_metrics`, over all windows of the split in raw units;
        ``seasonal_naive``, ``naive`` and ``drift`` with the scores of these forecasts on the same windows;
        ``relative_mae``, the MAE over that of the seasonal naive forecast.

        Predict-next: see :func:`~stablernn.training.evaluation.evaluate_predict_next.evaluate_steps`.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or the data is not of the kind that the predictor was trained on.
    """
    names = PredictorNames(features=features, outputs=labels, quantiles=quantiles)
    return task_for(data).score(predictor, split, names, batch_size=batch_size).metrics
