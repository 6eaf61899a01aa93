"""``StableForecaster``: the next values of series, with ``fit`` and ``predict``."""

from __future__ import annotations

import functools
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn.data.arrays import finite_float32
from stablernn.data.messages import format_names
from stablernn.data.prediction_inputs import InputSet, read_inputs
from stablernn.data.sequences import default_channel_names
from stablernn.errors import ConfigError, DataError
from stablernn.estimators.base import SETTINGS, ArgumentTerms, Form, RunEstimator
from stablernn.estimators.fitted_run import FittedRun
from stablernn.estimators.sequence_arrays import element_name
from stablernn.terms import use_terms
from stablernn.training.evaluation.predictors import predict as run_batches
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loaded_run import evaluate
from stablernn.training.run_data import load_run_data

if TYPE_CHECKING:
    from stablernn.training.callbacks import Callback


_FILE = "training_data.parquet"
_CONTEXT = "context.parquet"
"""File of a run directory with the last rows of the training series, which ``predict`` without series goes on from."""


@dataclass(eq=False, repr=False)
class StableForecaster(RunEstimator):
    """A forecaster of series.

    It trains as ``stablernn train`` does, with the same defaults, but without a test split: the last steps of each
    series choose the epoch and calibrate the quantiles, all before them are trained on.

    Args:
        cell: Key of the recurrent cell, see :func:`stablernn.list_cells`; ``auto``: cell and other settings are chosen
            by forward chaining on the training data within ``budget``, see ``docs/guides/choosing.md``.
        horizon: Steps to forecast; None: a season, at most 96 or a quarter of the series.
        context_length: Steps seen before a forecast; None: chosen by validation.
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
        settings: Further settings by dotted key, as ``--set`` takes them, see ``docs/reference/settings.md``.
        budget: Of ``cell="auto"``: time or number of steps of search and training, such as ``90s``; None: two minutes.
        runs_folder: Folder in which each fit leaves a run directory, with data and figures; None: none is left.
        callbacks: Objects that are told of the start, each epoch and the end, see
            :mod:`stablernn.training.callbacks`.

    Attributes:
        run_: The run with all that follows from it.
        horizon_: Steps of a forecast.
        model_, config_, history_, summary_: Model, settings, epochs and summary of the run.

    Examples:
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

    cell: str = "lipschitz"
    _: KW_ONLY
    horizon: int | None = None
    context_length: int | None = None
    season: int | None = None
    frequency: str | None = None
    target: str | Sequence[str] | None = None
    future: Sequence[str] = ()
    static: Sequence[str] = ()
    calendar: Sequence[str] = ()
    quantiles: Sequence[float] | None = None
    validation_steps: int | None = None
    id_column: str = "unique_id"
    time_column: str = "ds"
    hidden_size: int = 64
    num_layers: int = 1
    members: int = 1
    epochs: int | None = None
    max_steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    patience: int | None = None
    certified: bool | None = None
    device: str = "auto"
    random_state: Any = 0
    settings: Mapping[str, Any] | None = None
    budget: str | None = None
    runs_folder: str | Path | None = None
    callbacks: Sequence[Callback] | None = None

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
        config = run.config.updated("data", test_steps=horizon, validation_steps=horizon)
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


FORMS = (
    "a frame of pandas or polars with a column of times, a series or frame of pandas indexed by time, an array "
    "(time,), (time, channels) or (series, time, channels), or a list of arrays"
)

Kind = Literal["pandas", "polars", "array"]


@dataclass(frozen=True)
class SeriesTable:
    """Series as a table, with what is needed to return forecasts in their form.

    Attributes:
        frame: Columns of names, if there are several series, times and values.
        kind: Library of the argument.
        channels: Columns of values of an array; empty for frames, whose columns are chosen by name.
        names: The argument's own name of each series, by the text under which the reader knows it.
        is_indexed: Whether the times are the index of a frame of pandas.
        time_zone: Time zone of the times; None without one.
        dimensions: Axes of an array; 0 for a list of arrays.
    """

    frame: pl.DataFrame
    kind: Kind
    channels: tuple[str, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)
    is_indexed: bool = False
    time_zone: str | None = None
    dimensions: int = 1

    @property
    def argument_form(self) -> Form:
        """Form of the argument in messages."""
        return "series" if self.kind == "array" and self.dimensions in (1, 2) else self.kind

    def form(self) -> dict[str, Any]:
        """Return the form as JSON types, without the series."""
        # Names of other types, such as dates, come back as text.
        names = {text: name if isinstance(name, int | str) else text for text, name in self.names.items()}
        return {
            "kind": self.kind,
            "channels": self.channels,
            "names": names,
            "is_indexed": self.is_indexed,
            "time_zone": self.time_zone,
            "dimensions": self.dimensions,
        }

    @classmethod
    def with_form(cls, frame: pl.DataFrame, form: Mapping[str, Any]) -> SeriesTable:
        """Return series in a form that :meth:`form` returned."""
        return cls(frame, **{**form, "channels": tuple(form["channels"])})


def read_series(X: Any, *, id_column: str, time_column: str) -> SeriesTable:
    """Return the series of an argument as a table.

    Args:
        X: One of :data:`FORMS`.
        id_column: Column of a frame with the name of each row's series; without it a frame is one series.
        time_column: Column of a frame with the times.

    Raises:
        DataError: If the argument has another form, or a frame has no times.
    """
    library = type(X).__module__.partition(".")[0]
    if library == "pandas":
        return _from_pandas(X, id_column, time_column)
    if library == "polars":
        if not isinstance(X, pl.DataFrame):
            raise DataError(f"X must be {FORMS}, got a {type(X).__name__} of polars. Collect it, or add its times.")
        _check_times(X.columns, time_column)
        names = {str(name): name for name in X[id_column].unique().to_list()} if id_column in X.columns else {}
        _check_names(X[id_column].null_count() if id_column in X.columns else 0, id_column)
        zone = getattr(X.schema[time_column], "time_zone", None)
        return SeriesTable(X, "polars", names=names, time_zone=zone)
    return _from_arrays(X, id_column, time_column)


def _check_times(columns: Sequence[Any], time_column: str) -> None:
    if time_column not in columns:
        raise DataError(
            f"X has no column '{time_column}' with times; its columns: {format_names([str(name) for name in columns])}."
            " Name the column by time_column, or take the times as the index."
        )


def _check_names(missing: int, id_column: str) -> None:
    if missing:
        raise DataError(
            f"Rows of X have no name of a series in the column '{id_column}', got {missing} of them. Name them, or "
            "leave them out."
        )


def _from_pandas(X: Any, id_column: str, time_column: str) -> SeriesTable:
    frame = X.to_frame(X.name if X.name is not None else "y") if X.ndim == 1 else X
    is_indexed = time_column not in frame.columns and type(frame.index).__name__ in ("DatetimeIndex", "PeriodIndex")
    if is_indexed:
        index = frame.index.to_timestamp() if hasattr(frame.index, "to_timestamp") else frame.index
        frame = frame.set_axis(index.rename(time_column)).reset_index()
    _check_times(frame.columns, time_column)
    zone = getattr(frame[time_column].dtype, "tz", None)
    zone = None if zone is None else str(zone)
    columns = {str(name): _as_polars(frame[name]) for name in frame.columns}
    names: dict[str, Any] = {}
    if id_column in frame.columns:
        _check_names(int(frame[id_column].isna().sum()), id_column)
        # The reader knows names as text, which numbers and categories become here.
        row_names = frame[id_column].tolist()
        names = {str(name): name for name in row_names}
        columns[id_column] = pl.Series(list(map(str, row_names)), dtype=pl.String)
    return SeriesTable(pl.DataFrame(columns), "pandas", names=names, is_indexed=is_indexed, time_zone=zone)


def _as_polars(column: Any) -> pl.Series:
    """Return a column of pandas; the conversion of polars itself needs pyarrow."""
    kind = getattr(column.dtype, "kind", "O")
    if getattr(column.dtype, "tz", None) is not None:
        utc = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy().astype("datetime64[us]")
        return pl.Series(utc).dt.replace_time_zone("UTC")
    if kind == "M":
        return pl.Series(column.to_numpy().astype("datetime64[us]"))
    if kind in "iufb":
        # Nullable numbers have no NaN of numpy until they are asked for one.
        is_nullable = column.isna().any()
        return pl.Series(column.to_numpy(dtype=np.float64, na_value=np.nan) if is_nullable else column.to_numpy())
    values = [None if value is None or value != value else value for value in column.tolist()]
    return pl.Series(values, strict=False)


def _from_arrays(X: Any, id_column: str, time_column: str) -> SeriesTable:
    is_list = isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) > 0
    try:
        arrays = [np.asarray(array, dtype=np.float64) for array in (X if is_list else [X])]
    except (TypeError, ValueError) as error:
        raise DataError(f"X is no array of numbers ({error}). Give {FORMS}.") from error
    # A list of numbers is one series, a list of arrays several.
    dimensions = 0 if is_list else arrays[0].ndim
    if dimensions == 3:
        arrays = list(arrays[0])
    if not arrays or any(array.ndim not in (1, 2) or 0 in array.shape for array in arrays):
        shapes = ", ".join(str(array.shape) for array in arrays[:3])
        raise DataError(f"X must be {FORMS}, none of it empty, got {shapes}.")
    for number, array in enumerate(arrays):
        start = (number,) if dimensions in (0, 3) else ()
        finite_float32(array, functools.partial(element_name, start=start))
    arrays = [array[:, None] if array.ndim == 1 else array for array in arrays]
    widths = {array.shape[1] for array in arrays}
    if len(widths) > 1:
        raise DataError(f"All series of X must have as many channels, got {' and '.join(map(str, sorted(widths)))}.")
    width = widths.pop()
    channels = ("y",) if width == 1 else default_channel_names(width)
    frames = [
        pl.DataFrame(array, schema=list(channels)).with_columns(
            pl.lit(f"series_{number}").alias(id_column),
            pl.int_range(len(array), dtype=pl.Int64).alias(time_column),
        )
        for number, array in enumerate(arrays)
    ]
    return SeriesTable(pl.concat(frames), "array", channels, dimensions=dimensions)


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of several series.

    Attributes:
        ids: Names of the series, as text.
        ds: Times of the steps of each, (horizon,).
        mean: (series, horizon, targets).
        quantiles: (series, horizon, targets, levels); None without levels.
        targets: Names of the targets.
        levels: Levels of the quantiles.
    """

    ids: tuple[str, ...]
    ds: Sequence[npt.NDArray[Any]]
    mean: npt.NDArray[np.float32]
    quantiles: npt.NDArray[np.float32] | None
    targets: tuple[str, ...]
    levels: tuple[float, ...]


