"""`stablernn bridge mqtt` with a real broker: answers, kills, restarts; and its parts without one."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import Workplace
from serving_helpers import until
from stablernn_cli.bridge.journal import Event, Journal
from stablernn_cli.bridge.messages import TopicKeys, read_payload
from stablernn_cli.errors import UsageError
from stablernn_registry import Registry
from stablernn_runtime import ServedModel

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
KEYS = ("hall", "yard", "roof")


def test_keys_are_what_wildcards_stand_for() -> None:
    assert TopicKeys("sensors/+/value").key("sensors/a b/value") == "a b"
    assert TopicKeys("+/x/#").key("site/x/floor/3") == "site/floor/3"
    assert TopicKeys("sensors/+/value").key("sensors/a/b/value") is None
    for topic in ("sensors/value", "sensors/a+/value", "#/value"):
        with pytest.raises(UsageError, match=r"^--topic must have '\+' as a level"):
            TopicKeys(topic)


def test_payloads_are_samples_with_or_without_a_number() -> None:
    assert read_payload(b"1.5") == (1.5, None)
    assert read_payload(b"[1, null]") == ([1, None], None)
    assert read_payload(b'{"x": [2], "n": 4}') == ([2], 4)
    for payload in (b"{", b'{"n": 4}', b'{"x": 1, "n": -1}', b'{"x": 1, "n": true}', b'{"x": 1, "y": 2}', b"\xff"):
        with pytest.raises(ValueError, match=r"^(The payload is|n must be)"):
            read_payload(payload)


def test_a_line_that_was_cut_ends_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "events"
    journal = Journal(path)
    events = [Event("a", 0, [1.0]), Event("b", 3, None)]
    journal.append(events)
    journal.close()
    with path.open("ab") as file:
        file.write(b'["a", 1')
    journal = Journal(path)
    assert journal.read() == events
    journal.append([Event("c", 1, 2)])
    assert journal.read() == [*events, Event("c", 1, 2)]
    journal.clear()
    assert journal.read() == []
    journal.close()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--broker", "there"), "--broker must be HOST:PORT, got 'there'."),
        (("--answers", "all"), "--answers must hold {key} and no wildcard, got 'all'."),
    ],
)
def test_wrong_options_are_refused(empty: Workplace, words: tuple[str, ...], sentence: str) -> None:
    result = empty("bridge", "mqtt", "digits", "--topic", "s/+", "--answers", "a/{key}", *words)
    assert (result.code, result.sentence) == (2, sentence)


def start_broker(port: int, folder: Path) -> subprocess.Popen[bytes]:
    assert MOSQUITTO is not None
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\n")
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

        self.answers: dict[str, dict[int, list[Any]]] = {key: {} for key in KEYS}
        self._lock = threading.Lock()
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="devices")
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


def test_a_killed_bridge_goes_on_and_steps_nothing_twice(trained: Workplace, port: int, tmp_path: Path) -> None:
    checkpoint, steps = tmp_path / "streams.ckpt", 60
    # The model reads patches of three readings.
    x = np.random.default_rng(0).normal(size=(len(KEYS), steps, 3, 1)).astype(np.float32)
    open_session(port)
    devices = Devices(port)
    bridge = start(trained, port, checkpoint)
    try:
        for step in range(steps):
            if step in (20, 40):
                until(lambda step=step: devices.has(step - 8))
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
    assert (counts["keys"], counts["gaps"], counts["errors"], counts["malformed"]) == (3, 0, 0, 0)
    model = ServedModel.load(Registry(trained.registry).get("digits"), "cpu")
    for row, key in enumerate(KEYS):
        assert sorted(devices.answers[key]) == list(range(steps))
        for step in range(steps):
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
        devices.send("yard", [[1.0], [None], [2.0]])
        until(lambda: 1 in devices.answers["yard"])
        bridge.send_signal(signal.SIGTERM)
        out, err = bridge.communicate(timeout=30)
    finally:
        bridge.kill()
        devices.client.disconnect()
        devices.client.loop_stop()
    assert devices.answers["yard"][0][0]["error"].startswith("The sample must hold numbers")
    assert "label" in devices.answers["yard"][1][0]
    assert json.loads(out)["malformed"] == 1
    assert "A message of 'sensors/yard/value' is left out: The payload is not JSON" in err


def test_events_of_the_journal_are_answered_once_there_is_a_broker(
    trained: Workplace, free_port: int, tmp_path: Path
) -> None:
    journal = Path(f"{tmp_path / 'streams.ckpt'}.events")
    journal.write_text("".join(f'["hall", {number}, [[0.5], [1.0], [null]]]\n' for number in range(300)))
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
