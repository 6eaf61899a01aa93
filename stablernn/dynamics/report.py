"""What is observed of a model's stability on a split: spectra, Lyapunov exponents and gradients along its sequences.

The cost is bounded: few sequences, of each the first steps (of a forecast's context the last ones), and of long states
the leading exponents alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.certificates.certificate import Certificate, prove
from stablernn.data import ClassificationData, ForecastData
from stablernn.data.segments import streams
from stablernn.data.step_data import StepData
from stablernn.data.windows import Samples
from stablernn.dynamics.gradients import Gradients, gradients
from stablernn.dynamics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from stablernn.dynamics.spectra import Layers, Spectra, certified_radius, largest_factors, spectra
from stablernn.errors import DataError
from stablernn.nn.models import SequenceModel

Array = npt.NDArray[Any]

MOST_SEQUENCES = 16
MOST_STEPS = 512
"""Of the layers, in each sequence."""
MOST_JACOBIANS = 256
LONGEST = 512
"""Length of a state up to which Jacobians are decomposed."""
EXPONENTS = ((128, 128), (256, 64))
"""Up to which length of the state how many exponents are found; 16 beyond."""
MOST_WARM_UP = 64


@dataclass(frozen=True)
class Observed:
    """What was seen on some sequences of a split.

    Attributes:
        certificate: What is proved, for comparison.
        spectra: Of the Jacobians; None where the state is longer than :data:`LONGEST`.
        radius: What is proved of the modulus of every eigenvalue; None where nothing is.
        factors: By how much single steps stretched a difference at most, see :func:`largest_factors`.
        lyapunov: The exponents.
        gradients: On their way back through time.
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
        """The figures as JSON types, those that are proved apart; docs/evaluation.md says what each means."""
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


def observe(
    model: SequenceModel,
    data: ClassificationData | ForecastData | StepData,
    split: str = "test",
    *,
    labels: Sequence[str] | None = None,
) -> Observed:
    """Certify a model, and follow its layers along sequences of a split.

    Args:
        model: On any device; it is not changed, and everything is computed on the CPU.
        data: What the sequences are from.
        split: train, validation or test.
        labels: The classes that the model knows, in its order; None: those of the data.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty.
        CertificateError: If a weight or a state is not finite.
    """
    samples, truth = chosen_samples(data, split, MOST_STEPS * model.patches.stride, labels)
    certificate, layers = prove(model), Layers(model, samples)
    states, size = layers.trajectory(), len(layers.directions)
    found, factors = None, []
    if size <= LONGEST:
        jacobians = layers.jacobians(states, max(16, min(MOST_JACOBIANS, int(MOST_JACOBIANS * (128 / size) ** 3))))
        found, factors = spectra(jacobians, layers.step_size), largest_factors(jacobians, layers, certificate)
    longest = int(layers.lengths.max())
    return Observed(
        certificate=certificate,
        spectra=found,
        radius=certified_radius(layers, certificate),
        factors=factors,
        lyapunov=lyapunov_spectrum(
            layers.push,
            layers.start(),
            longest,
            size=size,
            count=min(size, next((count for length, count in EXPONENTS if size <= length), 16)),
            warm_up=min(longest // 4, MOST_WARM_UP),
            lengths=layers.lengths.tolist(),
        ),
        gradients=gradients(model, layers, samples, truth),
        sequences=len(samples.lengths),
        steps=int(layers.lengths.sum()),
    )


def chosen_samples(
    data: ClassificationData | ForecastData | StepData, split: str, most: int, labels: Sequence[str] | None = None
) -> tuple[Samples, Array]:
    """Evenly spread sequences of a split, cut to so many samples, and what is to be said of them.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or has a class that is not among ``labels``.
    """
    source = data.split(split)
    if not len(source):
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")
    if isinstance(data, StepData) and data.continuous:
        samples = streams(data.split(split), MOST_SEQUENCES)
    else:
        numbers = np.linspace(0, len(source) - 1, min(MOST_SEQUENCES, len(source))).round().astype(np.int64)
        samples = source.gather(numbers)
    cut = _cut(samples, most, from_end=isinstance(data, ForecastData), every_step=isinstance(data, StepData))
    truth: Array = cut.y
    if isinstance(data, ClassificationData) and labels is not None and tuple(labels) != data.labels:
        unknown = sorted({data.labels[number] for number in truth} - set(labels))
        if unknown:
            raise DataError(f"'{data.name}' has the class '{unknown[0]}', which the model does not know.")
        truth = np.array([list(labels).index(data.labels[number]) for number in truth], dtype=np.int64)
    return cut, truth


def _cut(samples: Samples, most: int, *, from_end: bool, every_step: bool) -> Samples:
    longest = min(most, int(samples.lengths.max()))
    starts = np.maximum(samples.lengths - longest, 0) if from_end else np.zeros_like(samples.lengths)
    place = starts[:, None] + np.arange(longest)
    rows = np.arange(len(place))[:, None]
    return samples._replace(
        x=samples.x[rows, place],
        lengths=np.minimum(samples.lengths, longest),
        y=samples.y[rows, place] if every_step else samples.y,
        dt=None if samples.dt is None else samples.dt[rows, place],
    )
