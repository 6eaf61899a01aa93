"""Who may ask for what: bearer tokens with the roles infer and admin, and the table of routes that need them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stablernn_server.errors import ForbiddenError, SettingsError, UnauthorizedError
from stablernn_server.security.bearer_tokens import Token, check_token, read_tokens
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Access = Literal["open", "infer", "admin"]

# DOTALL: a path may hold an encoded line break, and a pattern that stops at it would let such a path pass as another.
ROUTES: tuple[tuple[re.Pattern[str], Access], ...] = (
    (re.compile(r"/|/docs|/page/.*|/v2/health/(live|ready)", re.DOTALL), "open"),
    (re.compile(r"/v2/repository/models/.*", re.DOTALL), "admin"),
)
"""What a path needs; the first pattern that matches all of it counts. A path that matches none needs infer."""

LEVELS: Mapping[str, int] = {"open": 0, "infer": 1, "admin": 2}
SUBPROTOCOL = "bearer."
NO_TOKEN = "This server needs a token; send it in the header 'Authorization: Bearer TOKEN'."
BAD_TOKEN = "The token is none that this server knows; ask whoever runs it for one."
# RFC 6750, section 3.1: the error is named only to a client that sent a token.
BAD_TOKEN_HEADERS = {"WWW-Authenticate": 'Bearer realm="stablernn", error="invalid_token"'}


class Identity(NamedTuple):
    """Who sent a request.

    Attributes:
        name: ``anonymous``, or the role with the number of the token, such as ``infer-2``; safe to log.
        role: ``open`` (nobody in particular), ``infer`` or ``admin``.
    """

    name: str
    role: Access


ANYONE = Identity("anonymous", "admin")
"""Everybody, where no token is asked for."""
NOBODY = Identity("anonymous", "open")


@dataclass(frozen=True)
class Auth:
    """The tokens that a server knows. None of them is kept, only their digests.

    Attributes:
        is_on: Whether requests need a token.
        digests: SHA-256 of each token, and whose it is.
    """

    is_on: bool
    digests: tuple[tuple[bytes, Identity], ...] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> Auth:
        """The tokens of the tokens file and of the settings.

        Raises:
            SettingsError: If the file or a token cannot be taken; the sentence never holds a token.
        """
        given: list[Token] = [] if settings.tokens_file is None else read_tokens(settings.tokens_file)
        for role, field in (("infer", "infer_tokens"), ("admin", "admin_tokens")):
            for place, secret in enumerate(getattr(settings, field), 1):
                where = f"{field} (STABLERNN_{field.upper()}), token {place}"
                given.append(check_token(role, secret.get_secret_value(), where))
        if settings.auth == "off":
            if given:
                logger.warning("auth is off: the %d configured tokens are not asked for", len(given))
            return cls(False)
        seen: dict[bytes, Token] = {}
        digests: list[tuple[bytes, Identity]] = []
        for token in given:
            digest = hashlib.sha256(token.text.encode()).digest()
            before = seen.setdefault(digest, token)
            if before is token:
                digests.append((digest, Identity(f"{token.role}-{_count(digests, token.role) + 1}", token.role)))
            elif before.role != token.role:
                raise SettingsError(
                    f"{token.where} is the same token as {before.where} with another role; give each token one role."
                )
        return cls(bool(digests), tuple(digests))

    def check(self, scope: Scope) -> Identity:
        """Who sent this request, or frame of a handshake; cheap enough for every one.

        Args:
            scope: Of ASGI, ``http`` or ``websocket``.

        Raises:
            UnauthorizedError: Without a token, or with one that is not known.
            ForbiddenError: If the token's role may not do this.
        """
        if not self.is_on:
            return ANYONE
        needed = access_of(scope["path"])
        if needed == "open":
            return NOBODY
        identity = self._identify(token_of(scope))
        if LEVELS[identity.role] < LEVELS[needed]:
            raise ForbiddenError(f"This needs a token of the role '{needed}', got one of the role '{identity.role}'.")
        return identity

    def check_address(self, host: str, settings: Settings) -> None:
        """Refuse to serve other machines without tokens, unless that was asked for.

        Args:
            host: Address or name to listen on.
            settings: Of the server.

        Raises:
            SettingsError: If ``host`` is not of this machine alone, there are no tokens, and auth is not off.
        """
        if not self.is_on and settings.auth != "off" and not is_loopback(host):
            raise SettingsError(
                f"The address '{host}' can be reached from other machines, and no token is configured. Give tokens "
                "(--tokens-file FILE, or STABLERNN_INFER_TOKENS and STABLERNN_ADMIN_TOKENS), listen on 127.0.0.1, or "
                "let everybody in with --auth off."
            )

    def _identify(self, token: bytes) -> Identity:
        digest = hashlib.sha256(token).digest()
        found: Identity | None = None
        # All are compared, whichever fits: the time says nothing about the tokens.
        for known, identity in self.digests:
            if hmac.compare_digest(digest, known):
                found = identity
        if found is None:
            raise _bad_token()
        return found


def access_of(path: str) -> Access:
    """What a decoded path needs."""
    for pattern, access in ROUTES:
        if pattern.fullmatch(path) is not None:
            return access
    return "infer"


def token_of(scope: Scope) -> bytes:
    """The token that a request carries.

    It stands in the header ``Authorization``. A browser cannot set that on a WebSocket, so there it may be the
    subprotocol ``bearer.`` followed by the token in base64url without padding.

    Raises:
        UnauthorizedError: If there is none, or none that can be read.
    """
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if values:
        scheme, _, token = values[0].strip().partition(b" ")
        # Two such headers may be read by a proxy in front of us in one way and by us in the other.
        if len(values) > 1 or scheme.lower() != b"bearer" or not token.strip():
            raise _bad_token("The header Authorization is to be 'Bearer TOKEN', once.")
        return bytes(token.strip())
    subprotocols: Sequence[str] = scope.get("subprotocols") or ()
    for item in subprotocols:
        if item.startswith(SUBPROTOCOL):
            encoded = item[len(SUBPROTOCOL) :]
            try:
                return base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
            except (binascii.Error, ValueError):
                raise _bad_token("The subprotocol after 'bearer.' is no base64url.") from None
    raise UnauthorizedError(NO_TOKEN)


def is_loopback(host: str) -> bool:
    """Whether ``host``, an address or a name, is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        # An empty name is every address of this machine.
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):
        return False
    addresses = {str(entry[4][0]) for entry in found}
    return bool(addresses) and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses)


def _bad_token(sentence: str = BAD_TOKEN) -> UnauthorizedError:
    error = UnauthorizedError(sentence)
    error.headers = BAD_TOKEN_HEADERS
    return error


def _count(digests: Sequence[tuple[bytes, Identity]], role: str) -> int:
    return sum(identity.role == role for _, identity in digests)
