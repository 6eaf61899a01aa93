"""The catalog of cells. Importing this package registers each of them."""

from __future__ import annotations

from stablernn.cells._base import StableCell, State
from stablernn.cells._catalog import (
    CellInfo,
    cell_info,
    create_cell,
    list_cells,
    recommended_training,
    register_cell,
)
from stablernn.cells.antisymmetric import AntisymmetricRNNCell, GatedAntisymmetricRNNCell
from stablernn.cells.elman import ElmanRNNCell
from stablernn.cells.gru import GRUCell
from stablernn.cells.lipschitz import LipschitzRK2RNNCell, LipschitzRNNCell
from stablernn.cells.lstm import LSTMCell
from stablernn.cells.lvf import LVFMidpointRNNCell, LVFRNNCell

__all__ = [
    "AntisymmetricRNNCell",
    "CellInfo",
    "ElmanRNNCell",
    "GRUCell",
    "GatedAntisymmetricRNNCell",
    "LSTMCell",
    "LVFMidpointRNNCell",
    "LVFRNNCell",
    "LipschitzRK2RNNCell",
    "LipschitzRNNCell",
    "StableCell",
    "State",
    "cell_info",
    "create_cell",
    "list_cells",
    "recommended_training",
    "register_cell",
]
