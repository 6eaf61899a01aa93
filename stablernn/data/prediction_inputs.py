"""``read_inputs``: a file for prediction, checked against what a trained model expects; labels are not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Timestamps
from stablernn.data.forecasting.channels_as_series import CHANNEL, split_series
from stablernn.data.forecasting.covariates import Covariates, calendar_channels, calendar_values
from stablernn.data.load import TASKS, read_sequences
from stablernn.data.messages import format_names, pluralize
from stablernn.data.options import ID_COLUMN, LABEL_COLUMN, TIME_COLUMN
from stablernn.data.readers.labelled_tables import read_labelled
from stablernn.data.readers.paths import TABLE_FORMATS, Task, require_task
from stablernn.data.readers.tables import OpenTable, Table, open_table, unknown_column_error
from stablernn.data.sequences import compute_dt, pad_sequences, wrong_features_error
from stablernn.data.time.frequency import Frequency, infer_frequency, parse_frequency
from stablernn.data.time.regular_grid import align_to_grid
from stablernn.data.types import Notes, Series, steps_between


@dataclass(frozen=True, eq=False)
class InputSet:
    """What a model is run on.

    Attributes:
        task: ``classify`` or ``forecast``.
        x: float32 (samples, time, features), raw units, NaN = missing, padded with 0 after ``lengths``.
        lengths: int64 (samples,).
        ids: The series' names; of files that have none the position in the file, from 0.
        y: Classification: the label words of the file, where it has them. Else None.
        ds: Forecast: timestamps of each context, (length,) each. Else empty.
        frequency: Forecast: word of the time grid; None when it is irregular or not known.
        notes: What was counted, filled or left alone, as JSON types.
        dt: float32 (samples, time), the time from the step before in units of the model's regular step; None when it
            takes none.
        static: Forecast: float32 (samples, s), what is constant for a series; None where the model takes nothing such.
        future: Forecast: float32 (samples, horizon, f), what is known of the steps to forecast; None as above.
        ahead: Forecast: timestamps of the rows that say so, (horizon,) each; empty where nothing does.
    """

    task: Task
    x: Float32Array
    lengths: Int64Array
    ids: tuple[str, ...]
    y: tuple[str, ...] | None
    ds: tuple[Timestamps, ...]
    frequency: str | None
    notes: Notes
    dt: Float32Array | None = None
    static: Float32Array | None = None
    future: Float32Array | None = None
    ahead: tuple[Timestamps, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    def future_ds(self, sample: int, horizon: int) -> Timestamps:
        """The timestamps of the ``horizon`` steps behind a series.

        Those of the file where it says what is known of them. Else, where timestamps are irregular, the series' median
        interval is the step.

        Returns:
            (horizon,) datetime64[ns], or int64 for series with integer timestamps.

        Raises:
            DataError: If the series has a single row and no frequency is known.
        """
        ds = self.ds[sample]
        if self.ahead and horizon <= len(self.ahead[sample]):
            return self.ahead[sample][:horizon]
        if self.frequency is not None:
            return parse_frequency(self.frequency).at(ds[-1], np.arange(1, horizon + 1, dtype=np.int64))
        if len(ds) < 2:
            raise errors.DataError(
                f"Series '{self.ids[sample]}' has one row and no frequency is known, so its next timestamps are not. "
                "Give the frequency."
            )
        step = int(np.median(np.diff(ds).astype(np.int64)))
        grid = Frequency("", "fixed" if ds.dtype.kind == "M" else "index", step)
        return grid.at(ds[-1], np.arange(1, horizon + 1, dtype=np.int64))


def read_inputs(
    path: str | Path,
    *,
    task: str,
    features: Sequence[str],
    id_column: str = ID_COLUMN,
    time_column: str = TIME_COLUMN,
    context_length: int | None = None,
    frequency: str | None = None,
    time_step: float | None = None,
    label_column: str = LABEL_COLUMN,
    future: Sequence[str] = (),
    static: Sequence[str] = (),
    calendar: Sequence[str] = (),
    horizon: int | None = None,
    channels_as_series: bool = False,
    targets: Sequence[str] = (),
    stamps: str | None = None,
) -> InputSet:
    """Reads a file for prediction.

    Args:
        path: A file as for :func:`load_data`; labels are not needed.
        task: ``classify`` or ``forecast``: what the model does.
        features: Names of the model's features. Columns of a table are found by name, in this order; columns that the
            model does not know are named in ``notes["ignored_columns"]``. Files of sequences must have as many
            features; where they name them, these names.
        id_column: Tables: column that tells series apart.
        time_column: Tables: column of timestamps.
        context_length: Forecast: the last so many steps of each series are kept; all when omitted. A shorter series is
            taken as it is and counted in ``notes["short_contexts"]``.
        frequency: Forecast: word of the time grid; inferred when omitted.
        time_step: The model's regular step, in the unit of the file's timestamps (seconds of dates); None when the
            model takes no times.
        label_column: Classification: column of a table with the labels, if it has them.
        future: Forecast: features that are known in advance. The rows behind the last one in which any other feature
            has a value are the steps to forecast.
        static: Forecast: columns with one value for each series, which are no features.
        calendar: Forecast: periods of which the features tell where each step lies; they are computed from the time
            stamps.
        horizon: Forecast: steps to forecast; needed with ``future`` or ``calendar``.
        channels_as_series: Forecast: whether each column of a wide table is a series of its own. A table with the
            model's own column is read as it is.
        targets: Forecast: features that are forecast, of which a context must hold a value; when omitted any feature
            that is not known in advance will do.
        stamps: Tables: what whole numbers in the column of timestamps are, as for :func:`load_data`.

    Raises:
        UnknownNameError: If the file, the task or a named column does not exist.
        DataError: If the file has other features than the model, or its content cannot be read.
    """
    if task not in TASKS:
        raise errors.unknown("task", task, TASKS, "Tasks are classify and forecast.")
    path = Path(path)
    columns: dict[str, Any] = {"id_column": id_column, "time_column": time_column, "stamps": stamps}
    if task == "classify":
        return _read_sequences(path, features, time_step, label_column, columns)
    require_task(path, "forecast")
    if context_length is not None and context_length < 1:
        raise errors.ConfigError(f"context_length must be 1 or more, got {context_length}.")
    covariates = Covariates.of(future, static, calendar)
    if covariates.future and (horizon is None or horizon < 1):
        raise errors.ConfigError(
            f"horizon must be 1 or more where a model takes what is known in advance, got {horizon}."
        )
    opened = open_table(path, **columns)
    table = _model_columns(opened, features, covariates, channels_as_series=channels_as_series)
    needed = targets or [name for name in table.channels if name not in covariates.columns]
    return _read_contexts(table, features, covariates, needed, context_length, frequency, time_step, horizon or 0)


def _read_sequences(
    path: Path, features: Sequence[str], time_step: float | None, label_column: str, columns: dict[str, Any]
) -> InputSet:
    if require_task(path, "classify") in TABLE_FORMATS:
        opened = open_table(path, **columns)
        _check_columns(opened, features, [name for name in opened.columns if name != label_column])
        sequences = read_labelled(
            path, channels=features, timed=time_step is not None, label_column=label_column, **columns
        )
    else:
        sequences = read_sequences(path, channels=features)
    if time_step is not None and sequences.times is None:
        raise errors.DataError(
            f"'{path.name}' has no array 't', and the model was trained with the time of each step. Add it."
        )
    x, lengths = pad_sequences(sequences.values)
    return InputSet(
        task="classify",
        x=x,
        lengths=lengths,
        ids=sequences.names or tuple(str(index) for index in range(len(x))),
        y=None if sequences.labels is None else tuple(sequences.labels),
        ds=(),
        frequency=None,
        notes={"sequences": len(x), "missing_values": int(np.isnan(x).sum()), **sequences.notes},
        dt=None if time_step is None or sequences.times is None else compute_dt(sequences.times, time_step),
    )


def _read_contexts(
    table: Table,
    features: Sequence[str],
    covariates: Covariates,
    needed: Sequence[str],
    context_length: int | None,
    frequency: str | None,
    time_step: float | None,
    horizon: int,
) -> InputSet:
    series, grid, notes = table.series, None, Notes()
    if time_step is None:
        series, grid, notes = align_to_grid(table.name, table.series, frequency)
        _check_frequency(table, grid, notes)
    word = grid.alias if grid else None
    past, rows = _parted(table, series, covariates, horizon) if covariates.columns else (series, ())
    if rows:
        notes["future_values_missing"] = sum(int(np.isnan(one.values).sum()) for one in rows)
        notes["future_rows_unused"] = sum(
            len(whole.ds) - len(one.ds) - len(some.ds) for whole, one, some in zip(series, past, rows, strict=True)
        )
    _, past = covariates.with_calendar(table.name, table.channels, past, features)
    kept = slice(-context_length if context_length else None, None)
    columns = [table.channels.index(name) for name in needed]
    for one in past:
        if np.isnan(one.values[kept, columns]).all():
            raise errors.DataError(
                f"'{table.name}': series '{one.unique_id}' has no value of {format_names(needed)} in its last "
                f"{pluralize(len(one.ds[kept]), 'step')}, so there is nothing to forecast from. Leave the series out, "
                "or end it with a row that has one."
            )
    x, lengths = pad_sequences([one.values[kept] for one in past])
    found = InputSet(
        task="forecast",
        x=x,
        lengths=lengths,
        ids=tuple(one.unique_id for one in past),
        y=None,
        ds=tuple(one.ds[kept] for one in past),
        frequency=word,
        notes={
            **table.notes,
            **notes,
            "short_contexts": int((lengths < context_length).sum()) if context_length else 0,
        },
        dt=None if time_step is None else _distances([one.ds[kept] for one in past], time_step),
        static=np.stack([one.static for one in past]) if covariates.static else None,
        ahead=tuple(one.ds for one in rows),
    )
    if not covariates.future:
        return found
    calendar = [
        calendar_values(found.future_ds(sample, horizon), covariates.calendar) if covariates.calendar else None
        for sample in range(len(found))
    ]
    parts = [
        np.concatenate([*([rows[n].values] if rows else []), *([] if wave is None else [wave])], axis=1)
        for n, wave in enumerate(calendar)
    ]
    return replace(found, future=np.stack(parts).astype(np.float32))


def _check_frequency(table: Table, grid: Frequency | None, notes: Notes) -> None:
    """That rows are steps of the model, not every n-th of them."""
    if grid is None or not notes["gap_steps_filled"]:
        return
    for one in table.series:
        # Of three rows two gaps may be alike by chance.
        own = infer_frequency(one.ds) if len(one.ds) > 3 else None
        if own is not None and not own.has_steps_of(grid):
            raise step_mismatch_error(f"'{table.name}': series '{one.unique_id}'", own.alias, grid.alias)


def step_mismatch_error(what: str, own: str, trained: str) -> errors.DataError:
    """The error for series in steps of another length than the model's."""
    return errors.DataError(
        f"{what} is in steps of '{own}', and the model was trained on steps of '{trained}'. Give it in those; a step "
        "that nobody measured is a row without a value."
    )


