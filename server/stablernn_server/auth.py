"""Authorization: bearer tokens with the roles infer and admin, and the table of paths that need them.

Weak tokens are refused. No message of this module repeats a token.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stablernn_server.errors import ForbiddenError, SettingsError, UnauthorizedError, cut
from stablernn_server.key_files import read_secret
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Access = Literal["open", "infer", "admin"]

# DOTALL: a path may hold an encoded line break, and a pattern that stops at it would let such a path pass as another.
ACCESS_BY_PATH: tuple[tuple[re.Pattern[str], Access], ...] = (
    (re.compile(r"/|/docs|/page/.*|/v2/health/(live|ready)", re.DOTALL), "open"),
    (re.compile(r"/v2/repository/models/.*", re.DOTALL), "admin"),
)
"""Access that a path needs: that of the first pattern that matches all of it. A path without a match needs infer."""

ACCESS_LEVELS: Mapping[str, int] = {"open": 0, "infer": 1, "admin": 2}
SUBPROTOCOL_PREFIX = "bearer."
NO_TOKEN = "This server needs a token; send it in the header 'Authorization: Bearer TOKEN'."
BAD_TOKEN = "This server does not know the token; ask its operator for one."
# RFC 6750, section 3.1: the error is named only to a client that sent a token.
BAD_TOKEN_HEADERS = {"WWW-Authenticate": 'Bearer realm="stablernn", error="invalid_token"'}
MIN_LENGTH = 16
Role = Literal["infer", "admin"]
ROLES: dict[str, Role] = {"infer": "infer", "admin": "admin"}
_SENDABLE = re.compile(r"[\x21-\x7e]+")
_HINT = "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"


class Identity(NamedTuple):
    """The sender of a request.

    Attributes:
        name: ``anonymous``, or the role with the number of the token, such as ``infer-2``; safe to log.
        role: ``open`` (anonymous), ``infer`` or ``admin``.
    """

    name: str
    role: Access


ANYONE = Identity("anonymous", "admin")
"""The sender of any request to a server that needs no token."""
NOBODY = Identity("anonymous", "open")
"""The sender of a request that is not checked, since its path is open."""


@dataclass(frozen=True)
class Auth:
    """The tokens that a server accepts. Only their digests are in memory.

    Attributes:
        is_on: Whether requests need a token.
        digests: SHA-256 of each token, and the identity of its owner.
    """

    is_on: bool
    digests: tuple[tuple[bytes, Identity], ...] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> Auth:
        """Read the tokens of the tokens file and of the settings.

        Raises:
            SettingsError: If the file or a token is not valid; the message never holds a token.
        """
        tokens: list[Token] = [] if settings.tokens_file is None else read_tokens(settings.tokens_file)
        for role, field in (("infer", "infer_tokens"), ("admin", "admin_tokens")):
            for number, secret in enumerate(getattr(settings, field), 1):
                source = f"{field} (STABLERNN_{field.upper()}), token {number}"
                tokens.append(check_token(role, secret.get_secret_value(), source))
        if settings.auth == "off":
            if tokens:
                logger.warning("auth is off: the %d configured tokens are not checked", len(tokens))
            return cls(False)
        first_by_digest: dict[bytes, Token] = {}
        digests: list[tuple[bytes, Identity]] = []
        for token in tokens:
            digest = hashlib.sha256(token.text.encode()).digest()
            first = first_by_digest.setdefault(digest, token)
            # A token may be configured twice, as long as the role is the same: numbers count different tokens.
            if first is token:
                digests.append((digest, Identity(f"{token.role}-{_count(digests, token.role) + 1}", token.role)))
            elif first.role != token.role:
                raise SettingsError(
                    f"{token.source} is the same token as {first.source} with another role; give each token one role."
                )
        return cls(bool(digests), tuple(digests))

    def check(self, scope: Scope) -> Identity:
        """Return the sender of a request or WebSocket handshake; cheap enough to call for each.

        Args:
            scope: The scope of the ASGI call, ``http`` or ``websocket``.

        Raises:
            UnauthorizedError: Without a token, or with one that is not known.
            ForbiddenError: If the token's role may not do this.
        """
        if not self.is_on:
            return ANYONE
        needed = required_access(scope["path"])
        if needed == "open":
            return NOBODY
        identity = self._identify(read_token(scope))
        if ACCESS_LEVELS[identity.role] < ACCESS_LEVELS[needed]:
            raise ForbiddenError(f"This needs a token of the role '{needed}', got one of the role '{identity.role}'.")
        return identity

    def check_address(self, host: str, settings: Settings) -> None:
        """Refuse to serve other machines without tokens, unless auth is off.

        Args:
            host: Address or name to listen on.
            settings: Settings of the server.

        Raises:
            SettingsError: If other machines can reach ``host``, there are no tokens, and auth is not off.
        """
        if not self.is_on and settings.auth != "off" and not is_loopback(host):
            raise SettingsError(
                f"The address '{host}' can be reached from other machines, and no token is configured. Give tokens "
                "(--tokens-file FILE, or STABLERNN_INFER_TOKENS and STABLERNN_ADMIN_TOKENS), listen on 127.0.0.1, or "
                "let everybody in with --auth off."
            )

    def _identify(self, token: bytes) -> Identity:
        token_digest = hashlib.sha256(token).digest()
        match: Identity | None = None
        # All are compared, also after a match: the time says nothing about the tokens.
        for digest, identity in self.digests:
            if hmac.compare_digest(token_digest, digest):
                match = identity
        if match is None:
            raise _bad_token()
        return match


# Requests repeat a few paths.
@functools.lru_cache(1024)
def required_access(path: str) -> Access:
    """Return the access that a decoded path needs."""
    for pattern, access in ACCESS_BY_PATH:
        if pattern.fullmatch(path) is not None:
            return access
    return "infer"


def read_token(scope: Scope) -> bytes:
    """Return the token of a request.

    It is in the header ``Authorization``. A browser cannot set that on a WebSocket, so there it may be the subprotocol
    ``bearer.`` followed by the token in base64url without padding.

    Raises:
        UnauthorizedError: If there is none, or it cannot be decoded.
    """
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if values:
        scheme, _, token = values[0].strip().partition(b" ")
        # Of two such headers, a proxy in front of the server may read one and the server the other.
        if len(values) > 1 or scheme.lower() != b"bearer" or not token.strip():
            raise _bad_token("The header Authorization must be 'Bearer TOKEN', and be there only once.")
        return bytes(token.strip())
    subprotocols: Sequence[str] = scope.get("subprotocols") or ()
    for subprotocol in subprotocols:
        if subprotocol.startswith(SUBPROTOCOL_PREFIX):
            encoded = subprotocol[len(SUBPROTOCOL_PREFIX) :]
            try:
                return base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
            except (binascii.Error, ValueError):
                raise _bad_token("The subprotocol after 'bearer.' is not base64url.") from None
    raise UnauthorizedError(NO_TOKEN)


def is_loopback(host: str) -> bool:
    """Return whether ``host``, an address or a name, can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        # An empty name stands for every address of this machine.
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):
        return False
    # IPv6 addresses may end in a zone, such as %eth0.
    addresses = {str(entry[4][0]).partition("%")[0] for entry in entries}
    return bool(addresses) and all(ipaddress.ip_address(address).is_loopback for address in addresses)


