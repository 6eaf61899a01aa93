"""Trained models on disk: immutable versions, aliases with a history, every byte covered by a hash.

Public names are imported when they are first used (PEP 562), so that a list of models does not wait for what checks or
describes them.

>>> from stablernn_registry import Registry
>>> registry = Registry("models")                              # doctest: +SKIP
>>> registry.publish("digits", {"step.onnx": "out/step.onnx"}, fields)  # doctest: +SKIP
>>> registry.get("digits@production").read("step.onnx")        # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablernn_registry.card import model_card
    from stablernn_registry.errors import (
        AliasError,
        CheckResult,
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
    from stablernn_registry.manifest import (
        CalendarPeriod,
        FileEntry,
        GraphSignature,
        Manifest,
        ManifestFields,
        Signature,
        StateSignature,
        TensorSignature,
    )
    from stablernn_registry.model_version import ModelInfo, Record, Version
    from stablernn_registry.policy import InputRangeRule, MetricRule, Policy, PolicyEntry, PolicyRules
    from stablernn_registry.promotion import Check, check_score
    from stablernn_registry.refs import Ref, parse_ref
    from stablernn_registry.registry import Registry
    from stablernn_registry.reports import RobustnessReport
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
    "InputRangeRule",
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
    "check_score",
    "model_card",
    "parse_ref",
]

_MODULES = {
    "AliasEntry": "log",
    "AliasError": "errors",
    "CalendarPeriod": "manifest",
    "Check": "promotion",
    "CheckResult": "errors",
    "FileEntry": "manifest",
    "GateRefused": "errors",
    "GraphSignature": "manifest",
    "InputRangeRule": "policy",
    "IntegrityError": "errors",
    "LogEntry": "log",
    "Manifest": "manifest",
    "ManifestError": "errors",
    "ManifestFields": "manifest",
    "MetricRule": "policy",
    "ModelInfo": "model_version",
    "Policy": "policy",
    "PolicyEntry": "policy",
    "PolicyError": "errors",
    "PolicyRules": "policy",
    "PublishEntry": "log",
    "Record": "model_version",
    "RecordEntry": "log",
    "Ref": "refs",
    "RefError": "errors",
    "Registry": "registry",
    "RegistryError": "errors",
    "RobustnessReport": "reports",
    "Signature": "manifest",
    "StateSignature": "manifest",
    "StorageError": "errors",
    "TensorSignature": "manifest",
    "UnknownRefError": "errors",
    "VerifyReport": "verify",
    "Version": "model_version",
    "check_score": "promotion",
    "model_card": "card",
    "parse_ref": "refs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    # Python calls this function only for names that are not in the namespace: once for each.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
