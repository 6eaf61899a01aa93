"""Scorers: one split with its truth, ready to score any number of predictors on it."""

from __future__ import annotations

import csv
import io
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from stablernn.atomic_files import write_bytes
from stablernn.data.arrays import Samples
from stablernn.data.messages import pluralize
from stablernn.data.sequences import has_feature_names
from stablernn.data.table.frequency import parse_frequency
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.data.windows import SampleSource
from stablernn.errors import DataError
from stablernn.terms import terms
from stablernn.training.evaluation.metrics import (
    classification_metrics,
    drift,
    forecast_metrics,
    quantile_metrics,
    ratio,
    seasonal_naive,
    seasonal_scale,
)
from stablernn.training.evaluation.predictors import BATCH_SIZE, Array, Outputs, Predictor, predict
from stablernn.training.evaluation.torch_predictor import TorchPredictor

_LOG = logging.getLogger("stablernn.training")

Scores = dict[str, Any]
"""Scores by name, and those of baselines below the baseline's name, as JSON types."""


class Scorer(Protocol):
    """A split on which a trainer validates.

    Attributes:
        naive: Scores of the naive answers, by their name.
    """

    naive: dict[str, Any]

    @property
    def samples(self) -> int:
        """Sequences or windows of the split."""
        ...

    def score_of(self, predictor: TorchPredictor) -> Scores:
        """Return the scores of a predictor."""
        ...


@dataclass(frozen=True)
class PredictorNames:
    """Names by which a predictor was trained; None: those of the data that it is scored on.

    Attributes:
        features: Features, in the predictor's order.
        outputs: Classes, or outputs at each step, in its order.
        quantiles: Levels of its quantiles; None where it has none.
    """

    features: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    quantiles: Sequence[float] | None = None


class SampleScorer(ABC):
    """One split of samples with its truth.

    Attributes:
        source: Samples to predict, in the order of the truth.
        truth: (samples,) class numbers, or (windows, horizon, targets).
        naive: Scores of the naive forecasts; empty for a classification.
    """

    source: SampleSource
    truth: Array
    naive: dict[str, Any]

    @property
    def samples(self) -> int:
        """Sequences or windows of the split."""
        return len(self.source)

    @abstractmethod
    def score(self, outputs: Outputs) -> Scores:
        """Return the scores of the outputs for every sample, in order."""

    def score_of(self, predictor: Predictor, *, batch_size: int = BATCH_SIZE) -> Scores:
        """Return the scores of a predictor."""
        return self.score(predict(predictor, self.source, batch_size=batch_size))


class ClassificationScorer(SampleScorer):
    """One split of labeled sequences.

    Args:
        data: Data to score on.
        split: train, validation or test.
        labels: The classes in the order of the predictions; None: those of the data.

    Attributes:
        classes: The classes in the order of the predictions.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the data has no such split, or a class that is not among ``labels``.
    """

    def __init__(self, data: ClassificationData, split: str, *, labels: Sequence[str] | None = None) -> None:
        self._name = data.name
        samples = data.split(split)
        self.source = samples
        self.classes = tuple(labels if labels is not None else data.labels)
        self.truth = _renumber_classes(samples.y, data, self.classes)
        self.naive = {}

    def score(self, outputs: Outputs) -> Scores:
        probabilities = outputs["probabilities"]
        if probabilities.shape[1] != len(self.classes):
            raise DataError(
                f"'{self._name}' has {len(self.classes)} classes, the model answers {probabilities.shape[1]}."
            )
        return dict(classification_metrics(probabilities, self.truth))


