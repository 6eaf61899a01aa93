"""The key of state tokens: where it comes from, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretStr

from stablernn_runtime.state_token import StreamSnapshot
from stablernn_runtime.stream_clock import Clock
from stablernn_server import Settings
from stablernn_server.errors import BadTokenError, SettingsError
from stablernn_server.key_files import create_state_tokens

SNAPSHOT = StreamSnapshot("m:1", "sha256:" + "00" * 32, 1, Clock(), np.empty(0, np.float32), {})


@pytest.mark.parametrize(("given", "size"), [("short", 5), ("0f" * 31, 31), ("", 0), ("0f" * 16, 16)])
def test_a_short_key_is_refused_and_not_repeated(given: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(given)
    path.chmod(0o600)
    with pytest.raises(SettingsError) as caught:
        create_state_tokens(Settings(state_key_file=path))
    assert str(caught.value) == (
        f"The state key file {path} must hold a key of at least 32 bytes, as 64 hex digits or as text, got {size} "
        "bytes; 'openssl rand -hex 32' makes one."
    )
    if given:
        with pytest.raises(SettingsError, match="^STABLERNN_STATE_KEY must hold"):
            create_state_tokens(Settings(state_key=given))


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        create_state_tokens(Settings(state_key_file=tmp_path / "none"))
    assert str(caught.value) == f"The state key file {tmp_path / 'none'} cannot be read: No such file or directory."


def test_one_key_is_enough(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0f" * 32)
    with pytest.raises(SettingsError, match="are both set; leave one of them out"):
        create_state_tokens(Settings(state_key="0f" * 32, state_key_file=tmp_path / "key"))


def test_without_a_key_tokens_die_with_the_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        one, other = create_state_tokens(Settings()), create_state_tokens(Settings())
    assert "state tokens expire with this process" in caplog.text
    assert one.read(one.issue(SNAPSHOT)).step == 1
    with pytest.raises(BadTokenError):
        other.read(one.issue(SNAPSHOT))


@pytest.mark.parametrize(
    "name",
    ["token_ttl_seconds", "session_ttl_seconds", "request_timeout_seconds", "read_timeout_seconds", "reload_seconds"],
)
@pytest.mark.parametrize("value", ["inf", "nan", "1e30"])
def test_times_that_cannot_be_counted_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"STABLERNN_{name.upper()}", value)
    with pytest.raises(SettingsError, match=f"^Settings: {name}: input should be "):
        Settings()


def test_the_longest_time_to_live_can_be_written() -> None:
    settings = Settings(token_ttl_seconds=100 * 365 * 86_400, state_key=SecretStr("k" * 32))
    tokens = create_state_tokens(settings)
    assert tokens.read(tokens.issue(SNAPSHOT)).step == 1
