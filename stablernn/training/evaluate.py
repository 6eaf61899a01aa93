"""Scores of a predictor on a split: the same figures for a torch model, an exported graph or anything else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import kept_weights
from stablernn.data import ClassificationData, ForecastData
from stablernn.data.sequences import are_names
from stablernn.data.windows import Samples
from stablernn.errors import DataError
from stablernn.metrics import (
    classification_metrics,
    forecast_metrics,
    quantile_metrics,
    ratio,
    seasonal_naive,
    seasonal_scale,
)
from stablernn.models import SequenceModel

Array = npt.NDArray[Any]
Outputs = dict[str, Array]
Data = ClassificationData | ForecastData

BATCH_SIZE = 256


class Predictor(Protocol):
    """Anything that answers a batch of sequences in raw units."""

    def run_numpy(self, x: Array, lengths: Array | None = None, *, dt: Array | None = None) -> Outputs:
        """Outputs for ``x`` (batch, time, features) float32, of which the first ``lengths`` (batch,) steps count.

        Args:
            x: Raw units, NaN where a value is missing.
            lengths: All steps count when omitted.
            dt: (batch, time) float32, the time from the step before, for models that take it.

        Returns:
            ``probabilities`` (batch, classes), or ``mean`` (batch, horizon, targets) and, where the model has them,
            ``quantiles`` (batch, horizon, targets, levels).
        """
        ...


class Source(Protocol):
    """Numbered samples, such as a split of sequences or of windows."""

    def __len__(self) -> int: ...

    def gather(self, indices: npt.NDArray[np.int64]) -> Samples: ...


class TorchPredictor:
    """A torch model as a predictor: evaluation mode, no gradients, on the device where the model is."""

    def __init__(self, model: SequenceModel) -> None:
        self.model = model

    def run_numpy(self, x: Array, lengths: Array | None = None, *, dt: Array | None = None) -> Outputs:
        device = next(self.model.parameters()).device
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            outputs, _ = self.model.run(
                torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(device),
                None if lengths is None else torch.from_numpy(np.asarray(lengths, dtype=np.int64)).to(device),
                dt=None if dt is None else torch.from_numpy(np.asarray(dt, dtype=np.float32)).to(device),
            )
        self.model.train(was_training)
        return {name: _numpy(value) for name, value in outputs.items()}


def _numpy(value: Tensor) -> Array:
    return np.asarray(value.cpu().numpy())


def predict(predictor: Predictor, source: Source, *, batch_size: int = BATCH_SIZE) -> Outputs:
    """The predictor's outputs for every sample of a source, in order."""
    parts: list[Outputs] = []
    with kept_weights(predictor.model) if isinstance(predictor, TorchPredictor) else nullcontext():
        for start in range(0, len(source), batch_size):
            batch = source.gather(np.arange(start, min(start + batch_size, len(source))))
            timed = {} if batch.dt is None else {"dt": batch.dt}
            parts.append(predictor.run_numpy(batch.x, batch.lengths, **timed))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def evaluate(
    predictor: Predictor,
    data: Data,
    split: str = "test",
    *,
    quantiles: Sequence[float] | None = None,
    labels: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Scores on one split.

    Args:
        predictor: What is scored.
        data: What it is scored on.
        split: train, validation or test.
        quantiles: Levels of the predictor's quantiles; None where it has none.
        labels: The classes that the predictor knows, in its order; None: those of the data.
        features: The features that the predictor was trained on, in its order; None: those of the data.
        batch_size: Samples that are predicted at once.

    Returns:
        Classify: see :func:`stablernn.metrics.classification_metrics`. Forecast: see
        :func:`stablernn.metrics.forecast_metrics` and :func:`stablernn.metrics.quantile_metrics`, over all windows of
        the split in raw units; ``seasonal_naive`` and ``naive`` with the scores of these two forecasts on the same
        windows; ``relative_mae``, the MAE over that of the seasonal naive forecast.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or the data is not of the kind that the predictor was trained on.
    """
    if features is not None:
        _check_features(data, tuple(features))
    scorer = Scorer(data, split, quantiles=quantiles, labels=labels)
    if not scorer.samples:
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")
    return scorer.score(predict(predictor, scorer.source, batch_size=batch_size))


def _check_features(data: Data, expected: tuple[str, ...]) -> None:
    found = data.channels if isinstance(data, ForecastData) else data.features
    if len(found) != len(expected):
        raise DataError(
            f"'{data.name}' has {_count(len(found), 'feature')}, the model expects {len(expected)} "
            f"({', '.join(expected)})."
        )
    # Sequences without names of their own can only be told apart by their position.
    named = isinstance(data, ForecastData) or (are_names(found) and are_names(expected))
    if named and found != expected:
        raise DataError(
            f"'{data.name}' was loaded with the features {', '.join(found)}, the model expects {', '.join(expected)}. "
            "Name them by 'channels' in the order of the model."
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Scorer:
    """One split with its truth and its naive scores, ready to score any number of predictions.

    Args:
        data: What is scored on.
        split: train, validation or test.
        quantiles: Levels of the quantiles that predictions bring; None where they bring none.
        labels: The classes in the order of the predictions; None: those of the data.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the data has no such split, or a class that is not among ``labels``.
    """

    source: Source

    def __init__(
        self,
        data: Data,
        split: str,
        *,
        quantiles: Sequence[float] | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self._data = data
        self._quantiles = tuple(quantiles or ())
        self.naive: dict[str, Any] = {}
        if isinstance(data, ClassificationData):
            chosen = data.split(split)
            self.source = chosen
            self.classes = tuple(labels if labels is not None else data.labels)
            self.truth: Array = _relabelled(chosen.y, data, self.classes)
            return
        windows = data.windows(split)
        self.source = windows
        self.truth = windows.truth(np.arange(len(windows)))
        origins = np.array(windows.origins, dtype=np.int64).reshape(-1, 2)
        self._series = origins[:, 0]
        # Windows are numbered series by series, so that each series' are a slice.
        numbers, first = np.unique(self._series, return_index=True)
        slices = [slice(start, stop) for start, stop in zip(first, [*first[1:], len(origins)], strict=True)]
        targets = list(data.target_indices)
        self._scale = np.stack([seasonal_scale(values[:, targets], data.season) for values in data.training_values()])
        for name, season in (("seasonal_naive", data.season), ("naive", 1)):
            mean = np.empty(self.truth.shape)
            for number, mine in zip(numbers, slices, strict=True):
                values = data.series[number].values[:, targets]
                mean[mine] = seasonal_naive(values, origins[mine, 1], season=season, horizon=data.horizon)
            self.naive[name] = self._forecast(mean)

    @property
    def samples(self) -> int:
        """Sequences or windows of the split."""
        return len(self.source)

    def score(self, outputs: Outputs) -> dict[str, Any]:
        """Scores of the outputs for every sample, in order; see :func:`evaluate`."""
        if isinstance(self._data, ClassificationData):
            probabilities = outputs["probabilities"]
            if probabilities.shape[1] != len(self.classes):
                raise DataError(
                    f"'{self._data.name}' has {len(self.classes)} classes, the model answers {probabilities.shape[1]}."
                )
            return dict(classification_metrics(probabilities, self.truth))
        mean = outputs["mean"]
        if mean.shape != self.truth.shape:
            raise DataError(
                f"'{self._data.name}' was loaded for a horizon of {self.truth.shape[1]} and "
                f"{_count(self.truth.shape[2], 'target')}, the model answers {mean.shape[1]} and {mean.shape[2]}."
            )
        scores: dict[str, Any] = self._forecast(mean)
        if self._quantiles:
            scores |= quantile_metrics(outputs["quantiles"], self.truth, self._quantiles)
        scores["relative_mae"] = ratio(scores["mae"], self.naive["seasonal_naive"]["mae"], zero=1.0)
        return scores | self.naive

    def _forecast(self, mean: Array) -> dict[str, float]:
        return forecast_metrics(mean, self.truth, scale=self._scale, series=self._series)


def _relabelled(y: Array, data: ClassificationData, labels: tuple[str, ...]) -> Array:
    """Class numbers of the data as numbers among ``labels``."""
    if labels == data.labels:
        return y
    present = [data.labels[number] for number in np.unique(y)]
    unseen = [label for label in present if label not in labels]
    if unseen:
        raise DataError(
            f"'{data.name}' has the label '{unseen[0]}', which the model was not trained on; "
            f"it knows {', '.join(labels)}."
        )
    number = {label: position for position, label in enumerate(labels)}
    return np.array([number.get(label, -1) for label in data.labels], dtype=np.int64)[y]
