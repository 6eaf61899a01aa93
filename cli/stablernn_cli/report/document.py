"""The content of a certificate document as JSON types; docs/reference/certificate.md explains every key."""

from __future__ import annotations

import base64
import logging
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stablernn_cli.report.claims import certificate_entry, claimed_radius, have_equal_claims, scope_text
from stablernn_cli.report.observed import (
    NOT_READ,
    compare,
    number_at,
    observed_of_run,
    observed_of_version,
    read_counts,
    text_at,
    value_at,
)
from stablernn_cli.targets import CertifiedTarget

if TYPE_CHECKING:
    from stablernn.certificates.certificate import Certificate
    from stablernn.dynamics.drawn_trajectories import DrawnTrajectories
    from stablernn.nn.models import SequenceModel
    from stablernn_registry import Registry, Version
    from stablernn_registry.log import AliasEntry

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
    from stablernn_registry.log import utc_now

    registry, version = Registry(), target.version
    # Before the figures, which take longer: a server that does not answer is reported at once.
    not_read = {"read": False, "note": NOT_READ}
    violations = not_read if server is None or version is None else read_counts(server, version)
    certificates = _certificates(target)
    _PROGRESS.info("Drawing trajectories ...")
    proved = [certificate_entry(certificate, target.model) for certificate in certificates]
    for entry in proved:
        entry["equals_all_inputs"] = entry is not proved[0] and have_equal_claims(proved[0], entry)
    trajectories = _draw(target.model, certificates[-1])
    if version is None:
        facts = _run_facts(Path(target.name), target.model)
        observed = observed_of_run(Path(target.name), facts["weights"])
    else:
        facts = _version_facts(version, target.model)
        observed = observed_of_version(registry, version, facts["weights"])
    observed["drawn_trajectories"] = {"note": NOT_FINITE} if trajectories is None else trajectories.document()
    document = {
        "schema": SCHEMA,
        "title": "Stability certificate",
        "created": utc_now(),
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
        "history": None if version is None else _version_history(registry, version),
        "violations": violations,
        "clauses": [clause._asdict() for clause in CLAUSES],
    }
    # Titles and captions stand in JSON, too; the pictures themselves do not.
    images = [] if trajectories is None else _describe_figures(trajectories, certificates[-1])
    document["figures"] = [{"name": image.name, "title": image.title, "caption": image.caption} for image in images]
    return Report(document, images)


def _summary(target: CertifiedTarget, certificate: Certificate, entry: Mapping[str, Any]) -> list[str]:
    """Return what a certificate proves of the layers and of raw samples, in sentences."""
    from stablernn.certificates.plain_words import describe_guarantee
    from stablernn.certificates.stored_certificate import described_bounds, series_facts
    from stablernn_registry.certificates import describe_certificate

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


def _code() -> dict[str, Any]:
    """Return the versions of the code that computed the certificate."""
    import torch

    from stablernn.training.loop.device import environment

    facts = environment(torch.device("cpu"))
    return {
        "stablernn": facts["stablernn"],
        "commit": facts["commit"],
        "python": platform.python_version(),
        "packages": {name: facts["packages"][name] for name in ("numpy", "torch")},
        "arithmetic": "float64 on the float32 weights",
    }


