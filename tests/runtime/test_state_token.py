"""State tokens: what is signed comes back bit for bit, and nothing else comes in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablernn_runtime.errors import BadTokenError, ExpiredTokenError
from stablernn_runtime.state_token import StateTokens, StreamSnapshot, key_from_text
from stablernn_runtime.stream_clock import Clock

KEY = bytes(range(32))
DIGEST = "sha256:" + "5a" * 32
TOKENS = StateTokens(KEY, 60)
SPECIAL = np.array([np.nan, -0.0, np.inf, 1e-45, np.pi], np.float32)


def portable(**fields: Any) -> StreamSnapshot:
    states = {"state_1": SPECIAL, "state_0": np.array([[2**62, -1]], np.int64), "empty": np.zeros((0, 3), np.float32)}
    known: dict[str, Any] = {"clock": Clock("2024-01-31T06:00:00Z", 2.5), "static": SPECIAL[:2], "states": states}
    return StreamSnapshot(**{"model": "animals:12", "digest": DIGEST, "step": 2**40, **known, **fields})


@pytest.mark.parametrize("clock", [Clock(), Clock(-0.1, 7.0), Clock("2024-01-31", 0.0)], ids=["none", "number", "text"])
def test_a_token_holds_every_bit(clock: Clock) -> None:
    given = portable(clock=clock)
    found = TOKENS.read(TOKENS.issue(given))
    for name in ("model", "digest", "step", "clock"):
        assert getattr(found, name) == getattr(given, name)
    assert found.static.tobytes() == given.static.tobytes()
    assert list(found.states) == list(given.states)
    for name, value in given.states.items():
        assert (found.states[name].dtype, found.states[name].shape) == (value.dtype, value.shape)
        assert found.states[name].tobytes() == value.tobytes()


TOKEN = TOKENS.issue(portable())
CONTENT = base64.urlsafe_b64decode(TOKEN + "=" * (-len(TOKEN) % 4))


def text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_no_byte_can_be_another(place: int, change: int) -> None:
    changed = bytearray(CONTENT)
    changed[place] ^= change
    with pytest.raises(BadTokenError):
        TOKENS.read(text(bytes(changed)))


def test_no_character_can_be_another() -> None:
    """Those too that stand for the same bytes, as the last one of base64 can."""
    for place in range(len(TOKEN)):
        for other in ("A", "B", "Q", "z", "_", "-", "=", " ", "\n", "é"):
            if TOKEN[place] != other:
                with pytest.raises(BadTokenError):
                    TOKENS.read(TOKEN[:place] + other + TOKEN[place + 1 :])


CHANGED: dict[str, Callable[[str], str]] = {
    "cut": lambda token: token[:-4],
    "longer": lambda token: token + "AAAA",
    "padded": lambda token: token + "=" * (-len(token) % 4 or 4),
    "empty": lambda token: "",
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_token_has_one_spelling(case: str) -> None:
    with pytest.raises(BadTokenError):
        TOKENS.read(CHANGED[case](TOKEN))


def test_another_key_signs_nothing_for_us() -> None:
    forged = StateTokens(bytes(32), 60).issue(portable())
    with pytest.raises(BadTokenError, match="The state token was not signed by this server's key, or was changed"):
        TOKENS.read(forged)


def test_it_ends() -> None:
    with pytest.raises(ExpiredTokenError) as caught:
        TOKENS.read(StateTokens(KEY, -5).issue(portable()))
    assert str(caught.value).endswith("tokens last 60 s here (STABLERNN_TOKEN_TTL_SECONDS). Begin a new stream.")


def test_the_layout_is_the_documented_one() -> None:
    """Read by hand, as another program would."""
    model, at = b"animals:12", 7
    assert CONTENT[:5] == b"SRNT\x01"
    assert struct.unpack_from("<H", CONTENT, 5) == (len(model),)
    assert CONTENT[at : at + 10] == model
    assert CONTENT[17:49] == bytes.fromhex("5a" * 32)
    step, expires, kind, steps, length = struct.unpack_from("<QQBdH", CONTENT, 49)
    assert (step, kind, steps, length) == (2**40, 2, 2.5, 20)
    assert CONTENT[76:96] == b"2024-01-31T06:00:00Z"
    assert struct.unpack_from("<H", CONTENT, 96) == (2,)
    assert CONTENT[98:106] == SPECIAL[:2].tobytes()
    assert struct.unpack_from("<BB7sBBI", CONTENT, 106) == (3, 7, b"state_1", 1, 1, 5)
    assert CONTENT[121:141] == SPECIAL.tobytes()
    assert CONTENT[-32:] == hmac.new(KEY, CONTENT[:-32], hashlib.sha256).digest()
    assert expires > 1_700_000_000


def test_keys() -> None:
    assert key_from_text("0f" * 32 + "\n", "it") == bytes.fromhex("0f" * 32)
    assert (
        key_from_text("a sentence that is longer than 32 bytes", "it")
        == hashlib.sha256(b"a sentence that is longer than 32 bytes").digest()
    )
