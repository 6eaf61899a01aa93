"""Scores of a predictor on a split: the same figures for a torch model, an exported graph or anything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import cached_weights
from stablernn.data import ClassificationData, ForecastData
from stablernn.data.arrays import Samples
from stablernn.data.sequences import has_feature_names
from stablernn.errors import DataError
from stablernn.nn.models import SequenceModel
from stablernn.training.evaluation.baselines import Baselines
from stablernn.training.evaluation.metrics import (
    classification_metrics,
    drift,
    forecast_metrics,
    quantile_metrics,
    ratio,
    seasonal_naive,
    seasonal_scale,
)

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


class StateName(NamedTuple):
    """One tensor of a model's state: the name by which it enters and leaves, and what it is."""

    input: str
    output: str
    role: str


class TorchPredictor:
    """A torch model as a predictor: evaluation mode, no gradients, on the device where the model is.

    Attributes:
        model: The model.
        states: Names of its states, as in an exported graph.
    """

    def __init__(self, model: SequenceModel) -> None:
        self.model = model
        self.input_name = model.input_name
        self.patch_stride = model.patches.stride
        roles = [role for role, _ in model.state_roles()]
        self.states = [StateName(f"state_{n}", f"state_{n}_out", role) for n, role in enumerate(roles)]

    def run_numpy(self, x: Array, lengths: Array | None = None, **further: Array | None) -> Outputs:
        return self._run(x, lengths, None, further)[0]

    def run_sequence(
        self,
        x: Array,
        lengths: Array | None = None,
        state: Mapping[str, Array] | None = None,
        **further: Array | None,
    ) -> Outputs:
        """:meth:`run_numpy` from a state on, with the state after the last step among the outputs.

        Args:
            x: As :meth:`run_numpy` takes it.
            lengths: Likewise.
            state: What :meth:`next_state` gave; zeros when omitted.
            further: What else the model takes: ``dt``, ``static``, ``future``.
        """
        given = None if state is None else tuple(self._tensor(state[name.input]) for name in self.states)
        outputs, final = self._run(x, lengths, given, further)
        return outputs | {name.output: _numpy(value) for name, value in zip(self.states, final, strict=True)}

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The states among the outputs, under the names by which they enter."""
        return {name.input: outputs[name.output] for name in self.states}

    def _run(
        self, x: Array, lengths: Array | None, state: tuple[Tensor, ...] | None, further: Mapping[str, Array | None]
    ) -> tuple[Outputs, tuple[Tensor, ...]]:
        options: dict[str, Any] = {name: self._tensor(value) for name, value in further.items() if value is not None}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            outputs, final = self.model.run(
                self._tensor(x, np.int64 if self.model.input_name == "tokens" else np.float32),
                None if lengths is None else self._tensor(lengths, np.int64),
                state,
                **options,
            )
        self.model.train(was_training)
        return {name: _numpy(value) for name, value in outputs.items()}, final

    def _tensor(self, values: Array, dtype: npt.DTypeLike = np.float32) -> Tensor:
        device = next(self.model.parameters()).device
        return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype)).to(device)


def _numpy(value: Tensor) -> Array:
    return np.asarray(value.cpu().numpy())


class Continuing(Protocol):
    """A predictor that can go on from the state in which a sequence left it."""

    @property
    def states(self) -> Sequence[Any]:
        """What has ``input``, ``output`` and ``role`` for each tensor of the state."""
        ...

    @property
    def patch_stride(self) -> int:
        """Samples after which the state moves on."""
        ...

    def run_sequence(
        self, x: Array, lengths: Array | None = None, state: Mapping[str, Array] | None = None, **further: Array
    ) -> Outputs: ...

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]: ...


def predict(predictor: Predictor, source: Source, *, batch_size: int = BATCH_SIZE) -> Outputs:
    """The predictor's outputs for every sample of a source, in order."""
    parts: list[Outputs] = []
    with cached_weights(predictor.model) if isinstance(predictor, TorchPredictor) else nullcontext():
        for start in range(0, len(source), batch_size):
            batch = source.gather(np.arange(start, min(start + batch_size, len(source))))
            parts.append(predictor.run_numpy(batch.x, batch.lengths, **further_inputs(batch)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def further_inputs(batch: Samples) -> dict[str, Array]:
    """What samples bring beside values and lengths, by name: ``dt``, ``static``, ``future``, as far as they have it."""
    found = batch._asdict()
    return {name: value for name, value in found.items() if name not in ("x", "lengths", "y") and value is not None}


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
        Classify: see :func:`~stablernn.training.evaluation.metrics.classification_metrics`; ``ridge`` and ``majority``
        with the scores of :class:`~stablernn.training.evaluation.baselines.Baselines` on the same sequences.

        Forecast: see :func:`~stablernn.training.evaluation.metrics.forecast_metrics` and
        :func:`~stablernn.training.evaluation.metrics.quantile_metrics`, over all windows of the split in raw units;
        ``seasonal_naive``, ``naive`` and ``drift`` with the scores of these forecasts on the same windows;
        ``relative_mae``, the MAE over that of the seasonal naive forecast.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or the data is not of the kind that the predictor was trained on.
    """
    scorer = open_split(data, split, quantiles=quantiles, labels=labels, features=features)
    scores = scorer.score(predict(predictor, scorer.source, batch_size=batch_size))
    return scores | Baselines(data).scores(split) if isinstance(data, ClassificationData) else scores


def open_split(
    data: Data,
    split: str,
    *,
    quantiles: Sequence[float] | None = None,
    labels: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
) -> Scorer:
    """A split with something in it, of the kind that a predictor was trained on; see :func:`evaluate`."""
    if features is not None:
        _check_features(data, tuple(features))
    scorer = Scorer(data, split, quantiles=quantiles, labels=labels)
    if not scorer.samples:
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")
    return scorer


def _check_features(data: Data, expected: tuple[str, ...]) -> None:
    found = data.channels if isinstance(data, ForecastData) else data.features
    if len(found) != len(expected):
        raise DataError(
            f"'{data.name}' has {_count(len(found), 'feature')}, the model expects {len(expected)} "
            f"({', '.join(expected)})."
        )
    # Sequences without names of their own can only be told apart by their position.
    named = isinstance(data, ForecastData) or (has_feature_names(found) and has_feature_names(expected))
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

        windows: Of a forecast: the numbers of the windows that are scored, increasing; None: all of the split.

    Attributes:
        source: What is predicted, in the order of the truth.
        truth: (samples,) class numbers, or (windows, horizon, targets).
        naive: Scores of the naive forecasts; empty for a classification.

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
        windows: Array | None = None,
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
        found = data.windows(split)
        numbers = np.arange(len(found)) if windows is None else windows
        self.source = found if windows is None else Chosen(found, numbers)
        self.truth = found.truth(numbers)
        self._origins = np.array(found.origins, dtype=np.int64).reshape(-1, 2)[numbers]
        targets = list(data.target_indices)
        self._scale = np.stack([seasonal_scale(values[:, targets], data.season) for values in data.training_values()])
        # training.refit leaves no validation window, and of none there is no score.
        for name in ("seasonal_naive", "naive", "drift") if len(numbers) else ():
            self.naive[name] = self.part({"mean": self.naive_forecast(name)})

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
        scores: dict[str, Any] = self.part(outputs)
        scores["relative_mae"] = ratio(scores["mae"], self.naive["seasonal_naive"]["mae"], zero=1.0)
        return scores | self.naive

    def naive_forecast(self, name: str) -> npt.NDArray[np.float64]:
        """One of the forecasts ``seasonal_naive``, ``naive`` and ``drift`` of all windows, as the truth's shape."""
        assert isinstance(self._data, ForecastData)
        targets, horizon = list(self._data.target_indices), self._data.horizon
        mean = np.empty(self.truth.shape)
        for number, mine in self.series_slices():
            values, ends = self._data.series[number].values[:, targets], self._origins[mine, 1]
            if name == "drift":
                mean[mine] = drift(values, ends, horizon=horizon)
            else:
                season = self._data.season if name == "seasonal_naive" else 1
                mean[mine] = seasonal_naive(values, ends, season=season, horizon=horizon)
        return mean

    def series_slices(self) -> Iterator[tuple[int, slice]]:
        """Each series that has windows, and where these are: windows are numbered series by series."""
        numbers, first = np.unique(self._origins[:, 0], return_index=True)
        ends = np.append(first, len(self._origins))[1:]
        for number, start, stop in zip(numbers, first, ends, strict=True):
            yield int(number), slice(int(start), int(stop))

    def part(
        self,
        outputs: Outputs,
        windows: slice = slice(None),
        steps: slice = slice(None),
        targets: slice = slice(None),
    ) -> dict[str, float]:
        """Scores of some windows, steps and targets of a forecast, without those of the naive ones.

        Outputs without ``quantiles`` are scored by their mean alone.
        """
        truth = self.truth[windows, steps, targets]
        number, series = np.unique(self._origins[windows, 0], return_inverse=True)
        scale = self._scale[number][:, targets]
        scores = forecast_metrics(outputs["mean"][windows, steps, targets], truth, scale=scale, series=series)
        if self._quantiles and "quantiles" in outputs:
            scores |= quantile_metrics(outputs["quantiles"][windows, steps, targets], truth, self._quantiles)
        return scores


class Chosen:
    """Some samples of a source, numbered anew.

    Args:
        source: All of them.
        numbers: int64 (samples,), which.
    """

    def __init__(self, source: Source, numbers: npt.NDArray[np.int64]) -> None:
        self._source = source
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def gather(self, indices: npt.NDArray[np.int64]) -> Samples:
        return self._source.gather(self._numbers[indices])


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
