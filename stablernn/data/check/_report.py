"""What a check finds, in the order in which people want to know it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from stablernn.data.step_data import Data
from stablernn.data.types import Notes
from stablernn.errors import StableRNNError

Role = Literal["id", "time", "target", "channel", "future", "static", "label", "ignored"]
Kind = Literal["numbers", "dates", "words", "mixed", "empty"]


@dataclass(frozen=True)
class Finding:
    """Something to know before training.

    Attributes:
        code: A word for programs.
        text: Sentences for people.
    """

    code: str
    text: str


@dataclass(frozen=True)
class Column:
    """A column of a table, or a channel of sequences.

    Attributes:
        name: As in the file.
        role: What training takes it for.
        kind: What its cells are.
        missing: Share of cells without a value, 0 to 1.
        low: Smallest value; the first time; None for words.
        high: Largest value; the last time; None for words.
        unreadable: Cells that are not what the role needs.
        outliers: Values further than ten robust deviations from the median of training.
    """

    name: str
    role: Role
    kind: Kind
    missing: float = 0.0
    low: float | str | None = None
    high: float | str | None = None
    unreadable: int = 0
    outliers: int = 0

    @property
    def is_constant(self) -> bool:
        return self.low is not None and self.low == self.high


@dataclass(frozen=True, eq=False)
class DataReport:
    """What there is to know about data before training.

    Attributes:
        source: As it was given.
        task: What the data would be used for; None where that cannot be told.
        files: Paths of the files that were read, by ``train`` and ``test``; empty for a named dataset.
        columns: Columns of a table, channels of sequences.
        content: Counts of series or sequences, lengths, gaps, classes, duplicates.
        problems: Why training would refuse; the first sentence is the one that ``train`` gives.
        warnings: What training would take, and a person might not want.
        assumed: Settings that were guessed to go on where loading refused: those of ``data`` that would help.
        preview: The first lines of a text file of which nothing else can be told.
        data: The data as loaded, with ``assumed`` where needed; None where they cannot be loaded.
        refusal: What loading raised; None where it did not.
    """

    source: str
    task: str | None
    files: dict[str, str]
    columns: tuple[Column, ...]
    content: Notes
    problems: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    assumed: Notes
    preview: tuple[str, ...]
    data: Data | None
    refusal: StableRNNError | None = None

    @property
    def ok(self) -> bool:
        """Whether training would take the data."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """The report without the data, in JSON types but for numbers that JSON lacks."""
        return {
            "source": self.source,
            "task": self.task,
            "ok": self.ok,
            "files": self.files,
            "problems": [asdict(finding) for finding in self.problems],
            "warnings": [asdict(finding) for finding in self.warnings],
            "assumed": self.assumed,
            "columns": [{**asdict(column), "constant": column.is_constant} for column in self.columns],
            "content": self.content,
            "preview": list(self.preview),
            "notes": self.data.notes if self.data else {},
            "fingerprint": self.data.fingerprint if self.data else None,
        }


@dataclass
class Findings:
    """Collects problems and warnings; a sentence that is there already is not said again."""

    problems: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)

    def problem(self, code: str, text: str) -> None:
        if all(text != known.text for known in self.problems):
            self.problems.append(Finding(code, text))

    def refused(self, phrase: str) -> bool:
        """Return True if the sentence of the refusal holds a phrase, so that its fault is listed already."""
        return any(phrase in problem.text for problem in self.problems if problem.code == "refused")

    def warn(self, code: str, text: str) -> None:
        if all(text != known.text for known in self.warnings):
            self.warnings.append(Finding(code, text))

    def warn_all(self, found: Iterable[Finding]) -> None:
        for finding in found:
            self.warn(finding.code, finding.text)
