"""Sequences of a table: a row each, with lists of values, or a row for each of their steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.errors import InputError

if TYPE_CHECKING:
    import polars as pl

Array = NDArray[Any]

ID_COLUMNS = ("id", "unique_id")
"""Columns that may name the sequences, the first one that a table has."""
_MOST_NUMBERS = 2**22
"""Numbers of a batch with its padding, at most: 16 MiB."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Sequences:
    """The sequences of a table, one after the other.

    Attributes:
        ids: The column that names them, ``(sequences,)``.
        values: ``(steps of all, features)``, float32, NaN where a value is missing.
        starts: First step of each, ``(sequences,)``.
        lengths: Steps of each, likewise.
        errors: Why a sequence cannot be answered, by its number.
        times: The times of each in order, lists; None without a column of times.
    """

    ids: pl.Series
    values: Array
    starts: Array
    lengths: Array
    errors: dict[int, str]
    times: pl.Series | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def batches(self, most_rows: int) -> Iterator[Array]:
        """Yield the numbers of the sequences without an error, in batches of like lengths.

        Args:
            most_rows: Sequences of a batch, at most; of long ones there are fewer.
        """
        features = self.values.shape[1]
        numbers = [number for number in np.argsort(self.lengths, kind="stable") if number not in self.errors]
        batch: list[int] = []
        for number in numbers:
            # They come in the order of their lengths, so that this is the longest.
            size = (len(batch) + 1) * int(self.lengths[number]) * features
            if batch and (len(batch) == most_rows or size > _MOST_NUMBERS):
                yield np.array(batch)
                batch = []
            batch.append(int(number))
        if batch:
            yield np.array(batch)

    def gather(self, numbers: Array) -> tuple[Array, Array]:
        """Return some sequences, padded with 0: ``(sequences, longest, features)``, and their lengths."""
        lengths = self.lengths[numbers]
        x = np.zeros((len(numbers), int(lengths.max()), self.values.shape[1]), np.float32)
        for row, start, length in zip(x, self.starts[numbers], lengths, strict=True):
            row[:length] = self.values[start : start + length]
        return x, lengths


def read_sequences(
    table: Any,
    features: Sequence[str],
    *,
    id_column: str | None,
    time_column: str | None,
    most_steps: int,
    last_steps: int | None,
) -> Sequences:
    """Return the sequences of a table.

    Args:
        table: Anything that ``polars.DataFrame`` takes: Arrow tables and batches, frames of polars and pandas, mappings
            of columns. Its features are lists, a row for each sequence, or numbers, a row for each step.
        features: Columns of the features.
        id_column: Column that names the sequences; None for the first of :data:`ID_COLUMNS` that is there.
        time_column: Column by which the steps of a sequence are sorted; None for their order in the table.
        most_steps: Steps above which a sequence is not answered.
        last_steps: Steps at the end of a sequence that are read; None for all of them.

    Raises:
        InputError: If a column is missing or of a type that does not fit.
    """

    frame = _frame(table)
    name = _id_column(frame, id_column)
    missing = [feature for feature in features if feature not in frame.columns]
    if missing:
        raise InputError(
            f"The table has no column {_names(missing)}, which the model reads. Its columns are "
            f"{_names(frame.columns)}."
        )
    are_lists = {frame[feature].dtype.is_nested() for feature in features}
    if are_lists == {False}:
        frame = _collect_steps(frame, name, features, time_column)
    elif are_lists == {True, False}:
        raise InputError("Some features are lists and others are numbers. Give lists for all, or a row for each step.")
    elif time_column is not None:
        raise InputError(f"Lists have an order, so that there is nothing to sort by '{time_column}'. Leave it out.")
    lengths, errors = _lengths(frame, features)
    values = np.stack([_numbers(frame[feature], lengths) for feature in features], axis=1)
    starts = (np.cumsum(lengths) - lengths).astype(np.int64)
    if last_steps is not None:
        starts = starts + np.maximum(lengths - last_steps, 0)
        lengths = np.minimum(lengths, last_steps)
    errors = {**_value_errors(values, starts, lengths, features, most_steps), **errors}
    # What float32 does not hold is an error already.
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    times = None
    if time_column is not None:
        # Two times say how long a step is.
        times = frame[time_column] if last_steps is None else frame[time_column].list.tail(max(2, last_steps))
    return Sequences(frame[name], numbers, starts, lengths, errors, times)