def _distances(ds: Sequence[Timestamps], time_step: float) -> Float32Array:
    dt = np.ones((len(ds), max(len(one) for one in ds)), dtype=np.float32)
    for row, one in zip(dt, ds, strict=True):
        row[: len(one)] = steps_between(one, time_step)
    return dt


def _parted(
    table: Table, series: Sequence[Series], covariates: Covariates, horizon: int
) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
    """Each series up to the last row in which more is known than the future, and the ``horizon`` rows behind it."""
    known = [table.channels.index(name) for name in covariates.columns]
    observed = [index for index in range(len(table.channels)) if index not in known]
    past, future = [], []
    for one in series:
        seen = np.asarray(np.isfinite(one.values[:, observed]).any(axis=1))
        end = len(seen) - int(np.argmax(seen[::-1])) if seen.any() else 0
        if not end:
            raise errors.DataError(
                f"'{table.name}': series '{one.unique_id}' has no row with a value of "
                f"{format_names([table.channels[i] for i in observed])}, so there is no past to forecast from."
            )
        if len(one.ds) - end < horizon:
            raise errors.DataError(
                f"'{table.name}': series '{one.unique_id}' has {pluralize(len(one.ds) - end, 'row')} behind its last "
                f"observation, {horizon} are needed, one for each step to forecast, with "
                f"{format_names(covariates.columns)}."
            )
        ahead = slice(end, end + horizon)
        past.append(replace(one, ds=one.ds[:end], values=one.values[:end]))
        future.append(replace(one, ds=one.ds[ahead], values=one.values[ahead][:, known]))
    return tuple(past), tuple(future)


def _model_columns(
    opened: OpenTable, features: Sequence[str], covariates: Covariates, *, channels_as_series: bool
) -> Table:
    made = calendar_channels(covariates.calendar)
    wanted = [name for name in features if name not in made]
    if channels_as_series and CHANNEL not in opened.columns:
        apart = [name for name in opened.columns if name not in (*covariates.columns, *covariates.static)]
        table = opened.read([*apart, *covariates.columns], static=covariates.static)
        series = split_series(table.series, table.channels, apart, covariates.columns)
        return replace(table, series=series, channels=tuple(wanted))
    _check_columns(opened, wanted, [name for name in opened.columns if name not in covariates.static])
    return opened.read(wanted, static=covariates.static)


def _check_columns(opened: OpenTable, wanted: Sequence[str], columns: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in columns]
    if missing and len(columns) == len(wanted):
        raise unknown_column_error(opened.path, missing[0], columns)
    if missing:
        raise wrong_features_error(opened.path.name, columns, wanted)
