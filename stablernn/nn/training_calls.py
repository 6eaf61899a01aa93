"""Warnings of calls that a custom training loop has left out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from torch import nn

from stablernn.cells import StableCell
from stablernn.errors import UntrainedWarning
from stablernn.nn.models import SequenceModel


def warn_of_missing_calls(module: nn.Module, *, stacklevel: int) -> None:
    """Warn of each call that stablernn's training loop makes and that this module has not received.

    Args:
        module: A cell, layers or a model.
        stacklevel: As for :func:`warnings.warn`, counted from the caller of this function.
    """
    for message in _missing_calls(module):
        warnings.warn(message, UntrainedWarning, stacklevel=stacklevel + 1)


def _missing_calls(module: nn.Module) -> Iterator[str]:
    """Yield a message for each missing call."""
    cells = [cell for cell in module.modules() if isinstance(cell, StableCell)]
    # Layers and members are trained together, so that one message serves all of them.
    missed = next((missed for cell in cells if (missed := cell.missed_schedule()) is not None), None)
    if missed is not None:
        yield (
            f"The cell '{cells[0].key}' was trained without after_step, which should {missed}. Call "
            "after_step(step, total_steps) of the model after each optimizer step."
        )
    if isinstance(module, SequenceModel):
        yield from module.missing_calls()
