"""A statement of a paper, and what a rule says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from stablernn_papers.statements.evidence import Evidence, Figure

State = Literal["held", "not held", "not tested"]
VERDICTS: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Verdict:
    """The judgment of a statement.

    Attributes:
        state: ``not tested`` where a figure that the statement needs is missing and no measured one contradicts it.
        figures: The figures as text, and what limits them: a part of the training or of the data, a single seed.
    """

    state: State
    figures: str


class Rule(Protocol):
    """A rule that judges a statement by measured figures."""

    @property
    def figures(self) -> tuple[Figure, ...]: ...

    def judge(self, evidence: Evidence) -> Verdict: ...


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
