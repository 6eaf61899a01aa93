"""How the gradient of the loss changes on its way back through time, along real sequences: observed, not proved."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stablernn.data.step_data import NO_TARGET
from stablernn.data.windows import Samples
from stablernn.dynamics.spectra import LayerDynamics
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor
from stablernn.nn.models._base import States

Array = npt.NDArray[Any]

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Gradients:
    """Gradient norms ``r_t = |dL/dh_t| / |dL/dh_T|`` of sequences, ``L`` what each one's last answer is trained by.

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
        """Quantiles over the sequences, as JSON types; docs/evaluation.md says what each means."""
        firsts = np.array([row[~np.isnan(row)][-1] for row in self.ratios])
        with np.errstate(invalid="ignore"):
            flat = np.array([np.nanmin(row) / np.nanmax(row) for row in self.ratios])
        found = {"slope": self.slopes, "first_over_last": firsts, "least_over_most": flat}
        return {"sequences": len(self.ratios), **{name: _quantiles(values) for name, values in found.items()}}


def gradients(model: SequenceModel, layers: LayerDynamics, samples: Samples, truth: Array) -> Gradients:
    """Back through time, in float64.

    Args:
        model: Whose loss it is; it is not changed.
        layers: Its layers along the samples.
        samples: The sequences in raw units.
        truth: Class numbers ``(batch,)``, targets ``(batch, horizon, targets)`` in raw units, or those of every step.
    """
    exactly = copy.deepcopy(model).cpu().double().eval().requires_grad_(False)
    state = layers.start().requires_grad_(True)
    states, outputs = [], []
    for t in range(layers.steps):
        state = torch.where((t < layers.lengths)[:, None], layers.step(t, state), state)
        states.append(state)
        outputs.append(layers.rnn.output(layers.split(state)))
    final = (*layers.entered, *layers.split(state), *_kept(exactly, torch.stack(outputs, dim=1), layers))
    loss = _last_loss(exactly, final, samples, truth)
    found = torch.autograd.grad(loss, states) if loss.requires_grad else [torch.zeros_like(one) for one in states]
    norms = torch.stack([gradient.norm(dim=1) for gradient in found], dim=1).numpy()
    place = layers.lengths.numpy()[:, None] - 1 - np.arange(layers.steps)
    back = np.where(place >= 0, np.take_along_axis(norms, np.maximum(place, 0), axis=1), math.nan)
    ended = np.isfinite(back[:, 0]) & (back[:, 0] > 0)
    return Gradients(back[ended] / back[ended, :1])


def _kept(model: SequenceModel, outputs: Tensor, layers: LayerDynamics) -> States:
    """What the readout holds after the last step."""
    if model.readout == "last":
        return ()
    roles = model.state_roles()[len(layers.entered) + len(layers.rnn.state_roles()) :]
    start = tuple(outputs.new_zeros(len(outputs), size) for _, size in roles)
    return model._keep(outputs, start, torch.arange(layers.steps) < layers.lengths[:, None])


def _last_loss(model: SequenceModel, final: States, samples: Samples, truth: Array) -> Tensor:
    """Sum over the sequences of what the answer after the last step is trained by, but for penalties and quantiles."""
    known = {
        name: torch.from_numpy(values).double()
        for name, values in (("static", samples.static), ("future", samples.future))
        if values is not None
    }
    if isinstance(model, Classifier):
        logits = model.member_logits(final)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1),
            torch.from_numpy(truth)[:, None].expand(-1, logits.shape[1]).flatten(),
            reduction="sum",
        )
    if isinstance(model, Forecaster):
        if "future" in known:
            known["future"] = known["future"][:, : model.steps]
        target = torch.from_numpy(truth[:, : model.steps]).double()
        there = ~torch.isnan(target)
        change, location, scale = model.changes(final, **known)
        wanted = (model.scaling.transform(torch.where(there, target, 1), model.target_indices) - location) / scale
        return (torch.where(there, wanted, 0)[:, None] - change[..., 0] * there[:, None]).abs().sum()
    assert isinstance(model, SequencePredictor)
    return _step_loss(model, model.emit(final)[0], truth[np.arange(len(truth)), samples.lengths - 1])


def _step_loss(model: SequencePredictor, answer: Tensor, truth: Array) -> Tensor:
    if model.output == "categorical":
        return nn.functional.cross_entropy(answer, torch.from_numpy(truth), ignore_index=NO_TARGET, reduction="sum")
    target = torch.from_numpy(truth).double()
    there = ~torch.isnan(target)
    wanted = torch.where(there, target, 0)
    if model.output == "bernoulli":
        each = nn.functional.binary_cross_entropy_with_logits(answer, wanted, reduction="none")
    else:
        each = (answer - wanted).square()
    return torch.where(there, each, 0).sum()


def _slope(ratios: Array) -> float:
    seen = np.flatnonzero(np.nan_to_num(ratios) > 0)
    if len(seen) < 2:
        return math.nan
    back = seen - seen.mean()
    return float(back @ np.log(ratios[seen]) / (back @ back))


def _quantiles(values: Array) -> dict[str, float | None]:
    known = values[np.isfinite(values)]
    return {
        f"q{level:g}": float(np.quantile(known, level, method="linear")) if len(known) else None for level in QUANTILES
    }
