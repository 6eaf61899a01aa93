"""Secrets in files that the settings name: the key for https with its certificate, that of state tokens, tokens."""

from __future__ import annotations

import logging
import os
import secrets
import ssl
import stat
from pathlib import Path

from stablernn_runtime.state_token import KEY_BYTES, StateTokens, key_from_text
from stablernn_server.errors import SettingsError
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

_MAX_SECRET_BYTES = 2**20


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the certificate and key that the settings name; None if they name none.

    Raises:
        SettingsError: If one of the files is missing, cannot be read, or does not belong to the other.
    """
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        fields = ("tls_key_file", "tls_cert_file") if certificate is None else ("tls_cert_file", "tls_key_file")
        raise SettingsError(f"Settings: {fields[0]} is set without {fields[1]}; https needs both, or leave both out.")
    # OpenSSL's errors do not say which of the two files it could not read.
    for name, path in (("certificate", certificate), ("key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise SettingsError(f"The TLS {name} {path} cannot be read: {error.strerror}.") from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    # Clients whose threads read and write at the same time, such as those of `websockets.sync`, can block forever on a
    # session ticket: it is read, and nothing follows. Connections are kept alive, so that few would resume a session.
    context.num_tickets = 0
    try:
        # Without a password of its own, a key that has one would make OpenSSL ask on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        why = f" ({error.reason.replace('_', ' ').lower()})" if error.reason else ""
        raise SettingsError(
            f"The TLS certificate {certificate} and the key {key} cannot be used{why}. Give a certificate chain and "
            "its own key, both PEM, the key without a password."
        ) from error
    return context


def create_state_tokens(settings: Settings) -> StateTokens:
    """Return the signer of state tokens with the key of the settings, else with a random one and a logged warning.

    Raises:
        SettingsError: If the key is too short, its file cannot be read, or both are set.
    """
    path, ttl_seconds = settings.state_key_file, settings.token_ttl_seconds
    if settings.state_key is not None:
        if path is not None:
            raise SettingsError("Settings: state_key and state_key_file are both set; leave one of them out.")
        return StateTokens(key_from_text(settings.state_key.get_secret_value(), "STABLERNN_STATE_KEY"), ttl_seconds)
    if path is not None:
        return StateTokens(
            key_from_text(read_secret(path, "state key file"), f"The state key file {path}"), ttl_seconds
        )
    logger.warning(
        "No state key is set, so a random one is used: state tokens expire with this process. Give --state-key-file "
        "or STABLERNN_STATE_KEY to continue streams after a restart or on another server."
    )
    return StateTokens(secrets.token_bytes(KEY_BYTES), ttl_seconds)


def read_secret(path: Path, noun: str) -> str:
    """Return the text of a file that only its owner and group may use.

    Args:
        path: The file.
        noun: What it is, for errors.

    Raises:
        SettingsError: If it cannot be read, others can use it too, or it is no text of at most 1 MiB.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            # Of the open file: the path could be replaced between a check and the reading.
            _check_mode(path, noun, os.fstat(file.fileno()))
            # One byte beyond the limit is enough to tell that there is more.
            content = file.read(_MAX_SECRET_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"The {noun} {path} cannot be read: {reason}.") from None
    if len(content) > _MAX_SECRET_BYTES:
        raise SettingsError(f"The {noun} {path} has more than {_MAX_SECRET_BYTES} bytes; is it the right file?")
    return text


def _open_without_waiting(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_mode(path: Path, noun: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(f"The {noun} {path} is not a regular file.")
    if os.name == "posix" and status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        mode = stat.S_IMODE(status.st_mode)
        raise SettingsError(
            f"The {noun} {path} can be used by others, got mode {mode:04o}; run: chmod o-rwx,g-w '{path}'"
        )
