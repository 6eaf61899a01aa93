"""The table of a certificate document that relates it to published requirements.

A number stands in ``clause`` only where the public text was read, and ``source`` says where. Standards that are sold
have topics without numbers. No row claims conformity.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

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


@dataclass(frozen=True)
class Clause:
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


def clause_rows() -> list[dict[str, str | None]]:
    """Return the table as JSON types."""
    return [asdict(clause) for clause in CLAUSES]
