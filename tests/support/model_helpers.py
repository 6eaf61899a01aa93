"""Cells that gradients train, and models that tests build without data."""

from __future__ import annotations

from typing import TypeVar

from stablernn import list_cells
from stablernn.cells import cell_info
from stablernn.nn.models import SequenceModel

TRAINED = [key for key in list_cells() if not cell_info(key).cell.is_fixed]
"""Keys of the cells that gradients train."""
Model = TypeVar("Model", bound=SequenceModel)


def mark_fitted(model: Model) -> Model:
    """Mark every scaling of a model as fitted and return the model.

    For tests whose inputs need no scaling: ``certify`` and ``export`` warn of a model whose scaling was never fitted.
    """
    model.mark_fitted()
    return model
