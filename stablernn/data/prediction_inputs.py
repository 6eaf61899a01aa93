"""``read_inputs``: a file for prediction, checked against the inputs of a trained model; labels are not needed.

``read_input_pieces`` reads a large table in pieces, with the inputs that it has when it is read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Samples, Timestamps
from stablernn.data.files import TABLE_FORMATS, Task, detect_format, require_task
from stablernn.data.forecasting import CHANNEL, Covariates, calendar_channels, calendar_values, split_series
from stablernn.data.load import TASKS, read_sequences
from stablernn.data.messages import format_names, pluralize
from stablernn.data.options import ID_COLUMN, LABEL_COLUMN, TIME_COLUMN, Repairs
from stablernn.data.readers.labelled_tables import read_labelled
from stablernn.data.sequences import Sequences, compute_dt, pad_sequences, wrong_features_error
from stablernn.data.table.frequency import Frequency, align_to_grid, infer_frequency, parse_frequency
from stablernn.data.table.pieces import NameSet, NotInPieces
from stablernn.data.table.repairs import collapse_names
from stablernn.data.table.series import OpenTable, Table, no_series_error, open_table, unknown_column_error
from stablernn.data.types import Notes, Series, lengths_of, steps_between
from stablernn.terms import terms

# 4 GiB of float32.
_MAX_PADDED_NUMBERS = 1 << 30

PIECE_CELLS = 1 << 20
"""Cells of a piece, at least. Its rows are held until all of its series have an answer."""


@dataclass(frozen=True, eq=False)
class InputSet:
    """Inputs that a model is run on.

    Attributes:
        task: ``classify`` or ``forecast``.
        x: float32 (samples, time, features), raw units, NaN = missing, padded with 0 after ``lengths``.
        lengths: int64 (samples,).
        ids: Names of the series; in files without names the position, from 0.
        y: Classification: the labels of the file, if it has them. Else None.
        ds: Forecast: timestamps of each context, (length,) each. Else empty.
        frequency: Frequency alias of the time grid of a table; None when it is irregular or not known.
        notes: Counts of what was read, filled or ignored, as JSON types.
        dt: float32 (samples, time), the time since the previous step in units of the model's regular step; None when
            the model takes no times.
        static: Forecast: float32 (samples, s), values that are constant for a series; None if the model takes none.
        future: Forecast: float32 (samples, horizon, f), values known in advance of the steps to forecast; None if the
            model takes none.
        ahead: Forecast: timestamps of the file's rows with these values, (horizon,) each; empty if there are none.
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

    def gather(self, indices: Int64Array) -> Samples:
        """Return the samples with these numbers, whose ``y`` is their number: they have no targets."""
        return Samples(
            self.x[indices],
            self.lengths[indices],
            indices,
            None if self.dt is None else self.dt[indices],
            None if self.static is None else self.static[indices],
            None if self.future is None else self.future[indices],
        )

    def future_ds(self, sample: int, horizon: int) -> Timestamps:
        """Return the timestamps of the ``horizon`` steps after a series.

        They are those of the file if it has rows for these steps. Otherwise, if timestamps are irregular, the median
        interval of the series is the step.

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
            errors.raise_for_series(
                {
                    self.ids[number]: f"Series '{self.ids[number]}' has one row and no frequency is known, so its next "
                    "timestamps are not. Give the frequency."
                    for number in range(sample, len(self.ds))
                    if len(self.ds[number]) < 2 and horizon > (len(self.ahead[number]) if self.ahead else 0)
                }
            )
        # A grid without an alias: the median step is only used to continue the series.
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
    repairs: Repairs | None = None,
    exclude: Mapping[str, str] | None = None,
    max_steps: int | None = None,
    table: OpenTable | None = None,
) -> InputSet:
    """Read a file for prediction.

    Args:
        path: A file or a folder as for :func:`load_data`; labels are not needed.
        task: ``classify`` or ``forecast``: the task of the model.
        features: Names of the model's features. Columns of a table are matched by name, in this order; columns that the
            model does not have are listed in ``notes["ignored_columns"]``. Files of sequences must have as many
            features; if they name them, these names.
        id_column: Tables: column that tells series apart.
        time_column: Tables: column of timestamps.
        context_length: Forecast: steps at the end of each series that are read; all when omitted. A shorter series is
            taken as it is and counted in ``notes["short_contexts"]``.
        frequency: Forecast: frequency alias of the time grid; inferred when omitted.
        time_step: The model's regular step, in the unit of the file's timestamps (seconds of dates); None when the
            model takes no times.
        label_column: Classification: column of a table with the labels, if it has them.
        future: Forecast: features that are known in advance. The rows after the last one in which any other feature
            has a value are the steps to forecast.
        static: Forecast: columns with one value for each series, which are no features.
        calendar: Forecast: periods for which features hold the position of each step; they are computed from the time
            stamps.
        horizon: Forecast: steps to forecast; needed with ``future`` or ``calendar``.
        channels_as_series: Forecast: whether each column of a wide table is a series of its own. A table with the
            model's own column is read as it is.
        targets: Forecast: features that are forecast, of which a context must hold a value; when omitted any feature
            that is not known in advance will do.
        stamps: Tables: what whole numbers in the column of timestamps are, as for :func:`load_data`.
        repairs: Tables: what is converted, merged or replaced, as in training, with the categories of training.
        exclude: Tables: names of series to leave out, each with the reason.
        max_steps: Classification, tables: steps above which a sequence is refused that is longer than most, since all
            others would be padded to its length; any number when omitted.
        table: The open table, or a piece of it, which the options of opening one do not change.

    Raises:
        UnknownNameError: If the file, the task or a named column does not exist.
        DataError: If the file has other features than the model, or its content cannot be read.
    """
    if task not in TASKS:
        raise errors.unknown("task", task, TASKS, "Tasks are classify and forecast.")
    path = Path(path)
    repairs = (repairs or Repairs()).without_selection

    def open_or_piece() -> OpenTable:
        if table is not None:
            return replace(table, exclude=exclude)
        return open_table(
            path, id_column=id_column, time_column=time_column, stamps=stamps, repairs=repairs, exclude=exclude
        )

    if task == "classify":
        return _read_sequences(path, features, time_step, label_column, open_or_piece, max_steps, repairs)
    require_task(path, "forecast")
    covariates = Covariates.of(future, static, calendar).expanded(repairs.categories)
    _check_lengths(context_length, horizon, covariates)
    rows = _read_model_columns(open_or_piece(), features, covariates, channels_as_series=channels_as_series)
    # Without targets any observed feature makes a context usable.
    required = targets or [name for name in rows.channels if name not in covariates.columns]
    inputs = _ModelInputs(features, covariates, required, context_length, horizon or 0, time_step)
    return _read_contexts(rows, inputs, frequency)


def _check_lengths(context_length: int | None, horizon: int | None, covariates: Covariates) -> None:
    if context_length is not None and context_length < 1:
        raise errors.ConfigError(f"context_length must be 1 or more, got {context_length}.")
    if covariates.future and (horizon is None or horizon < 1):
        raise errors.ConfigError(
            f"horizon must be 1 or more where a model takes what is known in advance, got {horizon}."
        )


class _ModelInputs(NamedTuple):
    """Inputs that a forecasting model takes.

    Attributes:
        features: Names of its features, in their order.
        covariates: Those that are known in advance or constant.
        required: Features of which a context must hold a value.
        context_length: Steps of a context; None: all there are.
        horizon: Steps to forecast; 0 if nothing is known of them.
        time_step: Its regular step; None if it takes no times.
    """

    features: Sequence[str]
    covariates: Covariates
    required: Sequence[str]
    context_length: int | None
    horizon: int
    time_step: float | None


def _read_sequences(
    path: Path,
    features: Sequence[str],
    time_step: float | None,
    label_column: str,
    opened: Callable[[], OpenTable],
    max_steps: int | None,
    repairs: Repairs,
) -> InputSet:
    if path.is_dir():
        sequences = read_sequences(path, channels=features, label_column=label_column, repairs=repairs)
    elif require_task(path, "classify") in TABLE_FORMATS:
        table = opened()
        _check_columns(table, features, [name for name in table.columns if name != label_column])
        sequences = read_labelled(table, channels=features, timed=time_step is not None, label_column=label_column)
    else:
        sequences = read_sequences(path, channels=features)
    if time_step is not None and sequences.times is None:
        raise errors.DataError(
            f"{terms().file(path.name)} has no array 't', and the model was trained with the time of each step. Add it."
        )
    if max_steps is not None and sequences.names is not None:
        _refuse_wide_padding(path.name, sequences, sequences.names, max_steps)
    x, lengths = pad_sequences(sequences.values)
    return InputSet(
        task="classify",
        x=x,
        lengths=lengths,
        ids=sequences.names or tuple(str(index) for index in range(len(x))),
        y=None if sequences.labels is None else tuple(sequences.labels),
        ds=(),
        frequency=sequences.frequency,
        notes={"sequences": len(x), "missing_values": int(np.isnan(x).sum()), **sequences.notes},
        dt=None if time_step is None or sequences.times is None else compute_dt(sequences.times, time_step),
    )


def _refuse_wide_padding(file: str, sequences: Sequences, names: tuple[str, ...], max_steps: int) -> None:
    """Refuse the sequences that are so long that all others, padded to their length, would not fit into memory."""
    lengths = lengths_of(sequences.values)
    max_steps = min(max_steps, _MAX_PADDED_NUMBERS // (len(lengths) * len(sequences.features)))
    # Sequences as long as most are not what pads the others.
    max_steps = max(max_steps, int(np.median(lengths)))
    errors.raise_for_series(
        {
            names[number]: f"{terms().series_of(file, names[number])} has {lengths[number]:,} steps, and at most "
            f"{max_steps:,} are read beside shorter ones. Put it into a file of its own."
            for number in np.flatnonzero(lengths > max_steps)
        }
    )


def _read_contexts(table: Table, model: _ModelInputs, frequency: str | None) -> InputSet:
    covariates, context_length = model.covariates, model.context_length
    series, grid, notes = table.series, None, Notes()
    # A model with times takes rows as they are; any other needs steps of one length.
    if model.time_step is None:
        series, grid, notes = align_to_grid(table.name, table.series, frequency)
        _check_frequency(table, grid, notes)
    past: Sequence[Series] = series
    ahead: tuple[Series, ...] = ()
    if covariates.columns:
        past, ahead = _split_at_last_observation(table, series, covariates, model.horizon)
        notes |= _count_future_rows(series, past, ahead)
    _, past = covariates.with_calendar(table.name, table.channels, past, model.features)
    context = slice(-context_length if context_length else None, None)
    past = tuple(replace(each, ds=each.ds[context], values=each.values[context]) for each in past)
    _check_contexts(table, past, model.required)
    x, lengths = pad_sequences([each.values for each in past])
    notes["short_contexts"] = int((lengths < context_length).sum()) if context_length else 0
    inputs = InputSet(
        task="forecast",
        x=x,
        lengths=lengths,
        ids=tuple(each.unique_id for each in past),
        y=None,
        ds=tuple(each.ds for each in past),
        frequency=grid.alias if grid else None,
        notes={**table.notes, **notes},
        dt=None if model.time_step is None else _pad_dt([each.ds for each in past], model.time_step),
        static=np.stack([each.static for each in past]) if covariates.static else None,
        ahead=tuple(each.ds for each in ahead),
    )
    return replace(inputs, future=_future_values(inputs, ahead, model)) if covariates.future else inputs


def _count_future_rows(series: Sequence[Series], past: Sequence[Series], ahead: Sequence[Series]) -> Notes:
    """Return notes on the rows after the last observation of each series."""
    # Rows beyond the horizon are known, too, but are not forecast.
    used_rows = sum(len(before.ds) + len(after.ds) for before, after in zip(past, ahead, strict=True))
    return {
        "future_values_missing": sum(int(np.isnan(each.values).sum()) for each in ahead),
        "future_rows_unused": sum(len(each.ds) for each in series) - used_rows,
    }


def _check_contexts(table: Table, contexts: Sequence[Series], required: Sequence[str]) -> None:
    """Refuse a context without any value of the required features."""
    columns = [table.channels.index(name) for name in required]
    errors.raise_for_series(
        {
            each.unique_id: f"{terms().series_of(table.name, each.unique_id)} has no value of "
            f"{format_names(required)} in its last {pluralize(len(each.ds), 'step')}, so there is nothing to forecast "
            "from. Leave the series out, or end it with a row that has one."
            for each in contexts
            if np.isnan(each.values[:, columns]).all()
        }
    )


def _future_values(inputs: InputSet, ahead: Sequence[Series], model: _ModelInputs) -> Float32Array:
    """Return the values known in advance, (samples, horizon, f): columns of the file, then the calendar."""
    periods = model.covariates.calendar
    samples = []
    for sample in range(len(inputs)):
        parts = [ahead[sample].values] if ahead else []
        if periods:
            parts.append(calendar_values(inputs.future_ds(sample, model.horizon), periods))
        # (horizon, columns + 2 * periods), the order of ForecastData.future.
        samples.append(np.concatenate(parts, axis=1))
    return np.stack(samples).astype(np.float32)


def _check_frequency(table: Table, grid: Frequency | None, notes: Notes) -> None:
    """Refuse series whose rows are only every n-th step of the model's grid."""
    if grid is None or not notes["gap_steps_filled"]:
        return
    faulty = {}
    for series in table.series:
        # Two equal gaps between three rows may be chance.
        inferred = infer_frequency(series.ds) if len(series.ds) > 3 else None
        if inferred is not None and not inferred.has_steps_of(grid):
            subject = terms().series_of(table.name, series.unique_id)
            faulty[series.unique_id] = str(step_mismatch_error(subject, inferred.alias, grid.alias))
    errors.raise_for_series(faulty)


