"""The version of what is installed, found without importing the library (which would import torch)."""

from __future__ import annotations


def installed_version() -> str | None:
    """Version of the installed distribution; None where the packages run from a checkout that is not installed."""
    from importlib import metadata

    try:
        return metadata.version("stablernn")
    except metadata.PackageNotFoundError:
        return None
