"""Statements of papers, the figures that judge them, and the rules: means against the spread of the seeds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stablernn_papers.results import RunDocument, current_runs
from stablernn_papers.table import FULL
from stablernn_papers.tables import published_table

State = Literal["held", "not held", "not tested"]
VERDICTS: tuple[State, ...] = get_args(State)

_NOISE = "noise."
"""Prefix of figures that are the mean accuracy over all levels of one kind of noise, such as ``noise.white``."""

_ROUNDS = "step_seconds"
"""Figure of a table of speed: the seconds of a step in each round."""

_RANGE_OF_TEN = 3.08
"""Expected range of ten draws of a normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Figure:
    """A figure of the rows of a table on one data set.

    Attributes:
        table: Key of the table.
        data: Key of the data set.
        name: Name of the figure, as the kind of the table measures it; ``noise.white`` and ``noise.salt_and_pepper``:
            the mean accuracy over the levels of a noise; ``step_seconds``: the seconds of each round.
        view: View of the results.
        is_lower_better: Whether a lower figure is the better one.
        percent: Whether the figure is a share that is shown in percent.
        distance_from: Value from which the distance is taken instead of the figure; None: the figure itself.
        minus: Name of another figure, whose distance from this one is taken; empty: the figure itself.
        label: What the figure is, in the text of a verdict; empty: its data set.
    """

    table: str
    data: str
    name: str
    view: str = "best"
    is_lower_better: bool = False
    percent: bool = False
    distance_from: float | None = None
    minus: str = ""
    label: str = ""

    @property
    def title(self) -> str:
        return self.label or self.data

    def format(self, value: float) -> str:
        """Return a value of the figure as text."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.4g}"

    def format_difference(self, value: float) -> str:
        """Return a difference of two values as text."""
        return f"{100 * value:.1f} points" if self.percent else f"{value:.3g}"


def accuracy(table: str, data: str) -> tuple[Figure]:
    """Return the accuracy on the test split."""
    return (Figure(table, data, "test.accuracy", percent=True),)


def loss(table: str, data: str, name: str) -> tuple[Figure]:
    """Return a score on the test split of which lower values are better."""
    return (Figure(table, data, f"test.{name}", is_lower_better=True),)


@dataclass(frozen=True)
class Sample:
    """Values of a figure for one row, one a seed; of measured seconds, one a round.

    Attributes:
        row: Key of the row.
        values: The values.
        is_trained: Whether they are of trained models.
    """

    row: str
    values: tuple[float, ...]
    is_trained: bool

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def spread(self) -> float:
        """Largest minus smallest value over the seeds; 0 for a single one."""
        return max(self.values) - min(self.values)


class Evidence:
    """The measured figures.

    Args:
        results: Results of the full protocol by the key of their table. Runs with settings that the table no longer has
            do not count.
    """

    def __init__(self, results: Mapping[str, Mapping[str, Any]]) -> None:
        self._runs = {
            key: current_runs(published_table(key), FULL, entry["runs"])
            for key, entry in results.items()
            if entry["protocol"]["name"] == FULL
        }

    def samples(self, figure: Figure, rows: Sequence[str]) -> tuple[list[Sample], list[str]]:
        """Return the samples of rows, and what is missing of the others.

        A row has none while one of its runs lacks the figure, a part of the published training, or of its data.
        """
        samples = []
        # Rows by what is missing of them.
        missing: dict[str, list[str]] = {}
        for row in rows:
            runs = [run for run in self._runs.get(figure.table, ()) if (run["row"], run["data"]) == (row, figure.data)]
            values = [value for run in runs for value in _values(figure, run)]
            present = tuple(value for value in values if value is not None)
            share = min((run["length"]["share"] for run in runs if run.get("length")), default=1.0)
            if not runs or len(present) < len(values):
                missing.setdefault("{} on {}", []).append(row)
            elif share < 1:
                missing.setdefault(f"the training of {{}} on {{}} beyond {100 * share:.3g} %", []).append(row)
            elif any(run.get("partial_data") for run in runs):
                missing.setdefault("{} on the whole of {}", []).append(row)
            else:
                samples.append(Sample(row, present, any(run.get("length") for run in runs)))
        return samples, [words.format(", ".join(keys), figure.data) for words, keys in missing.items()]


def _values(figure: Figure, run: RunDocument) -> list[float | None]:
    if figure.name == _ROUNDS:
        return list(run[_ROUNDS])
    epoch = run["views"].get(figure.view)
    measured = next((entry for entry in run["measured"] if entry["epoch"] == epoch), None)
    if measured is None:
        return [None]
    value = _read(measured, figure.name)
    other = _read(measured, figure.minus) if figure.minus else figure.distance_from
    if not figure.minus and figure.distance_from is None:
        return [value]
    return [None if value is None or other is None else abs(value - other)]


def _read(measured: Mapping[str, Any], name: str) -> float | None:
    if not name.startswith(_NOISE):
        value: float | None = measured["figures"].get(name)
        return value
    curve = measured["robustness"]["noise"].get(name.removeprefix(_NOISE))
    if curve is None:
        return None
    # The first level is none at all.
    accuracies: list[float] = [
        accuracy for level, accuracy in zip(curve["levels"], curve["accuracy"], strict=True) if level > 0
    ]
    return sum(accuracies) / len(accuracies)


@dataclass(frozen=True)
class Verdict:
    """The judgment of a statement.

    Attributes:
        state: ``not tested`` where a figure that the statement needs is missing and no measured one contradicts it.
        figures: The figures as text, and what is missing.
    """

    state: State
    figures: str


@dataclass
class _Findings:
    """Findings on a statement, from which its verdict is drawn."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    has_single_runs: bool = False

    def add(self, holds: bool, text: str, samples: Sequence[Sample]) -> None:
        (self.passed if holds else self.failed).append(text)
        self.has_single_runs |= any(sample.is_trained and len(sample.values) == 1 for sample in samples)

    def verdict(self) -> Verdict:
        # One counterexample refutes a statement on all rows; only all of them confirm it.
        state: State = "not held" if self.failed else "held" if self.passed and not self.missing else "not tested"
        parts = [*self.failed, *self.passed]
        if self.missing:
            parts.append(f"not run: {'; '.join(dict.fromkeys(self.missing))}")
        if self.has_single_runs:
            parts.append("single runs, so that their spread is unknown")
        return Verdict(state, "; ".join(parts))


