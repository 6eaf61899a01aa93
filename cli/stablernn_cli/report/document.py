"""The content of a certificate document as JSON types; docs/certificate_document.md explains every key."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.report.claims import certificate_entry, have_equal_claims, scope_text
from stablernn_cli.report.clauses import NO_CONFORMITY, clause_rows
from stablernn_cli.report.figures import Image, describe_figures
from stablernn_cli.report.history import version_history
from stablernn_cli.report.model_facts import run_facts, stored_certificate, version_facts
from stablernn_cli.report.observed import compare, observed_of_run, observed_of_version
from stablernn_cli.report.serving_counts import not_read, read_counts
from stablernn_cli.targets import CertifiedTarget

if TYPE_CHECKING:
    from stablernn.certificates.certificate import Certificate
    from stablernn.dynamics.drawn_trajectories import DrawnTrajectories
    from stablernn.nn.models import SequenceModel
    from stablernn_registry import Version

_PROGRESS = logging.getLogger("stablernn.progress")

SCHEMA = 1
COVERED = (
    "The recurrent layers of the model: the states that a sequence leads to, and what differences of states, inputs "
    "and stored weights do to their output. The sentences about a wrong value include scaling, the filling of missing "
    "values, patches and the head."
)
NOT_COVERED = (
    "Accuracy of the outputs and fitness for the intended use.",
    "In section A: scaling, patches, a linear skip and the head.",
    "Rounding in operation, the runtime, the processor and the system around the model.",
    "Inputs outside the stated range, as far as a certificate is for a range.",
)


NOT_FINITE = (
    "The state of the layers grew beyond the numbers of float64 under inputs that were drawn for this document: there "
    "are no trajectories to show."
)


@dataclass(frozen=True)
class Report:
    """A certificate document.

    Attributes:
        document: Its content as JSON types.
        images: Its figures; their numbers are in ``document``.
    """

    document: dict[str, Any]
    images: list[Image]


def compose_report(target: CertifiedTarget, server: str | None = None) -> Report:
    """Compose the certificate document of a target.

    Args:
        target: The certified model.
        server: Address of a server whose counts are read; None for none.

    Raises:
        CommandError: If the counts cannot be read.
        stablernn_registry.RegistryError: If a file of the version, the log or the policy is damaged.
    """
    from stablernn_registry import Registry

    version = target.version
    # Before the figures, which take longer: a server that does not answer is reported at once.
    violations = not_read() if server is None or version is None else read_counts(server, version)
    certificates = _certificates(target)
    _PROGRESS.info("Drawing trajectories ...")
    proved = [certificate_entry(certificate, target.model) for certificate in certificates]
    for entry in proved:
        entry["equals_all_inputs"] = entry is not proved[0] and have_equal_claims(proved[0], entry)
    trajectories = _draw(target.model, certificates[-1])
    if version is None:
        facts = run_facts(Path(target.name), target.model)
        observed = observed_of_run(Path(target.name), facts["weights"])
    else:
        facts = version_facts(version, target.model)
        observed = observed_of_version(Registry(), version, facts["weights"])
    observed["drawn_trajectories"] = {"note": NOT_FINITE} if trajectories is None else trajectories.document()
    document = {
        "schema": SCHEMA,
        "title": "Stability certificate",
        "created": _now(),
        "statement": NO_CONFORMITY,
        "model": facts,
        # The code of training is among the facts of the model: another version may have trained it.
        "code": _code(),
        "covers": COVERED,
        "does_not_cover": list(NOT_COVERED),
        "summary": [
            {"scope": entry["scope"], "sentences": _summary(target, certificate, entry)}
            for certificate, entry in zip(certificates, proved, strict=True)
        ],
        "proved": proved,
        "stored_certificate": None if version is None else stored_certificate(version, proved[0]),
        "observed": observed,
        "comparison": compare(proved, observed),
        "history": None if version is None else _history(version),
        "violations": violations,
        "clauses": clause_rows(),
    }
    # Titles and captions stand in JSON, too; the pictures themselves do not.
    images = [] if trajectories is None else describe_figures(trajectories, certificates[-1])
    document["figures"] = [{"name": image.name, "title": image.title, "caption": image.caption} for image in images]
    return Report(document, images)


def _summary(target: CertifiedTarget, certificate: Certificate, entry: Mapping[str, Any]) -> list[str]:
    """Return what a certificate proves of the layers and of raw samples, in sentences."""
    from stablernn.certificates.plain_words import describe_guarantee
    from stablernn.certificates.stored_certificate import described_bounds, series_facts
    from stablernn_registry.documents.certificates import describe_certificate

    if entry["equals_all_inputs"]:
        return [f"{scope_text(entry)}, the same bounds hold as for all inputs, and no smaller ones are proved."]
    facts = series_facts(target.document.get("wrong_sample"))
    return [
        f"{scope_text(entry)}, the certificate is {describe_certificate(certificate.document())}.",
        *describe_guarantee(described_bounds(target.model, certificate, None), **facts),
    ]


def _draw(model: SequenceModel, certificate: Certificate) -> DrawnTrajectories | None:
    """Draw trajectories for the certificate within a range if there is one; None if a state is not finite.

    That a state overflows is an observation like any other, of a model whose state has no proved bound.
    """
    from stablernn.dynamics.drawn_trajectories import draw_trajectories
    from stablernn.errors import CertificateError

    try:
        return draw_trajectories(model, certificate, certificate.inputs)
    except CertificateError:
        return None


def _certificates(target: CertifiedTarget) -> tuple[Certificate, ...]:
    """Return the certificate for all inputs, followed by that within a range if there is one."""
    from stablernn.certificates.certificate import prove
    from stablernn.certificates.stored_certificate import ALL_STAGE

    # A range on the command line replaces the certificate for all inputs in the answer, but not here.
    is_complete = target.certificates[0].inputs is None
    return target.certificates if is_complete else (prove(target.model, stage=ALL_STAGE), *target.certificates)


def _history(version: Version) -> Mapping[str, Any]:
    from stablernn_registry import Registry

    return version_history(Registry(), version)


def _now() -> str:
    from stablernn_registry.log import utc_now

    return utc_now()


def _code() -> dict[str, Any]:
    """Return the versions of the code that computed the certificate."""
    import torch

    from stablernn.training.loop.environment import environment

    facts = environment(torch.device("cpu"))
    return {
        "stablernn": facts["stablernn"],
        "commit": facts["commit"],
        "python": platform.python_version(),
        "packages": {name: facts["packages"][name] for name in ("numpy", "torch")},
        "arithmetic": "float64 on the float32 weights",
    }