@dataclass(frozen=True)
class Image:
    """A figure of the document.

    Attributes:
        name: Key of the figure.
        title: Title above it.
        caption: Explanation below it.
        draw: Draws the picture, and returns it as a data URI.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], str]


_SPECTRA_INCHES = (7.6, 4.2)
"""A little wider than the text of a page, so that the labels are not made small."""


def _describe_figures(trajectories: DrawnTrajectories, certificate: Certificate) -> list[Image]:
    """Return the figures of a document, not drawn yet: trajectories, forgetting, and spectra of a short state.

    Drawing takes most of the time of a document, and JSON needs none of it.
    """
    from stablernn.dynamics.drawn_trajectories import ball_figure, forgetting_figure, is_drawn_to_scale
    from stablernn.dynamics.plots import spectrum_figure
    from stablernn.plotting import png_bytes, svg_bytes

    # Of several tensors the first, which is the output of the first layer; all are in the table above.
    ball = certificate.balls[0] if certificate.balls else None
    source = f"{len(trajectories.distances)} input sequences, {trajectories.inputs}"
    if ball is None:
        bound = "No bound on the state is proved."
    else:
        scale = "" if is_drawn_to_scale(trajectories, ball) else " (too large to be drawn to scale in the left panel)"
        bound = (
            f"Orange: the proved bound, for every input of the scope{scale}. A trajectory that crossed it would refute "
            "the certificate."
        )
    images = [
        Image(
            "ball",
            "Trajectories" if ball is None else "Trajectories and ball",
            f"Blue: observed trajectories from the zero state under {source}. {bound}",
            lambda: _uri("svg+xml", svg_bytes(ball_figure(trajectories, ball))),
        ),
        Image(
            "forgetting",
            "Forgetting",
            "Blue: observed distance of two drawn starts under the same inputs, as a share of the first distance, in "
            "the norm of the certificate. "
            + (
                "Orange: the proved bound."
                if trajectories.bound is not None
                else "No rate of 1 or less is proved, therefore there is no bound to draw."
            ),
            lambda: _uri("svg+xml", svg_bytes(forgetting_figure(trajectories))),
        ),
    ]
    if trajectories.spectra is not None:
        observed, radius = trajectories.spectra, trajectories.radius
        images.append(
            Image(
                "spectra",
                "Spectra",
                f"Observed eigenvalues of the Jacobians of {len(observed.eigenvalues)} steps along the "
                "trajectories from zero. Eigenvalues at single states decide nothing about a sequence of steps; the "
                "certified rate, where it is drawn, bounds all of them.",
                # Thousands of transparent points would make an SVG of several megabytes.
                lambda: _uri(
                    "png",
                    png_bytes(
                        spectrum_figure(observed, radius=radius, title="drawn inputs", size=_SPECTRA_INCHES), dpi=200
                    ),
                ),
            )
        )
    return images


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


NOT_STATED = "not stated in the model card"
NO_CARD = "not stated: a run directory has no model card"
MAX_NAMES = 40
"""Names of features and labels that are listed one by one."""
_CARD = "README.md"
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_INTENDED_USE = re.compile(r"^intended (use|uses|purpose)\b", re.IGNORECASE)


def _run_facts(path: Path, model: SequenceModel) -> dict[str, Any]:
    """Return the facts of a run directory, which has neither digest nor history."""
    from stablernn.atomic_files import read_json
    from stablernn.export.step import weights_digest
    from stablernn.training.run_directory import RunDirectory

    directory = RunDirectory(path)
    # Runs from before a file was written lack it.
    data = directory.read_data() if directory.data.is_file() else {}
    environment = read_json(directory.environment) if directory.environment.is_file() else {}
    code = {key: value_at(environment, key) for key in ("stablernn", "commit")}
    return {
        "source": "run",
        "ref": str(path),
        "name": path.resolve().name,
        "version": None,
        "digest": None,
        "created": text_at(environment, "time"),
        "weights": weights_digest(model),
        "intended_use": {"stated": False, "text": NO_CARD},
        **_data_facts(data, data, code),
        **_model_facts(model),
    }


def _version_facts(version: Version, model: SequenceModel) -> dict[str, Any]:
    """Return the facts of a registry version.

    Raises:
        stablernn_registry.RegistryError: If a file is damaged.
    """
    manifest = version.manifest
    weights = manifest.files.get("weights.safetensors")
    lineage = manifest.lineage
    # Any bytes may have been published under this name.
    card = version.read(_CARD).decode("utf-8", errors="replace") if _CARD in manifest.files else None
    return {
        "source": "version",
        **{key: getattr(version, key) for key in ("ref", "name", "version", "digest")},
        "created": manifest.created,
        # The manifest vouches for it: the digest covers the hash of every file.
        "weights": None if weights is None else f"sha256:{weights.sha256}",
        "intended_use": intended_use(card),
        **_data_facts(manifest.model_dump(mode="json"), lineage.get("data"), lineage.get("code")),
        **_model_facts(model),
    }


def intended_use(card: str | None) -> dict[str, Any]:
    """Return the section of a model card about the intended use.

    Args:
        card: Markdown; None if there is no card.

    Returns:
        ``stated`` and ``text``; the text says so where the card states none.
    """
    # The section ends at the next heading of its level or above; 0 is before it.
    level, lines, fence = 0, [], ""
    for line in (card or "").splitlines():
        marks = _FENCE.match(line)
        if marks is not None and (not fence or marks[1].startswith(fence)):
            fence = "" if fence else marks[1]
        # A # in a block of code begins a comment.
        heading = None if fence else _HEADING.match(line)
        if heading is not None and level and len(heading[1]) <= level:
            break
        if level:
            lines.append(line)
        elif heading is not None and _INTENDED_USE.match(heading[2]):
            level = len(heading[1])
    # The card escapes what would be markup in Markdown.
    text = re.sub(r"\\([\\|`<*\[])", r"\1", "\n".join(lines)).strip()
    return {"stated": bool(text), "text": text or NOT_STATED}


def stored_certificate(version: Version, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the certificate in the manifest beside the one that was computed for this document; None without one."""
    from stablernn_registry.certificates import current_certificate, format_kind, state_radius

    # A kind that was withdrawn since counts as none today.
    stored = current_certificate(version.manifest.certificate)
    if stored is None:
        return None
    return {
        "kind": format_kind(stored),
        "contraction_rate": number_at(stored, "contraction_rate"),
        "radius": state_radius(stored),
        "computed_kind": entry["kind"],
        "computed_contraction_rate": entry["contraction_rate"],
        "computed_radius": claimed_radius(entry),
        "kinds_agree": stored.get("kind") == entry["kind"],
        "bounded_inputs_kind": text_at(stored, "bounded_inputs", "kind"),
        "schema": value_at(stored, "schema"),
        "verify": f"stablernn registry verify {version.ref} --recompute",
    }


