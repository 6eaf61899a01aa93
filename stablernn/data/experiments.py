"""Experiments on a machine for the task 'simulate': inputs and outputs, sampled regularly, and their splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.arrays import (
    SPLITS,
    Float32Array,
    Float64Array,
    Int64Array,
    Resolution,
    fingerprint,
    finite_float32,
)
from stablernn.data.files import is_table, read_bytes
from stablernn.data.messages import format_names, pluralize
from stablernn.data.options import ID_COLUMN, TIME_COLUMN, DataOptions
from stablernn.data.readers.npz import read_arrays
from stablernn.data.readers.recordings import TIME_COLUMNS, number_column, read_matlab_arrays
from stablernn.data.step_data import StepData, StoredSteps
from stablernn.data.table.cells import MISSING_CELLS, strip_cells
from stablernn.data.table.chunks import read_chunks, read_column_names
from stablernn.data.table.repairs import MissingCodes
from stablernn.data.table.timestamps import normalize_times, parse_dates
from stablernn.data.types import Notes
from stablernn.terms import terms

ARRAY_FORMATS = (".npz", ".mat")
"""Endings of files of named arrays, besides tables."""
MOST_JITTER = 0.25
"""Deviation of the time between two samples from the sampling time, as a share of it, above which one is missing."""
RATE_TOLERANCE = 0.01
"""Relative difference up to which two sampling times are the same."""


class Experiment(NamedTuple):
    """One experiment.

    Attributes:
        name: Its name in the file, or that of its file; empty for the only one.
        inputs: float32 (time, inputs), raw units.
        outputs: float32 (time, outputs), raw units, NaN where not measured.
        seconds: float64 (time,), times of the samples; None where the file has none.
    """

    name: str
    inputs: Float32Array
    outputs: Float32Array
    seconds: Float64Array | None


class Experiments(NamedTuple):
    """The experiments of a source.

    Attributes:
        name: Name of the source.
        experiments: In the order of the file, or of the names of the files.
        sample_time: Sampling time in seconds; None where it is not known.
        id_column: Column that tells experiments apart; None without one.
        time_column: Column of times, ``seconds`` if it holds dates; None without one.
        notes: Counts of reading.
    """

    name: str
    experiments: tuple[Experiment, ...]
    sample_time: float | None
    id_column: str | None
    time_column: str | None
    notes: Notes

    def records(self) -> StoredSteps:
        """Return the experiments as sequences of inputs and targets."""
        return StoredSteps([each.inputs for each in self.experiments], [each.outputs for each in self.experiments])


@dataclass(frozen=True, eq=False)
class SimulationData(StepData):
    """Experiments whose outputs are simulated from their inputs alone.

    A sequence is an experiment from its first sample on; targets are NaN where a split does not score.

    Attributes:
        sample_time: Sampling time in seconds; None where it is not known.
        washout: Samples at the beginning of an experiment that are not scored.
        pool: What may be trained on, training and validation: whole experiments, or all that comes before the test.
        records: All experiments of the source, whole.
    """

    task: Literal["predict-next", "simulate"] = "simulate"
    sample_time: float | None = None
    washout: int = 0
    pool: StoredSteps = StoredSteps((), ())
    records: StoredSteps = StoredSteps((), ())

    def without_validation(self) -> SimulationData:
        """Return the same data with all of the pool in the training split, and nothing to validate on."""
        return replace(self, train=self.pool, validation=StoredSteps((), ()))

    def as_test(self) -> SimulationData:
        """Return the same data with all experiments as the test split, where it has no file of its own."""
        return self if self.pool is self.records else replace(self, test=self.records)

    def folds(self, count: int) -> list[SimulationData]:
        """Return the pool divided into training and scored parts, for comparisons of settings.

        Whole experiments are scored if there are as many as parts, else blocks of each, which training leaves out with
        a washout on both sides. The inputs outside of a block remain, so that states are right when it begins.

        Args:
            count: Number of parts.

        Returns:
            Data whose validation and test splits are the scored part.
        """
        x, y, parts = self.pool.inputs, self.pool.targets, []
        for number in range(count):
            if len(x) >= count:
                is_scored = np.arange(len(x)) % count == number
                train, held_out = (_select(self.pool, np.flatnonzero(chosen)) for chosen in (~is_scored, is_scored))
            else:
                ends = [(len(each) * number // count, len(each) * (number + 1) // count) for each in y]
                inside = [_only(each, start, end) for each, (start, end) in zip(y, ends, strict=True)]
                outside = [_without(each, start, end, self.washout) for each, (start, end) in zip(y, ends, strict=True)]
                train, held_out = StoredSteps(x, outside), StoredSteps(x, inside)
            parts.append(replace(self, train=train, validation=held_out, test=held_out))
        return parts


def _select(steps: StoredSteps, numbers: Int64Array) -> StoredSteps:
    return StoredSteps([steps.inputs[i] for i in numbers], [steps.targets[i] for i in numbers])


def _only(y: Float32Array, start: int, end: int) -> Float32Array:
    """Return targets that are NaN outside of a block."""
    masked = np.full_like(y, np.nan)
    masked[start:end] = y[start:end]
    return masked


def _without(y: Float32Array, start: int, end: int, gap: int) -> Float32Array:
    """Return targets that are NaN in a block and so many samples on both sides of it."""
    masked = y.copy()
    masked[max(0, start - gap) : end + gap] = np.nan
    return masked


def load_experiments(path: Path, test: Path | None, options: DataOptions) -> SimulationData:
    """Load the experiments of a source and split them.

    If the share of validation is one experiment or more, that many are drawn, and without a file of the test split as
    many for the test. Else the last samples of each experiment are scored, simulated from its beginning.

    Args:
        path: A table, an ``.npz`` or ``.mat`` file, or a folder of such.
        test: The same for the test split; None: a part of the first, as large as validation.
        options: With ``inputs`` and ``outputs``.

    Raises:
        UnknownNameError: If a column is not there.
        ConfigError: If no inputs or outputs are named, or a column is both.
        DataError: If the content cannot be used, or is too short to split.
    """
    _check_roles(path.name, options)
    source = read_experiments(path, options, options.outputs)
    records = source.records()
    splits = _split(source.name, records, options, parts=2 if test is None else 1)
    if test is not None:
        tested = read_experiments(test, options, options.outputs, sample_time=source.sample_time)
        splits = splits._replace(test=tested.records(), pool=records)
    pooled = np.concatenate(splits.pool.inputs)
    by_name = dict(zip(SPLITS, (splits.train, splits.validation, splits.test), strict=True))
    content = [array for split in by_name.values() for array in (*split.inputs, *split.targets)]
    return SimulationData(
        name=source.name,
        output="real",
        tokens=False,
        features=tuple(options.inputs),
        outputs=tuple(options.outputs),
        train=splits.train,
        validation=splits.validation,
        test=splits.test,
        continuous=False,
        headline="nrmse",
        notes={
            "sequences": {name: len(split) for name, split in by_name.items()},
            "steps": {name: sum(map(_count_measured, split.targets)) for name, split in by_name.items()},
            "validation": splits.how,
            "sample_time": source.sample_time,
            "washout": options.washout,
            "input_range": _ranges(options.inputs, pooled),
            **source.notes,
        },
        fingerprint=fingerprint(["simulate", tuple(options.inputs), tuple(options.outputs), *content]),
        sample_time=source.sample_time,
        washout=options.washout,
        pool=splits.pool,
        records=records,
    )


def _ranges(names: Sequence[str], values: Float32Array) -> dict[str, list[float]]:
    """Return the least and the largest value of each input, by its name."""
    limits = zip(values.min(axis=0), values.max(axis=0), strict=True)
    return {name: [float(low), float(high)] for name, (low, high) in zip(names, limits, strict=True)}


def count_beyond(experiments: Experiments, ranges: Mapping[str, Sequence[float]]) -> dict[str, int]:
    """Return the samples of inputs that lie outside of the range of training, by input, where there are any.

    Args:
        experiments: Experiments to simulate.
        ranges: Least and largest value of each input in training, in the order of the inputs.
    """
    values = np.concatenate([each.inputs for each in experiments.experiments])
    limits = np.asarray(list(ranges.values()), dtype=np.float32)
    counts = ((values < limits[:, 0]) | (values > limits[:, 1])).sum(axis=0)
    return {name: int(count) for name, count in zip(ranges, counts, strict=True) if count}


def _check_roles(name: str, options: DataOptions) -> None:
    for role in ("inputs", "outputs"):
        names = getattr(options, role)
        if not names:
            raise errors.ConfigError(
                f"The task 'simulate' needs the {role} of {terms().file(name)}, got none; name their columns by "
                f"{terms().key(f'data.{role}')}{terms().flag(f'--{role}')}."
            )
        if len(set(names)) < len(names):
            raise errors.ConfigError(f"data.{role} must name each column once, got {', '.join(names)}.")
    both = [each for each in options.inputs if each in options.outputs]
    if both:
        raise errors.ConfigError(
            f"'{both[0]}' is an input and an output, and a simulation is given its inputs alone; leave it out of one."
        )


def _count_measured(y: Float32Array) -> int:
    return int((~np.isnan(y)).any(axis=1).sum())


class _Splits(NamedTuple):
    """Splits of experiments; ``pool`` is training and validation together, ``how`` says how they were made."""

    train: StoredSteps
    validation: StoredSteps
    test: StoredSteps
    pool: StoredSteps
    how: Notes


def _split(name: str, records: StoredSteps, options: DataOptions, *, parts: int) -> _Splits:
    """Return training, validation and, of two parts, test; of whole experiments if there are enough of them."""
    fraction, count = options.validation_fraction, len(records)
    if fraction * count < 1:
        return _split_blocks(name, records, options, parts=parts)
    num_held_out = round(fraction * count)
    if count <= parts * num_held_out:
        raise errors.DataError(
            f"{terms().file(name)} has {count} experiments, too few to hold out {parts * num_held_out} of them. Set a "
            "smaller data.validation_fraction."
        )
    # RandomState's stream is frozen by numpy's compatibility policy.
    order = np.random.RandomState(options.seed).permutation(count)
    last = count - (parts - 1) * num_held_out
    parts_of = [*np.split(order, [last - num_held_out, last]), order[:last]]
    train, validation, test, pool = (_select(records, np.sort(part)) for part in parts_of)
    how: Notes = {"how": "drawn experiments", "fraction": fraction, "seed": options.seed}
    return _Splits(train, validation, test, pool, how)


def _split_blocks(name: str, records: StoredSteps, options: DataOptions, *, parts: int) -> _Splits:
    """Return blocks at the end of each experiment, with a gap between training and what is scored."""
    pieces, tests = [], []
    for x, y in zip(records.inputs, records.targets, strict=True):
        num_held_out = max(1, round(options.validation_fraction * len(x)))
        last = len(x) - (parts - 1) * num_held_out
        start = last - num_held_out
        end = start - options.washout
        if end <= options.washout:
            raise errors.DataError(
                f"{terms().file(name)} has an experiment of {len(x)} samples, too short to hold out "
                f"{parts * num_held_out} of them after a gap of {options.washout}. Give longer ones, or another "
                "data.validation_fraction."
            )
        pieces.append([(x[:end], y[:end]), (x[:last], _only(y[:last], start, last)), (x[:last], y[:last])])
        tests += [(x, _only(y, last, len(x)))] if parts > 1 else []
    train, validation, pool, test = map(_stored, (*zip(*pieces, strict=True), tests))
    return _Splits(train, validation, test, pool, {"how": "the last samples", "fraction": options.validation_fraction})


def _stored(pairs: Sequence[tuple[Float32Array, Float32Array]]) -> StoredSteps:
    return StoredSteps([x for x, _ in pairs], [y for _, y in pairs])


def read_experiments(
    path: Path, options: DataOptions, outputs: Sequence[str] = (), *, sample_time: float | None = None
) -> Experiments:
    """Read the experiments of a source.

    Args:
        path: A table, an ``.npz`` or ``.mat`` file, or a folder of such.
        options: With ``inputs``, and the columns of a table.
        outputs: Outputs to read; none for a simulation.
        sample_time: Sampling time that the experiments must have; None for any.

    Raises:
        UnknownNameError: If there is no such file, or a column is not there.
        DataError: If an input is missing, an output is never measured, an experiment has one sample, or sampling times
            differ.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and _is_readable(file))
        if not files:
            raise errors.DataError(
                f"'{path}' has no files of experiments; they are tables, {' and '.join(ARRAY_FORMATS)}."
            )
    contents = [_read_file(file, options, outputs) for file in files]
    resolutions: dict[str, Resolution] = {}
    experiments, rate = [], options.sample_time or sample_time
    for file, content in zip(files, contents, strict=True):
        for part in content.parts:
            name = "/".join(filter(None, (file.name if path.is_dir() else "", part.name)))
            where = f"'{file.name}'" + (f", experiment '{part.name}'" if part.name else "")
            own = _find_sample_time(where, part.seconds)
            if own is not None and rate is not None and abs(own - rate) > RATE_TOLERANCE * rate:
                raise errors.DataError(
                    f"{where} is sampled every {own:.6g} s, and {rate:.6g} s are expected, as in "
                    f"{'data.sample_time' if options.sample_time else 'the experiments before it'}. Resample it."
                )
            rate = rate or own
            experiments.append(_make_experiment(name, where, part, options, outputs, resolutions))
    for channel, resolution in resolutions.items():
        resolution.check(partial("'{}': column '{}'".format, path.name, channel))
    _check_measured(path.name, experiments, outputs)
    first = contents[0]
    return Experiments(path.name, tuple(experiments), rate, first.id_column, first.time_column, first.notes)