def step_mismatch_error(subject: str, frequency: str, trained: str) -> errors.DataError:
    """Return the error for series in steps of another length than the model's."""
    return errors.DataError(
        f"{subject} is in steps of '{frequency}', and the model was trained on steps of '{trained}'. Give it in those; "
        "a step that nobody measured is a row without a value."
    )


def _pad_dt(ds: Sequence[Timestamps], time_step: float) -> Float32Array:
    """Return the time between steps in regular steps, (samples, time); 1 in padding."""
    dt = np.ones((len(ds), max(len(timestamps) for timestamps in ds)), dtype=np.float32)
    for row, timestamps in zip(dt, ds, strict=True):
        row[: len(timestamps)] = steps_between(timestamps, time_step)
    return dt


def _split_at_last_observation(
    table: Table, series: Sequence[Series], covariates: Covariates, horizon: int
) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
    """Return each series up to its last row with a value not known in advance, and the ``horizon`` rows after that."""
    future_columns = [table.channels.index(name) for name in covariates.columns]
    observed_columns = [index for index in range(len(table.channels)) if index not in future_columns]
    past, future, faulty = [], [], {}
    for each in series:
        is_observed = np.asarray(np.isfinite(each.values[:, observed_columns]).any(axis=1))
        end = len(is_observed) - int(np.argmax(is_observed[::-1])) if is_observed.any() else 0
        if not end:
            faulty[each.unique_id] = (
                f"{terms().series_of(table.name, each.unique_id)} has no row with a value of "
                f"{format_names([table.channels[i] for i in observed_columns])}, so there is no past to forecast from."
            )
        elif len(each.ds) - end < horizon:
            faulty[each.unique_id] = (
                f"{terms().series_of(table.name, each.unique_id)} has {pluralize(len(each.ds) - end, 'row')} behind "
                f"its last observation, {horizon} are needed, one for each step to forecast, with "
                f"{format_names(covariates.columns)}."
            )
        ahead = slice(end, end + horizon)
        past.append(replace(each, ds=each.ds[:end], values=each.values[:end]))
        future.append(replace(each, ds=each.ds[ahead], values=each.values[ahead][:, future_columns]))
    errors.raise_for_series(faulty)
    return tuple(past), tuple(future)


