"""The user and the reason that the log stores with each write."""

from __future__ import annotations

import getpass
import os

from stablernn_registry.documents.manifest import check_text
from stablernn_registry.errors import AliasError, ManifestError


def resolve_authorship(who: str | None, why: str | None) -> tuple[str, str | None]:
    """Return the user who acts, by default that of the process, and the reason, as lines without control characters.

    Raises:
        ManifestError: If ``who`` or ``why`` is not text.
    """
    lines: list[str | None] = []
    for field, value in (("who", who), ("why", why)):
        try:
            if not isinstance(value, str | None):
                raise ValueError(f"it must be text, got {value!r:.100}")
            lines.append(None if value is None else " ".join(check_text(value).splitlines()))
        except ValueError as error:
            raise ManifestError(f"The log cannot be written: field '{field}': {error}.") from error
    return lines[0] or _process_user(), lines[1]


def check_force(force: bool, why: str | None) -> None:
    """Check that a forced move has a reason.

    Raises:
        AliasError: If it has none.
    """
    if force and not (why and why.strip()):
        raise AliasError("A forced move needs a reason, got none. Give why.")


def _process_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a user ID that no user database has.
        return f"uid:{os.getuid()}"
