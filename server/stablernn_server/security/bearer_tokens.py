"""Reading of bearer tokens, and the refusal of weak ones. No message of this module repeats a token."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Literal, NamedTuple

from stablernn_server.errors import SettingsError, cut

MIN_LENGTH = 16
MAX_BYTES = 2**20
Role = Literal["infer", "admin"]
ROLES: dict[str, Role] = {"infer": "infer", "admin": "admin"}
_SENDABLE = re.compile(r"[\x21-\x7e]+")
_HINT = "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"


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
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            # Of the open file: the path could be replaced between a check and the reading.
            _check_mode(path, os.fstat(file.fileno()))
            text = file.read(MAX_BYTES + 1).decode("utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"The tokens file {path} is not UTF-8; write lines of 'ROLE TOKEN'.") from None
    except OSError as error:
        raise SettingsError(f"The tokens file {path} cannot be read: {error.strerror}.") from error
    if len(text) > MAX_BYTES:
        raise SettingsError(f"The tokens file {path} has more than {MAX_BYTES} bytes; is it the right file?")
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


def _open_without_waiting(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_mode(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(f"The tokens file {path} is not a regular file.")
    if os.name == "posix" and status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        mode = stat.S_IMODE(status.st_mode)
        raise SettingsError(
            f"The tokens file {path} can be used by others, got mode {mode:04o}; run: chmod o-rwx,g-w '{path}'"
        )