def _data_facts(facts: Mapping[str, Any], data: object, code: object) -> dict[str, Any]:
    """Return task, inputs, outputs, training data and code version, from trees that data.json and manifests share."""
    return {
        "task": text_at(facts, "task"),
        **{key: _names(facts.get(key)) for key in ("features", "labels", "targets")},
        "training_data": {key: text_at(data, key) for key in ("name", "fingerprint")},
        "training_code": {key: text_at(code, key) for key in ("stablernn", "commit")},
    }


def _names(names: object) -> list[str]:
    """Return the first names of a list, and the number of the others as the last entry."""
    # A vocabulary can have thousands of names.
    texts = [str(name) for name in names] if isinstance(names, list) else []
    return texts if len(texts) <= MAX_NAMES else [*texts[:MAX_NAMES], f"and {len(texts) - MAX_NAMES} more"]


def _model_facts(model: SequenceModel) -> dict[str, Any]:
    """Return the cell with its paper, sizes of the layers, and the scaling of the inputs."""
    from stablernn.cells import StableCell, cell_info

    cells = [cell for cell in model.rnn.modules() if isinstance(cell, StableCell)]
    info = cell_info(cells[0].key)
    return {
        "cell": cells[0].key,
        "cell_title": info.title,
        "paper": info.paper,
        "layers": len(model.rnn.first.cells),
        "members": len(model.rnn),
        "units": cells[0].hidden_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "scaling": model.scaling.kind,
        "resample_steps": None if model.resampling is None else model.resampling.steps,
        "patch_size": model.patches.size,
        "patch_stride": model.patches.stride,
        "embedding": bool(model.rnn.embedding),
        "irregular_time": model.max_dt is not None,
    }


def _version_history(registry: Registry, version: Version) -> dict[str, Any]:
    """Return publication, promotions and current aliases of a version.

    Raises:
        stablernn_registry.RegistryError: If log or policy are damaged.
    """
    from stablernn_registry.log import AliasEntry, PublishEntry

    published: dict[str, Any] | None = None
    moves = []
    for entry in registry.log(version.name):
        if isinstance(entry, PublishEntry) and entry.version == version.version:
            published = {"time": entry.time, "who": entry.who, "why": entry.why, "log_line": entry.seq}
        elif isinstance(entry, AliasEntry) and version.version in (entry.to_version, entry.from_version):
            moves.append(_move(registry, entry, version.version))
    # The log has the past of an alias, and this its present.
    aliases = registry.aliases(version.name)
    return {
        "published": published,
        "aliases": sorted(alias for alias, number in aliases.items() if number == version.version),
        "moves": moves,
    }


