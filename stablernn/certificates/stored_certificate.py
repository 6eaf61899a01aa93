"""The certificate as runs and versions have it: for all inputs, and for those within the range seen in training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from stablernn.cells import StableCell
from stablernn.certificates.certificate import Certificate, prove
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.plain_words import describe_guarantee, states_anything
from stablernn.certificates.wrong_samples import wrong_sample_bounds
from stablernn.nn.models import SequenceModel

_BOUNDED_KEYS = (
    "inputs",
    "kind",
    "holds",
    "norm",
    "contraction_rate",
    "step_rate",
    "states",
    "time",
    "gains",
    "forgetting",
)
"""Keys of the certificate for bounded inputs that are stored besides its balls."""

ALL_STAGE = "Proving what holds for inputs of any size"
WITHIN_STAGE = "Proving what holds for inputs within a range"


def certificate_document(
    module: nn.Module,
    *,
    inputs: InputRange | None = None,
    norms: Iterable[Mapping[str, Any]] | None = None,
    frequency: str | None = None,
    longest: int | None = None,
) -> dict[str, Any]:
    """Return the certificate for all inputs, with a second one in ``bounded_inputs``.

    Args:
        module: As of :func:`stablernn.certificates.certificate.certify`.
        inputs: Range of the raw inputs of the second certificate; None, or a model whose inputs have no range, for
            none.
        norms: As of :func:`stablernn.certificates.certificate.prove`.
        frequency: As of :func:`stored_document`.
        longest: As of :func:`stored_document`.

    Raises:
        ConfigError: If the range does not fit the model.
        CertificateError: If a weight is not finite.
    """
    certificate, bounded = prove_both(module, inputs=inputs, norms=norms)
    return stored_document(module, certificate, bounded, frequency=frequency, longest=longest)


def prove_both(
    module: nn.Module,
    *,
    inputs: InputRange | None = None,
    norms: Iterable[Mapping[str, Any]] | None = None,
) -> tuple[Certificate, Certificate | None]:
    """Return the certificate for all inputs, and the one for inputs within a range.

    The arguments and errors are those of :func:`certificate_document`.
    """
    norms = None if norms is None else list(norms)
    # With norms nothing is searched for, and nothing takes long.
    stages = (ALL_STAGE, WITHIN_STAGE) if norms is None else (None, None)
    certificate = prove(module, norms=norms, stage=stages[0])
    if inputs is None or (isinstance(module, SequenceModel) and not module.scaling.has_channel_range):
        return certificate, None
    return certificate, certificate_within(module, certificate, inputs, norms, stage=stages[1])


def stored_document(
    module: nn.Module,
    certificate: Certificate,
    bounded: Certificate | None,
    *,
    frequency: str | None = None,
    longest: int | None = None,
) -> dict[str, Any]:
    """Return the document of two certificates, the second of which goes into ``bounded_inputs``.

    Args:
        module: As of :func:`certificate_document`; of a model the document also has ``wrong_sample`` and ``in_words``.
        certificate: For all inputs, or for those that a user named.
        bounded: For inputs within the range of training; None for none.
        frequency: Alias of the time grid, as :func:`stablernn.data.table.frequency.parse_frequency` takes it, for
            durations in words; None for samples.
        longest: Samples of the longest training sequence; None if they are not known.
    """
    document = {**certificate.document(), "bounded_inputs": None if bounded is None else _bounded_summary(bounded)}
    if isinstance(module, SequenceModel):
        bounds = described_bounds(module, certificate, bounded)
        document["wrong_sample"] = bounds | {"frequency": frequency, "longest": longest}
        document["in_words"] = describe_guarantee(bounds, frequency=frequency, longest=longest)
    return document


def series_facts(facts: object) -> dict[str, Any]:
    """Return ``frequency`` and ``longest`` for :func:`stored_document`, None where there is none.

    Args:
        facts: The content of ``data.json``, or ``wrong_sample`` of a document, which any program may have written.
    """
    facts = facts if isinstance(facts, Mapping) else {}
    frequency, longest = facts.get("frequency"), facts.get("longest")
    return {
        "frequency": frequency if isinstance(frequency, str) else None,
        "longest": longest if isinstance(longest, int) else None,
    }


def described_bounds(model: SequenceModel, certificate: Certificate, bounded: Certificate | None) -> dict[str, Any]:
    """Return what is proved of raw values: for all inputs or, if nothing is, for those within the range.

    The arguments are those of :func:`stored_document`.
    """
    bounds = wrong_sample_bounds(model, certificate)
    if bounded is not None and not states_anything(bounds):
        within = wrong_sample_bounds(model, bounded)
        bounds = within if states_anything(within) else bounds
    return bounds


def certificate_within(
    module: nn.Module,
    certificate: Certificate,
    inputs: InputRange,
    norms: Iterable[Mapping[str, Any]] | None = None,
    *,
    stage: str | None = None,
) -> Certificate:
    """Return the certificate for inputs within a range, without what quantized weights change.

    Args:
        module: As of :func:`certificate_document`; a model must have inputs with a range.
        certificate: Its certificate for all inputs.
        inputs: Range of the raw inputs.
        norms: As of :func:`stablernn.certificates.certificate.prove`.
        stage: As of :func:`stablernn.certificates.certificate.prove`.
    """
    cells = [cell for cell in module.modules() if isinstance(cell, StableCell)]
    gains_by_range = any(type(cell).step_bound_within is not StableCell.step_bound_within for cell in cells)
    if gains_by_range and certificate.max_dt is None:
        return prove(module, stored=False, norms=norms, inputs=inputs, stage=stage)
    # Nothing more is proved within a range; a second search for norms would end at the same ones.
    return replace(certificate, inputs=inputs)


def _bounded_summary(certificate: Certificate) -> dict[str, Any]:
    document = certificate.document()
    # The intervals of the coordinates are long; `certify --inputs-within` computes them.
    balls = [{key: ball[key] for key in ("state", "norm", "centre", "radius")} for ball in document["state_balls"]]
    return {**{key: document[key] for key in _BOUNDED_KEYS}, "state_balls": balls}
