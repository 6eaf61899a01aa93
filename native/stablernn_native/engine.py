"""The training engine ``native``: the engine ``fused`` with compiled steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from stablernn.cells import StableCell
from stablernn.cells._step_form import Family
from stablernn.engines.fused import FusedEngine
from stablernn.engines.fused_families import FusedSteps
from stablernn_native.bindings import current_path
from stablernn_native.steps import NATIVE_FAMILIES

MAX_STACKED_STATES = 1 << 15
"""Numbers in all states of one member up to which an ensemble runs as one. The kernels run its members one after the
other in any case: what is saved is the time around them, what it costs is to gather their drives."""


class NativeEngine(FusedEngine):
    """Runs the cells that ``fused`` runs, a block of rows through the whole sequence at a time.

    What goes beyond a first derivative is handled as ``fused`` does; under a mode that replaces torch's functions, such
    as a counter of operations, ``auto`` takes another engine.

    Raises:
        NativeError: If the kernels cannot be loaded, or ``STABLERNN_NATIVE_PATH`` names a path that this machine does
            not have.
    """

    name = "native"
    families: ClassVar[Mapping[Family, type[FusedSteps]]] = NATIVE_FAMILIES

    def __init__(self) -> None:
        current_path()

    def stacks(self, batch: int, time: int, hidden: int) -> bool:
        return batch * time * hidden <= MAX_STACKED_STATES

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        # A mode such as FakeTensorMode replaces torch's functions, and its tensors may have no memory.
        has_mode = torch._C._len_torch_dispatch_stack() > 0
        return not has_mode and super().supports(cell, drive, timed=timed)
