"""What a published table is, and by which protocol it is made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stablernn.robustness.settings import Settings as Attacks

ProtocolName = Literal["full", "short"]
FULL: ProtocolName = "full"
SHORT: ProtocolName = "short"

State = Literal["not run", "short", "partial", "full"]
STATES: tuple[State, ...] = ("not run", "short", "partial", "full")
"""Progress of a reproduction, least first; ``partial``: some runs of the full protocol are done."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        title: As it is printed.
        figure: Which of ours stands in it, see :func:`stablernn.reproduce.measure.figures`.
        percent: Whether it is a share that is printed in percent.
    """

    title: str
    figure: str
    percent: bool = False


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        cell: Key of the catalog.
        published: What the paper prints, in the order of the columns; empty where it has no such model.
        hidden_size: Length of the state; None: the one whose number of parameters is nearest to that of the table's
            reference.
    """

    cell: str
    published: tuple[float, ...] = ()
    hidden_size: int | None = None


@dataclass(frozen=True)
class Curvature:
    """How the Hessian of the loss is measured.

    Attributes:
        sequences: Of the training split, drawn at random with a fixed seed.
        steps: Most products with the Hessian for both ends of its spectrum, and again for its trace.
    """

    sequences: int
    steps: int


@dataclass(frozen=True)
class Protocol:
    """How every model of a table is trained and measured.

    Attributes:
        name: ``full``, or ``short`` for one that a person waits for.
        seeds: Of the runs.
        settings: Those of a run, as a tree, but for cell, hidden size and seed.
        attacks: How robustness is measured; None: the table has nothing of it.
        curvature: How curvature is measured; None: likewise.
    """

    name: ProtocolName
    seeds: tuple[int, ...]
    settings: Mapping[str, Mapping[str, Any]]
    attacks: Attacks | None = None
    curvature: Curvature | None = None

    def document(self) -> dict[str, Any]:
        """All of it that two runs must share to stand in one table, as JSON types."""
        return {
            "name": self.name,
            "settings": {section: dict(values) for section, values in self.settings.items()},
            "attacks": None if self.attacks is None else asdict(self.attacks),
            "curvature": None if self.curvature is None else asdict(self.curvature),
        }


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        key: What it is called on the command line.
        title: What it shows.
        paper: Authors, title, venue.
        source: Which table of the paper.
        columns: Those of the paper.
        rows: The paper's models, then those that are put beside them.
        reference: Cell whose number of parameters rows without a hidden size are matched to.
        headline: At which of the budgets the figures of attacks stand in the table.
        full: The protocol of the comparison.
        short: One that is scaled down.
        lost: What the paper does not say, so that it was chosen here.
    """

    key: str
    title: str
    paper: str
    source: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    reference: str
    headline: Mapping[str, float]
    full: Protocol
    short: Protocol
    lost: str

    def row(self, cell: str) -> Row:
        return next(row for row in self.rows if row.cell == cell)

    def protocol(self, name: ProtocolName) -> Protocol:
        return self.full if name == FULL else self.short

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(row.cell for row in self.rows)
