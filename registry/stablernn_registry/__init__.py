"""Trained models on disk: immutable versions, aliases with a history, every byte covered by a hash.

>>> from stablernn_registry import Registry
>>> registry = Registry("models")                              # doctest: +SKIP
>>> registry.publish("digits", {"step.onnx": "out/step.onnx"}, fields)  # doctest: +SKIP
>>> registry.get("digits@production").read("step.onnx")        # doctest: +SKIP
"""

from __future__ import annotations

from stablernn_registry.checks import CheckResult
from stablernn_registry.documents.card import model_card
from stablernn_registry.documents.manifest import CalendarPeriod, FileEntry, Manifest, ManifestFields
from stablernn_registry.documents.reports import RobustnessReport
from stablernn_registry.documents.signature import GraphSignature, Signature, StateSignature, TensorSignature
from stablernn_registry.errors import (
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
from stablernn_registry.log import AliasEntry, LogEntry, PublishEntry, RecordEntry
from stablernn_registry.model_version import ModelInfo, Record, Version
from stablernn_registry.policy import MetricRule, Policy, PolicyEntry, PolicyRules
from stablernn_registry.promotion import Check
from stablernn_registry.refs import Ref, parse_ref
from stablernn_registry.registry import Registry
from stablernn_registry.verify import VerifyReport

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
