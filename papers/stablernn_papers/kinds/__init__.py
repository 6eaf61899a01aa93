"""Kinds of published tables: one adapter each, which trains and measures its runs.

A new kind is one file here, its name in :data:`stablernn_papers.table.KindName`, and a line in the table below.
"""

from __future__ import annotations

from stablernn_papers.kinds.dynamics import DynamicsKind
from stablernn_papers.kinds.kind import Kind, Outcome, Request
from stablernn_papers.kinds.robustness import RobustnessKind
from stablernn_papers.kinds.spectra import SpectraKind
from stablernn_papers.kinds.speed import SpeedKind
from stablernn_papers.kinds.trained import ScoresKind
from stablernn_papers.table import KindName, Table

__all__ = ["Kind", "Outcome", "Request", "kind_of"]

_KINDS: dict[KindName, type[Kind]] = {
    "classification": ScoresKind,
    "predict-next": ScoresKind,
    "robustness": RobustnessKind,
    "spectra": SpectraKind,
    "dynamics": DynamicsKind,
    "speed": SpeedKind,
}


def kind_of(table: Table) -> Kind:
    """Return the adapter of a table, for one reproduction."""
    return _KINDS[table.kind]()
