"""Inspection of loaded data: statistics of channels, and what looks unintended in series, sequences and steps.

Statistics are computed over any number of arrays of any length, without a copy of all of them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import SPLITS, Float32Array, Int64Array, Samples, Timestamps
from stablernn.data.check.report import Column, Findings, Role
from stablernn.data.forecasting import calendar_channels
from stablernn.data.messages import format_names, format_timestamp, pluralize, quote
from stablernn.data.sequences import NO_LABEL, Sequences, sort_labels
from stablernn.data.step_data import NO_TARGET, StepData
from stablernn.data.table.repairs import suggest_day_zone
from stablernn.data.types import ClassificationData, ForecastData, Notes, Series

#: A value further than so many robust deviations from the median is more likely an error than a measurement. Mean and
#: standard deviation are no substitute: a code such as -999 moves them towards itself.
OUTLIER_DEVIATIONS = 10
# Nine of ten values of a normal distribution lie within 1.645 standard deviations. The median distance would work for
# it as well, but not for skewed values such as rain, or pixels that are dark most of the time.
_QUANTILE, _NORMAL_QUANTILE = 0.9, 1.645
# Maximum number of training rows for the median; of more, rows at regular distances are taken.
_MAX_ROWS = 1 << 20
_MOSTLY_MISSING = 0.5
_CHUNK_ROWS = 100_000

#: Numbers that programs and devices write where they have no value.
_USUAL_CODES = (-9999, -999, -99, -1e30, -32768, 999, 9999, 99999, 999999, 65535, 32767, 1e30)
#: A number that comes once may be a measurement.
_MIN_COUNT = 2
#: Two columns are the same in different units if the unexplained share of their variance is below this.
_MAX_UNEXPLAINED = 1e-6
#: Columns are compared in so many steps of the longest series, and so many steps ahead.
_MAX_COMPARED_STEPS, _MAX_STEPS_AHEAD = 20_000, 48
#: With fewer steps than this, two columns may agree by chance.
_MIN_COMPARED_STEPS = 20
#: Classes are unbalanced if the largest has at least this many times the training sequences of the smallest.
_IMBALANCE_RATIO = 5
#: A class with fewer training sequences than this gets a warning.
_MIN_EXAMPLES = 5
#: With fewer sequences than this, a feature may determine the label by chance.
_MIN_SEQUENCES_FOR_LEAKAGE = 10
#: So many sequences of each split are inspected; generated splits have no end.
_MAX_SEQUENCES = 200


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Statistics of each channel, arrays of shape (channels,).

    Attributes:
        num_steps: Number of steps over all arrays.
        missing: Number of NaN values.
        low: Smallest value; NaN if there is none.
        high: Largest value; NaN if there is none.
        outliers: Number of values further than :data:`OUTLIER_DEVIATIONS` robust deviations from the median.
        constant: True if the channel has a single value in the training split.
    """

    num_steps: int
    missing: Int64Array
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    outliers: Int64Array
    constant: npt.NDArray[np.bool_]


def compute_statistics(
    arrays: Sequence[Float32Array], training: Sequence[Float32Array], *, own_scale: bool = False
) -> ChannelStatistics:
    """Compute statistics over arrays of shape (length, channels).

    Args:
        arrays: All of the data.
        training: The training split, whose median and deviation define outliers.
        own_scale: Compare each array with its own training part, as series of very different levels need;
            ``training`` then has one array for each of ``arrays``.
    """
    steps, missing = 0, np.zeros(training[0].shape[1], np.int64)
    for chunk in _chunks(arrays):
        steps += len(chunk)
        missing += np.isnan(chunk).sum(axis=0)
    if own_scale:
        counts = [_count_outliers([array], [part]) for array, part in zip(arrays, training, strict=True)]
        outliers = np.sum(counts, axis=0)
    else:
        outliers = _count_outliers(arrays, training)
    low, high = _range(arrays)
    training_low, training_high = _range(training)
    return ChannelStatistics(steps, missing, low, high, outliers, training_low == training_high)


