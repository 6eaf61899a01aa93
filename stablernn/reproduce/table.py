"""Description of a published table and of the protocols that reproduce it."""

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
    """A column of a table.

    Attributes:
        title: Printed title.
        figure: Name of the figure, see :func:`stablernn.reproduce.measurement.extract_figures`.
        percent: Whether the figure is a share that is printed in percent.
    """

    title: str
    figure: str
    percent: bool = False


@dataclass(frozen=True)
class Row:
    """A model of a table.

    Attributes:
        cell: Key of the cell in the catalog.
        published: Figures of the paper, in the order of the columns; empty if the paper has no such model.
        hidden_size: Length of the state; None: the one whose number of parameters is nearest to that of the reference
            model.
    """

    cell: str
    published: tuple[float, ...] = ()
    hidden_size: int | None = None


@dataclass(frozen=True)
class Curvature:
    """Settings for measuring the Hessian of the loss.

    Attributes:
        sequences: Number of training sequences, drawn at random with a fixed seed.
        steps: Maximum number of products with the Hessian for its extreme eigenvalues, and again for its trace.
    """

    sequences: int
    steps: int


@dataclass(frozen=True)
class Protocol:
    """Settings by which every model of a table is trained and measured.

    Attributes:
        name: ``full``, or ``short`` for one that takes minutes.
        seeds: Seeds of the runs.
        settings: Settings of a run as a tree, without cell, hidden size and seed.
        attacks: Settings of the robustness report; None: the table has no such columns.
        curvature: Settings of the Hessian; None: the table has no such columns.
    """

    name: ProtocolName
    seeds: tuple[int, ...]
    settings: Mapping[str, Mapping[str, Any]]
    attacks: Attacks | None = None
    curvature: Curvature | None = None

    def document(self) -> dict[str, Any]:
        """Return the settings that all runs of one table must share, as JSON types."""
        # Without the seeds: more of them may be added to a table.
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
        key: Name on the command line.
        title: Title.
        paper: Authors, title, venue.
        source: Number of the table in the paper.
        columns: Columns of the paper.
        rows: Models of the paper, then those added for comparison.
        reference: Cell whose number of parameters is matched by rows without a hidden size.
        headline: Budget at which each accuracy under attack is shown.
        full: The protocol of the comparison.
        short: A scaled-down protocol.
        unspecified: Settings that the paper does not state, so that they were chosen here.
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
    unspecified: str

    def row(self, cell: str) -> Row:
        """Return the row of a cell."""
        return next(row for row in self.rows if row.cell == cell)

    def protocol(self, name: ProtocolName) -> Protocol:
        """Return a protocol by its name."""
        return self.full if name == FULL else self.short

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(row.cell for row in self.rows)
