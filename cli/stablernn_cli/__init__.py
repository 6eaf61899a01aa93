"""The command line `stablernn`."""

from __future__ import annotations


def installed_version() -> str | None:
    """Return the version of the installed distribution; None if the packages run from a checkout only."""
    # Imported here: every command waits for this module.
    from importlib import metadata

    try:
        return metadata.version("stablernn")
    except metadata.PackageNotFoundError:
        return None
