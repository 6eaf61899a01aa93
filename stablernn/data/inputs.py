"""``read_inputs``: a file for prediction, checked against what a trained model expects; labels are not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stablernn import errors
from stablernn.data.files import Task
from stablernn.data.frequency import Frequency, parse_frequency
from stablernn.data.grid import to_grid
from stablernn.data.load import TASKS, read_sequences
from stablernn.data.sequences import for_model, pad, time_steps, wrong_features
from stablernn.data.tables import ID_COLUMN, TIME_COLUMN, OpenTable, Table, open_table, unknown_column
from stablernn.data.types import Notes, Timestamps
from stablernn.data.windows import Float32Array, Int64Array


@dataclass(frozen=True, eq=False)
class InputSet:
    """What a model is run on.

    Attributes:
        task: ``classify`` or ``forecast``.
        x: float32 (samples, time, features), raw units, NaN = missing, padded with 0 after ``lengths``.
        lengths: int64 (samples,).
        ids: Classification: position in the file, from 0. Forecast: the series' names.
        y: Classification: the label words of the file, where it has them. Else None.
        ds: Forecast: time stamps of each context, (length,) each. Else empty.
        frequency: Forecast: word of the time grid; None when it is irregular or not known.
        notes: What was counted, filled or left alone, as JSON types.
        dt: float32 (samples, time), the time from the step before in units of the model's regular step; None when it
            takes none.
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

    def __len__(self) -> int:
        return len(self.lengths)

    def future_ds(self, sample: int, horizon: int) -> Timestamps:
        """The time stamps of the ``horizon`` steps behind a series.

        Where time stamps are irregular, the series' median interval is the step.

        Returns:
            (horizon,) datetime64[ns], or int64 for series with integer time stamps.

        Raises:
            DataError: If the series has a single row and no frequency is known.
        """
        ds = self.ds[sample]
        if self.frequency is not None:
            return parse_frequency(self.frequency).at(ds[-1], np.arange(1, horizon + 1, dtype=np.int64))
        if len(ds) < 2:
            raise errors.DataError(
                f"Series '{self.ids[sample]}' has one row and no frequency is known, so its next time stamps are not. "
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
) -> InputSet:
    """Reads a file for prediction.

    Args:
        path: A file as for :func:`load_data`; labels are not needed.
        task: ``classify`` or ``forecast``: what the model does.
        features: Names of the model's features. Columns of a table are found by name, in this order; columns that the
            model does not know are named in ``notes["ignored_columns"]``. Files of sequences must have as many
            features; where they name them, these names.
        id_column: Forecast: column that tells series apart.
        time_column: Forecast: column of time stamps.
        context_length: Forecast: the last so many steps of each series are kept; all when omitted. A shorter series is
            taken as it is and counted in ``notes["short_contexts"]``.
        frequency: Forecast: word of the time grid; inferred when omitted.
        time_step: Classification: the model's regular step, in the unit of the file's time stamps; None when the model
            takes no times.

    Raises:
        UnknownNameError: If the file, the task or a named column does not exist.
        DataError: If the file has other features than the model, or its content cannot be read.
    """
    if task not in TASKS:
        raise errors.unknown("task", task, TASKS, "Tasks are classify and forecast.")
    path = Path(path)
    if task == "classify":
        return _read_sequences(path, features, time_step)
    return _read_contexts(path, features, id_column, time_column, context_length, frequency)


def _read_sequences(path: Path, features: Sequence[str], time_step: float | None) -> InputSet:
    sequences = for_model(read_sequences(path), features)
    if time_step is not None and sequences.times is None:
        raise errors.DataError(
            f"'{path.name}' has no array 't', and the model was trained with the time of each step. Add it."
        )
    x, lengths = pad(sequences.values)
    return InputSet(
        task="classify",
        x=x,
        lengths=lengths,
        ids=tuple(str(index) for index in range(len(x))),
        y=None if sequences.labels is None else tuple(sequences.labels),
        ds=(),
        frequency=None,
        notes={"sequences": len(x), "missing_values": int(np.isnan(x).sum()), **sequences.notes},
        dt=None if time_step is None or sequences.times is None else time_steps(sequences.times, time_step),
    )


def _read_contexts(
    path: Path,
    features: Sequence[str],
    id_column: str,
    time_column: str,
    context_length: int | None,
    frequency: str | None,
) -> InputSet:
    if context_length is not None and context_length < 1:
        raise errors.ConfigError(f"context_length must be 1 or more, got {context_length}.")
    table = _model_columns(open_table(path, id_column=id_column, time_column=time_column), features)
    series, grid, notes = to_grid(table.name, table.series, frequency)
    kept = slice(-context_length if context_length else None, None)
    x, lengths = pad([one.values[kept] for one in series])
    short = int((lengths < context_length).sum()) if context_length else 0
    return InputSet(
        task="forecast",
        x=x,
        lengths=lengths,
        ids=tuple(one.unique_id for one in series),
        y=None,
        ds=tuple(one.ds[kept] for one in series),
        frequency=grid.word if grid else None,
        notes={**table.notes, **notes, "short_contexts": short},
    )


def _model_columns(opened: OpenTable, features: Sequence[str]) -> Table:
    missing = [name for name in features if name not in opened.columns]
    if missing and len(opened.columns) == len(features):
        raise unknown_column(opened.path, missing[0], opened.columns)
    if missing:
        raise wrong_features(opened.path.name, opened.columns, features)
    return opened.read(features)
