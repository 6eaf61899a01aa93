"""`stablernn stream`: tokens out of checkpoints and into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli_helpers import Workplace
from stablernn_runtime.scoring import Scorer, StreamShard

KEY = "a key of state tokens that all servers of the tests share"


@pytest.fixture
def checkpoint(trained: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of the streams ``hall`` and 7, each after three events, which fill a patch."""
    monkeypatch.setenv("STABLERNN_STATE_KEY", KEY)
    shard = StreamShard(Scorer.find("digits", registry=trained.registry))
    shard.add(["hall"] * 3 + [7] * 3, [0, 1, 2] * 2, [[1.0]] * 3 + [[2.0]] * 3)
    path = tmp_path / "streams.ckpt"
    path.write_bytes(shard.dump())
    return path


def test_a_stream_moves_from_one_key_to_another(trained: Workplace, checkpoint: Path, tmp_path: Path) -> None:
    token = trained.ok(f"stream export {checkpoint} --key 7 --key-type int").out.strip()
    document = trained.document(f"stream export {checkpoint} --key hall")
    assert (document["model"], document["next_number"]) == ("digits:1", 3)
    (tmp_path / "token").write_text(token + "\n")
    result = trained.ok(f"stream import {checkpoint} --key yard --token-file {tmp_path / 'token'}")
    assert "its next event is number 3." in result.err
    trained.ok(f"-q stream import {checkpoint} --key b --key-type bytes --token {token}")
    command = f"stream import {checkpoint} --key late --token {token} --number 8 --json"
    assert trained.ok(command).json == {"model": "digits:1", "key": "late", "next_number": 9}
    shard = StreamShard.load(Scorer.find("digits", registry=trained.registry), checkpoint.read_bytes())
    assert shard.keys == ["hall", 7, "yard", b"b", "late"]
    numbers = [3, 3, 3, 9, 4, 4, 4, 10, 5, 5, 5, 11]
    answers = shard.add([7, "yard", b"b", "late"] * 3, numbers, [[3.0]] * 12).outputs["probabilities"]
    assert len(answers) == 4
    assert all(np.array_equal(answers[0], answer) for answer in answers)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("export", "--key", "nobody"), 1, "The shard has no stream 'nobody'; it has 2 others."),
        (("export", "--key", "x", "--key-type", "int"), 2, "--key must be a whole number with --key-type int"),
        (("import", "--key", "hall"), 2, "Give the state token by --token or by --token-file, one of both."),
        (("import", "--key", "hall", "--token", "x!"), 1, "The state token is not base64url text"),
    ],
)
def test_what_does_not_fit_is_refused(
    trained: Workplace, checkpoint: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    content = checkpoint.read_bytes()
    result = trained(f"stream {words[0]} {checkpoint}", *words[1:])
    assert result.code == code
    assert result.sentence.startswith(sentence)
    assert checkpoint.read_bytes() == content


def test_a_checkpoint_with_events_beside_it_and_a_missing_key_are_refused(
    trained: Workplace, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(f"{checkpoint}.events").write_text('["hall", 1, 2.0]\n')
    assert "holds events that are not in the checkpoint yet" in trained.refusal(
        f"stream export {checkpoint} --key hall"
    )
    monkeypatch.delenv("STABLERNN_STATE_KEY")
    assert trained.refusal(f"stream export {checkpoint} --key hall")[:23] == "Set STABLERNN_STATE_KEY"