def _read_model_columns(
    table: OpenTable, features: Sequence[str], covariates: Covariates, *, channels_as_series: bool
) -> Table:
    calendar_names = calendar_channels(covariates.calendar)
    names = [name for name in features if name not in calendar_names]
    if channels_as_series and CHANNEL not in table.columns:
        # A wide table: all of its other columns are series for the model's one channel.
        shared_columns = collapse_names((*covariates.columns, *covariates.static), table.repairs.categories)
        channels = [name for name in table.columns if name not in shared_columns]
        return replace(read_wide_table(table, channels, covariates), channels=tuple(names))
    static_columns = collapse_names(covariates.static, table.repairs.categories)
    _check_columns(table, names, [name for name in table.columns if name not in static_columns])
    return table.read(names, static=covariates.static)


def _check_columns(table: OpenTable, features: Sequence[str], columns: Sequence[str]) -> None:
    # Channels of categories come from one column of text.
    features = collapse_names(features, table.repairs.categories)
    missing = [name for name in features if name not in columns]
    # With as many columns as features one is probably misspelled; otherwise it is another table.
    if missing and len(columns) == len(features):
        raise unknown_column_error(table.path, missing[0], columns)
    if missing:
        raise wrong_features_error(table.path.name, columns, features)


def read_wide_table(table: OpenTable, channels: Sequence[str], covariates: Covariates) -> Table:
    """Read a wide table, each of whose channels is a series.

    Args:
        table: The table; its ``exclude`` names series that are left out.
        channels: Columns that are series, together with the ids of the table where it has any.
        covariates: What the columns and static columns of all series are.

    Raises:
        DataError: If the table cannot be read, or all series are left out.
    """
    exclude = table.exclude or {}
    # Without names of series a channel is one series, which can be left out unread.
    left_out = exclude if table.id_name is None else ()
    read_channels = [name for name in channels if name not in left_out]
    if not read_channels:
        raise no_series_error(table.path.name, exclude)
    wide = table.read(
        [*read_channels, *covariates.columns],
        static=covariates.static,
        series_columns=read_channels if table.id_name is None else (),
    )
    # Names do not change with the series that are left out.
    is_single = len(wide.series) == 1 and exclude.keys() <= set(channels)
    melted = split_series(wide.series, wide.channels, read_channels, covariates.columns, is_single=is_single)
    series = tuple(each for each in melted if each.unique_id not in exclude)
    if not series:
        raise no_series_error(table.path.name, exclude)
    ignored = [name for name in wide.notes.get("ignored_columns", []) if name not in left_out]
    notes = {name: value for name, value in wide.notes.items() if name != "ignored_columns"}
    if ignored:
        notes["ignored_columns"] = ignored
    return replace(wide, series=series, notes=notes)


