"""`stablernn bridge mqtt` with a real broker: answers, kills, restarts; and its parts without one."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

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
        ("--broker there", "--broker must be HOST:PORT with a port from 1 to 65535, got 'there'."),
        ("--broker there:70000", "--broker must be HOST:PORT with a port from 1 to 65535, got 'there:70000'."),
        ("--password secret", "--password needs --username."),
        ("--answers all", "--answers must hold {key} and no wildcard, got 'all'."),
    ],
)
def test_wrong_options_are_refused(empty: Workplace, words: str, sentence: str) -> None:
    assert empty.refusal(f"bridge mqtt digits --topic s/+ --answers a/{{key}} {words}") == sentence


@contextmanager
def broker(port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    assert MOSQUITTO is not None
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\n"
        f"user root\npersistence true\npersistence_location {folder}/\n"
    )

    def accepts() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            until(accepts)
            yield process
        finally:
            process.terminate()


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
    with broker(free_port, tmp_path):
        yield free_port


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def has(self, number: int, keys: Iterable[str]) -> bool:
        with self._lock:
            return all(number in self.answers[key] for key in keys)


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


class Bridge:
    """A bridge as a process, which is started, killed and stopped.

    Attributes:
        counts: What it printed at its end.
        err: Its lines on stderr.
    """

    def __init__(self, trained: Workplace, port: int, checkpoint: Path) -> None:
        topics = "--topic sensors/+/value --answers answers/{key} --json"
        self._words = f"bridge mqtt digits --broker 127.0.0.1:{port} {topics} --checkpoint {checkpoint} --every 0.2"
        self._place = trained
        self.start()

    def start(self) -> None:
        self.process = self._place.start(self._words)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        out, self.err = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, self.err
        self.counts = json.loads(out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()


def expected_probabilities(trained: Workplace, samples: np.ndarray) -> np.ndarray:
    model = ServedModel.load(Registry(trained.registry).get("digits"), "cpu")
    (expected,) = model.run_numpy(samples.astype(np.float32).reshape(1, -1, 1))["probabilities"]
    return expected


def assert_is(answer: dict[str, Any], expected: np.ndarray) -> None:
    assert np.array_equal(np.array(list(answer["probabilities"].values()), np.float32), expected)
    assert answer["label"] == str(expected.argmax())


@pytest.mark.slow
def test_a_killed_bridge_goes_on_and_steps_nothing_twice(trained: Workplace, port: int, tmp_path: Path) -> None:
    checkpoint, steps = tmp_path / "streams.ckpt", 60
    # The model reads patches of three samples, and answers when one is full.
    x = np.random.default_rng(0).normal(size=(len(KEYS), steps, 1)).astype(np.float32)
    open_session(port)
    with Devices(port) as devices, Bridge(trained, port, checkpoint) as bridge:
        for step in range(steps):
            if step in (20, 40):
                until(lambda step=step: devices.has((step - 8) // 3 * 3 - 1, KEYS))
                bridge.kill()
            for row, key in enumerate(KEYS):
                # Most come once; some a second time, as a broker sends them that had no acknowledgement.
                for _ in range(2 if (step + row) % 7 == 0 else 1):
                    devices.send(key, {"x": x[row, step].tolist(), "n": step})
            if step in (30, 50):
                # What came meanwhile has waited at the broker.
                bridge.start()
        until(lambda: devices.has(steps - 1, KEYS))
        bridge.stop()
    assert [bridge.counts[name] for name in ("keys", "gaps", "errors", "left_out")] == [3, 0, 0, 0]
    for row, key in enumerate(KEYS):
        assert sorted(devices.answers[key]) == list(range(2, steps, 3))
        for step in range(2, steps, 3):
            expected = expected_probabilities(trained, x[row, : step + 1])
            for answer in devices.answers[key][step]:
                assert_is(answer, expected)
    assert Path(f"{checkpoint}.events").read_bytes() == b""


@pytest.mark.slow
def test_messages_without_numbers_and_wrong_ones(trained: Workplace, port: int, tmp_path: Path) -> None:
    open_session(port)
    with Devices(port) as devices, Bridge(trained, port, tmp_path / "streams.ckpt") as bridge:
        devices.send("yard", "loud")
        # What some parsers do not survive.
        for payload in ("{", "[" * 100_000):
            devices.client.publish("sensors/yard/value", payload, qos=1)
        for number in range(2**62 - 3, 2**62):
            devices.send("roof", {"x": [1.0], "n": number})
        devices.send("roof", [1.0])
        devices.send("hall", [10**400])
        for value in ([1.0], [None], 2.0):
            devices.send("yard", value)
        devices.send(BARN, [1.0, None, 2.0])
        until(lambda: devices.has(3, ["yard"]) and devices.has(0, ["hall"]) and devices.has(2, [BARN]))
        bridge.stop()
    assert devices.answers["yard"][0][0]["error"].startswith("The sample must hold numbers")
    assert devices.answers[BARN][2][0]["probabilities"] == devices.answers["yard"][3][0]["probabilities"]
    assert devices.answers["hall"][0][0]["error"].startswith("The sample must hold numbers")
    assert devices.answers["roof"][2**62 - 1][0]["gap"] == 2**62 - 3
    assert bridge.counts["left_out"] == 3
    assert "A message of 'sensors/yard/value' is left out: The payload is not JSON" in bridge.err


@pytest.mark.slow
def test_events_are_stepped_again_as_they_were_taken(
    trained: Workplace, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLERNN_STATE_KEY", "a key of state tokens that all servers of the tests share")
    # 20 skipped 0 to 19 before 0 came. Taken together, 0 would be stepped.
    checkpoint = tmp_path / "streams.ckpt"
    events = [["hall", 20, [0.5]]], [["hall", 0, [9.0]]]
    Path(f"{checkpoint}.events").write_text("".join(json.dumps(batch) + "\n" for batch in events))
    with Bridge(trained, free_port, checkpoint) as bridge, broker(free_port, tmp_path):
        until(checkpoint.exists)
        refused = trained(f"stream import {checkpoint} --key hall --token x")
        bridge.stop()
    assert [bridge.counts[name] for name in ("gaps", "late", "events")] == [20, 1, 2]
    assert "1 events were dropped: later ones of their keys" in bridge.err
    assert refused.sentence.startswith("Another program is using")


@pytest.mark.slow
def test_a_broker_that_restarts_loses_nothing(trained: Workplace, free_port: int, tmp_path: Path) -> None:
    with broker(free_port, tmp_path):
        open_session(free_port)
        devices = Devices(free_port)
        # A message without a number that is retained would come with every subscription.
        devices.client.publish("sensors/yard/value", "[1.0]", qos=1, retain=True).wait_for_publish(10)
        bridge = Bridge(trained, free_port, tmp_path / "streams.ckpt")
        for number in range(20):
            devices.send("hall", {"x": [float(number)], "n": number})
        until(lambda: devices.has(11, ["hall"]))
    with devices, bridge, broker(free_port, tmp_path):
        until(devices.client.is_connected)
        for number in range(20, 39):
            devices.send("hall", {"x": [float(number)], "n": number})
        until(lambda: devices.has(38, ["hall"]))
        bridge.stop()
    # Messages whose acknowledgement the broker lost come again.
    assert [bridge.counts[name] for name in ("gaps", "errors", "keys")] == [0, 0, 2]
    assert not devices.answers["yard"]
    assert "Lost the connection to 127.0.0.1" in bridge.err
    assert_is(devices.answers["hall"][38][-1], expected_probabilities(trained, np.arange(39)))


@pytest.mark.parametrize("topics", [("a/+", "a/{key}"), ("a/#", "a/b/{key}")])
def test_answers_that_the_bridge_would_read_are_refused(trained: Workplace, topics: tuple[str, str]) -> None:
    pytest.importorskip("paho.mqtt.client", reason="needs the extra 'mqtt'")
    sentence = trained.refusal(f"bridge mqtt digits --topic {topics[0]} --answers {topics[1]}")
    assert sentence.endswith("so the bridge would read its own answers.")
