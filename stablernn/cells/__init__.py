"""All cells. Importing this package registers each of them in the catalog."""

from __future__ import annotations

from stablernn.cells._base import StableCell, State, Weights, cached_weights
from stablernn.cells._catalog import (
    OWN_PACKAGE,
    CellInfo,
    cell_info,
    create_cell,
    list_cells,
    recommended_training,
    register_cell,
)
from stablernn.cells.antisymmetric import AblationRNNCell, AntisymmetricRNNCell, GatedAntisymmetricRNNCell
from stablernn.cells.cfc import CfCCell
from stablernn.cells.cornn import CoRNNCell
from stablernn.cells.elman import ElmanRNNCell
from stablernn.cells.eunn import EfficientUnitaryRNNCell
from stablernn.cells.exprnn import DynamicTrivializationRNNCell, ExpRNNCell
from stablernn.cells.fastgrnn import FastGRNNCell, FastGRNNLSQCell
from stablernn.cells.fastrnn import FastRNNCell
from stablernn.cells.fc_urnn import FullCapacityUnitaryRNNCell
from stablernn.cells.gru import GRUCell
from stablernn.cells.gru_d import GRUDCell
from stablernn.cells.identity_rnn import IdentityRNNCell
from stablernn.cells.incremental import IncrementalRNNCell
from stablernn.cells.indrnn import IndRNNCell
from stablernn.cells.kru import KroneckerRNNCell
from stablernn.cells.lem import LEMCell
from stablernn.cells.lipschitz import LipschitzRK2RNNCell, LipschitzRNNCell
from stablernn.cells.lru import LRUCell
from stablernn.cells.lstm import LSTMCell
from stablernn.cells.lvf import LVFMidpointRNNCell, LVFRNNCell
from stablernn.cells.mingru import MinGRUCell, MinLSTMCell
from stablernn.cells.momentum_lstm import MomentumLSTMCell, ScheduledRestartLSTMCell
from stablernn.cells.nais_net import NAISNetCell
from stablernn.cells.neural_ode import NeuralODERNNCell, ODERNNCell
from stablernn.cells.nnrnn import NonNormalRNNCell
from stablernn.cells.noisy_rnn import NoisyRNNCell
from stablernn.cells.ode_lstm import ODELSTMCell
from stablernn.cells.ren import RENCell
from stablernn.cells.rnn_orth import OrthogonalStartRNNCell
from stablernn.cells.rocket import RocketCell
from stablernn.cells.scornn import ScaledCayleyRNNCell
from stablernn.cells.slstm import SLSTMCell
from stablernn.cells.smoothing import SmoothingCell
from stablernn.cells.soft_orth import SoftOrthogonalRNNCell
from stablernn.cells.spectral_rnn import SpectralRNNCell
from stablernn.cells.unicornn import UnICORNNCell
from stablernn.cells.urnn import UnitaryEvolutionRNNCell

__all__ = [
    "AblationRNNCell",
    "AntisymmetricRNNCell",
    "CellInfo",
    "CfCCell",
    "CoRNNCell",
    "DynamicTrivializationRNNCell",
    "EfficientUnitaryRNNCell",
    "ElmanRNNCell",
    "ExpRNNCell",
    "FastGRNNCell",
    "FastGRNNLSQCell",
    "FastRNNCell",
    "FullCapacityUnitaryRNNCell",
    "GRUCell",
    "GRUDCell",
    "GatedAntisymmetricRNNCell",
    "IdentityRNNCell",
    "IncrementalRNNCell",
    "IndRNNCell",
    "KroneckerRNNCell",
    "LEMCell",
    "LRUCell",
    "LSTMCell",
    "LVFMidpointRNNCell",
    "LVFRNNCell",
    "LipschitzRK2RNNCell",
    "LipschitzRNNCell",
    "MinGRUCell",
    "MinLSTMCell",
    "MomentumLSTMCell",
    "NAISNetCell",
    "NeuralODERNNCell",
    "NoisyRNNCell",
    "OWN_PACKAGE",
    "NonNormalRNNCell",
    "ODELSTMCell",
    "ODERNNCell",
    "OrthogonalStartRNNCell",
    "RENCell",
    "RocketCell",
    "SLSTMCell",
    "SmoothingCell",
    "ScaledCayleyRNNCell",
    "ScheduledRestartLSTMCell",
    "SoftOrthogonalRNNCell",
    "SpectralRNNCell",
    "StableCell",
    "State",
    "UnICORNNCell",
    "UnitaryEvolutionRNNCell",
    "Weights",
    "cached_weights",
    "cell_info",
    "create_cell",
    "list_cells",
    "recommended_training",
    "register_cell",
]
