"""Violations that a running server has counted, read over HTTP by the package of the client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.report.reading import count_at, value_at

if TYPE_CHECKING:
    from stablernn_registry import Version

TOKEN_VARIABLE = "STABLERNN_CLIENT_TOKEN"
SCOPE = (
    "One server process, since it opened this version. Other processes, earlier starts of the server and other servers "
    "are not counted; with several workers it is the process that answered."
)
NOT_READ = "No server was asked: the document was written without --server, so it says nothing about operation."


def not_read() -> dict[str, Any]:
    """Return the part of a document for which no server was asked."""
    return {"read": False, "note": NOT_READ}


def read_counts(url: str, version: Version) -> dict[str, Any]:
    """Return the counts of a server for a version, with the time at which they were read.

    Args:
        url: Address of the server. A bearer token is read from :data:`TOKEN_VARIABLE`.
        version: The version, by whose digest that of the server is checked.

    Raises:
        CommandError: If the server does not answer, refuses, or serves another model under the reference.
    """
    from stablernn_client import Client, ClientError
    from stablernn_registry.log import utc_now

    # The token is a secret, which has no place on a command line.
    try:
        with Client(url, token=os.environ.get(TOKEN_VARIABLE) or None) as client:
            parameters = client.metadata(version.ref).get("parameters")
            statistics = client.statistics(version.ref)
    except ClientError as error:
        raise CommandError(
            f"The counts of '{version.ref}' cannot be read from {_without_credentials(url)}: {error} Start the server, "
            f"set {TOKEN_VARIABLE} if it wants a token, or leave out --server."
        ) from error
    # Two registries can have different versions of one name and number.
    if not isinstance(parameters, Mapping) or parameters.get("digest") != version.digest:
        raise CommandError(
            f"The server at {_without_credentials(url)} serves another model as '{version.ref}': its digest differs "
            f"from {version.digest}. Ask a server of this registry, or leave out --server."
        )
    # A server is asked over a network: its answer may have any form.
    states, ranges = value_at(parameters, "state_guard", "states"), value_at(parameters, "input_guard", "ranges")
    counts = next((row for row in statistics if str(row.get("version")) == str(version.version)), {})
    return {
        "read": True,
        "url": _without_credentials(url),
        "time": utc_now(),
        "scope": SCOPE,
        # None without a guard: nothing is compared, and a zero would look like a result.
        "states_outside_ball": count_at(parameters, "state_guard", "exits") if states else None,
        "samples_outside_range": None if ranges is None else count_at(parameters, "input_guard", "outside"),
        "guarded_states": states,
        "range": ranges,
        "sequences_and_steps_run": count_at(counts, "inference_count"),
    }


def check_address(url: str) -> None:
    """Refuse an address that no server can have, or that has a password, which documents and messages would show.

    Raises:
        UsageError: If it is one.
    """
    advice = "Give an address such as http://127.0.0.1:8080"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if "@" in url:
        raise UsageError(f"--server takes an address without user and password. {advice}, and {TOKEN_VARIABLE}.")
    if not is_address or any(character.isspace() for character in url):
        raise UsageError(f"--server takes an http:// or https:// address, got '{url}'. {advice}.")


def _without_credentials(url: str) -> str:
    """Return an address without the user and the password that it may have: a document is passed on."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
