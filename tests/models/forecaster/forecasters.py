"""Forecasters with scalings and weights that are not those of a new model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import stablernn as srn
from stablernn.nn.models import SequenceModel

CONTEXT: dict[str, Any] = {"scaling": "context", "window": 5, "season": 2}


def with_scaling(model: srn.Forecaster, *, low: float = 20, high: float = 60) -> srn.Forecaster:
    model.fit_scaling([np.random.default_rng(0).uniform(low, high, (60, model.input_size))])
    return model.double().eval()


def random_values(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64) * 40 + 20


def shake_weights(model: SequenceModel) -> None:
    """Weights that are nowhere zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
