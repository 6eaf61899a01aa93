"""Errors of the command line, and the exit codes of the errors of all packages."""

from __future__ import annotations

import sys

FAILED = 1
USAGE = 2
REFUSED = 3
INTERRUPTED = 130
"""Exit code of a program that was stopped by Ctrl-C: 128 + SIGINT."""


class CommandError(Exception):
    """An error whose text is a sentence for the user, with the exit code of the program."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(CommandError, ValueError):
    """An error in the command line itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message, USAGE)


class Reported(CommandError):
    """An error that the command has reported already; only the exit code is left to set."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("", exit_code)


# The first matching row wins, so subclasses stand before their bases. Modules are named and not imported: a class can
# only have been raised if its module is loaded already, and a serving process does not load stablernn.
_EXIT_CODES: tuple[tuple[str, str, int], ...] = (
    ("stablernn.errors", "ConfigError", USAGE),
    ("stablernn.errors", "UnknownNameError", USAGE),
    ("stablernn.errors", "InterruptedRun", INTERRUPTED),
    ("stablernn.errors", "StableRNNError", FAILED),
    ("stablernn_registry.errors", "RefError", USAGE),
    ("stablernn_registry.errors", "UnknownRefError", USAGE),
    ("stablernn_registry.errors", "GateRefused", REFUSED),
    ("stablernn_registry.errors", "RegistryError", FAILED),
    ("stablernn_runtime.errors", "SettingsError", USAGE),
    ("stablernn_server.errors", "UnknownModelError", USAGE),
    ("stablernn_runtime.errors", "ServingError", FAILED),
)


def exit_code_of(error: Exception) -> int | None:
    """Return the exit code of an error whose text is meant for the user; None for any other exception."""
    if isinstance(error, CommandError):
        return error.exit_code
    for module, name, code in _EXIT_CODES:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(error, getattr(loaded, name)):
            return code
    return None
