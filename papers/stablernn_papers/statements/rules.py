"""Rules by which statements are judged: means against the spread of the seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stablernn_papers.statements.evidence import Evidence, Figure, Sample
from stablernn_papers.statements.statement import State, Verdict

Comparison = Callable[[Figure, Sample, Sample], tuple[bool, str]]
"""Returns whether a row stands up to another one, and a note on it."""

_RANGE_OF_TEN = 3.08
"""Expected range of ten draws of a normal distribution, in standard deviations."""


@dataclass
class _Findings:
    """Findings on a statement, from which its verdict is drawn."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def add(self, holds: bool, text: str, samples: Sequence[Sample]) -> None:
        (self.passed if holds else self.failed).append(text)
        self.samples += samples

    def miss(self, figure: Figure, rows: Sequence[str]) -> None:
        if rows:
            self.missing.append(f"{', '.join(rows)} on {figure.data}")

    def miss_training(self, figure: Figure, sample: Sample) -> bool:
        """Note what a sample lacks of the published training, and return whether it lacks any."""
        is_short = sample.share is not None and sample.share < 1
        if is_short:
            done = f"{100 * (sample.share or 0):.3g} %"
            self.missing.append(f"the training of {sample.row} on {figure.data} beyond {done}")
        return is_short

    def fairly_trained(
        self, figure: Figure, sample: Sample, others: Sequence[Sample], compare: Comparison
    ) -> list[Sample]:
        """Return the others without those of which a shorter training may be the reason of the result, and note it."""
        fair = []
        for other in others:
            holds, _ = compare(figure, sample, other)
            loser, winner = (other, sample) if holds else (sample, other)
            if loser.share is not None and winner.share is not None and loser.share < winner.share:
                self.miss_training(figure, loser)
            else:
                fair.append(other)
        return fair

    def verdict(self) -> Verdict:
        # One counterexample refutes a statement on all rows; only all of them confirm it.
        state: State = "not held" if self.failed else "held" if self.passed and not self.missing else "not tested"
        parts = [*self.failed, *self.passed]
        if self.missing:
            parts.append(f"not run: {'; '.join(dict.fromkeys(self.missing))}")
        return Verdict(state, "; ".join([*parts, *self._limits()]))

    def _limits(self) -> list[str]:
        limits = []
        share = min((sample.share for sample in self.samples if sample.share is not None), default=1.0)
        if share < 1:
            limits.append(f"after {100 * share:.3g} % of the published training or more")
        if any(sample.has_partial_data for sample in self.samples):
            limits.append("with a part of the data set")
        if any(sample.is_trained and len(sample.values) == 1 for sample in self.samples):
            limits.append("single runs, so that their spread is unknown")
        return limits


@dataclass(frozen=True)
class Better:
    """Rows are better than others: the means differ by more than the larger of both spreads.

    Attributes:
        figures: The figures, each of which must hold.
        rows: The rows that are better.
        others: The rows that they are compared with.
    """

    figures: tuple[Figure, ...]
    rows: tuple[str, ...]
    others: tuple[str, ...]

    def judge(self, evidence: Evidence) -> Verdict:
        def compare(figure: Figure, sample: Sample, other: Sample) -> tuple[bool, str]:
            lead, spread = _lead(figure, sample, other), max(sample.spread, other.spread)
            note = f" (within the spread of {figure.format_difference(spread)})" if 0 < lead <= spread else ""
            return lead > spread, note

        return _compare_rows(evidence, self.figures, self.rows, self.others, compare)


@dataclass(frozen=True)
class Comparable:
    """Rows are as good as others: no mean is worse by more than the larger of both spreads or a tolerance.

    Attributes:
        figures: The figures, each of which must hold.
        rows: The rows.
        others: The rows that they are compared with.
        tolerance: Difference that counts as none, in the unit of the figures.
    """

    figures: tuple[Figure, ...]
    rows: tuple[str, ...]
    others: tuple[str, ...]
    tolerance: float

    def judge(self, evidence: Evidence) -> Verdict:
        def compare(figure: Figure, sample: Sample, other: Sample) -> tuple[bool, str]:
            return _lead(figure, sample, other) >= -max(sample.spread, other.spread, self.tolerance), ""

        return _compare_rows(evidence, self.figures, self.rows, self.others, compare)


def _compare_rows(
    evidence: Evidence, figures: Sequence[Figure], rows: Sequence[str], others: Sequence[str], compare: Comparison
) -> Verdict:
    """Compare each row with each other row, and a row with itself not."""
    findings = _Findings()
    for figure in figures:
        samples, missing = evidence.samples(figure, rows)
        rivals, missing_rivals = evidence.samples(figure, others)
        findings.miss(figure, [*missing, *missing_rivals])
        for sample in samples:
            compared = [other for other in rivals if other.row != sample.row]
            if not compared:
                continue
            compared = findings.fairly_trained(figure, sample, compared, compare)
            if not compared:
                continue
            results = [compare(figure, sample, other) for other in compared]
            against = ", ".join(
                f"{other.row} {figure.format(other.mean)}{note}"
                for other, (_, note) in zip(compared, results, strict=True)
            )
            text = f"{figure.title}: {sample.row} {figure.format(sample.mean)} against {against}"
            findings.add(all(holds for holds, _ in results), text, [sample, *compared])
    return findings.verdict()


