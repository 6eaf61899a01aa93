"""Series of an estimator's argument as one table, and forecasts in the form that the series had.

The table is a frame of polars with the columns that files of series have: names of series where there are several,
times, values. The same readers as for files then take it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn.data.arrays import finite_float32
from stablernn.data.messages import format_names
from stablernn.data.sequences import default_channel_names
from stablernn.errors import DataError
from stablernn.estimators.argument_terms import Form
from stablernn.estimators.sequence_arrays import element_name

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
