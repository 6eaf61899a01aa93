"""``StableForecaster``: the next values of series, with ``fit`` and ``predict``."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import polars as pl

from stablernn.data.prediction_inputs import InputSet, read_inputs
from stablernn.errors import ConfigError
from stablernn.estimators.argument_terms import ArgumentTerms
from stablernn.estimators.base import SETTINGS, RunEstimator
from stablernn.estimators.fitted_run import FittedRun
from stablernn.estimators.series_frames import Forecasts, SeriesTable, in_form_of, read_series
from stablernn.terms import use_terms
from stablernn.training.evaluate_data import evaluate
from stablernn.training.evaluation.predictors import predict as run_batches
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.run_data import load_run_data

if TYPE_CHECKING:
    from stablernn.training.callbacks import Callback

_FILE = "training_data.parquet"
_CONTEXT = "context.parquet"
"""File of a run directory with the last rows of the training series, which ``predict`` without series goes on from."""


class StableForecaster(RunEstimator):
    """A forecaster of series.

    It trains as ``stablernn train`` does, with the same defaults, but without a test split: the last steps of each
    series choose the epoch and calibrate the quantiles, all before them are trained on.

    Args:
        cell: Key of the recurrent cell, see :func:`stablernn.list_cells`; ``auto``: cell and other settings are chosen
            by forward chaining on the training data within ``budget``, see ``docs/choosing.md``.
        horizon: Steps to forecast; None: a season, at most 96.
        context_length: Steps seen before a forecast; None: from season and horizon, or chosen by validation.
        season: Steps of the main season; None: by the frequency.
        frequency: Frequency alias of the times, such as ``h``; None: inferred.
        target: Column or columns to forecast; None: ``y``, or the only one, and of arrays all channels.
        future: Columns that are known in advance.
        static: Columns with one value for each series.
        calendar: Periods of which the model gets the position of each step: ``day``, ``week``, ``year``.
        quantiles: Levels between 0 and 1; None: .1, .5, .9; an empty list for none.
        validation_steps: Steps at the end of each series that choose the epoch; None: a fifth of the shortest series.
        id_column: Column of a frame with the names of the series.
        time_column: Column of a frame with the times.
        hidden_size: Length of each layer's state.
        num_layers: Recurrent layers.
        members: Networks of an ensemble, whose forecasts are averaged.
        epochs: Passes over the training windows; None: by the cell and the amount of data.
        max_steps: Optimizer steps, in place of ``epochs``.
        batch_size: Windows in a step; None: by the cell and the amount of data.
        lr: Largest learning rate; None: recommended for the cell.
        patience: Epochs without a better validation metric after which training stops; None: never.
        certified: Whether the weights are kept in the region in which the cell is proved stable; None: where that holds
            for all inputs and costs little.
        device: ``auto``, ``cpu`` or ``cuda``, for the training; forecasts are computed on the CPU.
        random_state: Seed of initial weights and order of windows; None draws one.
        settings: Further settings by dotted key, as ``--set`` takes them, see ``docs/configuration.md``.
        budget: Of ``cell="auto"``: time or number of steps of search and training, such as ``90s``; None: two minutes.
        runs_folder: Folder in which each fit leaves a run directory, with data and figures; None: none is left.
        callbacks: Objects that are told of the start, each epoch and the end, see
            :mod:`stablernn.training.callbacks`.

    Attributes:
        run_: The run with all that follows from it.
        horizon_: Steps of a forecast.
        model_, config_, history_, summary_: Model, settings, epochs and summary of the run.

    Example:
        >>> import numpy as np
        >>> series = np.sin(np.arange(300) / 5)
        >>> forecaster = StableForecaster(horizon=10, context_length=40, max_steps=20).fit(series)
        >>> forecaster.predict().shape
        (10,)
    """

    task = "forecast"
    parameter_keys: ClassVar[Mapping[str, str]] = {
        **SETTINGS,
        "horizon": "task.horizon",
        "context_length": "task.context_length",
        "season": "task.season",
        "quantiles": "task.quantiles",
        "frequency": "data.frequency",
        "target": "data.target",
        "future": "data.future",
        "static": "data.static",
        "calendar": "data.calendar",
        "validation_steps": "data.validation_steps",
        "id_column": "data.id_column",
        "time_column": "data.time_column",
    }

    def __init__(
        self,
        cell: str = "lipschitz",
        *,
        horizon: int | None = None,
        context_length: int | None = None,
        season: int | None = None,
        frequency: str | None = None,
        target: str | Sequence[str] | None = None,
        future: Sequence[str] = (),
        static: Sequence[str] = (),
        calendar: Sequence[str] = (),
        quantiles: Sequence[float] | None = None,
        validation_steps: int | None = None,
        id_column: str = "unique_id",
        time_column: str = "ds",
        hidden_size: int = 64,
        num_layers: int = 1,
        members: int = 1,
        epochs: int | None = None,
        max_steps: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        patience: int | None = None,
        certified: bool | None = None,
        device: str = "auto",
        random_state: Any = 0,
        settings: Mapping[str, Any] | None = None,
        budget: str | None = None,
        runs_folder: str | Path | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        self.cell = cell
        self.horizon = horizon
        self.context_length = context_length
        self.season = season
        self.frequency = frequency
        self.target = target
        self.future = future
        self.static = static
        self.calendar = calendar
        self.quantiles = quantiles
        self.validation_steps = validation_steps
        self.id_column = id_column
        self.time_column = time_column
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.members = members
        self.epochs = epochs
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.lr = lr
        self.patience = patience
        self.certified = certified
        self.device = device
        self.random_state = random_state
        self.settings = settings
        self.budget = budget
        self.runs_folder = runs_folder
        self.callbacks = callbacks

    @property
    def horizon_(self) -> int:
        """Steps of a forecast."""
        return int(self._fitted.data["horizon"])

    def fit(self, X: Any, y: None = None) -> Self:
        """Train on series.

        Args:
            X: A frame of pandas or polars with the columns ``unique_id``, ``ds`` and ``y`` and covariates, or without
                ``unique_id`` one series with a column for each channel; a series or frame of pandas indexed by time; an
                array ``(time,)``, ``(time, channels)`` or ``(series, time, channels)``; or a list of arrays of any
                lengths. NaN is a missing value, and a missing row a step without values.
            y: Must be None: the values to forecast are in ``X``.

        Raises:
            ConfigError: If a parameter or a setting is not allowed.
            DataError: If ``X`` has another form, or series are too short or have no values.
            UnknownNameError: If a column does not exist.
            TrainingError: If training fails.
        """
        if y is not None:
            raise ConfigError("The values to forecast are in X, so y must be None. Pass series and covariates as X.")
        table = self._table(X)
        # Whoever calls fit has split the series already.
        data_settings: dict[str, Any] = {"data.test_steps": 0}
        if table.kind == "array":
            # Long arrays have positions that look like years or Unix times.
            data_settings["data.stamps"] = "step"
            if self.target is None:
                data_settings["data.target"] = table.channels
        run = self._train_on_file(
            _FILE, table.frame.write_parquet, data_settings, table.form(), table.argument_form, table.channels
        )
        last_rows = _last_rows(table.frame, self.id_column, self.time_column, int(run.data["context_length"]))
        content = io.BytesIO()
        last_rows.write_parquet(content)
        self._set_fitted(replace(run, files={**run.files, _CONTEXT: content.getvalue()}))
        return self

    def predict(self, X: Any = None) -> Any:
        """Return the forecasts of the steps after series, in the form of the series.

        Args:
            X: Series as :meth:`fit` takes them, of which the last ``context_length`` steps are read, with rows for
                columns that are known in advance; None: those of the fit.

        Returns:
            For arrays the means, ``(horizon,)``, ``(horizon, targets)`` or ``(series, horizon, targets)`` like the
            series, for a list a list. For frames, a frame of the same library with the columns ``unique_id``, if the
            series have it, ``ds`` (the index, if it is that of ``X``), ``target``, if there are several, ``mean`` and a
            column for each quantile, such as ``q0.1``.

        Raises:
            NotFittedError: Before ``fit``.
            DataError: If the series have other columns or another frequency, or no value to forecast from.
        """
        table = self._series_of(X)
        forecasts = self._forecasts(table)
        return in_form_of(table, forecasts, id_column=self.id_column, time_column=self.time_column)

    def predict_quantiles(self, X: Any = None) -> Any:
        """Return the quantiles of the forecasts of arrays, ``(..., targets, levels)``, like :meth:`predict` its means.

        Frames have them as columns of :meth:`predict`.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If the forecaster has no quantiles, or the series are a frame.
        """
        table = self._series_of(X)
        if table.kind != "array":
            raise ConfigError("The quantiles of frames are columns of predict, such as q0.1. Call predict.")
        quantiles = self._forecasts(table).quantiles
        if quantiles is None:
            raise ConfigError("The forecaster was fitted with quantiles=[]. Give levels, and fit it again.")
        if table.dimensions == 3:
            return quantiles
        return list(quantiles) if table.dimensions == 0 else quantiles[0]

    def score(self, X: Any, y: None = None) -> float:
        """Return the skill of the forecast of the last ``horizon_`` steps of each series from the steps before them.

        It is 1 minus the mean absolute error relative to that of the seasonal naive forecast: 1 for a perfect
        forecast, 0 for one that is no better, negative for one that is worse.

        Raises:
            NotFittedError: Before ``fit``.
            DataError: If a series is too short, or differs from those of the fit as :meth:`predict` says.
        """
        run, table = self._fitted, self._table(X)
        horizon = self.horizon_
        # One window of each series: its last steps are the test split.
        data_config = run.config.data.model_copy(update={"test_steps": horizon, "validation_steps": horizon})
        config = run.config.model_copy(update={"data": data_config})
        with self._written(table) as path:
            data = load_run_data(config, str(path), features=run.data["features"], targets=run.data["targets"])
            scores = evaluate(TorchPredictor(run.model), data, quantiles=run.config.task.quantiles)
        return 1 - float(scores["relative_mae"])

    def _table(self, X: Any) -> SeriesTable:
        return read_series(X, id_column=self.id_column, time_column=self.time_column)

    def _series_of(self, X: Any) -> SeriesTable:
        """Return the series to forecast: those of an argument, or the last rows of the fit."""
        run = self._fitted
        if X is not None:
            return self._table(X)
        if _CONTEXT not in run.files:
            raise ConfigError(
                "This forecaster was loaded without the series that it was trained on. Pass the series to forecast."
            )
        return SeriesTable.with_form(pl.read_parquet(io.BytesIO(run.files[_CONTEXT])), run.estimator)

    @contextmanager
    def _written(self, table: SeriesTable) -> Iterator[Path]:
        """Give the path of a file with series; errors on it name the argument."""
        with (
            use_terms(ArgumentTerms("X.parquet", self.parameter_keys, table.argument_form, table.channels)),
            tempfile.TemporaryDirectory(prefix="stablernn-series-") as folder,
        ):
            path = Path(folder) / "X.parquet"
            table.frame.write_parquet(path)
            yield path

    def _forecasts(self, table: SeriesTable) -> Forecasts:
        run = self._fitted
        with self._written(table) as path:
            inputs = self._read(run, path)
        outputs = run_batches(TorchPredictor(run.model), inputs)
        horizon = int(run.data["horizon"])
        return Forecasts(
            inputs.ids,
            [inputs.future_ds(number, horizon) for number in range(len(inputs))],
            outputs["mean"],
            outputs.get("quantiles"),
            tuple(run.data["targets"]),
            run.config.task.quantiles or (),
        )

    def _read(self, run: FittedRun, path: Path) -> InputSet:
        data = run.config.data
        return read_inputs(
            path,
            task="forecast",
            features=run.data["features"],
            id_column=self.id_column,
            time_column=self.time_column,
            context_length=run.data["context_length"],
            frequency=run.data["frequency"],
            time_step=run.config.model.time_step,
            future=data.future,
            static=data.static,
            calendar=data.calendar,
            horizon=run.data["horizon"],
            channels_as_series=data.channels_as_series,
            targets=run.data["targets"],
            stamps=data.stamps,
        )


def _last_rows(frame: pl.DataFrame, id_column: str, time_column: str, count: int) -> pl.DataFrame:
    """Return the latest rows of each series: as many as a context has steps, since a step is at most a row."""
    ordered = frame.sort(time_column, maintain_order=True)
    if id_column not in frame.columns:
        return ordered.tail(count)
    return ordered.group_by(id_column, maintain_order=True).tail(count)
