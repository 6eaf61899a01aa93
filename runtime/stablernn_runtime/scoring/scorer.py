"""A version that is opened where it is used, and that answers tables and steps of many streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Registry, RegistryError, Version
from stablernn_runtime.calendar import advance, calendar_frequency, data_zone, step_seconds
from stablernn_runtime.covariates import observed_features
from stablernn_runtime.engines.session import Device
from stablernn_runtime.errors import InputError, ModelLoadError
from stablernn_runtime.run_batch import run_steps
from stablernn_runtime.served_model import ServedModel

if TYPE_CHECKING:
    import polars as pl

Array = NDArray[Any]

BATCH_ROWS = 256
"""Sequences that are run at once. Answers do not depend on it."""
_RETRY_SECONDS = 1.0
_opening = threading.Lock()


ID_COLUMNS = ("id", "unique_id")
"""Columns that may name the sequences, the first one that a table has."""
_MOST_NUMBERS = 2**22
"""Numbers of a batch with its padding, at most: 16 MiB."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_TICKS = {"ms": 10**3, "us": 10**6, "ns": 10**9}
"""Ticks of a second in each unit of polars."""
_YEAR_10000 = 253_402_300_800
"""Seconds from 1970 to the first year that Python's datetimes do not have."""
_DAY = 86_400.0
_BEYOND = "The times of its forecast lie beyond the last one that the column can hold."


