"""Norms of the gradient of the loss on its way back through time, along real sequences: observed, not proved."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.data.arrays import Samples
from stablernn.dynamics.spectra import LayerDynamics
from stablernn.nn.models import SequenceModel
from stablernn.nn.models._base import States
from stablernn.nn.models._readout import sequence_statistics

Array = npt.NDArray[Any]

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Gradients:
    """Gradient norms ``r_t = |dL/dh_t| / |dL/dh_T|`` of sequences, ``L`` the training loss of each one's last answer.

    Attributes:
        ratios: ``(sequences, steps)``: column ``k`` is ``k`` steps before the last one, so that the first is 1; NaN
            beyond the beginning of a sequence. Sequences without a gradient at the end are left out.
    """

    ratios: Array

    @property
    def slopes(self) -> Array:
        """Least squares slope of ``log r`` against the steps back, ``(sequences,)``; below 0 where gradients vanish."""
        return np.array([_slope(row) for row in self.ratios])

    def document(self) -> dict[str, Any]:
        """Return quantiles over the sequences as JSON types; docs/evaluation.md explains each."""
        # The last column that is not NaN is the first step of the sequence.
        firsts = np.array([row[~np.isnan(row)][-1] for row in self.ratios])
        with np.errstate(invalid="ignore"):
            flatness = np.array([np.nanmin(row) / np.nanmax(row) for row in self.ratios])
        figures = {"slope": self.slopes, "first_over_last": firsts, "least_over_most": flatness}
        return {"sequences": len(self.ratios), **{name: _quantiles(values) for name, values in figures.items()}}


def gradients(model: SequenceModel, layers: LayerDynamics, samples: Samples) -> Gradients:
    """Return the gradients of a model's loss with respect to the states of its layers, in float64.

    Args:
        model: The model; it is not changed.
        layers: Its layers along the samples.
        samples: The sequences in raw units, with class numbers ``(batch,)``, targets ``(batch, horizon, targets)`` in
            raw units, or those of every step.
    """
    exact = copy.deepcopy(model).cpu().double().eval().requires_grad_(False)
    state = layers.start().requires_grad_(True)
    states, outputs = [], []
    for t in range(layers.steps):
        state = torch.where((t < layers.lengths)[:, None], layers.step(t, state), state)
        states.append(state)
        outputs.append(layers.rnn.output(layers.split(state)))
    readout_state = _final_readout_state(exact, torch.stack(outputs, dim=1), layers)
    final = (*layers.preprocessing_state, *layers.split(state), *readout_state)
    loss = _last_loss(exact, final, samples)
    # Without any target the loss depends on no state.
    state_gradients = (
        torch.autograd.grad(loss, states) if loss.requires_grad else [torch.zeros_like(tensor) for tensor in states]
    )
    norms = torch.stack([gradient.norm(dim=1) for gradient in state_gradients], dim=1).numpy()
    # Column k of each row is the step k before its sequence's last one.
    index = layers.lengths.numpy()[:, None] - 1 - np.arange(layers.steps)
    backward = np.where(index >= 0, np.take_along_axis(norms, np.maximum(index, 0), axis=1), math.nan)
    has_gradient = np.isfinite(backward[:, 0]) & (backward[:, 0] > 0)
    return Gradients(backward[has_gradient] / backward[has_gradient, :1])


def _final_readout_state(model: SequenceModel, outputs: Tensor, layers: LayerDynamics) -> States:
    """Return the state of the readout after the last step."""
    if model.readout == "last":
        return ()
    roles = model.state_roles()[len(layers.preprocessing_state) + len(layers.rnn.state_roles()) :]
    start = tuple(outputs.new_zeros(len(outputs), size) for _, size in roles)
    valid = torch.arange(layers.steps) < layers.lengths[:, None]
    return sequence_statistics(model.readout, outputs, start, valid)


def _last_loss(model: SequenceModel, final: States, samples: Samples) -> Tensor:
    """Return the training loss of the answers after the last step, summed, without penalties and quantiles."""
    covariates = {
        name: torch.from_numpy(values).double()
        for name, values in (("static", samples.static), ("future", samples.future))
        if values is not None
    }
    y = samples.y
    last = y[np.arange(len(y)), samples.lengths - 1] if model.every_step else y
    return model.output_loss(final, torch.from_numpy(last), **covariates)


def _slope(ratios: Array) -> float:
    """Return the least squares slope of ``log ratios`` against their index; NaN for fewer than two positive ones."""
    positive = np.flatnonzero(np.nan_to_num(ratios) > 0)
    if len(positive) < 2:
        return math.nan
    distances = positive - positive.mean()
    return float(distances @ np.log(ratios[positive]) / (distances @ distances))


def _quantiles(values: Array) -> dict[str, float | None]:
    """Return the quantiles of the finite values; None if there are none."""
    finite = values[np.isfinite(values)]
    return {
        f"q{level:g}": float(np.quantile(finite, level, method="linear")) if len(finite) else None
        for level in QUANTILES
    }