def _is_readable(path: Path) -> bool:
    return not path.name.startswith(".") and (is_table(path) or path.suffix.lower() in ARRAY_FORMATS)


class _Part(NamedTuple):
    """An experiment as it is stored: its channels by name, (time,) each, and the seconds of its samples."""

    name: str
    channels: Mapping[str, npt.NDArray[Any]]
    seconds: Float64Array | None


class _Content(NamedTuple):
    """The experiments of a file."""

    parts: list[_Part]
    id_column: str | None = None
    time_column: str | None = None
    notes: Notes = {}


def _make_experiment(
    name: str,
    where: str,
    part: _Part,
    options: DataOptions,
    outputs: Sequence[str],
    resolutions: dict[str, Resolution],
) -> Experiment:
    columns = {}
    for channel in (*options.inputs, *outputs):
        values = part.channels[channel]
        columns[channel] = finite_float32(values, partial(_describe_sample, where, channel))
        resolutions.setdefault(channel, Resolution()).add(values)
    steps = len(next(iter(columns.values())))
    if steps < 2:
        raise errors.DataError(f"{where} has {pluralize(steps, 'sample')}, and a simulation needs two or more.")
    for channel in options.inputs:
        is_missing = np.isnan(columns[channel])
        if is_missing.any():
            raise errors.DataError(
                f"{where} has no value of the input '{channel}' in {pluralize(int(is_missing.sum()), 'sample')}, first "
                f"in sample {int(is_missing.argmax()) + 1}, and a simulation needs all of them. Fill them, or end the "
                "experiment before them."
            )
    x, y = ([columns[channel] for channel in names] for names in (options.inputs, outputs))
    return Experiment(
        name, np.stack(x, axis=1), np.stack(y, axis=1) if y else np.empty((steps, 0), np.float32), part.seconds
    )


