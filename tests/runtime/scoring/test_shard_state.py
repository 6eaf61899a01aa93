"""Checkpoints and tokens of a shard, and those that are refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from published_models import Published, republished
from server_helpers import Running, serve
from shard_helpers import TOKENS, add_events, last_outputs, whole_outputs
from stablernn_registry import Registry
from stablernn_runtime import StateTokens
from stablernn_runtime.errors import BadTokenError, CheckpointError, ConflictError, ExpiredTokenError, InputError
from stablernn_runtime.scoring import Scorer, StreamShard
from stablernn_runtime.scoring import shard_checkpoint as layout
from stablernn_runtime.stream_clock import Clock
from stablernn_server import Settings, create_app
from stream_helpers import STATE_KEY


@pytest.fixture(scope="module")
def running(published: Published) -> Iterator[Running]:
    settings = Settings(registry=published.root, models=("animals:1",), state_key=STATE_KEY)
    yield from serve(create_app(settings))


def test_a_stream_moves_between_a_shard_and_a_server_again_and_again(
    shard: StreamShard, animals: Scorer, running: Running
) -> None:
    x = np.random.default_rng(5).normal(size=15).astype(np.float32)
    step, differing = 0, 0
    with httpx.Client(base_url=running.url) as client:
        for _ in range(5):
            for value in x[step : step + 2]:
                shard.add(["hall"], [step], [[value]])
                step += 1
            body = {"model": "animals:1", "state_token": shard.token("hall", TOKENS)}
            session = client.post("/v1/sessions", json=body).raise_for_status().json()["session_id"]
            path = f"/v1/sessions/{session}"
            answer = client.post(f"{path}/step", json={"values": [float(x[step])]}).raise_for_status().json()
            step += 1
            assert answer["step"] == step
            expected = whole_outputs(animals, *x[:step])
            differing += int((np.array(answer["outputs"][0]["probabilities"], np.float32) != expected).sum())
            token = client.get(path, params={"token": True}).raise_for_status().json()["state_token"]
            client.delete(path).raise_for_status()
            shard.put("hall", token, TOKENS)
            assert shard.next_number("hall") == step
    answers = shard.add(["hall"], [step], [[0.25]])
    differing += int((last_outputs(answers) != whole_outputs(animals, *x[:step], 0.25)).sum())
    assert differing == 0


def test_a_token_keeps_time_number_and_what_was_answered(kinds: Published) -> None:
    scorer, dt = Scorer.find("timed", registry=kinds.root), [0.5]
    shard = StreamShard(scorer)
    row = [[1.0]]
    shard.add(["a"], [0], row)
    snapshot = TOKENS.read(shard.token("a", TOKENS))
    assert snapshot.clock == Clock()
    moved = TOKENS.issue(type(snapshot)(**(vars(snapshot) | {"clock": Clock("2024-01-31T06:00:00Z", 3.0)})))
    shard.put("a", moved, TOKENS, number=70)
    again = shard.add(["a"], [70], row)
    assert again.errors == ["This event was answered where the stream ran before; its state token holds no answer."]
    assert shard.add(["a"], [71], row, dt=dt).errors == [None]
    shard = StreamShard.load(scorer, shard.dump())
    shard.add(["a"], [72], row, dt=dt)
    later = TOKENS.read(shard.token("a", TOKENS))
    assert (later.clock, later.step) == (Clock("2024-01-31T06:00:00Z", 4.0), 3)


def test_a_dropped_stream_leaves_the_others_as_they_are(shard: StreamShard, animals: Scorer) -> None:
    for key in ("a", "b", "c"):
        add_events(shard, key, 0, 1)
    add_events(shard, "c", 3)
    shard.add(["c"], [2], [[np.inf]])
    shard.drop("a")
    shard.drop("nobody")
    assert (set(shard.keys), len(shard), "a" in shard) == ({"b", "c"}, 2, False)
    assert np.array_equal(last_outputs(add_events(shard, "c", 4)), whole_outputs(animals, 0, 1, 3, 4))
    assert np.array_equal(last_outputs(add_events(shard, "a", 0)), whole_outputs(animals, 0))
    shard.add(["c"], [6], [[6.0]])
    shard.drop("b")
    shard.drop("c")
    assert (shard.keys, shard.waiting) == (["a"], 0)
    assert repr(shard) == "StreamShard('animals:1', keys=1, waiting=0)"


def test_a_checkpoint_holds_errors_and_events_that_wait(shard: StreamShard, animals: Scorer) -> None:
    add_events(shard, "a", 0)
    shard.add(["a", "b", "é\ud800"], [2, 0, 0], [[np.inf], [np.inf], [1.0]])
    other = StreamShard.load(animals, shard.dump())
    assert (other.counts, other.waiting, other.lateness, other.keys) == (shard.counts, 1, 4, shard.keys)
    assert other.dump() == shard.dump()
    assert add_events(other, "b", 0).errors == ["loudness is infinite or beyond float32."]
    assert add_events(other, "a", 1).errors == [None, "loudness is infinite or beyond float32."]
    assert len(StreamShard.load(animals, StreamShard(animals).dump())) == 0


def packed(fields: dict[str, Any], arrays: dict[str, Any]) -> bytes:
    return b"".join(layout.pack_checkpoint(fields, arrays))


def test_a_checkpoint_in_parts_copies_no_state(shard: StreamShard, animals: Scorer, tmp_path: Path) -> None:
    keys: list[Any] = [f"é-{number}" for number in range(20_000)] + [b"\xff", 2**70, "\ud800"]
    shard.add(keys, [0] * len(keys), [[0.5]] * len(keys))
    states = shard._table.states.values()
    parts = list(shard.dump_parts())
    views = [np.asarray(part) for part in parts if isinstance(part, memoryview)]
    assert all(any(np.shares_memory(state, view) for view in views) for state in states)
    copied = sum(len(part) for part in parts if isinstance(part, bytes))
    assert copied < sum(len(str(key)) for key in keys) * 2
    path = tmp_path / "streams.ckpt"
    with path.open("wb") as file:
        file.writelines(shard.dump_parts())
    assert path.read_bytes() == shard.dump()
    with layout.map_checkpoint(path) as content:
        other = StreamShard.load(animals, content)
    assert other.keys == keys
    path.unlink()
    assert other.dump() == shard.dump()
    path.touch()
    with layout.map_checkpoint(path) as content, pytest.raises(CheckpointError, match="^This is no checkpoint"):
        StreamShard.load(animals, content)


def test_checkpoints_that_do_not_fit_are_refused(shard: StreamShard, animals: Scorer, published: Published) -> None:
    add_events(shard, "a", 0, 2)
    content = shard.dump()
    for damaged in (content[:-1], content[:100], content[:-40] + b"x" + content[-39:]):
        with pytest.raises(CheckpointError, match="^The checkpoint is cut or damaged: its"):
            StreamShard.load(animals, damaged)
    for other in (b"", b"SRNT", json.dumps({}).encode()):
        with pytest.raises(CheckpointError, match="^This is no checkpoint of streams"):
            StreamShard.load(animals, other)
    with pytest.raises(CheckpointError, match="^The checkpoint has the layout 2, and this version"):
        StreamShard.load(animals, content[:8] + struct.pack("<I", 2) + content[12:])
    with pytest.raises(CheckpointError, match="^The checkpoint is of 'animals:1' .*, and the shard runs 'animals:2'"):
        StreamShard.load(Scorer.find("animals:2", registry=published.root), content)
    fields, arrays = layout.unpack_checkpoint(content)
    arrays["state state_0"] = arrays["state state_0"][:, :-1]
    with pytest.raises(CheckpointError, match="^The checkpoint must hold 'state state_0' as float32 of the shape"):
        StreamShard.load(animals, packed(fields, arrays))
    del arrays["state state_0"]
    with pytest.raises(CheckpointError, match="got none: it is of streams of another size"):
        StreamShard.load(animals, packed(fields, arrays))
    with pytest.raises(CheckpointError, match="of the type <c8, which no shard has"):
        StreamShard.load(animals, packed(fields, {"x": np.zeros(1, np.complex64)}))


def test_tokens_that_do_not_fit_are_refused(shard: StreamShard, published: Published, tmp_path: Path) -> None:
    add_events(shard, "a", 0)
    token = shard.token("a", TOKENS)
    with pytest.raises(InputError, match="^The shard has no stream 'b'; it has 1 others"):
        shard.token("b", TOKENS)
    with pytest.raises(BadTokenError):
        shard.put("a", token, StateTokens(bytes(32), 600))
    with pytest.raises(BadTokenError, match="^The state token is of 'animals:1' .*, and this shard runs 'animals:2'"):
        StreamShard(Scorer.find("animals:2", registry=published.root)).put("a", token, TOKENS)
    other: Registry = republished(published, tmp_path / "other", lambda fields, _: fields.update(lineage={"run": "2"}))
    with pytest.raises(BadTokenError, match="and this shard runs 'animals:1'"):
        StreamShard(Scorer.find("animals:1", registry=other.root)).put("a", token, TOKENS)
    with pytest.raises(ExpiredTokenError):
        shard.put("a", shard.token("a", StateTokens(TOKENS.key, -5)), TOKENS)
    with pytest.raises(InputError, match="^number must be from -1"):
        shard.put("a", token, TOKENS, number=-2)
    snapshot = TOKENS.read(token)
    wrong = {"states": {"state_0": np.zeros(3, np.float32)}}, {"static": np.zeros(2, np.float32)}
    for fields in wrong:
        with pytest.raises(BadTokenError, match="^The state token holds sta"):
            shard.put("a", TOKENS.issue(type(snapshot)(**(vars(snapshot) | fields))), TOKENS)
    add_events(shard, "a", 2)
    with pytest.raises(ConflictError, match="^1 events of the stream 'a' wait for others"):
        shard.put("a", token, TOKENS)


@pytest.mark.slow
def test_the_example_of_the_page_runs(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "streams_by_key.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0].replace("machines@", "animals@")
    monkeypatch.setenv("STABLERNN_REGISTRY", str(published.root))
    names: dict[str, Any] = {}
    exec(compile(code, "streams_by_key.md", "exec"), names)
    assert names["again"].is_again.tolist() == [True, False]