@dataclass(frozen=True)
class Rule(ABC):
    """A rule that judges a statement by measured figures.

    Attributes:
        figures: The figures, each of which must hold.
        rows: The rows that the statement is about.
    """

    figures: tuple[Figure, ...]
    rows: tuple[str, ...]

    def judge(self, evidence: Evidence) -> Verdict:
        """Return the verdict on the statement."""
        findings = _Findings()
        for figure in self.figures:
            samples, missing = evidence.samples(figure, self._needed)
            findings.missing += missing
            self._examine(figure, samples, findings)
        return findings.verdict()

    @property
    def _needed(self) -> Sequence[str]:
        """All rows whose figures are read."""
        return self.rows

    @abstractmethod
    def _examine(self, figure: Figure, samples: list[Sample], findings: _Findings) -> None:
        """Add what one figure says; rows that are missing are in the findings already."""


@dataclass(frozen=True)
class Better(Rule):
    """Rows are better than others: the means differ by more than the larger of both spreads.

    Attributes:
        others: The rows that they are compared with; a row is not compared with itself.
    """

    others: tuple[str, ...]

    @property
    def _needed(self) -> Sequence[str]:
        return list(dict.fromkeys([*self.rows, *self.others]))

    def _compare(self, figure: Figure, sample: Sample, other: Sample) -> tuple[bool, str]:
        """Return whether a row stands up to another one, and a note on it."""
        lead, spread = _lead(figure, sample, other), max(sample.spread, other.spread)
        note = f" (within the spread of {figure.format_difference(spread)})" if 0 < lead <= spread else ""
        return lead > spread, note

    def _examine(self, figure: Figure, samples: list[Sample], findings: _Findings) -> None:
        for sample in samples:
            compared = [other for other in samples if other.row in self.others and other.row != sample.row]
            if sample.row not in self.rows or not compared:
                continue
            results = [self._compare(figure, sample, other) for other in compared]
            against = ", ".join(
                f"{other.row} {figure.format(other.mean)}{note}"
                for other, (_, note) in zip(compared, results, strict=True)
            )
            text = f"{figure.title}: {sample.row} {figure.format(sample.mean)} against {against}"
            findings.add(all(holds for holds, _ in results), text, [sample, *compared])


