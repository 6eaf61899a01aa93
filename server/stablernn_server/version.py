"""The version of this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Return the version of the installed distribution; "unknown" in a checkout that is only on the path."""
    try:
        return version("stablernn")
    except PackageNotFoundError:
        return "unknown"
