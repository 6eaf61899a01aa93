"""The key that signs state tokens, from the settings."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from stablernn_runtime.errors import SettingsError
from stablernn_runtime.state_token import KEY_BYTES, StateTokens, key_from_text
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

_MAX_KEY_FILE_BYTES = 2**20


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
        return StateTokens(key_from_text(_read_key(path), f"The state key file {path}"), ttl_seconds)
    logger.warning(
        "No state key is set, so a random one is used: state tokens expire with this process. Give --state-key-file "
        "or STABLERNN_STATE_KEY to continue streams after a restart or on another server."
    )
    return StateTokens(secrets.token_bytes(KEY_BYTES), ttl_seconds)


def _read_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # One byte beyond the limit is enough to tell that there is more.
            content = file.read(_MAX_KEY_FILE_BYTES + 1)
        if len(content) > _MAX_KEY_FILE_BYTES:
            raise SettingsError(
                f"The state key file {path} has more than {_MAX_KEY_FILE_BYTES} bytes; is it the right file?"
            )
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"The state key file {path} cannot be read: {reason}.") from error