def _bad_token(message: str = BAD_TOKEN) -> UnauthorizedError:
    error = UnauthorizedError(message)
    error.headers = BAD_TOKEN_HEADERS
    return error


def _count(digests: Sequence[tuple[bytes, Identity]], role: str) -> int:
    return sum(identity.role == role for _, identity in digests)


class Token(NamedTuple):
    """A token, its role and where it is configured; ``text`` is a secret."""

    role: Role
    text: str
    source: str


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a file with lines ``ROLE TOKEN``; empty lines and those that begin with ``#`` are skipped.

    Raises:
        SettingsError: If it cannot be read, others can read it too, or a line is not valid.
    """
    text = read_secret(path, "tokens file")
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        source = f"The tokens file {path}, line {number},"
        if len(words) != 2:
            raise SettingsError(f"{source} has {len(words)} words; write 'ROLE TOKEN', role infer or admin.")
        tokens.append(check_token(words[0], words[1], source))
    if not tokens:
        raise SettingsError(f"The tokens file {path} holds no token; write lines of 'ROLE TOKEN', or leave it out.")
    return tokens


def check_token(role: str, text: str, source: str) -> Token:
    """Return a token that has passed the checks.

    Args:
        role: ``infer`` or ``admin``.
        text: The secret.
        source: Where the token is configured, as the beginning of an error message.

    Raises:
        SettingsError: If the role is not known, or the token is short or cannot be sent in a header.
    """
    known_role = ROLES.get(role)
    if known_role is None:
        # With the words swapped, the role would be the secret.
        got = f", got '{cut(role, 20)}'" if len(role) < MIN_LENGTH else ""
        raise SettingsError(f"{source} does not begin with a role{got}; write 'infer TOKEN' or 'admin TOKEN'.")
    if len(text) < MIN_LENGTH:
        raise SettingsError(f"{source} has {len(text)} characters; a token needs at least {MIN_LENGTH}. {_HINT}")
    if _SENDABLE.fullmatch(text) is None:
        raise SettingsError(f"{source} has characters that a header cannot carry; use visible ASCII. {_HINT}")
    return Token(known_role, text, source)
