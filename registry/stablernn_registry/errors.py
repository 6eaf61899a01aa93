"""Errors of the registry. Each message is one plain sentence, and each class is also a built-in exception.

RegistryError
 ├── RefError         (ValueError)    a malformed or reserved name, reference or alias
 ├── UnknownRefError  (LookupError)   no such model, version, alias or file
 ├── AliasError       (ValueError)    an impossible alias move, e.g. nothing to roll back to
 ├── ManifestError    (ValueError)    files or fields to publish are incomplete or not plain JSON
 ├── PolicyError      (ValueError)    invalid rules for aliases
 ├── IntegrityError   (ValueError)    bytes on disk differ from what was published
 ├── StorageError     (OSError)       a problem with the disk, the permissions or the folder: full, read-only, locked
 └── GateRefused      (RuntimeError)  a check refused an alias move
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

RESTORE = "Restore it from a copy of the registry"
"""Advice after damage; the caller appends a full stop or ", or ..."."""


class RegistryError(Exception):
    """Base class of everything this package raises on purpose."""


class RefError(RegistryError, ValueError):
    """A name, reference or alias that is malformed or reserved in every registry."""


class UnknownRefError(RegistryError, LookupError):
    """A well-formed name that the registry does not have."""


class AliasError(RegistryError, ValueError):
    """An alias move that is impossible."""


class ManifestError(RegistryError, ValueError):
    """Files or manifest fields that cannot become a version."""


class PolicyError(RegistryError, ValueError):
    """Rules that cannot become part of the policy."""


class IntegrityError(RegistryError, ValueError):
    """Bytes on disk that differ from what was published."""


class StorageError(RegistryError, OSError):
    """A problem with the disk, the permissions, a lock or the root folder.

    Attributes:
        is_done: True if the write took effect despite the error and must not be repeated.
    """

    def __init__(self, message: str, *, is_done: bool = False) -> None:
        super().__init__(message)
        self.is_done = is_done


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check; it is written to the log with the move.

    Attributes:
        name: Name of the check, e.g. ``"accuracy not below production"``.
        ok: True if the alias may move.
        detail: Figures or the reason, as a sentence without a full stop; may be empty.
    """

    name: str
    ok: bool
    detail: str = ""


class GateRefused(RegistryError, RuntimeError):
    """A check refused an alias move; nothing was changed.

    Attributes:
        results: Results of all checks that ran, in order, including those that passed.
    """

    def __init__(self, message: str, results: tuple[CheckResult, ...]) -> None:
        super().__init__(message)
        self.results = results


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def strip_controls(text: str) -> str:
    """Return ``text`` without the control characters by which a publisher could change what a terminal shows.

    Tabs and line ends stay.
    """
    return _CONTROLS.sub("", text)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest match, or an empty string."""
    matches = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""
