"""The layout of binary frames, written and read by a client that knows it by itself; and whatever else may come."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablernn_server.codecs.stream_frames import Frame, Layout, encode
from stablernn_server.errors import InputError
from stream_helpers import frame

FLOAT, WHOLE = np.dtype(np.float32), np.dtype(np.int64)
LAYOUTS = {"series": ((2,), FLOAT), "tokens": ((), WHOLE)}


def read(layout: Layout, content: bytes) -> Frame:
    return layout.read(content, *layout.head(content))


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_what_a_client_writes_is_read(name: str, data: st.DataObject) -> None:
    shape, dtype = LAYOUTS[name]
    streams, steps = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    numbers = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=streams, max_size=streams, unique=True))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = random.integers(0, 9, (streams, steps, *shape)).astype(dtype)
    options: dict[str, Any] = {"want_tokens": data.draw(st.booleans()), "last": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        options["sequence"] = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=streams, max_size=streams))
    if data.draw(st.booleans()):
        options["dt"] = random.random((streams, steps)).astype(np.float32)
    if data.draw(st.booleans()):
        options["tokens"] = data.draw(st.lists(st.sampled_from(["", "a", "abc"]), min_size=streams, max_size=streams))
    found = read(Layout(shape, dtype), frame(numbers, x, **options))
    assert (found.numbers, found.tokens) == (numbers, options.get("tokens"))
    assert (found.sequence is None) == ("sequence" not in options)
    assert found.sequence is None or found.sequence.tolist() == options["sequence"]
    assert (found.dt is None) == ("dt" not in options)
    assert found.dt is None or np.array_equal(found.dt, options["dt"])
    assert np.array_equal(found.samples, x)
    assert found.samples.dtype == dtype
    assert found.samples.flags.aligned


@pytest.mark.parametrize("name", LAYOUTS)
@given(content=st.binary(max_size=200), flags=st.integers(0, 255), streams=st.integers(0, 6), steps=st.integers(0, 6))
def test_any_other_bytes_are_refused_in_words(name: str, content: bytes, flags: int, streams: int, steps: int) -> None:
    layout = Layout(*LAYOUTS[name])
    for tried in (content, struct.pack("<BBHII", 1, flags, 0, streams, steps) + content):
        found, refusal = None, ""
        try:
            found = read(layout, tried)
        except InputError as error:
            refusal = str(error)
        if found is None:
            assert refusal.endswith(".")
        else:
            assert found.samples.size == found.streams * found.steps * max(1, int(np.prod(LAYOUTS[name][0])))


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "A binary frame begins with a head of 12 bytes, got 0 in all."),
    "version": (
        struct.pack("<BBHII", 2, 0, 0, 1, 1),
        "A binary frame begins with the version 1, flags of 31 and a u16 of 0, got 2, 0 and 0.",
    ),
    "flags": (
        struct.pack("<BBHII", 1, 32, 0, 1, 1),
        "A binary frame begins with the version 1, flags of 31 and a u16 of 0, got 1, 32 and 0.",
    ),
    "no stream": (
        struct.pack("<BBHII", 1, 0, 0, 0, 1),
        "A binary frame has at least 1 stream and 1 sample of each, got 0 and 1.",
    ),
    "cut off": (frame([1], np.zeros((1, 2, 2)))[:-1], "By its head, the binary frame must have 32 bytes, got 31."),
    "too long": (
        frame([1], np.zeros((1, 2, 2))) + b"0",
        "By its head, the binary frame must have 32 bytes, got 33.",
    ),
    "twice": (
        frame([5, 6, 5], np.zeros((3, 1, 2))),
        "The stream 5 is named twice in one binary frame; send its samples in one row.",
    ),
    "within a token": (
        frame([1], np.zeros((1, 0, 2)), tokens=["abcd"]).replace(struct.pack("<II", 1, 0), struct.pack("<II", 1, 1))[
            :-1
        ],
        "The binary frame ends within token 0 of 1; each token is its length and its text.",
    ),
    "a token of bytes": (
        frame([1], np.zeros((1, 1, 2)), tokens=["é"]),
        "Token 0 of the binary frame is not ASCII; send it as you got it.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said(case: str) -> None:
    content, sentence = REFUSED[case]
    with pytest.raises(InputError) as caught:
        read(Layout((2,), FLOAT), content)
    assert str(caught.value) == sentence


def test_one_number_among_very_many_is_given_twice() -> None:
    """As long as each number was looked for among all others, this took many minutes."""
    count = 400_000
    numbers = [*range(count - 1), count - 2]
    content = struct.pack("<BBHII", 1, 0, 0, count, 1) + np.array(numbers, "<u4").tobytes() + bytes(8 * count)
    with pytest.raises(InputError, match=f"The stream {count - 2} is named twice in one binary frame"):
        read(Layout((2,), FLOAT), content)


def test_an_answer_is_laid_out_as_documented() -> None:
    outputs = [np.arange(6, dtype=np.float32).reshape(2, 1, 3), np.full((2, 1, 1, 2), 7, np.float32)]
    found = encode(3, [4, 2**40], outputs, ["ab", "c"])
    assert found == (
        struct.pack("<BBHII2Q", 1, 3, 0, 2, 1, 4, 2**40)
        + struct.pack("<6f", *range(6))
        + struct.pack("<4f", 7, 7, 7, 7)
        + struct.pack("<I2sI1s", 2, b"ab", 1, b"c")
    )
