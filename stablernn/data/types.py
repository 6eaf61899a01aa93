"""Loaded data: labeled sequences for classification, series for forecasting. Raw units, NaN = missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import SPLITS, Float32Array, Int64Array, Samples, SplitName, Timestamps
from stablernn.data.messages import data_counts, describe_reading
from stablernn.data.windows import WindowSet, build_windows, target_range
from stablernn.terms import terms

Notes = dict[str, Any]
_NO_STATIC = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class SequenceSplit:
    """Labeled sequences of one split.

    Attributes:
        x: float32 (samples, time, features), padded with 0 after ``lengths``.
        lengths: int64 (samples,), from 1 to ``time``.
        y: int64 (samples,), index into the labels.
        ids: Position of each sample in the file it came from, from 0.
        dt: float32 (samples, time), the time since the previous step in units of the regular step, 1 at the first step
            and after ``lengths``; None when the file gives no times, or they are not used.
        groups: int64 (samples,), number of the group of each sample; None without groups.
        weights: float32 (samples,), weight of each sample in the loss, 0 or more; None where all weigh the same.
    """

    x: Float32Array
    lengths: Int64Array
    y: Int64Array
    ids: tuple[str, ...]
    dt: Float32Array | None = None
    groups: Int64Array | None = None
    weights: Float32Array | None = None

    def __len__(self) -> int:
        return len(self.y)

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """Return the samples with these numbers, of which ``dt`` and ``weight`` are None where the split has none."""
        rows = np.asarray(indices, dtype=np.int64)
        dt = None if self.dt is None else self.dt[rows]
        weight = None if self.weights is None else self.weights[rows]
        return Samples(self.x[rows], self.lengths[rows], self.y[rows], dt, weight=weight)

    def sequences(self) -> list[Float32Array]:
        """Return each sample without its padding, (length, features)."""
        return [sample[:length] for sample, length in zip(self.x, self.lengths, strict=True)]

    def for_scaling(self) -> list[Float32Array]:
        """Return samples as :meth:`sequences` does, to fit the scale of the values on."""
        return self.sequences()

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the samples take."""
        return self.x.nbytes

    def merged(self, other: SequenceSplit) -> SequenceSplit:
        """Return both splits as one, this one first."""
        parts = [split.gather(np.arange(len(split))) for split in (self, other)]
        times = [part.dt for part in parts if part.dt is not None]
        return SequenceSplit(
            np.concatenate([part.x for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([self.y, other.y]),
            (*self.ids, *other.ids),
            np.concatenate(times) if len(times) == len(parts) else None,
            None if self.groups is None or other.groups is None else np.concatenate([self.groups, other.groups]),
            None if self.weights is None or other.weights is None else np.concatenate([self.weights, other.weights]),
        )

    def subset(self, rows: Int64Array) -> SequenceSplit:
        """Return a split of the samples with these numbers, in their order."""
        part = self.gather(rows)
        groups = None if self.groups is None else self.groups[rows]
        ids = tuple(self.ids[row] for row in rows)
        return SequenceSplit(part.x, part.lengths, self.y[rows], ids, part.dt, groups, part.weight)

    def emptied(self) -> SequenceSplit:
        """Return a split of the same shapes without samples."""
        return self.subset(np.arange(0))


@dataclass(frozen=True, eq=False)
class ClassificationData:
    """Sequences with one label each.

    Attributes:
        name: The dataset's name or the file's.
        labels: Names of the classes, in numeric order if all are numbers, else in alphabetical order.
        features: Names of the channels.
        train: The split that a model is fitted to.
        validation: The split for early stopping.
        test: The split that is scored at the end; None when the source has none.
        notes: Counts of what was read, filled, cut or skipped, as JSON types.
        fingerprint: ``sha256:`` of the content, independent of path, compression and validation split.
        time_step: The regular step, in the unit of the file's timestamps; None when it has none.
    """

    name: str
    labels: tuple[str, ...]
    features: tuple[str, ...]
    train: SequenceSplit
    validation: SequenceSplit
    test: SequenceSplit | None
    notes: Notes
    fingerprint: str
    time_step: float | None = None
    task: Literal["classify"] = "classify"

    @property
    def frequency(self) -> None:
        """Frequency alias of the time grid: None, since sequences are on none."""
        return None

    def with_time_step(self, time_step: float | None) -> ClassificationData:
        """Return the same data with times measured in another regular step; None leaves the times out.

        Raises:
            DataError: If the data has no times to measure.
        """
        if self.time_step is None:
            if time_step is not None:
                raise errors.DataError(
                    f"{terms().file(self.name)} does not say when its steps were, and the model was trained with the "
                    "time of each step. Add an array 't'."
                )
            return self
        factor = None if time_step is None else self.time_step / time_step
        test = None if self.test is None else _rescaled(self.test, factor)
        train, validation = _rescaled(self.train, factor), _rescaled(self.validation, factor)
        return replace(self, train=train, validation=validation, test=test, time_step=time_step)

    def longest_step(self) -> float:
        """Return the largest time between two steps of any split, in regular steps; at least 1."""
        splits = [split for split in (self.train, self.validation, self.test) if split is not None and len(split)]
        return max(float(split.dt.max()) for split in splits if split.dt is not None)

    def split(self, name: str) -> SequenceSplit:
        """Return one of the splits train, validation and test.

        Raises:
            UnknownNameError: If there is no split of that name.
            DataError: If the source came without a test split.
        """
        split = {"train": self.train, "validation": self.validation, "test": self.test}[check_split(name)]
        if split is None:
            raise errors.DataError(
                f"{terms().file(self.name)} has no test split. Take the split 'validation' (eval --split), or name a "
                "file to test on (train --test, eval --data)."
            )
        return split

    def splits(self) -> dict[SplitName, SequenceSplit]:
        """Return the splits that there are, by name."""
        splits = zip(SPLITS, (self.train, self.validation, self.test), strict=True)
        return {name: split for name, split in splits if split is not None}

    def without_validation(self) -> ClassificationData:
        """Return the same data with its validation sequences in the training split, and none to validate on."""
        train, validation = self.train.merged(self.validation), self.train.emptied()
        return replace(self, train=train, validation=validation, notes=_notes_of_refit(self.notes))

    def as_test(self) -> ClassificationData:
        """Return the same data with all sequences of training and validation as the test split, where it has none."""
        if self.test is not None:
            return self
        whole = self.train.merged(self.validation)
        return replace(self, train=whole, validation=self.train.emptied(), test=whole)

    def training_values(self) -> list[Float32Array]:
        """Return the training sequences (length, features), without padding, to fit the scaling on."""
        return self.train.for_scaling()

    def has_missing_inputs(self) -> bool:
        """Return True if any value of the training split is missing."""
        return any_missing(self.training_values())

    @property
    def longest_input(self) -> int:
        """Steps of the longest training sequence."""
        return int(self.train.lengths.max())

    @property
    def held_bytes(self) -> int:
        """Memory that the sequences take."""
        return sum(split.held_bytes for split in self.splits().values())


@dataclass(frozen=True, eq=False)
class Series:
    """One series on its time grid.

    Attributes:
        unique_id: The series' name.
        ds: (time,) datetime64[ns], UTC when the file gave a zone, or int64.
        values: float32 (time, channels); NaN where the file has no value or no row.
        static: float32 (s,), values that are constant for the series, raw units.
        dt: float32 (time,), the time since the previous row in regular steps, 1 at the first row; None where timestamps
            are on a grid, or the time between them is not used.
    """

    unique_id: str
    ds: Timestamps
    values: Float32Array
    static: Float32Array = field(default_factory=lambda: _NO_STATIC)
    dt: Float32Array | None = None

    def without_last(self, steps: int) -> Series:
        """Return the series without its last steps, 0 or more."""
        stop = max(0, len(self.values) - steps)
        return replace(
            self, ds=self.ds[:stop], values=self.values[:stop], dt=None if self.dt is None else self.dt[:stop]
        )


Prior = Literal["mean", "drift"] | int


@dataclass(frozen=True)
class LinearForecast:
    """A linear map of the distances of a context's values from their mean, and how its weights are solved for.

    Attributes:
        context_length: Steps that it reads.
        log: Whether it is a map of logarithms.
        prior: Weights that the ridge penalty pulls to: those of the ``mean`` of the context, of a ``drift``, or of the
            value so many steps before.
        strength: The ridge penalty, as a share of the mean square of a value's distance from the mean.
        seasons: Seasons around whose multiples it reads values beside the last ones; empty where it reads all.
    """

    context_length: int
    log: bool = False
    prior: Prior = "mean"
    strength: float = 0.01
    seasons: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class ForecastData:
    """Series to forecast, split by time.

    Attributes:
        name: The dataset's name or the file's.
        series: All series, in the order of the file.
        channels: Inputs of the model at each step.
        targets: The channels that are forecast.
        frequency: Frequency alias of the time grid, as in pandas (``h``, ``W-SAT``, ``MS``); a number for integer
            timestamps; None when the timestamps are irregular.
        season: Steps of the main season; 1 = none.
        horizon: Steps that are forecast.
        context_length: Steps that the model sees before them.
        validation_steps: Steps of each series, before the test steps, that only validation targets use.
        test_steps: Steps at the end of each series that only test targets use.
        notes: Counts of what was read, filled, cut or skipped, as JSON types.
        fingerprint: ``sha256:`` of the content: timestamps, channels and values.
        future: Channels that are known in advance, those of the calendar included.
        static: Names of the values that are constant for a series.
        calendar: Periods of the calendar that are channels: ``day``, ``week``, ``year``.
        time_step: The regular step in seconds, or in the unit of integer timestamps; None where timestamps are on a
            grid, or the time between them is not used.
        window_stride: Steps from a training window to the next.
        has_default_context: Whether the context length is a default.
        linear: The linear forecast that was chosen for the series; None before the choice.
    """

    name: str
    series: tuple[Series, ...]
    channels: tuple[str, ...]
    targets: tuple[str, ...]
    frequency: str | None
    season: int
    horizon: int
    context_length: int
    validation_steps: int
    test_steps: int
    notes: Notes
    fingerprint: str
    future: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    calendar: tuple[str, ...] = ()
    time_step: float | None = None
    window_stride: int = 1
    has_default_context: bool = False
    linear: LinearForecast | None = None
    task: Literal["forecast"] = "forecast"

    @property
    def features(self) -> tuple[str, ...]:
        """The channels, under the name that they have in data of the other tasks."""
        return self.channels

    @property
    def target_indices(self) -> tuple[int, ...]:
        """Positions of the targets among the channels."""
        return tuple(self.channels.index(target) for target in self.targets)

    @property
    def future_indices(self) -> tuple[int, ...]:
        """Positions of the channels that are known in advance."""
        return tuple(self.channels.index(name) for name in self.future)

    def with_time_step(self, time_step: float | None) -> ForecastData:
        """Return the data with times in a regular step of so many seconds or integers; None leaves the times out."""
        if time_step is None:
            if self.time_step is None:
                return self
            return replace(self, series=tuple(replace(each, dt=None) for each in self.series), time_step=None)
        series = tuple(replace(each, dt=steps_between(each.ds, time_step)) for each in self.series)
        return replace(self, series=series, time_step=time_step)

    def longest_step(self) -> float:
        """Return the largest time between two rows of a series, in regular steps; at least 1."""
        return max([1.0, *(float(series.dt.max()) for series in self.series if series.dt is not None)])

    def windows(self, split: str) -> WindowSet:
        """Return the windows whose whole target lies in the steps of a split; their context may reach back before it.

        Series that are too short for a training window with a whole context have windows with what there is.

        Raises:
            UnknownNameError: If there is no split of that name.
        """
        name = check_split(split)
        return build_windows(
            [series.values for series in self.series],
            [target_range(len(s.values), self.validation_steps, self.test_steps, name) for s in self.series],
            context_length=self.context_length,
            horizon=self.horizon,
            target_indices=self.target_indices,
            # A stride saves time in training; scores are over every window.
            stride=self.window_stride if name == "train" else 1,
            future_indices=self.future_indices,
            static=np.stack([series.static for series in self.series]) if self.static else None,
            dt=[series.dt for series in self.series if series.dt is not None] if self.time_step is not None else None,
            least_contexts=[1 if is_short else self.context_length for is_short in self._are_short()],
        )

    def _are_short(self) -> list[bool]:
        """Return which series are too short for a training window with a whole context."""
        needed = self.context_length + self.horizon + self.validation_steps + self.test_steps
        return [len(series.values) < needed for series in self.series]

    def split(self, name: str) -> WindowSet:
        """Return the windows of a split, see :meth:`windows`."""
        return self.windows(name)

    def splits(self) -> dict[SplitName, WindowSet]:
        """Return the windows of all splits, by name."""
        return {name: self.windows(name) for name in SPLITS}

    def without_validation(self) -> ForecastData:
        """Return the same data with the validation steps in the training split, and no window to validate on."""
        merged = replace(self, validation_steps=0, notes=_notes_of_refit(self.notes))
        merged.notes["windows"] = merged.window_counts()
        return merged

    def window_counts(self) -> dict[str, dict[str, int]]:
        """Return how many windows each split has and how many were left out, as the notes hold it."""
        return {
            split: {"kept": len(windows), "dropped_without_target": windows.dropped}
            | ({"dropped_without_context": windows.without_context} if windows.without_context else {})
            | ({"skipped_by_stride": windows.skipped} if windows.skipped else {})
            for split in SPLITS
            for windows in [self.windows(split)]
        }

    def training_values(self) -> list[Float32Array]:
        """Return the training part (time, channels) of each series, to fit the scaling on."""
        held_out = self.validation_steps + self.test_steps
        return [series.values[: max(0, len(series.values) - held_out)] for series in self.series]

    def has_missing_inputs(self) -> bool:
        """Return True if any value of the training part is missing, or a context may begin before its series."""
        return any(self._are_short()) or any_missing(self.training_values())

    @property
    def longest_input(self) -> int:
        """Steps of a context."""
        return self.context_length

    @property
    def held_bytes(self) -> int:
        """Memory that values and timestamps take."""
        return sum(series.values.nbytes + series.ds.nbytes for series in self.series)


def any_missing(sequences: Iterable[Float32Array]) -> bool:
    """Return True if any sequence has a NaN."""
    return any(bool(np.isnan(values).any()) for values in sequences)


def _notes_of_refit(notes: Notes) -> Notes:
    return {**notes, "validation": {"how": "none: joined to the training split by training.refit"}}


def lengths_of_time(distances: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return differences of timestamps in seconds, or in the unit of integer timestamps."""
    if distances.dtype.kind == "m":
        return np.asarray(distances.astype("timedelta64[ns]").astype(np.int64) * 1e-9, dtype=np.float64)
    return distances.astype(np.float64)


def steps_between(ds: Timestamps, time_step: float) -> Float32Array:
    """Return the time since the previous row in units of ``time_step``, (time,); 1 at the first row."""
    dt = np.ones(len(ds), dtype=np.float32)
    dt[1:] = lengths_of_time(np.diff(ds)) / time_step
    return dt


def _rescaled(split: SequenceSplit, factor: float | None) -> SequenceSplit:
    if split.dt is None or factor is None:
        return replace(split, dt=None)
    dt = (split.dt.astype(np.float64) * factor).astype(np.float32)
    # The first step and the padding have no time of their own: they count as one step, whatever its length.
    inner = (np.arange(dt.shape[1]) > 0) & (np.arange(dt.shape[1]) < split.lengths[:, None])
    return replace(split, dt=np.where(inner, dt, np.float32(1)))


def score_notes(notes: Notes) -> Notes:
    """Return the notes that must accompany every score.

    Returns:
        ``partial``, files that were missing or short, ``unchecked``, files that could not be checked, ``read_as``, how
        a text was recognized to be written, and ``counts`` of what was filled, cut or skipped, each where there is any.
    """
    counts, reading = data_counts(notes), describe_reading(notes)
    file_notes: Notes = {key: notes[key] for key in ("partial", "unchecked") if key in notes}
    if reading:
        file_notes["read_as"] = reading
    return {**file_notes, "counts": counts} if counts else file_notes


def add_notes(first: Notes, second: Notes) -> Notes:
    """Return the notes of two files as one: numbers are added, of anything else the first file's is taken."""
    return {
        key: value + second[key] if isinstance(value, int) and key in first and key in second else value
        for key, value in {**second, **first}.items()
    }


def check_split(name: str) -> SplitName:
    """Return the name if it is that of a split.

    Raises:
        UnknownNameError: If it is not.
    """
    if name not in SPLITS:
        raise errors.unknown("split", name, SPLITS, "Splits are train, validation and test.")
    return name


class StackedSeries(Sequence[Series]):
    """Series whose rows follow each other in one array; each is made when it is asked for.

    Tables of many short series are read several times as fast as with an object for each.

    Args:
        names: Names of the series.
        ds: Timestamps of all rows.
        values: float32 (rows, channels).
        ends: End of each series.
        static: float32 (series, s), values that are constant for each; None without them.
    """

    def __init__(
        self, names: Sequence[str], ds: Timestamps, values: Float32Array, ends: Int64Array, static: Float32Array | None
    ) -> None:
        self._names, self._ds, self._values, self._static = tuple(names), ds, values, static
        self._ends: list[int] = ends.tolist()
        self._starts = [0, *self._ends[:-1]]

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Series: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Series, ...]: ...
    def __getitem__(self, index: int | slice) -> Series | tuple[Series, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        start, end = self._starts[index], self._ends[index]
        series = (self._names[index], self._ds[start:end], self._values[start:end])
        return Series(*series) if self._static is None else Series(*series, self._static[index])

    def __iter__(self) -> Iterator[Series]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> Int64Array:
        """Rows of each series."""
        return np.array(self._ends, dtype=np.int64) - np.array(self._starts, dtype=np.int64)

    @property
    def common_length(self) -> int | None:
        """The number of rows of every series; None if they differ."""
        steps, remainder = divmod(len(self._ds), len(self))
        return None if remainder or self._ends != list(range(steps, len(self._ds) + 1, steps)) else steps

    @property
    def have_equal_stamps(self) -> bool:
        """True if all series have the same timestamps."""
        steps = self.common_length
        return steps is not None and bool((self._ds.reshape(len(self), steps) == self._ds[:steps]).all())


def names_of(series: Sequence[Series]) -> tuple[str, ...]:
    """Return the name of each series."""
    return series._names if isinstance(series, StackedSeries) else tuple(each.unique_id for each in series)


def values_of(series: Sequence[Series]) -> Sequence[Float32Array]:
    """Return the values of each series, (time, channels)."""
    return StackedValues(series) if isinstance(series, StackedSeries) else [each.values for each in series]


class StackedValues(Sequence[Float32Array]):
    """The values of stacked series, without the series.

    Args:
        series: The series.
    """

    def __init__(self, series: StackedSeries) -> None:
        self._series = series

    def __len__(self) -> int:
        return len(self._series)

    @overload
    def __getitem__(self, index: int) -> Float32Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Float32Array]: ...
    def __getitem__(self, index: int | slice) -> Float32Array | list[Float32Array]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._series._values[self._series._starts[index] : self._series._ends[index]]

    @property
    def lengths(self) -> Int64Array:
        """Rows of each series."""
        return self._series.lengths

    def as_array(self) -> Float32Array | None:
        """Return the values as one array (series, time, channels); None if lengths differ."""
        steps = self._series.common_length
        values = self._series._values
        return None if steps is None else values.reshape(len(self), steps, values.shape[1])


def lengths_of(values: Sequence[Float32Array]) -> Int64Array:
    """Return the steps of each sequence."""
    if isinstance(values, StackedValues):
        return values.lengths
    return np.fromiter(map(len, values), dtype=np.int64, count=len(values))