def _describe_sample(where: str, channel: str, index: tuple[int, ...]) -> str:
    return f"{where}, sample {index[0] + 1}, column '{channel}'"


def _check_measured(name: str, experiments: Sequence[Experiment], outputs: Sequence[str]) -> None:
    for index, output in enumerate(outputs):
        if all(np.isnan(each.outputs[:, index]).all() for each in experiments):
            raise errors.DataError(f"{terms().file(name)} has no value of the output '{output}'. Name another column.")


def _find_sample_time(where: str, seconds: Float64Array | None) -> float | None:
    """Return the sampling time; None without times.

    Raises:
        DataError: If samples are not sorted by time, or one is missing.
    """
    if seconds is None or len(seconds) < 2:
        return None
    steps = np.diff(seconds)
    usual = float(np.median(steps))
    wrong = np.flatnonzero(~(np.abs(steps - usual) <= MOST_JITTER * usual))
    if usual <= 0 or len(wrong):
        index = int(wrong[0]) if len(wrong) else 0
        raise errors.DataError(
            f"{where}: from sample {index + 1} to the next {steps[index]:.6g} s pass, most often {usual:.6g} s. "
            "Resample it to one sampling time, or tell parts apart by a column of experiments "
            f"({terms().key('data.id_column')}, --id-column)."
        )
    return float(seconds[-1] - seconds[0]) / (len(seconds) - 1)


