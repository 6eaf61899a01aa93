"""Trained models on disk: immutable versions, aliases with a history, every byte covered by a hash.

>>> from stablernn_registry import Registry
>>> registry = Registry("models")                              # doctest: +SKIP
>>> registry.publish("digits", {"step.onnx": "out/step.onnx"}, fields)  # doctest: +SKIP
>>> registry.get("digits@production").read("step.onnx")        # doctest: +SKIP
"""

from __future__ import annotations

from .card import model_card
from .checks import CheckResult
from .errors import (
    AliasError,
    GateRefused,
    IntegrityError,
    ManifestError,
    PolicyError,
    RefError,
    RegistryError,
    StorageError,
    UnknownRefError,
)
from .gates import Check
from .journal import AliasEntry, LogEntry, PublishEntry, RecordEntry
from .manifest import CalendarPeriod, FileEntry, Manifest, ManifestFields
from .policy import MetricRule, Policy, PolicyEntry, PolicyRules
from .refs import Ref, parse_ref
from .reports import RobustnessReport
from .signature import GraphSignature, Signature, StateSignature, TensorSignature
from .store import Registry
from .verify import VerifyReport
from .version import ModelInfo, Record, Version

__all__ = [
    "AliasEntry",
    "AliasError",
    "CalendarPeriod",
    "Check",
    "CheckResult",
    "FileEntry",
    "GateRefused",
    "GraphSignature",
    "IntegrityError",
    "LogEntry",
    "Manifest",
    "ManifestError",
    "ManifestFields",
    "MetricRule",
    "ModelInfo",
    "Policy",
    "PolicyEntry",
    "PolicyError",
    "PolicyRules",
    "PublishEntry",
    "Record",
    "RecordEntry",
    "Ref",
    "RefError",
    "Registry",
    "RegistryError",
    "RobustnessReport",
    "Signature",
    "StateSignature",
    "StorageError",
    "TensorSignature",
    "UnknownRefError",
    "VerifyReport",
    "Version",
    "model_card",
    "parse_ref",
]