class ForecastScorer(SampleScorer):
    """One split of windows, with the scores of the naive forecasts on them.

    Args:
        data: Data to score on.
        split: train, validation or test.
        quantiles: Levels of the quantiles that predictions have; None where they have none.
        windows: Increasing numbers of the windows to score; None: all of the split.

    Attributes:
        origins: (windows, 2), series and first forecast step.
        windows_without_context: Windows that the split leaves out because no target has a value in their context.

    Raises:
        UnknownNameError: If there is no split of that name.
    """

    def __init__(
        self,
        data: ForecastData,
        split: str,
        *,
        quantiles: Sequence[float] | None = None,
        windows: Array | None = None,
    ) -> None:
        self._data = data
        self._quantiles = tuple(quantiles or ())
        all_windows = data.windows(split)
        numbers = np.arange(len(all_windows)) if windows is None else windows
        self.source = all_windows if windows is None else Subset(all_windows, numbers)
        self.windows_without_context = all_windows.without_context
        self.truth = all_windows.truth(numbers)
        self.origins = np.array(all_windows.origins, dtype=np.int64).reshape(-1, 2)[numbers]
        targets = list(data.target_indices)
        # The unit of MASE, (series, targets), is of the training steps alone.
        self._scale = np.stack([seasonal_scale(values[:, targets], data.season) for values in data.training_values()])
        self._naive_season = naive_season(data)
        self.naive = {}
        # training.refit leaves no validation window, so that there is nothing to score.
        for name in ("seasonal_naive", "naive", "drift") if len(numbers) else ():
            self.naive[name] = self.part({"mean": self.naive_forecast(name)})

    def score(self, outputs: Outputs) -> Scores:
        mean = outputs["mean"]
        if mean.shape != self.truth.shape:
            raise DataError(
                f"{terms().file(self._data.name)} was loaded for a horizon of {self.truth.shape[1]} and "
                f"{pluralize(self.truth.shape[2], 'target')}, the model answers {mean.shape[1]} and {mean.shape[2]}."
            )
        scores: Scores = {**self.part(outputs)}
        # 0/0 is 1: a forecast without error equals a naive one without error.
        scores["relative_mae"] = ratio(scores["mae"], self.naive["seasonal_naive"]["mae"], zero=1.0)
        return scores | self.naive

    def naive_forecast(self, name: str) -> npt.NDArray[np.float64]:
        """Return the forecast ``seasonal_naive``, ``naive`` or ``drift`` of all windows, in the truth's shape."""
        targets, horizon = list(self._data.target_indices), self._data.horizon
        mean = np.empty(self.truth.shape)
        for number, rows in self.series_slices():
            values, ends = self._data.series[number].values[:, targets], self.origins[rows, 1]
            if name == "drift":
                mean[rows] = drift(values, ends, horizon=horizon)
            else:
                season = self._naive_season if name == "seasonal_naive" else 1
                mean[rows] = seasonal_naive(values, ends, season=season, horizon=horizon)
        return mean

    def window_errors(self, outputs: Outputs, *, is_scaled: bool) -> npt.NDArray[np.float64]:
        """Return the mean absolute error of each window, (windows,), in units of MASE if scaled; NaN without any."""
        errors = np.abs(outputs["mean"].astype(np.float64) - self.truth)
        if is_scaled:
            scale = self._scale[self.origins[:, 0]]
            errors /= np.where(scale > 0, scale, np.nan)[:, None]
        counts = (~np.isnan(errors)).sum(axis=(1, 2))
        return np.asarray(np.nansum(errors, axis=(1, 2)) / np.where(counts > 0, counts, np.nan))

    def series_slices(self) -> Iterator[tuple[int, slice]]:
        """Yield each series that has windows, and their slice: windows are numbered series by series."""
        numbers, first = np.unique(self.origins[:, 0], return_index=True)
        # The windows of a series end where those of the next one begin.
        ends = np.append(first, len(self.origins))[1:]
        for number, start, stop in zip(numbers, first, ends, strict=True):
            yield int(number), slice(int(start), int(stop))

    def part(
        self,
        outputs: Outputs,
        windows: slice = slice(None),
        steps: slice = slice(None),
        targets: slice = slice(None),
    ) -> dict[str, float]:
        """Return the scores of some windows, steps and targets, without those of the naive forecasts.

        Outputs without ``quantiles`` are scored by their mean alone.
        """
        truth = self.truth[windows, steps, targets]
        # Series are numbered among those of the part, as are the rows of their scales.
        number, series = np.unique(self.origins[windows, 0], return_inverse=True)
        scale = self._scale[number][:, targets]
        scores = forecast_metrics(outputs["mean"][windows, steps, targets], truth, scale=scale, series=series)
        if self._quantiles and "quantiles" in outputs:
            scores |= quantile_metrics(outputs["quantiles"][windows, steps, targets], truth, self._quantiles)
        return scores


