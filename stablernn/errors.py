"""What the library raises. Each class is also a built-in, so that a caller may catch either.

StableRNNError
├── ConfigError        (ValueError)    a setting that does not exist, or a value it cannot take
├── DataError          (ValueError)    a file or an array whose content cannot be used
├── UnknownNameError   (LookupError)   a cell, dataset or option that is not there
├── DeviceError        (RuntimeError)  a device that was asked for and is not there
├── CheckpointError    (ValueError)    a run directory or checkpoint that cannot be read
├── TrainingError      (RuntimeError)  training that cannot go on, such as a loss that is not finite
├── InterruptedRun     (RuntimeError)  training that was stopped by its user and can be resumed
└── ExportError        (RuntimeError)  a model that cannot be written in the format that was asked for
    └── ParityError                    an exported graph whose numbers differ from the model's

UntrainedWarning     (UserWarning)   a model whose training left out a call that it depends on
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StableRNNError(Exception):
    """Base of everything that this library raises on purpose."""


class ConfigError(StableRNNError, ValueError):
    pass


class DataError(StableRNNError, ValueError):
    pass


class UnknownNameError(StableRNNError, LookupError):
    pass


class DeviceError(StableRNNError, RuntimeError):
    pass


class CheckpointError(StableRNNError, ValueError):
    pass


class TrainingError(StableRNNError, RuntimeError):
    pass


class InterruptedRun(StableRNNError, RuntimeError):
    pass


class ExportError(StableRNNError, RuntimeError):
    pass


class ParityError(ExportError):
    pass


class CertificateError(StableRNNError, ValueError):
    pass


class UntrainedWarning(UserWarning):
    pass


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """The sentence ``" Did you mean 'x'?"`` for the closest allowed word, or an empty string when none is close."""
    matches = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def unknown(kind: str, given: str, allowed: Iterable[str], hint: str) -> UnknownNameError:
    """The error for a name that is not in a list: what it is, what was given, what is near, where to look.

    Args:
        kind: What the name should have named, such as ``"cell"``.
        given: The name as the user wrote it.
        allowed: The names there are.
        hint: A full sentence that says what to do next.
    """
    return UnknownNameError(f"Unknown {kind} '{given}'.{did_you_mean(given, allowed)} {hint}")
