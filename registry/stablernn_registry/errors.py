"""Errors of the registry; each is one plain sentence and also a built-in exception.

RegistryError
 ├── RefError         (ValueError)    a name, reference or alias that is not well formed, or a reserved word
 ├── UnknownRefError  (LookupError)   no such model, version, alias or file
 ├── AliasError       (ValueError)    an alias move that makes no sense, e.g. nothing to roll back to
 ├── ManifestError    (ValueError)    what was handed over to publish is incomplete or not plain JSON
 ├── PolicyError      (ValueError)    rules for aliases that make no sense
 ├── IntegrityError   (ValueError)    bytes below the root are not the bytes that were published
 ├── StorageError     (OSError)       the disk, the permissions or the folder itself: full, read-only, locked
 └── GateRefused      (RuntimeError)  a check said no to an alias move
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stablernn_registry.checks import CheckResult

RESTORE = "Restore it from a copy of the registry"
"""What to do about damage, with a full stop or ", or ..." to follow."""


class RegistryError(Exception):
    """Base class of everything this package raises on purpose."""


class RefError(RegistryError, ValueError):
    """A name, reference or alias that can never be right, whatever the registry holds."""


class UnknownRefError(RegistryError, LookupError):
    """A well-formed name that the registry does not hold."""


class AliasError(RegistryError, ValueError):
    """An alias move that cannot be done as asked."""


class ManifestError(RegistryError, ValueError):
    """Files or manifest fields that cannot become a version."""


class PolicyError(RegistryError, ValueError):
    """Rules that cannot become part of the policy."""


class IntegrityError(RegistryError, ValueError):
    """Bytes on disk that differ from what was published."""


class StorageError(RegistryError, OSError):
    """The disk, the permissions, a lock or the root folder stand in the way.

    Attributes:
        is_done: True if the write took effect all the same, so that it must not be repeated.
    """

    def __init__(self, message: str, *, is_done: bool = False) -> None:
        super().__init__(message)
        self.is_done = is_done


class GateRefused(RegistryError, RuntimeError):
    """A check refused an alias move; nothing was changed.

    Attributes:
        results: The outcome of every check, in the order they ran, passed ones included.
    """

    def __init__(self, message: str, results: tuple[CheckResult, ...]) -> None:
        super().__init__(message)
        self.results = results


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest allowed word, or an empty string."""
    matches = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""