_SEASON_SERIES = 100
"""Series that the season of the naive forecast is chosen by, at most."""
_SEASON_STEPS = 8
"""Steps ahead that it is chosen by, at most."""


def naive_season(data: ForecastData) -> int:
    """Return the season of the data, 1, or a longer usual one of its frequency, whose naive forecast errs least.

    It is that over the horizon, in training. Of hourly values, those of a week before may be nearer than those of the
    day before, and of prices the last one.
    """
    usual = parse_frequency(data.frequency).seasons if data.frequency is not None else ()
    series = data.training_values()
    # Evenly spaced: all of many series would take seconds.
    numbers = np.unique(np.linspace(0, len(series) - 1, min(len(series), _SEASON_SERIES)).astype(int))
    training = [series[number][:, list(data.target_indices)] for number in numbers]
    # A season counts where every series of usual length has two of it.
    longest = float(np.median([len(values) for values in training])) / 2
    others = [1] if data.season > 1 else []
    seasons = [data.season, *others, *(season for season in usual if data.season < season <= longest)]
    if len(seasons) == 1:
        return data.season
    errors = np.array(
        [np.concatenate([_naive_error(values, season, data.horizon) for values in training]) for season in seasons]
    )
    # Series differ in size: each counts by its error in units of that of the first season.
    usable = np.isfinite(errors).all(axis=0) & (errors[0] > 0)
    if not usable.any():
        return data.season
    season = seasons[int((errors[:, usable] / errors[0, usable]).mean(axis=1).argmin())]
    if season != data.season:
        repeated = "the last value" if season == 1 else f"the values {season} steps before"
        _LOG.info(f"The seasonal naive forecast repeats {repeated}: in training that errs less.")
    return season


