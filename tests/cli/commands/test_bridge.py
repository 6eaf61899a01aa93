"""`stablernn bridge mqtt` with a real broker: answers, kills, restarts; and its parts without one."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import Workplace
from serving_helpers import until
from stablernn_cli.bridge import Event, Journal, TopicKeys, read_payload
from stablernn_cli.errors import CommandError, UsageError
from stablernn_registry import Registry
from stablernn_runtime import ServedModel

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
KEYS = ("hall", "yard", "roof")
BARN = "barn"


def test_keys_are_what_wildcards_stand_for() -> None:
    assert TopicKeys("sensors/+/value").key("sensors/a b/value") == "a b"
    assert TopicKeys("+/x/#").key("site/x/floor/3") == "site/floor/3"
    assert TopicKeys("sensors/+/value").key("sensors/a/b/value") is None
    assert TopicKeys("sensors/#").key("sensors/a\nb") == "a\nb"
    for topic in ("sensors/value", "sensors/a+/value", "#/value", "+/a#"):
        with pytest.raises(UsageError, match=r"^--topic must have '\+' as a level"):
            TopicKeys(topic)
    with pytest.raises(UsageError, match="^--topic must not be a shared subscription"):
        TopicKeys("$share/group/sensors/+")


def test_payloads_are_samples_with_or_without_a_number() -> None:
    assert read_payload(b"1.5") == (1.5, None)
    assert read_payload(b"[1, null]") == ([1, None], None)
    assert read_payload(b'{"x": [2], "n": 4}') == ([2], 4)
    assert read_payload(b"[[1, 2], [3, null]]") == ([[1, 2], [3, None]], None)
    wrong_objects = (b'{"n": 4}', b'{"x": 1, "n": -1}', b'{"x": 1, "n": true}', b'{"x": 1, "y": 2}', b'[{"x": 1}]')
    for payload in (*wrong_objects, b"{", b"\xff", b"[" * 100_000, b"[[[1]]]", b"[[1], 2]", b"1" * 5000):
        with pytest.raises(ValueError, match=r"^(The payload is|n must be)"):
            read_payload(payload)


def test_a_line_that_was_cut_ends_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "events"
    journal = Journal(path)
    events = [Event("a", 0, [1.0]), Event("b", 3, None)]
    journal.append(events)
    with pytest.raises(CommandError, match=r"^Another program is using .*events: end it first"):
        Journal(path)
    journal.close()
    with path.open("ab") as file:
        file.write(b'[["a", 1, 2], ["b", ')
    journal = Journal(path)
    assert journal.read() == [events]
    journal.append([Event("c", 1, 2)])
    assert journal.read() == [events, [Event("c", 1, 2)]]
    journal.clear()
    assert journal.read() == []
    journal.close()
    path.write_bytes(b'[["a", 0, 1]]\n["b"]\n')
    with Journal(path) as journal, pytest.raises(CommandError, match="^Line 2 of .*events is damaged"):
        journal.read()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--broker", "there"), "--broker must be HOST:PORT with a port from 1 to 65535, got 'there'."),
        (("--broker", "there:70000"), "--broker must be HOST:PORT with a port from 1 to 65535, got 'there:70000'."),
        (("--password", "secret"), "--password needs --username."),
        (("--answers", "all"), "--answers must hold {key} and no wildcard, got 'all'."),
    ],
)
def test_wrong_options_are_refused(empty: Workplace, words: tuple[str, ...], sentence: str) -> None:
    result = empty("bridge", "mqtt", "digits", "--topic", "s/+", "--answers", "a/{key}", *words)
    assert (result.code, result.sentence) == (2, sentence)


def start_broker(port: int, folder: Path) -> subprocess.Popen[bytes]:
    assert MOSQUITTO is not None
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\n"
        f"user root\npersistence true\npersistence_location {folder}/\n"
    )
    broker = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)

    def accepts() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    until(accepts)
    return broker


@pytest.fixture
def free_port() -> int:
    """A port for a broker, which is not running yet."""
    pytest.importorskip("paho.mqtt.client", reason="needs the extra 'mqtt'")
    if MOSQUITTO is None:
        pytest.skip("needs mosquitto: apt-get install mosquitto")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def port(free_port: int, tmp_path: Path) -> Iterator[int]:
    """Port of a running broker."""
    broker = start_broker(free_port, tmp_path)
    yield free_port
    broker.terminate()
    broker.wait(10)


class Devices:
    """Sends samples, and collects answers by key and number."""

    def __init__(self, port: int) -> None:
        from paho.mqtt import client as mqtt

        self.answers: dict[str, dict[int, list[Any]]] = {key: {} for key in (*KEYS, BARN)}
        self._lock = threading.Lock()
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="devices", clean_session=False)
        self.client.on_message = self._collect
        subscribed = threading.Event()
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.connect("127.0.0.1", port)
        self.client.subscribe("answers/+", qos=1)
        self.client.loop_start()
        assert subscribed.wait(10)

    def _collect(self, client: Any, data: Any, message: Any) -> None:
        content = json.loads(message.payload)
        with self._lock:
            self.answers[message.topic.split("/")[1]].setdefault(content["n"], []).append(content)

    def send(self, key: str, payload: object) -> None:
        self.client.publish(f"sensors/{key}/value", json.dumps(payload), qos=1).wait_for_publish(10)

    def has(self, number: int) -> bool:
        with self._lock:
            return all(number in answers for answers in self.answers.values())


def open_session(port: int) -> None:
    """Subscribe under the name of the bridge, so that the broker keeps messages for it from now on."""
    from paho.mqtt import client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="stablernn-bridge", clean_session=False)
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.subscribe("sensors/+/value", qos=1)
    client.loop_start()
    assert subscribed.wait(10)
    client.disconnect()
    client.loop_stop()


def start(trained: Workplace, port: int, checkpoint: Path) -> subprocess.Popen[str]:
    topics = ("--topic", "sensors/+/value", "--answers", "answers/{key}", "--checkpoint", checkpoint, "--every", 0.2)
    return trained.start("bridge", "mqtt", "digits", "--broker", f"127.0.0.1:{port}", *topics, "--json")


@pytest.mark.slow
def test_a_killed_bridge_goes_on_and_steps_nothing_twice(trained: Workplace, port: int, tmp_path: Path) -> None:
    checkpoint, steps = tmp_path / "streams.ckpt", 60
    # The model reads patches of three samples, and answers when one is full.
    x = np.random.default_rng(0).normal(size=(len(KEYS), steps, 1)).astype(np.float32)
    open_session(port)
    devices = Devices(port)
    bridge = start(trained, port, checkpoint)
    try:
        for step in range(steps):
            if step in (20, 40):
                until(lambda step=step: devices.has((step - 8) // 3 * 3 - 1))
                bridge.send_signal(signal.SIGKILL)
                bridge.communicate()
            for row, key in enumerate(KEYS):
                # Most come once; some a second time, as a broker sends them that had no acknowledgement.
                for _ in range(2 if (step + row) % 7 == 0 else 1):
                    devices.send(key, {"x": x[row, step].tolist(), "n": step})
            if step in (30, 50):
                # What came meanwhile has waited at the broker.
                bridge = start(trained, port, checkpoint)
        until(lambda: devices.has(steps - 1))
        bridge.send_signal(signal.SIGTERM)
        out, err = bridge.communicate(timeout=30)
    finally:
        bridge.kill()
        devices.client.disconnect()
        devices.client.loop_stop()
    assert bridge.returncode == 0, err
    counts = json.loads(out)
    assert (counts["keys"], counts["gaps"], counts["errors"], counts["left_out"]) == (3, 0, 0, 0)
    model = ServedModel.load(Registry(trained.registry).get("digits"), "cpu")
    for row, key in enumerate(KEYS):
        assert sorted(devices.answers[key]) == list(range(2, steps, 3))
        for step in range(2, steps, 3):
            (expected,) = model.run_numpy(x[row, : step + 1].reshape(1, -1, 1))["probabilities"]
            for answer in devices.answers[key][step]:
                assert np.array_equal(np.array(list(answer["probabilities"].values()), np.float32), expected)
                assert answer["label"] == (model.manifest.labels or [])[expected.argmax()]
    assert Path(f"{checkpoint}.events").read_bytes() == b""


def test_messages_without_numbers_and_wrong_ones(trained: Workplace, port: int, tmp_path: Path) -> None:
    open_session(port)
    devices = Devices(port)
    bridge = start(trained, port, tmp_path / "streams.ckpt")
    try:
        devices.send("yard", "loud")
        devices.client.publish("sensors/yard/value", "{", qos=1)
        # What some parsers do not survive.
        devices.client.publish("sensors/yard/value", "[" * 100_000, qos=1)
        for number in range(2**62 - 3, 2**62):
            devices.send("roof", {"x": [1.0], "n": number})
        devices.send("roof", [1.0])
        devices.send("hall", [10**400])
        for value in ([1.0], [None], 2.0):
            devices.send("yard", value)
        devices.send(BARN, [1.0, None, 2.0])
        until(lambda: 3 in devices.answers["yard"] and 0 in devices.answers["hall"] and 2 in devices.answers[BARN])
        bridge.send_signal(signal.SIGTERM)
        out, err = bridge.communicate(timeout=30)
    finally:
        bridge.kill()
        devices.client.disconnect()
        devices.client.loop_stop()
    assert devices.answers["yard"][0][0]["error"].startswith("The sample must hold numbers")
    assert "label" in devices.answers["yard"][3][0]
    assert devices.answers[BARN][2][0]["probabilities"] == devices.answers["yard"][3][0]["probabilities"]
    assert devices.answers["hall"][0][0]["error"].startswith("The sample must hold numbers")
    assert devices.answers["roof"][2**62 - 1][0]["gap"] == 2**62 - 3
    assert json.loads(out)["left_out"] == 3
    assert "A message of 'sensors/yard/value' is left out: The payload is not JSON" in err


@pytest.mark.slow
def test_events_of_the_journal_are_answered_once_there_is_a_broker(
    trained: Workplace, free_port: int, tmp_path: Path
) -> None:
    journal = Path(f"{tmp_path / 'streams.ckpt'}.events")
    journal.write_text("".join(f'[["hall", {number}, [0.5]]]\n' for number in range(300)))
    bridge = start(trained, free_port, tmp_path / "streams.ckpt")
    broker = None
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            bridge.wait(4)
        assert journal.stat().st_size
        broker = start_broker(free_port, tmp_path)
        until(lambda: not journal.stat().st_size)
        bridge.send_signal(signal.SIGTERM)
        out, err = bridge.communicate(timeout=30)
    finally:
        bridge.kill()
        if broker is not None:
            broker.terminate()
            broker.wait(10)
    assert bridge.returncode == 0, err
    assert json.loads(out)["events"] == 300


@pytest.mark.slow
def test_checkpoints_are_written_under_steady_load(trained: Workplace, port: int, tmp_path: Path) -> None:
    checkpoint = tmp_path / "streams.ckpt"
    journal = Path(f"{checkpoint}.events")
    open_session(port)
    devices = Devices(port)
    bridge = start(trained, port, checkpoint)
    sizes: list[int] = []
    try:
        until(checkpoint.exists)
        # Answers are on their way at any moment.
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            devices.send("hall", {"x": [1.0], "n": len(sizes)})
            sizes.append(journal.stat().st_size)
        until(lambda: len(sizes) // 3 * 3 - 1 in devices.answers["hall"])
        bridge.send_signal(signal.SIGTERM)
        _, err = bridge.communicate(timeout=30)
    finally:
        bridge.kill()
        devices.client.disconnect()
        devices.client.loop_stop()
    assert bridge.returncode == 0, err
    assert sum(after < before for before, after in itertools.pairwise(sizes)) > 1


def test_events_are_stepped_again_as_they_were_taken(
    trained: Workplace, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLERNN_STATE_KEY", "a key of state tokens that all servers of the tests share")
    # 20 skipped 0 to 19 before 0 came. Taken together, 0 would be stepped.
    checkpoint = tmp_path / "streams.ckpt"
    events = [["hall", 20, [0.5]]], [["hall", 0, [9.0]]]
    Path(f"{checkpoint}.events").write_text("".join(json.dumps(batch) + "\n" for batch in events))
    bridge = start(trained, free_port, checkpoint)
    broker = start_broker(free_port, tmp_path)
    try:
        until(checkpoint.exists)
        refused = trained("stream", "import", checkpoint, "--key", "hall", "--token", "x")
        bridge.send_signal(signal.SIGTERM)
        out, err = bridge.communicate(timeout=30)
    finally:
        bridge.kill()
        broker.terminate()
        broker.wait(10)
    assert bridge.returncode == 0, err
    counts = json.loads(out)
    assert (counts["gaps"], counts["late"], counts["events"]) == (20, 1, 2)
    assert "1 events were dropped: later ones of their keys" in err
    assert refused.sentence.startswith("Another program is using")


@pytest.mark.slow
def test_a_broker_that_restarts_loses_nothing(trained: Workplace, free_port: int, tmp_path: Path) -> None:
    checkpoint = tmp_path / "streams.ckpt"
    broker = start_broker(free_port, tmp_path)
    open_session(free_port)
    devices = Devices(free_port)
    # A message without a number that is retained would come with every subscription.
    devices.client.publish("sensors/yard/value", "[1.0]", qos=1, retain=True).wait_for_publish(10)
    bridge = start(trained, free_port, checkpoint)
    try:
        for number in range(39):
            devices.send("hall", {"x": [float(number)], "n": number})
            if number == 20:
                until(lambda: 11 in devices.answers["hall"])
                broker.terminate()
                broker.wait(10)
                broker = start_broker(free_port, tmp_path)
                until(devices.client.is_connected)
        until(lambda: 38 in devices.answers["hall"])
        bridge.send_signal(signal.SIGTERM)
        out, err = bridge.communicate(timeout=30)
    finally:
        bridge.kill()
        devices.client.disconnect()
        devices.client.loop_stop()
        broker.terminate()
        broker.wait(10)
    assert bridge.returncode == 0, err
    counts = json.loads(out)
    # Messages whose acknowledgement the broker lost come again.
    assert (counts["gaps"], counts["errors"], counts["keys"]) == (0, 0, 2)
    assert not devices.answers["yard"]
    assert "Lost the connection to 127.0.0.1" in err
    model = ServedModel.load(Registry(trained.registry).get("digits"), "cpu")
    x = np.arange(39, dtype=np.float32).reshape(1, -1, 1)
    (expected,) = model.run_numpy(x)["probabilities"]
    (*_, last) = devices.answers["hall"][38]
    assert np.array_equal(np.array(list(last["probabilities"].values()), np.float32), expected)


@pytest.mark.parametrize("topics", [("a/+", "a/{key}"), ("a/#", "a/b/{key}")])
def test_answers_that_the_bridge_would_read_are_refused(trained: Workplace, topics: tuple[str, str]) -> None:
    pytest.importorskip("paho.mqtt.client", reason="needs the extra 'mqtt'")
    result = trained("bridge", "mqtt", "digits", "--topic", topics[0], "--answers", topics[1])
    assert result.code == 2
    assert result.sentence.endswith("so the bridge would read its own answers.")