def _read_file(path: Path, options: DataOptions, outputs: Sequence[str]) -> _Content:
    names = (*options.inputs, *outputs)
    if is_table(path):
        return _read_table(path, names, options)
    suffix = path.suffix.lower()
    if suffix not in ARRAY_FORMATS:
        raise errors.DataError(
            f"'{path.name}' is not for task 'simulate', which reads tables (.csv, .parquet, .xlsx), .npz and .mat, and "
            "folders of them."
        )
    arrays = read_arrays(path) if suffix == ".npz" else read_matlab_arrays(path.name, read_bytes(path))
    return _read_named_arrays(path, arrays, names, options)


def _read_table(path: Path, names: Sequence[str], options: DataOptions) -> _Content:
    columns = read_column_names(path, options.repairs)
    id_name, time_name = _find_columns(path, columns, names, options)
    verbatim = [each for each in (id_name, time_name) if each is not None]
    notes = Notes()
    chunks = read_chunks(path, [*names, *verbatim], notes, options.repairs, verbatim=verbatim)
    frame = pl.concat([chunk.select(list(dict.fromkeys([*names, *verbatim]))) for chunk in chunks])
    codes = MissingCodes(path.name, options.missing)
    channels = {name: number_column(path.name, frame[name], codes) for name in names}
    notes |= codes.finish()
    seconds = None
    if time_name is not None:
        seconds, time_name = _read_seconds(path, frame[time_name], notes, options.date_format)
    ids = None if id_name is None else frame[id_name].cast(pl.String).fill_null("").to_numpy()
    ignored = [name for name in columns if name not in (*names, *verbatim) and name]
    notes |= {"ignored_columns": ignored} if ignored else {}
    return _Content(_divide(channels, seconds, ids), id_name, time_name, notes)


