"""The dynamics of a model on a split: Jacobian spectra, Lyapunov exponents and gradients along its sequences.

The cost is bounded: few sequences, of each the first steps (of a forecast's context the last ones), and of long states
the leading exponents alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stablernn.certificates.certificate import Certificate, prove
from stablernn.data.arrays import Samples
from stablernn.data.step_data import Data
from stablernn.dynamics.gradients import Gradients, gradients
from stablernn.dynamics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from stablernn.dynamics.spectra import LayerDynamics, Spectra, certified_radius, largest_step_factors, spectra
from stablernn.nn.models import SequenceModel
from stablernn.training.tasks import task_for

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
        """Return the figures as JSON types, proved ones apart from observed ones; docs/evaluation.md explains each."""
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