def _frame(table: Any) -> pl.DataFrame:
    import polars as pl

    # By pyarrow polars keeps the types of a frame of pandas, which has objects for strings and lists.
    if type(table).__module__.split(".")[0] == "pandas" and find_spec("pyarrow") is None:
        return pl.DataFrame({str(name): column.to_list() for name, column in table.items()}, strict=False)
    return pl.DataFrame(table)


def _id_column(frame: pl.DataFrame, column: str | None) -> str:
    names = [name for name in ([column] if column is not None else ID_COLUMNS) if name in frame.columns]
    if not names:
        wanted = _names([column]) if column is not None else " or ".join(map(repr, ID_COLUMNS))
        raise InputError(
            f"The table has no column {wanted} to name its sequences by. Its columns are: {_names(frame.columns)}."
        )
    return names[0]


def _collect_steps(frame: pl.DataFrame, name: str, features: Sequence[str], time_column: str | None) -> pl.DataFrame:
    """Return a row with lists for each sequence of a table with a row for each step."""
    import polars as pl

    if frame[name].null_count():
        raise InputError(
            f"{frame[name].null_count()} rows have no value of '{name}', so that they belong to no sequence."
        )
    columns = pl.col(features)
    if time_column is not None:
        if time_column not in frame.columns:
            raise InputError(f"The table has no column '{time_column}' to sort steps by.")
        if frame[time_column].null_count():
            raise InputError(
                f"{frame[time_column].null_count()} rows have no value of '{time_column}', so that they have no place "
                "among the others."
            )
        if frame.select(pl.struct(name, time_column).is_duplicated().any()).item():
            raise InputError(f"Some sequences have two steps of one '{time_column}'. Remove one of each.")
        columns = pl.col([*features, time_column]).sort_by(time_column)
    return frame.group_by(name, maintain_order=True).agg(columns)


def _lengths(frame: pl.DataFrame, features: Sequence[str]) -> tuple[Array, dict[int, str]]:
    """Return the steps of each sequence, 0 where its features have different ones, and the errors of these."""

    lengths = np.stack([_as_lists(frame[name]).list.len().fill_null(0).to_numpy() for name in features]).astype(
        np.int64
    )
    differs = (lengths != lengths[0]).any(axis=0)
    errors = {
        int(number): "Its features have different numbers of steps: "
        + ", ".join(f"{name} has {count}" for name, count in zip(features, lengths[:, number], strict=True))
        + "."
        for number in np.flatnonzero(differs)
    }
    return np.where(differs, 0, lengths[0]), errors


def _as_lists(series: pl.Series) -> pl.Series:
    import polars as pl

    return series.arr.to_list() if isinstance(series.dtype, pl.Array) else series


def _numbers(series: pl.Series, lengths: Array) -> Array:
    """Return the values of a feature, one sequence after the other, as float64 with NaN where one is missing."""
    import polars as pl

    lists = _as_lists(series).filter(pl.Series(lengths > 0))
    values = lists.explode() if len(lists) else pl.Series([], dtype=pl.Float64)
    if not (values.dtype.is_numeric() or values.dtype == pl.Boolean):
        raise InputError(
            f"The column '{series.name}' has values of the type {values.dtype}, and the model reads numbers."
        )
    return values.cast(pl.Float64).to_numpy()


def _value_errors(
    values: Array, starts: Array, lengths: Array, features: Sequence[str], most_steps: int
) -> dict[int, str]:
    """Return why sequences cannot be answered, by their number."""
    is_missing = np.isnan(values)
    is_wrong = np.abs(values) > _FLOAT32_MAX
    wrong_before = _count_before(is_wrong.any(axis=1))
    missing_before = _count_before(is_missing.all(axis=1))
    ends = starts + lengths
    errors = {int(number): "It has no steps." for number in np.flatnonzero(lengths == 0)}
    for number in np.flatnonzero(lengths > most_steps):
        errors[int(number)] = f"It has {lengths[number]:,} steps, and at most {most_steps:,} are answered."
    for number in np.flatnonzero((missing_before[ends] - missing_before[starts] == lengths) & (lengths > 0)):
        errors[int(number)] = "All of its values are missing."
    for number in np.flatnonzero(wrong_before[ends] > wrong_before[starts]):
        step, feature = np.argwhere(is_wrong[starts[number] : ends[number]])[0]
        errors[int(number)] = f"{features[feature]} is infinite or beyond float32 at step {step}."
    return errors


def _count_before(mask: Any) -> Array:
    """Return how many Trues lie before each place of a mask, and how many there are."""
    return np.concatenate([[0], np.cumsum(mask)])


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