def _find_columns(
    path: Path, columns: Sequence[str], names: Sequence[str], options: DataOptions
) -> tuple[str | None, str | None]:
    """Return the columns of experiments and of times, None where there are none.

    Raises:
        UnknownNameError: If one that is named is missing, or an input or an output is.
    """
    wanted = [*names]
    wanted += [options.id_column] if options.id_column != ID_COLUMN else []
    wanted += [options.time_column] if options.time_column != TIME_COLUMN else []
    for name in wanted:
        if name not in columns:
            raise errors.unknown("column", name, columns, f"'{path.name}' has {format_names(columns)}.")
    usual = [name for name in columns if name.lower() in TIME_COLUMNS and name not in names]
    time_name = options.time_column if options.time_column in columns else next(iter(usual), None)
    return options.id_column if options.id_column in columns else None, time_name


def _read_seconds(path: Path, cells: pl.Series, notes: Notes, date_format: str | None) -> tuple[Float64Array, str]:
    """Return times as seconds, and what to call them: numbers are seconds, and dates are those since the first one."""
    text = strip_cells(cells, MISSING_CELLS)
    if text.dtype == pl.String and notes.get("decimal_mark") == "comma":
        text = text.str.replace(",", ".", literal=True)
    numbers = text.cast(pl.Float64, strict=False) if not text.dtype.is_temporal() else None
    if numbers is not None and not numbers.null_count():
        return np.asarray(numbers.to_numpy(), dtype=np.float64), cells.name
    dates = parse_dates(normalize_times(cells), date_format)
    if dates.null_count():
        row = int(dates.is_null().arg_max() or 0)
        raise errors.DataError(
            f"'{path.name}', column '{cells.name}': sample {row + 1} has no time in seconds and no date, but "
            f"'{cells[row]}'. Correct it, or name another column of times."
        )
    instants = dates.to_physical().to_numpy()
    return np.asarray((instants - instants[0]) / 1e6, dtype=np.float64), "seconds"