def _range(arrays: Sequence[Float32Array]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the smallest and the largest value of each channel; NaN if there is none."""
    low, high = np.full(arrays[0].shape[1], np.nan), np.full(arrays[0].shape[1], np.nan)
    for chunk in _chunks(arrays):
        low, high = np.fmin(low, np.fmin.reduce(chunk)), np.fmax(high, np.fmax.reduce(chunk))
    return low, high


def _count_outliers(values: Sequence[Float32Array], training: Sequence[Float32Array]) -> Int64Array:
    """Count the values of each channel that are far from the training median."""
    stride = max(1, sum(map(len, training)) // _MAX_ROWS)
    rows = np.concatenate([array[::stride] for array in training]).astype(np.float64)
    median, deviation = np.array([robust_scale(column[~np.isnan(column)]) for column in rows.T]).T
    counts = np.zeros(len(median), np.int64)
    for chunk in _chunks(values):
        counts += (np.abs(chunk - median) > OUTLIER_DEVIATIONS * deviation).sum(axis=0)
    return counts


def robust_scale(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the median and the robust deviation from it.

    If nearly all values are equal, the deviation is the median distance of the others.
    """
    if not len(values):
        return np.nan, np.nan
    median = float(np.median(values))
    distances = np.abs(values - median)
    others = distances[distances > 0]
    if not len(others):
        return median, np.inf
    return median, float(np.quantile(distances, _QUANTILE) / _NORMAL_QUANTILE or np.median(others))


def build_columns(statistics: ChannelStatistics, names: Sequence[str], roles: Sequence[Role]) -> tuple[Column, ...]:
    """Return the report's column for each channel."""
    return tuple(
        Column(
            name=name,
            role=role,
            kind="empty" if statistics.missing[i] == statistics.num_steps else "numbers",
            missing=float(statistics.missing[i] / max(statistics.num_steps, 1)),
            low=None if np.isnan(statistics.low[i]) else _to_float(statistics.low[i]),
            high=None if np.isnan(statistics.high[i]) else _to_float(statistics.high[i]),
            outliers=int(statistics.outliers[i]),
        )
        for i, (name, role) in enumerate(zip(names, roles, strict=True))
    )


def warn_about_statistics(
    statistics: ChannelStatistics, names: Sequence[str], findings: Findings, *, num_computed: int = 0
) -> None:
    """Warn about missing values, constant channels and outliers.

    Args:
        statistics: Statistics of the channels.
        names: Names of the channels.
        findings: Gets warnings.
        num_computed: Number of channels that were computed, not read, and so have no missing values.
    """
    total = statistics.num_steps * (len(names) - num_computed)
    missing = int(statistics.missing.sum())
    if missing:
        share = f"{missing / total:.1%}" if missing >= total / 1000 else f"{missing / total:.1g}"
        verb = "is" if missing == 1 else "are"
        findings.warn("missing_values", f"{pluralize(missing, 'value')} {verb} missing, of {total} ({share}).")
    limit = _MOSTLY_MISSING * statistics.num_steps
    sparse = [name for name, count in zip(names, statistics.missing, strict=True) if count > limit]
    if sparse:
        findings.warn("mostly_missing", f"More than half of the values are missing in {format_names(sparse)}.")
    constant = [name for name, is_constant in zip(names, statistics.constant, strict=True) if is_constant]
    if constant:
        findings.warn(
            "constant_column",
            f"{format_names(constant)} {'has' if len(constant) == 1 else 'have'} a single value in all of training "
            "(scale 0), from which nothing can be learnt.",
        )
    outliers = {name: int(count) for name, count in zip(names, statistics.outliers, strict=True) if count}
    if outliers:
        counts = format_names([f"{name} ({count})" for name, count in outliers.items()])
        findings.warn(
            "outliers",
            f"{pluralize(sum(outliers.values()), 'value')} further than {OUTLIER_DEVIATIONS} robust deviations from "
            f"the median: {counts}. Look whether they are real; a code such as -999 for a missing value is not.",
        )


def content_hash(values: npt.NDArray[np.generic]) -> bytes:
    """Return a hash of the shape and the content of an array."""
    digest = hashlib.blake2b(repr(values.shape).encode(), digest_size=16)
    # A view of the bytes, not a copy: a series may be larger than the memory.
    digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _chunks(arrays: Iterable[Float32Array]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the rows of all arrays in float64, in chunks of at least ``_CHUNK_ROWS`` rows but for the last."""
    buffer: list[Float32Array] = []
    rows = 0
    for array in arrays:
        for start in range(0, len(array), _CHUNK_ROWS):
            buffer.append(array[start : start + _CHUNK_ROWS])
            rows += len(buffer[-1])
            if rows >= _CHUNK_ROWS:
                yield np.concatenate(buffer).astype(np.float64)
                buffer, rows = [], 0
    if rows:
        yield np.concatenate(buffer).astype(np.float64)


def _to_float(value: np.float64) -> float:
    # The shortest decimal number that rounds to the float32, not the exact value of the float32.
    return float(str(np.float32(value)))


def warn_about_missing_codes(values: Sequence[Float32Array], channels: Sequence[str], findings: Findings) -> None:
    """Warn about usual codes for missing values that come more than once and lie far from all other values.

    Args:
        values: float32 (time, channels), an array for each series.
        channels: Names of the channels.
        findings: Gets a warning for each column.
    """
    # The extremes tell in one pass whether a code comes at all; most columns have none.
    extremes = np.transpose(_range(values))
    for index, name in enumerate(channels):
        codes = [code for code in _USUAL_CODES if np.float32(code) in extremes[index]]
        if not codes:
            continue
        column = np.concatenate([each[:, index] for each in values])
        column = column[~np.isnan(column)]
        for code in codes:
            count = int((column == np.float32(code)).sum())
            median, deviation = robust_scale(column[column != np.float32(code)].astype(np.float64))
            if count >= _MIN_COUNT and abs(code - median) > OUTLIER_DEVIATIONS * deviation:
                findings.warn(
                    "missing_code",
                    f"Column '{name}' has the value {code:g} {pluralize(count, 'time')}, far from all others: if it "
                    f"stands for a missing value, set data.missing=[{code:g}].",
                    {"missing": [int(code) if float(code).is_integer() else code]},
                )


def inspect_series(
    series: Sequence[Series],
    channels: tuple[str, ...],
    targets: tuple[str, ...],
    notes: Notes,
    findings: Findings,
    data: ForecastData | None = None,
) -> tuple[tuple[Column, ...], Notes]:
    """Return the columns and the content of series, and warn about what looks unintended.

    Args:
        series: The series on their time grid, or as in the file if they could not be loaded.
        channels: Names of their columns.
        targets: Names of the columns to forecast.
        notes: Counts of the readers.
        findings: Gets warnings.
        data: The dataset; None if it could not be loaded.
    """
    values = [each.values for each in series]
    training = data.training_values() if data is not None else values
    statistics = compute_statistics(values, training, own_scale=True)
    future = data.future if data is not None else ()
    roles: list[Role] = [
        "target" if name in targets else "future" if name in future else "channel" for name in channels
    ]
    lengths = np.array([len(each.ds) for each in series])
    constant = [
        each.unique_id
        for each, training_values in zip(series, training, strict=True)
        if _is_constant(training_values, channels, targets)
    ]
    content: Notes = {
        "series": len(series),
        "steps": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "first": format_timestamp(min(each.ds[0] for each in series)),
        "last": format_timestamp(max(each.ds[-1] for each in series)),
        "frequency": data.frequency if data is not None else notes.get("frequency"),
        "season": data.season if data is not None else notes.get("season"),
        **({"frequencies": notes["frequencies"]} if "frequencies" in notes else {}),
        "gap_steps_filled": notes.get("gap_steps_filled", 0),
        "irregular_intervals": notes.get("irregular_intervals", 0),
        "missing_values": int(statistics.missing.sum()),
        "constant_series": len(constant),
        "duplicate_series": len(series) - len({content_hash(each.values) for each in series}),
    }
    num_calendar = len(calendar_channels(data.calendar)) if data is not None else 0
    warn_about_statistics(statistics, channels, findings, num_computed=num_calendar)
    warn_about_missing_codes(values, channels, findings)
    _warn_about_content(content, constant, findings)
    if notes.get("time_zone") == "UTC":
        _warn_about_days(max((each.ds for each in series), key=len), findings)
    _warn_about_target_leakage(max(training, key=len), channels, targets, data.horizon if data else 1, findings)
    if data is not None:
        _warn_about_splits(data, findings)
    return build_columns(statistics, channels, roles), content


def _is_constant(values: Float32Array, channels: tuple[str, ...], targets: tuple[str, ...]) -> bool:
    """Return True if no target of a series changes; without targets, if no channel does."""
    columns = [values[:, channels.index(target)] for target in targets or channels]
    return len(values) > 1 and all(np.fmin.reduce(column) == np.fmax.reduce(column) for column in columns)


def _warn_about_content(content: Notes, constant: list[str], findings: Findings) -> None:
    """Warn about constant and duplicate series, gaps and irregular times."""
    if constant and content["series"] > 1:
        findings.warn(
            "constant_series",
            f"{len(constant)} of {content['series']} series never change in training (scale 0): "
            f"{format_names(constant)}.",
        )
    if content["duplicate_series"]:
        findings.warn(
            "duplicate_series",
            f"{content['duplicate_series']} of {content['series']} series have the values of another one. "
            "They weigh double, and teach nothing new.",
        )
    if content["gap_steps_filled"]:
        findings.warn(
            "gaps",
            f"{pluralize(content['gap_steps_filled'], 'row')} missing on the time grid, filled as steps without "
            "values.",
        )
    if content["irregular_intervals"]:
        findings.warn(
            "irregular_time",
            f"Time stamps have no common step: {pluralize(content['irregular_intervals'], 'interval')} differ from the "
            "usual one. Rows are taken as steps; give the frequency if there is one.",
        )


def _warn_about_days(instants: Timestamps, findings: Findings) -> None:
    zone = suggest_day_zone(instants)
    if zone is not None:
        findings.warn(
            "local_days",
            f"The times are days, or longer steps, that begin at one time of the day in {zone} and at several in UTC. "
            "Set data.timezone to that zone, or to another one with the same changes of clocks.",
            {"timezone": zone},
        )


def _warn_about_splits(data: ForecastData, findings: Findings) -> None:
    if short := data.notes.get("series_without_training"):
        findings.warn(
            "series_without_training",
            f"Series too short for a training window beside validation and test: {short['count']}, "
            f"{format_names(short['first'])}. They are forecast by what the others teach. Leave them out by "
            "data.min_length, or set smaller data.validation_steps and data.test_steps.",
        )
    dropped = {split: count["dropped_without_target"] for split, count in data.notes["windows"].items()}
    if any(dropped.values()):
        counts = ", ".join(f"{count} of {split}" for split, count in dropped.items() if count)
        findings.warn(
            "windows_dropped",
            f"{pluralize(sum(dropped.values()), 'window')} without any value to forecast: {counts}. They are dropped.",
        )
    if data.series[0].ds.dtype.kind != "M" or not data.test_steps:
        return
    held_out = data.validation_steps + data.test_steps
    last_training = max(series.ds[len(series.ds) - held_out - 1] for series in data.series if len(series.ds) > held_out)
    first_test = min(series.ds[max(0, len(series.ds) - data.test_steps)] for series in data.series)
    if last_training >= first_test:
        findings.warn(
            "ends_apart",
            f"Series end at different times: one is trained on until {format_timestamp(last_training)}, the test of "
            f"another begins at {format_timestamp(first_test)}. What all of them share, such as a holiday, is then "
            "known from training.",
        )


def _warn_about_target_leakage(
    values: Float32Array, channels: tuple[str, ...], targets: tuple[str, ...], horizon: int, findings: Findings
) -> None:
    """Warn about columns that are a target in another unit, contain its future, or only count the rows."""
    tail = values[-_MAX_COMPARED_STEPS:].astype(np.float64)
    if len(tail) < _MIN_COMPARED_STEPS:
        return
    rows = np.arange(len(tail), dtype=np.float64)
    for index, name in enumerate(channels):
        if name in targets:
            continue
        if _unexplained(tail[:, index], rows) < _MAX_UNEXPLAINED:
            findings.warn(
                "counts_rows",
                f"Column '{name}' rises by the same amount in every row, as time does: in the test it has values that "
                "training never saw. Leave it out.",
            )
            continue
        for target in targets:
            target_values = tail[:, channels.index(target)]
            ahead = _steps_ahead(tail[:, index], target_values, min(horizon, _MAX_STEPS_AHEAD))
            if ahead == 0:
                findings.warn(
                    "column_equals_target",
                    f"Column '{name}' is the target '{target}' in another unit (correlation 1). Leave it out.",
                )
            elif ahead is not None:
                findings.warn(
                    "column_tells_future",
                    f"Column '{name}' is the target '{target}' of {pluralize(ahead, 'step')} later (correlation 1), "
                    "which nobody knows when the forecast is made. Leave it out.",
                )


def _steps_ahead(column: npt.NDArray[np.float64], target: npt.NDArray[np.float64], max_steps: int) -> int | None:
    """Return how many steps, 0 to ``max_steps``, the column is ahead of the target; None if they do not match."""
    for ahead in range(min(max_steps, len(target) - _MIN_COMPARED_STEPS) + 1):
        if _unexplained(column[: len(column) - ahead], target[ahead:]) < _MAX_UNEXPLAINED and (
            # A target that is a straight line or periodic agrees with its own future as well.
            ahead == 0 or _unexplained(target[: len(target) - ahead], target[ahead:]) >= _MAX_UNEXPLAINED
        ):
            return ahead
    return None


def _unexplained(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Return 1 - r² over the steps at which both have a value; 1 if there are too few, or if one is constant."""
    is_valid = np.isfinite(first) & np.isfinite(second)
    if is_valid.sum() < _MIN_COMPARED_STEPS:
        return 1.0
    a, b = first[is_valid] - first[is_valid].mean(), second[is_valid] - second[is_valid].mean()
    norms = float((a @ a) * (b @ b))
    return 1.0 if norms == 0 else 1 - float(a @ b) ** 2 / norms


class SplitSequences(NamedTuple):
    """Sequences of one split: arrays (length, features), and a label for each; None if the file has no labels."""

    values: Sequence[Float32Array]
    labels: list[str] | None


def labeled_splits(data: ClassificationData) -> dict[str, SplitSequences]:
    """Return the splits of a dataset."""
    return {
        name: SplitSequences(split.sequences(), [data.labels[index] for index in split.y])
        for name in SPLITS
        if (split := getattr(data, name)) is not None
    }


def inspect_sequences(
    splits: Mapping[str, SplitSequences], features: tuple[str, ...], findings: Findings
) -> tuple[tuple[Column, ...], Notes]:
    """Return the columns and the content of labeled sequences, and warn about what looks unintended.

    Args:
        splits: The sequences of each split; ``train`` is required.
        features: Names of the channels.
        findings: Gets warnings.
    """
    sequences = [sequence for split in splits.values() for sequence in split.values]
    statistics = compute_statistics(sequences, splits["train"].values)
    roles: list[Role] = ["channel" for _ in features]
    columns = build_columns(statistics, features, roles)
    if any(split.labels is not None for split in splits.values()):
        columns = (*columns, Column("label", "label", "words", missing=_unlabeled_share(splits)))
    lengths = np.array([len(sequence) for sequence in sequences])
    content: Notes = {
        "sequences": {name: len(split.values) for name, split in splits.items()},
        "lengths": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "classes": _count_classes(splits),
        "unlabelled": {name: sum(label in NO_LABEL for label in split.labels or ()) for name, split in splits.items()},
        "missing_values": int(statistics.missing.sum()),
        "constant_sequences": sum(
            len(sequence) > 1 and bool((sequence == sequence[0]).all()) for sequence in sequences
        ),
        "empty_sequences": sum(bool(np.isnan(sequence).all()) for sequence in sequences),
        "duplicates": _find_duplicates(splits, findings),
    }
    warn_about_statistics(statistics, features, findings)
    for what, code, text in (
        ("constant_sequences", "constant_sequence", "never change (scale 0 on their own)"),
        ("empty_sequences", "empty_sequence", "have no value at all"),
    ):
        if content[what]:
            findings.warn(code, f"{content[what]} of {len(sequences)} sequences {text}.")
    _warn_about_classes(content["classes"], splits, findings)
    _warn_about_label_leakage(splits["train"], features, findings)
    return columns, content


def check_test_labels(train: Sequences, test: Sequences, findings: Findings) -> None:
    """Report all labels of the test file that training lacks, and all sequences without a label."""
    for sequences in (train, test):
        num_unlabeled = sum(label in NO_LABEL for label in sequences.labels or ())
        if num_unlabeled > 1:
            findings.problem("no_label", f"'{sequences.name}': {num_unlabeled} sequences have no label.")
    train_labels = set(train.labels or ())
    unseen = Counter(label for label in test.labels or () if label not in train_labels)
    if len(unseen) > 1 or sum(unseen.values()) > 1:
        labels = format_names([f"{quote(label)} ({count})" for label, count in sorted(unseen.items())])
        findings.problem(
            "unseen_label",
            f"'{test.name}' has {pluralize(sum(unseen.values()), 'sequence')} with labels that '{train.name}' does "
            f"not have: {labels}.",
        )


def _unlabeled_share(splits: Mapping[str, SplitSequences]) -> float:
    labels = [label for split in splits.values() for label in split.labels or [""] * len(split.values)]
    return sum(label in NO_LABEL for label in labels) / len(labels)


def _count_classes(splits: Mapping[str, SplitSequences]) -> dict[str, dict[str, int]]:
    """Return the number of sequences of each class in each split."""
    counts = {
        name: Counter(label for label in split.labels or () if label not in NO_LABEL) for name, split in splits.items()
    }
    labels = sort_labels([label for count in counts.values() for label in count])
    return {label: {name: count[label] for name, count in counts.items()} for label in labels}


def _find_duplicates(splits: Mapping[str, SplitSequences], findings: Findings) -> Notes:
    """Count sequences that occur twice: within a split, in two splits, and with different labels."""
    hashes = {name: [content_hash(sequence) for sequence in split.values] for name, split in splits.items()}
    within = {name: len(digests) - len(set(digests)) for name, digests in hashes.items()}
    across = {}
    for first, second in combinations(hashes, 2):
        first_digests = set(hashes[first])
        across[f"{first}, {second}"] = sum(digest in first_digests for digest in hashes[second])
    labels_by_digest: dict[bytes, set[str]] = {}
    for name, split in splits.items():
        for digest, label in zip(hashes[name], split.labels or (), strict=bool(split.labels)):
            labels_by_digest.setdefault(digest, set()).add(label)
    contradictions = sum(len(labels) > 1 for labels in labels_by_digest.values())
    if any(within.values()):
        counts = format_names([f"{count} in {name}" for name, count in within.items() if count])
        findings.warn("duplicates", f"Sequences that repeat another one of their split: {counts}.")
    for pair, count in across.items():
        first, second = pair.split(", ")
        if count:
            verb = "is" if count == 1 else "are"
            findings.warn(
                "leakage",
                f"{pluralize(count, 'sequence')} of {second} {verb} in {first} as well, to the last digit; "
                f"the score on {second} will be too good. Take them out of one of the two.",
            )
    if contradictions:
        findings.warn(
            "contradiction",
            f"{pluralize(contradictions, 'sequence')} {'comes' if contradictions == 1 else 'come'} with more than one "
            "label, which no model can get right.",
        )
    return {"within": within, "across": across, "with_other_labels": contradictions}


def _warn_about_classes(
    classes: dict[str, dict[str, int]], splits: Mapping[str, SplitSequences], findings: Findings
) -> None:
    train_counts = {label: counts["train"] for label, counts in classes.items()}
    counts_above_zero = [count for count in train_counts.values() if count]
    if len(counts_above_zero) > 1 and max(counts_above_zero) >= _IMBALANCE_RATIO * min(counts_above_zero):
        largest = max(train_counts, key=lambda label: train_counts[label])
        smallest = min(train_counts, key=lambda label: train_counts[label])
        findings.warn(
            "unbalanced",
            f"Class {quote(largest)} has {train_counts[largest]} training sequences, {quote(smallest)} has "
            f"{train_counts[smallest]}: saying {quote(largest)} every time is right in "
            f"{max(counts_above_zero) / sum(counts_above_zero):.1%}. Look at the macro-F1 beside the accuracy.",
        )
    few = [f"{quote(label)} ({count})" for label, count in train_counts.items() if 0 < count < _MIN_EXAMPLES]
    if few:
        findings.warn("few_examples", f"Fewer than {_MIN_EXAMPLES} training sequences of {format_names(few)}.")
    for name in ("validation", "test"):
        absent = [quote(label) for label, counts in classes.items() if name in splits and not counts[name]]
        if absent and splits[name].labels is not None:
            findings.warn("class_not_scored", f"The {name} split has no sequence of {format_names(absent)}.")


def _warn_about_label_leakage(train: SplitSequences, features: tuple[str, ...], findings: Findings) -> None:
    """Warn about features whose first or last value encodes the label: exactly one distinct value for each class."""
    if train.labels is None or len(train.values) < _MIN_SEQUENCES_FOR_LEAKAGE:
        return
    num_classes = len(set(train.labels) - set(NO_LABEL))
    for index, feature in enumerate(features):
        for step in (0, -1):
            pairs = {(float(x[step, index]), label) for x, label in zip(train.values, train.labels, strict=True)}
            if 1 < num_classes == len(pairs) == len({value for value, _ in pairs}):
                findings.warn(
                    "feature_tells_label",
                    f"The {'last' if step else 'first'} value of '{feature}' is a number of its own for each class: it "
                    "seems to be the label. Leave the feature out if it is not known when the model is asked.",
                )
                break


def inspect_steps(data: StepData, findings: Findings) -> tuple[tuple[Column, ...], Notes]:
    """Return the columns and the content; only the first two hundred sequences of each split are inspected."""
    inspected: dict[str, list[Samples]] = {
        name: [split.gather([index]) for index in range(min(len(split), _MAX_SEQUENCES))]
        for name in SPLITS
        for split in [data.split(name)]
    }
    columns: tuple[Column, ...] = (Column("input", "channel", "words"),)
    if not data.tokens:
        values = {
            name: [sample.x[0, : int(sample.lengths[0])].astype(np.float32) for sample in samples]
            for name, samples in inspected.items()
        }
        statistics = compute_statistics([x for sequences in values.values() for x in sequences], values["train"])
        if data.output == "bernoulli":
            # A binary input that is rarely 1, such as a key of a piano, is no outlier.
            statistics = replace(statistics, outliers=np.zeros_like(statistics.outliers))
        roles: list[Role] = ["channel" for _ in data.features]
        columns = build_columns(statistics, data.features, roles)
        if data.output != "bernoulli":
            warn_about_statistics(statistics, data.features, findings)
    lengths = {name: np.asarray(data.split(name).lengths) for name in SPLITS}
    content: Notes = {
        "sequences": {name: len(data.split(name)) for name in SPLITS},
        "looked_at": {name: len(samples) for name, samples in inspected.items()},
        "steps": {name: int(counts.sum()) for name, counts in lengths.items()},
        "lengths": {
            "min": min(int(counts.min()) for counts in lengths.values()),
            "median": float(np.median(np.concatenate(list(lengths.values())))),
            "max": max(int(counts.max()) for counts in lengths.values()),
        },
        "inputs": {"tokens": data.tokens, "size": len(data.features)},
        "outputs": {"kind": data.output, "size": len(data.outputs), "scored_by": data.headline},
        "continuous": data.continuous,
        "answer_steps": data.answer_steps,
    }
    if data.output == "categorical":
        content["commonest_target"] = _most_frequent_target(data, inspected["test"])
    if not data.continuous:
        content["duplicates"] = _find_duplicate_steps(inspected, findings)
    return (*columns, Column("target", "label", "numbers" if data.output == "real" else "words")), content


def _most_frequent_target(data: StepData, samples: list[Samples]) -> Notes | None:
    """Return the most frequent class of the test steps and its share."""
    targets = np.concatenate([sample.y[0].ravel() for sample in samples])
    targets = targets[targets != NO_TARGET].astype(np.int64)
    if not len(targets):
        return None
    counts = np.bincount(targets, minlength=len(data.outputs))
    return {"name": data.outputs[int(counts.argmax())], "share": float(counts.max() / counts.sum())}


def _find_duplicate_steps(inspected: Mapping[str, list[Samples]], findings: Findings) -> Notes:
    """Count the sequences that two splits share."""
    hashes = {name: {content_hash(sample.x[0]) for sample in samples} for name, samples in inspected.items()}
    across = {}
    for first, second in combinations(hashes, 2):
        shared = len(hashes[first] & hashes[second])
        across[f"{first}, {second}"] = shared
        if shared:
            findings.warn(
                "leakage",
                f"{pluralize(shared, 'sequence')} of {second} {'is' if shared == 1 else 'are'} in {first} as well, to "
                "the last digit.",
            )
    return {"across": across}
