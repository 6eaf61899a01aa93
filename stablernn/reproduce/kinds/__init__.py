"""Kinds of published tables: one adapter each, which trains and measures its runs.

A new kind is one file here, its name in :data:`stablernn.reproduce.table.KindName`, and a line in the table below.
"""

from __future__ import annotations

from stablernn.reproduce.kinds.dynamics import DynamicsKind
from stablernn.reproduce.kinds.kind import Kind, Outcome, Request
from stablernn.reproduce.kinds.robustness import RobustnessKind
from stablernn.reproduce.kinds.scores import ScoresKind
from stablernn.reproduce.kinds.spectra import SpectraKind
from stablernn.reproduce.kinds.speed import SpeedKind
from stablernn.reproduce.table import KindName, Table

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