def _divide(
    channels: Mapping[str, npt.NDArray[Any]], seconds: Float64Array | None, ids: npt.NDArray[Any] | None
) -> list[_Part]:
    """Return a part for each experiment, in the order of first appearance."""
    if ids is None:
        return [_Part("", channels, seconds)]
    names, first, codes = np.unique(ids.astype(str), return_index=True, return_inverse=True)
    parts = []
    for code in np.argsort(first):
        rows = np.flatnonzero(codes == code)
        part = {name: values[rows] for name, values in channels.items()}
        parts.append(_Part(str(names[code]), part, None if seconds is None else seconds[rows]))
    return parts


def _read_named_arrays(
    path: Path, arrays: Mapping[str, npt.NDArray[Any]], names: Sequence[str], options: DataOptions
) -> _Content:
    """Return the experiments of arrays (time,), (time, channels) or (experiments, time, channels).

    Beside one of the third form, (experiments, time) is one channel.

    Several channels of an array ``u`` are ``u_0``, ``u_1`` and so on. An array of the name of the column of experiments
    divides the samples, as in a table, and ``lengths`` holds the samples of each experiment of the third form.
    """
    columns: dict[str, npt.NDArray[Any]] = {}
    cubes = {array.shape[:2] for array in arrays.values() if array.ndim == 3}
    for key, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.ndim > 3 or not array.size:
            continue
        # A vector of MATLAB is a matrix of one row or column.
        block = array.reshape(-1) if array.ndim < 3 and 1 in array.shape else array
        if block.shape in cubes:
            columns[key] = block
        elif block.ndim == 1:
            columns[key] = block[None]
        else:
            block = block[None] if block.ndim == 2 else block
            count = block.shape[-1]
            columns |= {key if count == 1 else f"{key}_{i}": block[:, :, i] for i in range(count)}
    id_name, time_name = _find_columns(path, list(columns), names, options)
    used = [columns[name] for name in names]
    if len({block.shape for block in used}) > 1:
        shapes = ", ".join(f"{name} {' x '.join(map(str, columns[name].shape))}" for name in names)
        raise errors.DataError(
            f"'{path.name}' has channels of different shapes (experiments x samples): {shapes}. Save them as (time,), "
            "(time, channels) or (experiments, time, channels)."
        )
    count, steps = used[0].shape
    lengths = columns.pop("lengths", np.full((1, count), steps)).reshape(-1).astype(int)
    parts: list[_Part] = []
    for number, length in enumerate(lengths):
        channels = {name: columns[name][number, :length] for name in names}
        seconds = None if time_name is None else columns[time_name][min(number, len(columns[time_name]) - 1), :length]
        ids = None if id_name is None else columns[id_name][0, :length]
        named = _divide(channels, None if seconds is None else seconds.astype(np.float64), ids)
        parts += [each if count == 1 else each._replace(name=str(number)) for each in named]
    return _Content(parts, id_name, time_name)
