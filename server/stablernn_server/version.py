"""What this server is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Version of the installed distribution; a checkout that is only on the path has none."""
    try:
        return version("stablernn")
    except PackageNotFoundError:
        return "unknown"
