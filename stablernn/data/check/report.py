"""The report of a check: columns, content, problems and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from stablernn.data.step_data import Data
from stablernn.data.types import Notes
from stablernn.errors import StableRNNError

# Settings that may mend problems of these codes. That of a refusal is in its error, if it is not a guess.
_SETTINGS_BY_CODE: dict[str, tuple[str, ...]] = {
    "refused": ("id_column", "time_column", "stamps", "date_format", "categories", "static", "channels")
    + ("missing", "target"),
    "time_twice": ("id_column", "timezone", "on_duplicate"),
    "not_sorted": ("timezone", "sort"),
    "words": ("categories", "static", "channels"),
    "dates": ("channels",),
    "not_a_number": ("missing", "channels"),
}

Role = Literal["id", "time", "target", "channel", "future", "static", "label", "group", "ignored"]
Kind = Literal["numbers", "dates", "words", "mixed", "empty"]


@dataclass(frozen=True)
class Finding:
    """A problem or a warning.

    Attributes:
        code: Stable identifier for programs.
        text: Message for people.
        settings: Settings of the section ``data`` that mend it, by name; empty if none is known.
    """

    code: str
    text: str
    settings: Notes = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A column of a table, or a channel of sequences.

    Attributes:
        name: Name in the file.
        role: Role in training.
        kind: Type of its cells.
        missing: Share of cells without a value, 0 to 1.
        low: Smallest value, or the first time; None for text.
        high: Largest value, or the last time; None for text.
        unreadable: Number of cells that do not fit the role.
        outliers: Number of values further than ten robust deviations from the median of the training split.
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

    @property
    def varies(self) -> bool:
        """True if it has values, and not the same in all rows."""
        return self.kind != "empty" and not self.is_constant


@dataclass(frozen=True, eq=False)
class DataReport:
    """The report on a file or a named dataset before training.

    Attributes:
        source: The source, as passed.
        task: The task that the data are for; None if it cannot be detected.
        files: Paths of the files by ``train`` and ``test``; empty for a named dataset.
        columns: Columns of a table, or channels of sequences.
        content: Number of series or sequences, lengths, gaps, classes, duplicates.
        problems: Reasons for which training would reject the data; the first one is the error of ``train``.
        warnings: Properties of the data that training accepts but that may be unintended.
        assumed: Settings with which rejected data were read: guesses, and those that their errors propose.
        preview: The first lines of a text file about which nothing else can be reported.
        data: The data, loaded with ``assumed`` if needed; None if they cannot be loaded.
        refusal: The error that loading raised; None if it raised none.
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
    def fixes(self) -> Notes:
        """Settings of the section ``data`` that mend problems and warnings, as far as any are known."""
        fixes: Notes = {}
        for finding in self.warnings:
            fixes = merge_settings(fixes, finding.settings)
        return merge_settings(fixes, self.assumed)

    @property
    def ok(self) -> bool:
        """True if training would accept the data."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return the report without the data, in JSON types; numbers may be NaN or infinite."""
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


def merge_settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> Notes:
    """Return settings of both; lists, such as names of columns, are joined."""
    merged = dict(first)
    for name, value in second.items():
        before = merged.get(name)
        if isinstance(value, list) and isinstance(before, list):
            value = [*before, *(entry for entry in value if entry not in before)]
        merged[name] = value
    return merged


def distinct_problems(problems: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return problems without later errors of loading whose settings mend a problem that is listed with its count."""
    mended = [finding.settings for finding in problems if not finding.code.startswith("refused")]
    return tuple(
        finding
        for finding in problems
        if finding.code != "refused_next" or not finding.settings or finding.settings not in mended
    )


@dataclass
class Findings:
    """Collects problems and warnings; a message that is listed already is not added again."""

    problems: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)

    def problem(self, code: str, text: str, settings: Mapping[str, Any] | None = None) -> None:
        if all(text != finding.text for finding in self.problems):
            self.problems.append(Finding(code, text, dict(settings or {})))

    def refusal_contains(self, phrase: str) -> bool:
        """Return True if the error of loading contains a phrase, so that its problem is listed already."""
        return any(phrase in problem.text for problem in self.problems if problem.code == "refused")

    def warn(self, code: str, text: str, settings: Mapping[str, Any] | None = None) -> None:
        if all(text != finding.text for finding in self.warnings):
            self.warnings.append(Finding(code, text, dict(settings or {})))

    def attach(self, assumed: Mapping[str, Any]) -> None:
        """Give problems without a setting of their own the settings of their kind with which the data were read."""
        for index, finding in enumerate(self.problems):
            names = _SETTINGS_BY_CODE.get(finding.code, ()) if not finding.settings else ()
            settings = {name: assumed[name] for name in names if name in assumed}
            self.problems[index] = replace(finding, settings={**finding.settings, **settings})
