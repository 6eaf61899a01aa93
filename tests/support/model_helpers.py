"""Models that tests build without data."""

from __future__ import annotations

from typing import TypeVar

from stablernn.nn.models import SequenceModel

Model = TypeVar("Model", bound=SequenceModel)


def mark_fitted(model: Model) -> Model:
    """Mark every scaling of a model as fitted and return the model.

    For tests whose inputs need no scaling: ``certify`` and ``export`` warn of a model whose scaling was never fitted.
    """
    model.mark_fitted()
    return model
