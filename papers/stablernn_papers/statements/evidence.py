"""Measured figures that statements of the papers are judged by, from the results of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stablernn_papers.progress import RunDocument, current_runs
from stablernn_papers.table import FULL
from stablernn_papers.tables import published_table

_NOISE = "noise."
"""Prefix of figures that are the mean accuracy over all levels of one kind of noise, such as ``noise.white``."""

_ROUNDS = "step_seconds"
"""Figure of a table of speed: the seconds of a step in each round."""


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


@dataclass(frozen=True)
class Sample:
    """Values of a figure for one row, one a seed; of measured seconds, one a round.

    Attributes:
        row: Key of the row.
        values: The values.
        share: Smallest share of the published training that its runs did; None without training.
        has_partial_data: Whether a run had a part of its data set.
    """

    row: str
    values: tuple[float, ...]
    share: float | None
    has_partial_data: bool

    @property
    def is_trained(self) -> bool:
        return self.share is not None

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

    def sample(self, figure: Figure, row: str) -> Sample | None:
        """Return the values of a row; None if it was not run or a run lacks the figure."""
        runs = [run for run in self._runs.get(figure.table, ()) if (run["row"], run["data"]) == (row, figure.data)]
        values = [value for run in runs for value in _values(figure, run)]
        present = tuple(value for value in values if value is not None)
        if not runs or len(present) < len(values):
            return None
        shares = [run["length"]["share"] for run in runs if run.get("length")]
        return Sample(row, present, min(shares, default=None), any(run.get("partial_data") for run in runs))

    def samples(self, figure: Figure, rows: Sequence[str]) -> tuple[list[Sample], list[str]]:
        """Return the samples of rows, and the keys of those that have none."""
        samples = {row: self.sample(figure, row) for row in rows}
        missing = [row for row, sample in samples.items() if sample is None]
        return [sample for sample in samples.values() if sample is not None], missing


def _values(figure: Figure, run: RunDocument) -> list[float | None]:
    if figure.name == _ROUNDS:
        return list(run[_ROUNDS])
    return [_value(figure, run)]


def _value(figure: Figure, run: RunDocument) -> float | None:
    epoch = run["views"].get(figure.view)
    measured = next((entry for entry in run["measured"] if entry["epoch"] == epoch), None)
    if measured is None:
        return None
    value = _read(measured, figure.name)
    if figure.minus:
        other = _read(measured, figure.minus)
        return None if value is None or other is None else abs(value - other)
    if figure.distance_from is not None:
        return None if value is None else abs(value - figure.distance_from)
    return value


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
