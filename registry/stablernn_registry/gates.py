"""Checks that may refuse to move an alias.

The registry decides on stored JSON only. What needs the library (recomputing a certificate, running parity again)
is passed in by the caller as a ``Check``; so this package never imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .version import Version


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check; it is written to the log with the move.

    Attributes:
        name: What was checked, e.g. ``"accuracy not below production"``.
        ok: Whether the alias may move.
        detail: Figures or the reason, as a sentence without a full stop; may be empty.
    """

    name: str
    ok: bool
    detail: str = ""


class Check(Protocol):
    """Anything that can be called with the two versions; it is run under the model's lock and must not write to it."""

    def __call__(self, candidate: Version, current: Version | None, /) -> CheckResult:
        """Judges whether the alias may move.

        Args:
            candidate: The version that the alias is to point to.
            current: The version that it points to now; None if the alias is new.
        """
        ...


def failures(results: tuple[CheckResult, ...]) -> str:
    """Names every check that refused, e.g. ``check 'parity' failed (error 0.1 is above 1e-5)``."""
    lines = [f"check '{r.name}' failed" + (f" ({r.detail})" if r.detail else "") for r in results if not r.ok]
    return " and ".join(lines)
