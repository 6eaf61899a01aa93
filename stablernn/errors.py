"""Exceptions and warnings of the library. Each is also a built-in one, so that callers can catch either.

StableRNNError
├── ConfigError        (ValueError)    a setting that does not exist, or a value it cannot take
├── DataError          (ValueError)    a file or an array whose content cannot be used
├── UnknownNameError   (LookupError)   a cell, dataset or option that does not exist
├── DeviceError        (RuntimeError)  a requested device that does not exist
├── CheckpointError    (ValueError)    a run directory or checkpoint that cannot be read
├── TrainingError      (RuntimeError)  training that cannot go on, such as a loss that is not finite
├── InterruptedRun     (RuntimeError)  training that was stopped by its user and can be resumed
├── ExportError        (RuntimeError)  a model that cannot be exported to the requested format
│   └── ParityError                    an exported graph whose outputs differ from the model's
└── CertificateError   (ValueError)    a model about which nothing can be proved, such as one with infinite weights

UntrainedWarning     (UserWarning)   a model whose training left out a call that it depends on
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class StableRNNError(Exception):
    """Base class of all errors that this library raises on purpose.

    Attributes:
        settings: Settings of the section ``data`` with which the cause would be mended, by name; empty if there are
            none. `stablernn data check` proposes them.
        series: What is wrong with each series that is at fault, by its name; empty if the cause lies elsewhere.
    """

    settings: Mapping[str, Any] = {}
    series: Mapping[str, str] = {}


class ConfigError(StableRNNError, ValueError):
    pass


class DataError(StableRNNError, ValueError):
    def __init__(
        self, message: str, *, settings: Mapping[str, Any] | None = None, series: Sequence[str] | Mapping[str, str] = ()
    ) -> None:
        # Names that a file gives may have line breaks in them; a message is one line.
        line = " ".join(message.splitlines())
        super().__init__(line)
        self.settings = settings or {}
        self.series = series if isinstance(series, Mapping) else dict.fromkeys(series, line)


def raise_for_series(faulty: Mapping[str, str]) -> None:
    """Raise what is wrong with the first of some series; nothing if there are none.

    Args:
        faulty: What is wrong with each, by its name.

    Raises:
        DataError: With all of them in ``series``.
    """
    for message in faulty.values():
        raise DataError(message, series=faulty)


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


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` with the closest allowed name, or an empty string if none is close."""
    # The cutoff is the default of difflib.
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def unknown(kind: str, name: str, allowed: Iterable[str], hint: str) -> UnknownNameError:
    """Return the error for a name that is not in a list, with the closest name and a hint.

    Args:
        kind: Kind of object that the name stands for, such as ``"cell"``.
        name: The name as the user wrote it.
        allowed: All existing names.
        hint: A full sentence that says what to do next.
    """
    return UnknownNameError(f"Unknown {kind} '{name}'.{did_you_mean(name, allowed)} {hint}")