@dataclass(frozen=True)
class Ordered:
    """A figure improves from row to row: no step is worse by more than the spread, and the whole is better by more.

    Attributes:
        figures: The figures, each of which must hold.
        rows: The rows in order.
    """

    figures: tuple[Figure, ...]
    rows: tuple[str, ...]

    def judge(self, evidence: Evidence) -> Verdict:
        def is_ordered(figure: Figure, samples: Sequence[Sample]) -> bool:
            spread = max(sample.spread for sample in samples)
            steps = [_lead(figure, after, before) for before, after in zip(samples, samples[1:], strict=False)]
            return min(steps) >= -spread and _lead(figure, samples[-1], samples[0]) > spread

        return _judge_series(evidence, self.figures, self.rows, is_ordered)


@dataclass(frozen=True)
class PeakInside:
    """A figure is best at one of the inner rows, and better there than at both ends by more than the spread.

    Attributes:
        figures: The figures, each of which must hold.
        rows: The rows in order.
    """

    figures: tuple[Figure, ...]
    rows: tuple[str, ...]

    def judge(self, evidence: Evidence) -> Verdict:
        def has_peak(figure: Figure, samples: Sequence[Sample]) -> bool:
            best = max(samples[1:-1], key=lambda sample: _lead(figure, sample, samples[0]))
            return all(_lead(figure, best, end) > max(best.spread, end.spread) for end in (samples[0], samples[-1]))

        return _judge_series(evidence, self.figures, self.rows, has_peak)


def _judge_series(
    evidence: Evidence,
    figures: Sequence[Figure],
    rows: Sequence[str],
    holds: Callable[[Figure, Sequence[Sample]], bool],
) -> Verdict:
    """Judge all rows together; without one of them nothing is judged."""
    findings = _Findings()
    for figure in figures:
        samples, missing = evidence.samples(figure, rows)
        findings.miss(figure, missing)
        # Rows that were trained for different shares cannot be put in an order.
        shares = {sample.share for sample in samples}
        if len(shares) > 1:
            for sample in samples:
                findings.miss_training(figure, sample)
        elif not missing:
            series = ", ".join(f"{sample.row} {figure.format(sample.mean)}" for sample in samples)
            findings.add(holds(figure, samples), f"{figure.title}: {series}", samples)
    return findings.verdict()


@dataclass(frozen=True)
class Limit:
    """The means of rows are at most a value.

    Attributes:
        figures: The figures, each of which must hold.
        rows: The rows.
        at_most: The value, in the unit of the figures.
    """

    figures: tuple[Figure, ...]
    rows: tuple[str, ...]
    at_most: float

    def judge(self, evidence: Evidence) -> Verdict:
        findings = _Findings()
        for figure in self.figures:
            samples, missing = evidence.samples(figure, self.rows)
            findings.miss(figure, missing)
            for sample in samples:
                # A limit is one after the whole training.
                if findings.miss_training(figure, sample):
                    continue
                text = f"{figure.title}: {sample.row} {figure.format(sample.mean)}, limit {figure.format(self.at_most)}"
                findings.add(sample.mean <= self.at_most, text, [sample])
        return findings.verdict()


@dataclass(frozen=True)
class SmallSpread:
    """The spread of rows over their seeds is small.

    Attributes:
        figures: The figures, which are shares of test sequences, each of which must hold.
        rows: The rows.
        seeds: Number of seeds that it takes.
        limits: The largest spread of each row; empty: the one that as many draws of the test sequences have on average.
        test_sequences: Number of test sequences, for the latter.
    """

    figures: tuple[Figure, ...]
    rows: tuple[str, ...]
    seeds: int
    limits: Mapping[str, float] = field(default_factory=dict)
    test_sequences: int = 0

    def judge(self, evidence: Evidence) -> Verdict:
        findings = _Findings()
        for figure in self.figures:
            samples, missing = evidence.samples(figure, self.rows)
            findings.miss(figure, missing)
            for sample in samples:
                # Seeds lie further apart in the middle of a training than at its end.
                if findings.miss_training(figure, sample):
                    continue
                limit = self.limits.get(sample.row) or self._drawn_spread(sample.mean)
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
        return findings.verdict()

    def _drawn_spread(self, accuracy: float) -> float:
        return _RANGE_OF_TEN * math.sqrt(accuracy * (1 - accuracy) / self.test_sequences)


def _lead(figure: Figure, sample: Sample, other: Sample) -> float:
    """Return by how much the mean of a sample is better than that of another."""
    difference = sample.mean - other.mean
    return -difference if figure.is_lower_better else difference