def _naive_error(values: Array, season: int, horizon: int) -> Array:
    """Return the mean absolute error of repeating the last season over a horizon, (targets,), within one series.

    The value at a step ahead is that of the last whole number of seasons before, as far as the series reaches.
    """
    ahead = np.linspace(0, horizon - 1, min(horizon, _SEASON_STEPS)).astype(int)
    lags = np.clip(season * (1 + ahead // season), 1, max(1, len(values) - 1))
    lengths, counts = np.unique(lags, return_counts=True)
    # No pair of a lag may be observed.
    errors = np.ma.masked_invalid([seasonal_scale(values, int(lag)) for lag in lengths])
    return np.asarray(np.ma.filled(np.ma.average(errors, axis=0, weights=counts), math.nan))


class Subset:
    """Some samples of a source, numbered from 0.

    Args:
        source: All samples.
        numbers: int64 (samples,), numbers of the samples to take.
    """

    def __init__(self, source: SampleSource, numbers: npt.NDArray[np.int64]) -> None:
        self._source = source
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def gather(self, indices: npt.NDArray[np.int64]) -> Samples:
        return self._source.gather(self._numbers[indices])


def _check_features(
    data: ClassificationData | ForecastData, expected: Sequence[str] | None, *, by_name: bool = False
) -> None:
    """Refuse data with other features than a predictor was trained on.

    Args:
        data: The data.
        expected: The features of the predictor, in its order; None for those of the data.
        by_name: True if features always have names; else they are compared where both sides have names.

    Raises:
        DataError: If they differ.
    """
    features = data.features
    if expected is None:
        return
    if len(features) != len(expected):
        raise DataError(
            f"{terms().file(data.name)} has {pluralize(len(features), 'feature')}, the model expects {len(expected)} "
            f"({', '.join(expected)})."
        )
    # Sequences without names of their own can only be told apart by their position.
    is_named = by_name or (has_feature_names(features) and has_feature_names(expected))
    if is_named and features != tuple(expected):
        raise DataError(
            f"{terms().file(data.name)} was loaded with the features {', '.join(features)}, the model expects "
            f"{', '.join(expected)}. Name them by data.channels in the order of the model."
        )


_Scorer = TypeVar("_Scorer", bound=SampleScorer)


def _not_empty(scorer: _Scorer, data: ClassificationData | ForecastData, split: str) -> _Scorer:
    if not scorer.samples:
        raise DataError(f"The split '{split}' of {terms().file(data.name)} is empty. Choose another split.")
    return scorer


def open_classification(data: ClassificationData, split: str, names: PredictorNames) -> ClassificationScorer:
    """Return the scorer of a split that has sequences, of the kind that a predictor was trained on.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or has other features or classes.
    """
    _check_features(data, names.features)
    return _not_empty(ClassificationScorer(data, split, labels=names.outputs), data, split)


def open_forecast(data: ForecastData, split: str, names: PredictorNames) -> ForecastScorer:
    """Return the scorer of a split that has windows, of the kind that a predictor was trained on.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or has other features.
    """
    _check_features(data, names.features, by_name=True)
    return _not_empty(ForecastScorer(data, split, quantiles=names.quantiles), data, split)


def _renumber_classes(y: Array, data: ClassificationData, labels: tuple[str, ...]) -> Array:
    """Return class numbers of the data as numbers among ``labels``."""
    if labels == data.labels:
        return y
    # Classes that are named in the data without a sequence in this split do no harm.
    present = [data.labels[number] for number in np.unique(y)]
    unseen = [label for label in present if label not in labels]
    if unseen:
        raise DataError(
            f"{terms().file(data.name)} has the label '{unseen[0]}', which the model was not trained on; it knows "
            f"{', '.join(labels)}."
        )
    number = {label: position for position, label in enumerate(labels)}
    return np.array([number.get(label, -1) for label in data.labels], dtype=np.int64)[y]


Row = dict[str, Any]


def by_series(data: ForecastData, scorer: ForecastScorer, outputs: Outputs) -> list[Row]:
    """Return the scores of each series and target over all its windows, with the MAE of the seasonal naive forecast.

    Returns:
        Rows of ``unique_id``, ``target``, ``windows``, the scores, ``seasonal_naive_mae``, ``relative_mae``. A series
        without windows in the split has no row.
    """
    naive = scorer.naive_forecast("seasonal_naive")
    return [
        {
            "unique_id": data.series[number].unique_id,
            "target": target,
            "windows": windows.stop - windows.start,
            **_scores(scorer, outputs, naive, windows=windows, targets=slice(position, position + 1)),
        }
        for position, target in enumerate(data.targets)
        for number, windows in scorer.series_slices()
    ]


def by_step(data: ForecastData, scorer: ForecastScorer, outputs: Outputs) -> list[Row]:
    """Return the scores of each step ahead and target over all windows, with the MAE of the seasonal naive forecast.

    Returns:
        Rows of ``step`` (from 1), ``target``, the scores, ``seasonal_naive_mae``, ``relative_mae``.
    """
    naive = scorer.naive_forecast("seasonal_naive")
    return [
        {
            "step": step + 1,
            "target": target,
            **_scores(scorer, outputs, naive, steps=slice(step, step + 1), targets=slice(position, position + 1)),
        }
        for position, target in enumerate(data.targets)
        for step in range(data.horizon)
    ]


def _scores(scorer: ForecastScorer, outputs: Outputs, naive: Array, **part: slice) -> dict[str, float]:
    """Return the scores of a part, selected by the slices of :meth:`ForecastScorer.part`."""
    scores = scorer.part(outputs, **part)
    naive_mae = scorer.part({"mean": naive}, **part)["mae"]
    # 0/0 is 1, as in the scores of the whole split.
    return {**scores, "seasonal_naive_mae": naive_mae, "relative_mae": ratio(scores["mae"], naive_mae, zero=1.0)}


def write_tables(folder: Path, tables: Mapping[str, Sequence[Row]]) -> list[Path]:
    """Write each table to ``NAME.csv`` in a folder, created if needed, and return the paths; NaN is an empty cell."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in tables.items():
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        # NaN is the only value that differs from itself; cells also hold text, which has no isnan.
        writer.writerows({key: "" if value != value else value for key, value in row.items()} for row in rows)
        paths.append(folder / f"{name}.csv")
        write_bytes(paths[-1], buffer.getvalue().encode())
    return paths
