"""The dynamics of a model on a split: Jacobian spectra, Lyapunov exponents and gradients along its sequences.

The cost is bounded: few sequences, of each the first steps (of a forecast's context the last ones), and of long states
the leading exponents alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.certificates.certificate import Certificate, prove
from stablernn.data.arrays import Samples
from stablernn.data.step_data import Data
from stablernn.dynamics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from stablernn.dynamics.spectra import LayerDynamics, Spectra, certified_radius, largest_step_factors, spectra
from stablernn.nn.models import SequenceModel
from stablernn.nn.models._base import States, sequence_statistics
from stablernn.training.tasks import task_for

Array = npt.NDArray[Any]

QUANTILES = (0.1, 0.5, 0.9)
MAX_SEQUENCES = 16
MAX_STEPS = 512
"""Steps of the layers, in each sequence."""
MAX_JACOBIANS = 256
MAX_STATE_SIZE = 512
"""Length of a state up to which Jacobians are decomposed."""
EXPONENTS = ((128, 128), (256, 64))
"""Pairs of a length of the state and the number of exponents up to it; 16 beyond."""
MAX_WARM_UP = 64


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
        """Return quantiles over the sequences as JSON types; docs/reference/reports.md explains each."""
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


@dataclass(frozen=True)
class DynamicsReport:
    """Observations on some sequences of a split, and the certificate.

    Attributes:
        certificate: The bounds that are proved, for comparison.
        spectra: Of the Jacobians; None for a state longer than :data:`MAX_STATE_SIZE`.
        radius: The proved bound on the modulus of every eigenvalue; None if there is none.
        factors: The largest factors by which single steps stretched a difference, see :func:`largest_step_factors`.
        lyapunov: The exponents.
        gradients: Their norms on the way back through time.
        sequences: How many were followed.
        steps: Steps of the layers on all of them.
    """

    certificate: Certificate
    spectra: Spectra | None
    radius: float | None
    factors: list[dict[str, Any]]
    lyapunov: LyapunovSpectrum
    gradients: Gradients
    sequences: int
    steps: int

    def document(self) -> dict[str, Any]:
        """Return proved and observed figures apart, as JSON types; docs/reference/reports.md explains each."""
        jacobian = None if self.spectra is None else {**self.spectra.document(), "largest_factors": self.factors}
        return {
            "certificate": self.certificate.document(),
            "empirical": {
                "jacobian": jacobian,
                "lyapunov": self.lyapunov.document(),
                "gradients": self.gradients.document(),
                "sequences": self.sequences,
                "steps": self.steps,
            },
        }


def observe_dynamics(
    model: SequenceModel,
    data: Data,
    split: str = "test",
    *,
    labels: Sequence[str] | None = None,
) -> DynamicsReport:
    """Certify a model, and follow its layers along sequences of a split.

    Args:
        model: On any device; it is not changed, and everything is computed on the CPU.
        data: The data that the sequences are taken from.
        split: train, validation or test.
        labels: Classify: names of the model's classes, in its order; None: those of the data. Other tasks ignore it.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty.
        CertificateError: If a weight or a state is not finite.
    """
    # The beginning of a sequence that is to be resampled would be another sequence.
    max_length = MAX_STEPS * model.patches.stride if model.resampling is None else data.longest_input
    samples = select_samples(data, split, max_length, labels)
    certificate, layers = prove(model), LayerDynamics(model, samples)
    states, size = layers.trajectory(), len(layers.directions)
    jacobian_spectra, factors = None, []
    if size <= MAX_STATE_SIZE:
        # A decomposition takes cubic time: beyond 128 fewer Jacobians keep the cost.
        count = max(16, min(MAX_JACOBIANS, int(MAX_JACOBIANS * (128 / size) ** 3)))
        jacobians = layers.jacobians(states, count)
        jacobian_spectra = spectra(jacobians, layers.step_size)
        factors = largest_step_factors(jacobians, layers, certificate)
    longest = int(layers.lengths.max())
    return DynamicsReport(
        certificate=certificate,
        spectra=jacobian_spectra,
        radius=certified_radius(layers, certificate),
        factors=factors,
        lyapunov=lyapunov_spectrum(
            layers.push,
            layers.start(),
            longest,
            size=size,
            count=min(size, next((count for length, count in EXPONENTS if size <= length), 16)),
            warm_up=min(longest // 4, MAX_WARM_UP),
            lengths=layers.lengths.tolist(),
        ),
        gradients=gradients(model, layers, samples),
        sequences=len(samples.lengths),
        steps=int(layers.lengths.sum()),
    )


def select_samples(data: Data, split: str, max_length: int, labels: Sequence[str] | None = None) -> Samples:
    """Return evenly spread sequences of a split, cut to ``max_length`` samples.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or has a class that is not among ``labels``.
    """
    return task_for(data).select_observed_samples(split, count=MAX_SEQUENCES, max_length=max_length, outputs=labels)
