"""The end of a run in one sentence: what is proved of its best weights, or which option would give a proof."""

from __future__ import annotations

import numpy as np
import torch

from stablernn.certificates.certificate import Certificate
from stablernn.certificates.certified_radius import certified_radii
from stablernn.certificates.embedding_gain import embedding_gains
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.plain_words import describe_guarantee, format_size, largest_radius
from stablernn.certificates.projection import is_within_range, suggest_proof
from stablernn.errors import CertificateError
from stablernn.nn.models import Classifier
from stablernn.training.evaluation.scorers import ClassificationScorer, Scorer
from stablernn.training.loop.base_trainer import BaseTrainer
from stablernn.training.loop.certificate_log import LARGEST

_RADIUS_SEQUENCES = 100
"""Validation sequences of which the radius is computed: enough for a median of two digits, and one short forward
pass."""


def promised_certificate(trainer: BaseTrainer, inputs: InputRange | None) -> Certificate:
    """Return the certificate that ``training.certified`` is judged by: for all inputs, or those of training.

    Args:
        trainer: With the best weights.
        inputs: Range of the training inputs, half as wide again; None if they have none.
    """
    if inputs is not None and is_within_range(trainer.model.rnn.cells[0]):
        return trainer.stability.prove_within(inputs)
    return trainer.stability.prove()


def describe_proof(trainer: BaseTrainer, scorer: Scorer, inputs: InputRange | None) -> str | None:
    """Return what is proved of the best weights in words; None for a state that is too long to be certified quickly.

    Args:
        trainer: With the best weights.
        scorer: Of the validation split.
        inputs: Range of the training inputs, half as wide again; None if they have none.
    """
    model = trainer.model
    if model.rnn.cells[0].hidden_size > LARGEST:
        return None
    try:
        certificate = trainer.stability.prove()
        if certificate.kind == "none" and inputs is not None:
            certificate = trainer.stability.prove_within(inputs)
    except CertificateError:
        # A weight is not finite, which the trainer reports.
        return None
    radius, sequences = _median_radius(model, scorer, certificate)
    # A bound that is too large to be of use is still named, so that "bounded" is not taken for more than it is.
    is_bounded = certificate.kind == "bounded"
    within = f" within a radius of {format_size(largest_radius(certificate.balls))}" if is_bounded else ""
    clauses = describe_guarantee(
        certificate.document(), radius=radius, sequences=sequences, embedding_gain=max(embedding_gains(model))
    )
    scope = "for all inputs"
    if certificate.inputs is not None:
        scope = "for inputs within the range of training, half as wide again"
    if not clauses and trainer.settings.certified:
        return (
            f"The model is '{certificate.kind}'{within}, with bounds too large to be of use. Set a larger "
            "training.certified_margin for smaller ones."
        )
    if not clauses:
        bounds = f": {scope}, its state is only bounded{within}" if is_bounded else ""
        return f"Nothing of use is proved of this model{bounds}. {suggest_proof(model.rnn.cells[0])}"
    return f"Proved {scope}: {'; '.join(clauses)}. Inputs are scaled ones."


def _median_radius(model: object, scorer: Scorer, certificate: Certificate) -> tuple[float | None, int]:
    """Return the median certified radius, None if none is proved, and of how many validation sequences it is."""
    if not (isinstance(model, Classifier) and isinstance(scorer, ClassificationScorer)):
        return None, 0
    # Radii are derived from the bounds for all inputs.
    if not scorer.samples or certificate.inputs is not None:
        return None, 0
    # Evenly spaced, so that files that are sorted by class give all of them.
    numbers = np.unique(np.linspace(0, scorer.samples - 1, _RADIUS_SEQUENCES).astype(int))
    samples, device = scorer.source.gather(numbers), model.scaling.mean.device
    x, lengths = (torch.from_numpy(np.ascontiguousarray(values)).to(device) for values in (samples.x, samples.lengths))
    try:
        radii = certified_radii(model.eval(), x, lengths, layers=certificate.stacks)
    except CertificateError:
        # Raised for models of which no radius is derived, such as those for irregular time.
        return None, 0
    median = float(np.median(radii))
    return (median if np.isfinite(median) else None), len(numbers)
