"""Results of the checks that an alias move must pass."""

from __future__ import annotations

from dataclasses import dataclass


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