@dataclass(frozen=True)
class Comparable(Better):
    """Rows are as good as others: no mean is worse by more than the larger of both spreads or a tolerance.

    Attributes:
        tolerance: Difference that counts as none, in the unit of the figures.
    """

    tolerance: float

    def _compare(self, figure: Figure, sample: Sample, other: Sample) -> tuple[bool, str]:
        return _lead(figure, sample, other) >= -max(sample.spread, other.spread, self.tolerance), ""


@dataclass(frozen=True)
class _Series(Rule):
    """A rule on rows in order, which are judged together: without one of them nothing is."""

    @abstractmethod
    def _holds(self, figure: Figure, samples: Sequence[Sample]) -> bool: ...

    def _examine(self, figure: Figure, samples: list[Sample], findings: _Findings) -> None:
        if len(samples) == len(self.rows):
            series = ", ".join(f"{sample.row} {figure.format(sample.mean)}" for sample in samples)
            findings.add(self._holds(figure, samples), f"{figure.title}: {series}", samples)


@dataclass(frozen=True)
class Ordered(_Series):
    """A figure improves from row to row: no step is worse by more than the spread, and the whole is better by more."""

    def _holds(self, figure: Figure, samples: Sequence[Sample]) -> bool:
        spread = max(sample.spread for sample in samples)
        steps = [_lead(figure, after, before) for before, after in zip(samples, samples[1:], strict=False)]
        return min(steps) >= -spread and _lead(figure, samples[-1], samples[0]) > spread


@dataclass(frozen=True)
class PeakInside(_Series):
    """A figure is best at one of the inner rows, and better there than at both ends by more than the spread."""

    def _holds(self, figure: Figure, samples: Sequence[Sample]) -> bool:
        best = max(samples[1:-1], key=lambda sample: _lead(figure, sample, samples[0]))
        return all(_lead(figure, best, end) > max(best.spread, end.spread) for end in (samples[0], samples[-1]))


@dataclass(frozen=True)
class Limit(Rule):
    """The means of rows are at most a value.

    Attributes:
        at_most: The value, in the unit of the figures.
    """

    at_most: float

    def _examine(self, figure: Figure, samples: list[Sample], findings: _Findings) -> None:
        for sample in samples:
            text = f"{figure.title}: {sample.row} {figure.format(sample.mean)}, limit {figure.format(self.at_most)}"
            findings.add(sample.mean <= self.at_most, text, [sample])


@dataclass(frozen=True)
class SmallSpread(Rule):
    """The spread of rows over their seeds is small; the figures are shares of test sequences.

    Attributes:
        seeds: Number of seeds that it takes.
        limits: The largest spread of each row; empty: the one that as many draws of the test sequences have on average.
        test_sequences: Number of test sequences, for the latter.
    """

    seeds: int
    limits: Mapping[str, float] = field(default_factory=dict)
    test_sequences: int = 0

    def _examine(self, figure: Figure, samples: list[Sample], findings: _Findings) -> None:
        for sample in samples:
            mean = sample.mean
            limit = self.limits.get(sample.row) or _RANGE_OF_TEN * math.sqrt(mean * (1 - mean) / self.test_sequences)
            text = (
                f"{figure.title}: {sample.row} {figure.format(min(sample.values))} to "
                f"{figure.format(max(sample.values))} over {len(sample.values)} seeds, limit "
                f"{figure.format_difference(limit)}"
            )
            # Decimal fractions of the limit are not exact in binary.
            is_small = sample.spread <= limit + 1e-9
            if is_small and len(sample.values) < self.seeds:
                # A wide range of few seeds only grows with more; a narrow one shows nothing yet.
                findings.missing.append(f"{self.seeds - len(sample.values)} more seeds of {sample.row}")
            findings.add(is_small, text, [sample])


def _lead(figure: Figure, sample: Sample, other: Sample) -> float:
    """Return by how much the mean of a sample is better than that of another."""
    difference = sample.mean - other.mean
    return -difference if figure.is_lower_better else difference


@dataclass(frozen=True)
class Statement:
    """A statement of a paper in our own words.

    Attributes:
        key: Unique name.
        sentence: The statement.
        source: Paper and place in it.
        rule: The rule that judges it.
    """

    key: str
    sentence: str
    source: str
    rule: Rule

    @property
    def table(self) -> str:
        """Key of the table whose figures the rule reads."""
        return self.rule.figures[0].table
