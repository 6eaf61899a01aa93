"""The end of a run in words: what is proved of its best weights, or which option would give a proof."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_FLOOR
from typing import Any

import numpy as np
import torch

from stablernn.certificates.certificate import Certificate
from stablernn.certificates.certified_radius import certified_radii
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.plain_words import describe_guarantee, format_size
from stablernn.certificates.projection import is_within_range, suggest_proof
from stablernn.certificates.stored_certificate import described_bounds, series_facts
from stablernn.errors import CertificateError
from stablernn.nn.models import Classifier, SequenceModel
from stablernn.training.evaluation.scorers import ClassificationScorer, Scorer
from stablernn.training.loop.base_trainer import BaseTrainer
from stablernn.training.loop.certificate_log import LARGEST

_RADIUS_SEQUENCES = 100
"""Validation sequences of which the radius is computed: enough for a median of two digits, and one short forward
pass."""

_LEAST_RADIUS = 1e-3
"""A radius below this, in standard deviations of the data, is of no use, and is left out."""
_MOST_SENTENCES = 2


def promised_certificate(trainer: BaseTrainer, inputs: InputRange | None) -> Certificate:
    """Return the certificate that ``training.certified`` is judged by: for all inputs, or those of training.

    Args:
        trainer: With the best weights.
        inputs: Range of the training inputs, half as wide again; None if they have none.
    """
    if inputs is not None and is_within_range(trainer.model.rnn.cells[0]):
        return trainer.stability.prove_within(inputs)
    return trainer.stability.prove()


def describe_proof(
    trainer: BaseTrainer, scorer: Scorer, inputs: InputRange | None, data: Mapping[str, Any]
) -> str | None:
    """Return what is proved of the best weights in words; None for a state that is too long to be certified quickly.

    Args:
        trainer: With the best weights.
        scorer: Of the validation split.
        inputs: Range of the training inputs, half as wide again; None if they have none.
        data: The description of the data.
    """
    model = trainer.model
    if model.rnn.cells[0].hidden_size > LARGEST:
        return None
    try:
        certificate = trainer.stability.prove()
        is_open = certificate.kind in ("bounded", "none") and inputs is not None
        bounded = trainer.stability.prove_within(inputs) if is_open and inputs is not None else None
    except CertificateError:
        # A weight is not finite, which the trainer reports.
        return None
    sentences = describe_guarantee(described_bounds(model, certificate, bounded), **series_facts(data))
    radius = _describe_radius(model, scorer, certificate)
    if radius is not None and len(sentences) < _MOST_SENTENCES:
        sentences.append(radius)
    kinds = {certificate.kind, "none" if bounded is None else bounded.kind}
    if kinds <= {"bounded", "none"} and not trainer.settings.certified:
        sentences.append(suggest_proof(model.rnn.cells[0]))
    return " ".join(sentences)


def _describe_radius(model: SequenceModel, scorer: Scorer, certificate: Certificate) -> str | None:
    """Return the sentence about the median certified radius of validation sequences; None if it is of no use."""
    radius, sequences = _median_radius(model, scorer, certificate)
    if radius is None or radius < _LEAST_RADIUS:
        return None
    unit = " standard deviations"
    if model.input_size == 1:
        radius, unit = radius * float(model.scaling.scale[0]), ""
    return (
        f"Half of {sequences:,} validation sequences keep their label whatever changes of their values come to less "
        f"than {format_size(radius, ROUND_FLOOR)}{unit} in all (root of the sum of squares)."
    )


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