@dataclass(frozen=True)
class Scorer:
    """A reference to a version, which each process opens when it first scores.

    It pickles into a few hundred bytes, so that engines send it to their workers. The version is fixed by its digest:
    an alias that moves afterwards moves nothing here, and a process that finds other files refuses them.

    Attributes:
        registry: Folder of the registry, absolute, at the same place on all machines.
        model: ``NAME:VERSION``.
        digest: ``sha256:...`` of the version.
        device: Device to compute on. Answers have the same bits everywhere on a CPU of one kind.
        engine: Name of the engine that runs the graphs.
        wait_seconds: Seconds for which a registry that cannot be read is tried again.
    """

    registry: str
    model: str
    digest: str
    device: Device = "cpu"
    engine: str = "onnx"
    wait_seconds: float = 60.0

    @classmethod
    def find(
        cls,
        model: str,
        *,
        registry: str | Path | None = None,
        device: Device = "cpu",
        engine: str = "onnx",
        wait_seconds: float = 60.0,
    ) -> Self:
        """Return the scorer of a version.

        Args:
            model: ``NAME``, ``NAME:VERSION`` or ``NAME@ALIAS``, which is looked up once, here.
            registry: Folder of the registry; None for that of the command line, ``STABLERNN_REGISTRY``.
            device: See :class:`Scorer`.
            engine: Likewise.
            wait_seconds: Likewise.

        Raises:
            RegistryError: If the registry has no such version, or cannot be read for ``wait_seconds``.
        """
        root = Registry(registry).root
        version = _wait_for(root, model, wait_seconds)
        return cls(str(root), version.ref, version.digest, device, engine, wait_seconds)

    def open(self) -> ServedModel:
        """Return the opened version, the same in all calls of a process. It runs on one thread.

        Raises:
            RegistryError: If the registry has no such version, or cannot be read for ``wait_seconds``.
            ModelLoadError: If it is another version than this one, or it cannot be run.
        """
        # Two threads would open it twice.
        with _opening:
            return _open(self)

    def score(
        self,
        table: Any,
        *,
        id_column: str | None = None,
        time_column: str | None = None,
        most_steps: int = 1_000_000,
    ) -> pl.DataFrame:
        """Return the answers for the sequences of a table, in the order of their first rows.

        Steps are taken to be one regular step apart. Versions that read the time between steps, or values beside the
        series, are refused: ``stablernn predict`` answers these.

        Args:
            table: Anything that ``polars.DataFrame`` takes: Arrow tables and batches, frames of polars and pandas,
                mappings of columns. It has a row for each sequence, with a list for each feature, or a row for each
                step, with a number for each feature; empty cells are missing values. Other columns are ignored.
            id_column: Column that names the sequences; None for ``id``, or else ``unique_id``.
            time_column: Column by which steps are sorted where each has a row; None for their order in the table. A
                forecast goes on from its times, which are dates, datetimes or integers one step apart.
            most_steps: Steps above which a sequence is not answered.

        Returns:
            The columns that ``stablernn predict`` names, with the column ``error`` as the last one: why a sequence has
            no answer, which is null in all other columns then. A class has a row for each sequence. A forecast has one
            for each step, with its time in ``time_column``, or its number from 1 on in ``step`` where there are no
            times, and a sequence without an answer has one.

        Raises:
            InputError: If the table lacks a column, or the version does not answer tables.
            RegistryError: As :meth:`open`.
            ModelLoadError: As :meth:`open`.
        """
        model = self.open()
        _check_inputs(model)
        manifest = model.manifest
        sequences = read_sequences(
            table,
            manifest.features,
            id_column=id_column,
            time_column=time_column,
            most_steps=most_steps,
            last_steps=manifest.context_length if manifest.task == "forecast" else None,
        )
        numbers, parts = [], []
        times: pl.Series | None = None
        if manifest.task == "forecast" and sequences.times is not None:
            zone = data_zone(manifest)
            times, irregular = times_ahead(
                sequences.times, manifest.horizon or 1, manifest.frequency, zone.name if zone else None
            )
            sequences = replace(sequences, errors={**irregular, **sequences.errors})
        errors = dict(sequences.errors)
        for batch in sequences.batches(BATCH_ROWS):
            for answered, outputs in _run(model, sequences, batch, errors):
                numbers.append(answered)
                parts.append(outputs)
        rows = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
        order = np.argsort(rows)
        outputs = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]} if parts else {}
        return _answers(model, sequences, rows[order], outputs, errors, times)

    def advance(
        self, samples: Array, states: Mapping[str, Array] | None = None, **other_inputs: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Advance many streams by one sample each.

        Args:
            samples: ``(streams, features)`` in raw units, NaN where a value is missing; ``(streams,)`` of tokens, and
                ``(streams, stride, features)`` of a model of patches.
            states: States of the streams by the name of the input, ``(streams, ...)``; None for new streams.
            other_inputs: ``dt`` and the like, as :meth:`ServedModel.run_step` takes them.

        Returns:
            The answers by name, ``(streams, ...)``, and the states after the samples. Both have the bits that each
            stream would have alone.

        Raises:
            InputError: If a shape or a value does not fit, or an answer is not finite.
            RegistryError: As :meth:`open`.
            ModelLoadError: As :meth:`open`.
        """
        model = self.open()
        inputs = {model.input_name: samples, **other_inputs}
        steps = {name: value if name == "static" else np.asarray(value)[:, None] for name, value in inputs.items()}
        (result,) = run_steps(model.step, [model.prepare_steps(steps, states or {})], None)
        if isinstance(result, InputError):
            raise result
        return {name: value[:, 0] for name, value in result.outputs.items()}, dict(result.states)


def _wait_for(root: Path, model: str, wait_seconds: float) -> Version:
    """Return a version as soon as its registry can be read.

    Raises:
        RegistryError: If there is no such version, or the registry cannot be read for so long.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return Registry(root).get(model)
        except (RegistryError, OSError) as error:
            # A registry that is there and does not have the version will not get it.
            is_away = isinstance(error, OSError) or not root.is_dir()
            left = deadline - time.monotonic()
            if not is_away or left <= 0:
                raise
            time.sleep(min(_RETRY_SECONDS, left))


@cache
def _open(scorer: Scorer) -> ServedModel:
    version = _wait_for(Path(scorer.registry), scorer.model, scorer.wait_seconds)
    if version.digest != scorer.digest:
        raise ModelLoadError(
            f"'{scorer.model}' in {scorer.registry} is {version.digest}, and the job began with {scorer.digest}. Give "
            "all workers the same registry."
        )
    return ServedModel.load(version, scorer.device, threads=1, engine=scorer.engine)


def _check_inputs(model: ServedModel) -> None:
    """Refuse a model that reads more than regular series, or does not answer whole ones.

    Raises:
        InputError: If it is one.
    """
    manifest = model.manifest
    if manifest.task not in ("classify", "forecast"):
        raise InputError(f"{model.label} answers at every step: use advance(), or 'stablernn predict' on a file.")
    extra: list[str] = [name for name in ("static", "future", "dt") if name in model.sequence.inputs]
    if len(observed_features(manifest)) < len(manifest.features or ()):
        extra.append("the calendar")
    if extra:
        raise InputError(
            f"{model.label} reads {' and '.join(extra)} beside the series, which a scorer does not fill in: use "
            "'stablernn predict'."
        )


def _run(
    model: ServedModel, sequences: Sequences, numbers: Array, errors: dict[int, str]
) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yield the numbers of sequences that were answered, with their outputs; errors of others are added."""
    x, lengths = sequences.gather(numbers)
    try:
        yield numbers, model.run_numpy(x, lengths)
    except InputError as error:
        # The fault of one must not cost the others their answers.
        if len(numbers) == 1:
            errors[int(numbers[0])] = str(error)
            return
        for half in np.array_split(numbers, 2):
            yield from _run(model, sequences, half, errors)


def _answers(
    model: ServedModel,
    sequences: Sequences,
    rows: Array,
    outputs: Mapping[str, Array],
    errors: Mapping[int, str],
    times: pl.Series | None,
) -> pl.DataFrame:
    """Return the table of answers for the sequences ``rows``, and the reasons of all others.

    Args:
        times: Times of the steps of each forecast, lists; None to number the steps.
    """
    import polars as pl

    manifest = model.manifest
    if manifest.task == "classify":
        name, rows_of_each = "id", 1
        labels = list(manifest.labels or ())
        columns = class_columns(labels, outputs.get("probabilities", np.zeros((0, len(labels)), np.float32)))
    else:
        name, steps, targets, levels = (
            "unique_id",
            manifest.horizon or 1,
            manifest.targets or (),
            manifest.quantiles or (),
        )
        rows_of_each = steps * len(targets)
        shape = (0, steps, len(targets))
        nothing = {"mean": np.zeros(shape, np.float32), "quantiles": np.zeros((*shape, len(levels)), np.float32)}
        # A row for each sequence, target and step, in this order.
        if times is None:
            columns = {"step": np.tile(np.arange(1, steps + 1), len(rows) * len(targets))}
        else:
            columns = {times.name: times.gather(np.repeat(rows, len(targets))).explode()}
        columns |= forecast_columns(targets, levels, outputs or nothing)
    types: dict[str, Any] = {"label": pl.String(), "target": pl.String(), "step": pl.Int64()}
    if times is not None:
        types[times.name] = columns[times.name].dtype
    schema = {column: types.get(column, pl.Float32()) for column in columns}
    failed = sorted(errors)
    reasons = pl.DataFrame({"error": [errors[number] for number in failed]}, schema={"error": pl.String()})
    # Sequences without an answer have a row of empty cells.
    table = pl.concat([pl.DataFrame(columns, schema=schema), reasons], how="diagonal")
    numbers = np.concatenate([np.repeat(rows, rows_of_each), np.array(failed, np.int64)])
    order = np.argsort(numbers, kind="stable")
    ids = sequences.ids.gather(numbers[order]).alias(name)
    return table[order].select(ids, *schema, "error")


def class_columns(labels: Sequence[str], probabilities: Array) -> dict[str, Any]:
    """Return the most likely class of each sequence, and the probability of each class.

    Args:
        labels: Names of the classes.
        probabilities: ``(sequences, classes)``.
    """
    best = probabilities.argmax(axis=1)
    columns: dict[str, Any] = {"label": np.array(labels, dtype=object)[best].tolist()}
    for number, label in enumerate(labels):
        columns[f"probability_{label}"] = probabilities[:, number]
    return columns


def forecast_columns(targets: Sequence[str], levels: Sequence[float], outputs: Mapping[str, Array]) -> dict[str, Any]:
    """Return the forecasts of all series, a row for each series, target and step, in this order.

    Args:
        targets: Names of the targets; a single one has no column.
        levels: Levels of the quantiles.
        outputs: ``mean``, ``(series, steps, targets)``, and ``quantiles``, ``(series, steps, targets, levels)``.
    """
    mean = outputs["mean"]
    series, steps = mean.shape[:2]
    columns: dict[str, Any] = {}
    if len(targets) > 1:
        columns["target"] = np.tile(np.repeat(np.array(targets, dtype=object), steps), series).tolist()
    columns["mean"] = mean.swapaxes(1, 2).reshape(-1)
    for number, level in enumerate(levels):
        columns[f"q{level:g}"] = outputs["quantiles"][..., number].swapaxes(1, 2).reshape(-1)
    return columns


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


class _NoTimesError(Exception):
    """Why a sequence has no times ahead."""


def times_ahead(
    times: pl.Series, steps: int, frequency: str | None, day_zone: str | None = None
) -> tuple[pl.Series, dict[int, str]]:
    """Return the times of the steps after each sequence.

    Args:
        times: The times of each sequence in ascending order, lists of dates, datetimes or integers.
        steps: Number of steps ahead.
        frequency: Frequency of the training data; None where their steps had no length of their own.
        day_zone: Zone whose days the steps are; None: that of the column.

    Returns:
        The times, lists of ``steps`` datetimes or integers, null where a sequence has an error or no times; and why a
        sequence has no times ahead, by its number.

    Raises:
        InputError: If the times are of another type.
    """
    import polars as pl

    inner = times.dtype.inner if isinstance(times.dtype, pl.List) else None
    if inner == pl.Date:
        inner = pl.Datetime("us")
    elif inner is not None and (inner.is_integer() or (inner == pl.Null and not len(times))):
        inner = pl.Int64()
    elif not isinstance(inner, pl.Datetime):
        raise InputError(
            f"The column '{times.name}' has values of the type {inner}, and a forecast goes on from dates, datetimes "
            "or integers. Convert it, or leave 'time_column' out and sort the table."
        )
    times = times.cast(pl.List(inner))
    if not isinstance(inner, pl.Datetime):
        # Of a single integer, the next ones.
        return _continue(times, lambda ticks: _in_equal_steps(ticks, steps, 2**63, None, alone=1))
    name = calendar_frequency(frequency)
    seconds = None if name is None else step_seconds(name)
    zone = inner.time_zone
    if zone is not None and name is not None and (seconds is None or seconds >= _DAY):
        # Days and longer steps are those of the calendar: they go on at the same time of day when clocks change.
        day_zone = day_zone or zone
        local = times.list.eval(_local_days(pl.element(), day_zone))
        ahead, errors = times_ahead(local, steps, frequency)
        return ahead.list.eval(_instants(pl.element(), day_zone).dt.convert_time_zone(zone)), errors
    if name is not None and seconds is None:
        return _continue(times, lambda part: _on_calendar(tuple(part), steps, name), is_calendar=True)
    ticks_of_second = _TICKS[inner.time_unit]
    limit = min(_YEAR_10000 * ticks_of_second, 2**63)
    length = None if seconds is None else round(seconds * ticks_of_second)
    return _continue(times, lambda ticks: _in_equal_steps(ticks, steps, limit, length, name=name))


def _local_days(instants: pl.Expr, zone: str) -> pl.Expr:
    """Return instants as local times: midnights, if all of them are, of which a skipped one begins its day later."""
    import polars as pl

    local = instants.dt.convert_time_zone(zone).dt.replace_time_zone(None)
    midnight = local.dt.truncate("1d")
    begins = _instants(midnight, zone).dt.replace_time_zone(None)
    return pl.when((local == begins).all()).then(midnight).otherwise(local)


def _instants(local: pl.Expr, zone: str) -> pl.Expr:
    """Return local times as instants: of those that come twice the first, after a midnight that is skipped the next."""
    first, later = (
        moment.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        for moment in (local, local.dt.offset_by("1h"))
    )
    return first.fill_null(later)


def _continue(
    times: pl.Series, continuation: Callable[[list[Any]], list[Any]], *, is_calendar: bool = False
) -> tuple[pl.Series, dict[int, str]]:
    """Return the continuation of each sequence, a function of its times or their ticks, and the errors."""
    import polars as pl

    parts = times.to_list() if is_calendar else times.cast(pl.List(pl.Int64)).to_list()
    rows: list[list[Any] | None] = []
    errors: dict[int, str] = {}
    for number, part in enumerate(parts):
        try:
            rows.append(continuation(part) if part else None)
        except _NoTimesError as error:
            rows.append(None)
            errors[number] = str(error)
    values = pl.Series(times.name, rows, dtype=times.dtype if is_calendar else pl.List(pl.Int64))
    return values.cast(times.dtype), errors


def _in_equal_steps(
    ticks: Sequence[int],
    steps: int,
    limit: int,
    length: int | None,
    *,
    alone: int | None = None,
    name: str | None = None,
) -> list[int]:
    """Return the ticks after some that are equally far apart.

    Args:
        ticks: One or more.
        steps: Number of steps ahead.
        limit: What all of them must be below.
        length: Ticks of a step; None to take what they are apart.
        alone: Ticks of a step that nothing else says.
        name: Frequency whose steps these are, for an error.

    Raises:
        _NoTimesError: If there are none.
    """
    change = length or alone
    if len(ticks) > 1:
        changes = np.diff(np.array(ticks))
        change = int(changes[0])
        if (changes != change).any() or length not in (None, change):
            raise _irregular(name)
    if change is None:
        raise _NoTimesError("A single time does not say how long its steps are.")
    if ticks[-1] + steps * change >= limit:
        raise _NoTimesError(_BEYOND)
    return list(range(ticks[-1] + change, ticks[-1] + steps * change + 1, change))


# Many series have the same times.
@lru_cache(maxsize=1024)
def _on_calendar(times: tuple[datetime, ...], steps: int, frequency: str) -> list[datetime]:
    """Return the times after some that lie on the calendar.

    Raises:
        _NoTimesError: If there are none.
    """
    start, end = times[0].isoformat(), times[-1].isoformat()
    for step, stated in enumerate(times[1:], start=1):
        if datetime.fromisoformat(advance(start, step, frequency)) != stated:
            raise _irregular(frequency)
    try:
        return [datetime.fromisoformat(advance(end, step, frequency)) for step in range(1, steps + 1)]
    except InputError:
        raise _NoTimesError(_BEYOND) from None


def _irregular(frequency: str | None) -> _NoTimesError:
    step = "one step" if frequency is None else f"one step of '{frequency}'"
    return _NoTimesError(f"Its times are not {step} apart. Fill the gaps with empty values.")