def _move(registry: Registry, entry: AliasEntry, version: int) -> dict[str, Any]:
    """Return one move of an alias; only moves to the version have checks and a policy that concern it."""
    is_promotion = entry.to_version == version
    return {
        **{key: getattr(entry, key) for key in ("time", "who", "action", "alias", "why", "forced")},
        "from": entry.from_version,
        "to": entry.to_version,
        # The checks of a move away from the version were those of another version.
        "checks": [check.model_dump() for check in entry.checks] if is_promotion else [],
        "policy": _policy_at(registry, entry) if is_promotion else None,
        "log_line": entry.seq,
    }


def _policy_at(registry: Registry, entry: AliasEntry) -> dict[str, Any] | None:
    """Return the rules that applied to an alias when it moved; None if there were none.

    Times have a resolution of one second: of rules that were set in the second of the move the last ones count.
    """
    from stablernn_registry.policy import Policy

    earlier = tuple(line for line in registry.policy().entries if line.time <= entry.time)
    # The registry applies the last line for the alias, or for all aliases; so does this.
    line = Policy(earlier).of(entry.alias)
    if line is None or line.rules is None:
        return None
    return {
        "policy_line": line.seq,
        **{key: getattr(line, key) for key in ("alias", "time", "who", "why")},
        "rules": {key: value for key, value in line.rules.model_dump(mode="json").items() if value is not None},
    }


# The table that relates a document to published requirements. A number stands in ``clause`` only where the public text
# was read, and ``source`` says where. Standards that are sold have topics without numbers. No row claims conformity.
NO_CONFORMITY = (
    "This document claims no conformity with any standard or law. Each row names a topic to which the document can "
    "contribute evidence, and the larger part that it does not cover."
)

_EASA_TEXT = (
    "EASA, Concept Paper: Guidance for Level 1 & 2 machine learning applications, Issue 02; the objective was read in "
    "the transcription at https://github.com/GreenIron/FAA-NLP-Project/blob/main/DESIGN_ASSURANCE.md, compare it with "
    "the original"
)
_AMLAS_TEXT = "AMLAS, https://www.assuringautonomy.com/amlas/"
_AI_ACT = (
    "Regulation (EU) 2024/1689, https://eur-lex.europa.eu/eli/reg/2024/1689/oj, as published in 2024, without later "
    "amendments"
)
_EUROPE = "EU AI Act"
_ISO = "ISO/PAS 8800:2024"
_IEC = "IEC 62304"
_SOLD = "sold by its publisher and not read here, therefore without clause numbers"


class Clause(NamedTuple):
    """A row of the table.

    Attributes:
        framework: Title of the publication.
        clause: Number of the clause; None where its text was not read.
        topic: Subject of the requirement, in our words.
        supports: Part of it to which this document contributes evidence.
        does_not: Parts that it does not cover.
        source: Where the text was read.
    """

    framework: str
    clause: str | None
    topic: str
    supports: str
    does_not: str
    source: str