def in_form_of(table: SeriesTable, forecasts: Forecasts, *, id_column: str, time_column: str) -> Any:
    """Return forecasts in the form of the series.

    Returns:
        Arrays: the means, ``(horizon,)``, ``(horizon, targets)`` or ``(series, horizon, targets)``, by the axes of the
        series; a list of arrays for a list. Frames: rows of the name of the series and the target, where there are
        several, the time, ``mean`` and a column for each level, such as ``q0.1``.
    """
    if table.kind == "array":
        return _array_of(forecasts.mean, table.dimensions)
    columns = _long_columns(table, forecasts, id_column, time_column)
    if table.kind == "polars":
        frame = pl.DataFrame(columns)
        if table.time_zone is not None:
            # The reader returns the times of files with a zone in UTC.
            utc = pl.col(time_column).dt.replace_time_zone("UTC")
            frame = frame.with_columns(utc.dt.convert_time_zone(table.time_zone))
        return frame
    # Here only: whoever passes a frame of pandas has it.
    import pandas

    result = pandas.DataFrame(columns)
    if table.time_zone is not None:
        result[time_column] = result[time_column].dt.tz_localize("UTC").dt.tz_convert(table.time_zone)
    return result.set_index(time_column) if table.is_indexed else result


def _array_of(values: npt.NDArray[np.float32], dimensions: int) -> Any:
    if dimensions == 3:
        return values
    if dimensions == 0:
        return [series[:, 0] if series.shape[1] == 1 else series for series in values]
    return values[0, :, 0] if dimensions == 1 else values[0]


def _long_columns(
    table: SeriesTable, forecasts: Forecasts, id_column: str, time_column: str
) -> dict[str, npt.NDArray[Any]]:
    series, horizon, targets = forecasts.mean.shape
    columns: dict[str, npt.NDArray[Any]] = {}
    if table.names:
        series_names = np.array([table.names[name] for name in forecasts.ids])
        columns[id_column] = np.repeat(series_names, horizon * targets)
    # Series, then targets, then steps.
    times = np.stack([np.asarray(ds) for ds in forecasts.ds])
    columns[time_column] = np.repeat(times[:, None], targets, axis=1).reshape(-1)
    if targets > 1:
        columns["target"] = np.tile(np.repeat(np.array(forecasts.targets), horizon), series)
    columns["mean"] = forecasts.mean.transpose(0, 2, 1).reshape(-1)
    if forecasts.quantiles is not None:
        # (series * targets * horizon, levels)
        rows = forecasts.quantiles.transpose(0, 2, 1, 3).reshape(series * targets * horizon, -1)
        columns |= {f"q{level:g}": rows[:, index] for index, level in enumerate(forecasts.levels)}
    return columns