@dataclass(frozen=True, eq=False)
class InputPiece:
    """Some series of a table.

    Attributes:
        table: The table with the rows of these series.
        options: Options of :func:`read_inputs`.
    """

    table: OpenTable
    options: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        """True if it has all series of the table."""
        return self.table.piece is not None and self.table.piece.is_whole

    def read(self, exclude: Mapping[str, str] | None = None) -> InputSet:
        """Read its series.

        Args:
            exclude: Names of series to leave out, each with the reason.

        Raises:
            DataError: As :func:`read_inputs`. Where the error names no series, reading the whole file may have none.
        """
        return read_inputs(self.table.path, **self.options, table=self.table, exclude=exclude)

    def has_series_besides(self, names: Mapping[str, str]) -> bool:
        """Return whether it has a series besides those with these names."""
        assert self.table.piece is not None
        assert self.table.id_name is not None
        return self.table.piece.has_other_series(list(names), self.table.id_name)


def read_input_pieces(path: str | Path, **options: Any) -> Iterator[InputPiece]:
    """Return the series of a table in pieces, in the order of the file.

    :class:`PieceCheck` says after each piece whether its inputs are those of the whole file.

    Args:
        path: The table.
        options: Those of :func:`read_inputs`, without ``exclude``.

    Raises:
        NotInPieces: If the table can only be read whole.
        UnknownNameError: As :func:`read_inputs`; likewise ConfigError and DataError.
    """
    path = Path(path)
    repairs = (options.get("repairs") or Repairs()).without_selection
    # Whether local times are instants, and what rows are aggregated to, can depend on all rows.
    if options.get("channels_as_series") or repairs.timezone is not None or repairs.resample is not None:
        raise NotInPieces
    if detect_format(path) not in (".csv", ".parquet"):
        raise NotInPieces
    table = open_table(
        path,
        id_column=options.get("id_column", ID_COLUMN),
        time_column=options.get("time_column", TIME_COLUMN),
        stamps=options.get("stamps"),
        repairs=repairs,
    )
    if table.id_name is None:
        raise NotInPieces
    features = [*options["features"], *options.get("static", ()), *options.get("future", ())]
    label = options.get("label_column", LABEL_COLUMN)
    wanted = {*collapse_names(features, repairs.categories), label, *repairs.categories}
    columns = [name for name in table.columns if name in wanted]
    pieces = table.pieces(columns, verbatim=(label, *repairs.categories), cells=PIECE_CELLS)
    return map(InputPiece, pieces, repeat(options))


class PieceCheck:
    """Checks that pieces have the inputs that they have in the whole file: each series is in one of them, and all have
    one time grid and times of one type."""

    def __init__(self) -> None:
        self._names = NameSet()
        self._times: tuple[Any, ...] | None = None

    def add_names(self, names: Sequence[str]) -> None:
        """Check that the series of the next piece are in no other.

        Raises:
            NotInPieces: If one is.
        """
        repeated = self._names.add(names)
        if repeated is not None:
            raise NotInPieces(f"rows of series '{repeated}' are in several places; sort the file by series")

    def add_times(self, inputs: InputSet) -> None:
        """Check that the times of the next piece are those of the others.

        Raises:
            NotInPieces: If they differ.
        """
        # A single row is on any grid, and only a forecast needs to know where the next one would be.
        if inputs.task == "classify" and inputs.lengths.max() == 1:
            return
        times = (inputs.frequency, inputs.notes.get("time_zone"), *(each.dtype for each in inputs.ds[:1]))
        if self._times not in (None, times):
            raise NotInPieces("its series do not all have the same time grid")
        self._times = times