# Topics and both other columns are our words: a paraphrase must not pass for the text of a standard.
CLAUSES: tuple[Clause, ...] = (
    # Aviation. The objectives of learning assurance that are about a trained model, its conversion and its operation.
    Clause(
        "EASA concept paper, issue 2",
        "Objective LM-12",
        "stability of the trained model, verified over its whole operational design domain",
        "Proved bounds on the recurrent layers for all inputs, and for inputs within the stated range, which can stand "
        "for the numeric part of the domain.",
        "The domain itself, stability of outputs beyond the recurrent layers, stability of the learning algorithm "
        "(LM-11).",
        _EASA_TEXT,
    ),
    Clause(
        "EASA concept paper, issue 2",
        "Objective LM-13",
        "robustness of the trained model in adverse conditions",
        "Gains, errors after gaps in the data, and, where a robustness report is recorded, attacks and noise.",
        "The choice of the adverse conditions, and any that are not bounded changes of the inputs.",
        _EASA_TEXT,
    ),
    Clause(
        "EASA concept paper, issue 2",
        "Objectives IMP-06 and IMP-09",
        "properties and stability of the inference model after conversion",
        "Parity of the exported graphs with the trained model, and bounds for weights stored in fewer bits.",
        "The target hardware and its software; parity is measured on samples and is no proof.",
        _EASA_TEXT,
    ),
    Clause(
        "EASA concept paper, issue 2",
        "Objective EXP-05",
        "monitoring that inputs are within the specified operational boundaries",
        "The range that a server compares every sample with, and its count of samples outside.",
        "The distribution of inputs, and whether performance is guaranteed within the range.",
        _EASA_TEXT,
    ),
    Clause(
        "EASA concept paper, issue 2",
        "Objective CM-01",
        "configuration management of life-cycle data",
        "Digest, code version, the log of versions and aliases, and the policy of each promotion.",
        "Problem reporting, archiving, and authentication of the people named in the log.",
        _EASA_TEXT,
    ),
    # Road vehicles.
    Clause(
        _ISO,
        None,
        "verification and validation of AI systems, and evidence for an assurance argument",
        "Bounds with hypotheses and margins, apart from observations.",
        "Safety requirements, data, test coverage, validation in the vehicle, the assurance argument itself.",
        f"{_ISO} is {_SOLD}; topics by https://www.sis.se/en/produkter/road-vehicles-engineering/"
        "road-vehicle-systems/electrical-and-electronic-equipment/isopas-88002024",
    ),
    Clause(
        _ISO,
        None,
        "measures during operation",
        "Counts of states outside their balls and of inputs outside the certified range.",
        "Field monitoring as a process, thresholds, and reactions to a count.",
        f"{_ISO} is {_SOLD}",
    ),
    # Autonomous systems. Activities have names; their numbers are not on the pages that were read.
    Clause(
        "AMLAS",
        "activity 'Verify ML model'",
        "verification of the learned model against its safety requirements, by test and by formal verification",
        "Results of formal verification (bounds) and of tests (records), each with its method, for the artefact [Z].",
        "The safety requirements [H], independence of verification, and the verification log [AA].",
        f"{_AMLAS_TEXT}activities/verify-ml-model",
    ),
    Clause(
        "AMLAS",
        "activity 'Integrate ML model'",
        "assumptions about the operating environment, and their violation in operation",
        "The range of inputs as an explicit assumption, and the count of its violations.",
        "Integration tests, the system around the model, and the reaction to a violation.",
        f"{_AMLAS_TEXT}activities/integrate-ml-model",
    ),
    # Medical devices.
    Clause(
        _IEC,
        None,
        "software verification, configuration management, and change control of medical device software",
        "Identification of the version by digest, its history, and evidence of properties of one software item.",
        "The life cycle processes, risk management, and the verification of this tool and of third-party software.",
        f"{_IEC} is {_SOLD}",
    ),
    # High-risk systems by the law of the European Union.
    Clause(
        _EUROPE,
        "Article 9(2)(c)",
        "risk management: data from monitoring in operation; also tests against thresholds defined in advance, whose "
        "paragraph was not read",
        "Counts of violations since a server started, and policies that fix a kind of certificate, a parity error and "
        "a metric before a promotion.",
        "The risk management system, identification and evaluation of risks, and the choice of thresholds.",
        f"{_AI_ACT}; read at https://www.euaiactnav.com/article/9",
    ),
    Clause(
        _EUROPE,
        "Article 11(1), Annex IV point 2(g)",
        "technical documentation: procedures and metrics of validation and testing, and dated reports",
        "A dated account of metrics of robustness, with methods and versions.",
        "All other elements of Annex IV; the document is not signed.",
        f"{_AI_ACT}; read at https://rgpd.com/ai-act/chapter-3-high-risk-ai-systems/article-11-technical-documentation/"
        " and https://aiact.annotated.nl/en/aiact/annex/iv/2/g/",
    ),
    Clause(
        _EUROPE,
        "Article 12(1) and 12(2)",
        "automatic recording of events over the lifetime of the system",
        "Counts of events that a server logs: states outside their balls, samples outside the certified range.",
        "The logs themselves and their retention; counts begin anew when the server process starts.",
        f"{_AI_ACT}; read at https://overview.legal/laws/ai-act/art-12",
    ),
    Clause(
        _EUROPE,
        "Article 15(1), 15(3) and 15(4)",
        "accuracy, robustness, and resilience regarding errors, faults and inconsistencies",
        "Bounds on the effect of wrong or missing samples on the recurrent layers, and measured accuracy.",
        "An appropriate level of either, redundancy, feedback loops of learning systems, and cybersecurity.",
        f"{_AI_ACT}; read at https://overview.legal/laws/ai-act/art-15",
    ),
)
