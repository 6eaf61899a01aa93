"""The version of this package."""

from __future__ import annotations

import contextlib
from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Return the version of the installed distribution; "unknown" in a checkout that is only on the path."""
    # An editable installation of the whole project is one distribution.
    for name in ("stablernn-server", "stablernn"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return "unknown"
