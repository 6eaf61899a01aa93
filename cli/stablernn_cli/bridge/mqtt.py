"""A bridge from MQTT topics to the streams of a version, and back.

Messages are acknowledged after their events are on disk, and a checkpoint is written only when the broker has all
answers, so that a crash at any moment loses neither. Both may come twice: an event with a number is not stepped again.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stablernn_cli.bridge.journal import Event, Journal, journal_path, write_checkpoint
from stablernn_cli.bridge.messages import TopicKeys, answer_payloads, read_payload
from stablernn_runtime.scoring import Scorer, StreamShard
from stablernn_runtime.stream_spec import class_labels

logger = logging.getLogger(__name__)

MAX_BATCH = 4096
"""Messages that are taken together."""
MAX_UNCONFIRMED = 10_000
"""Answers without an acknowledgement of the broker, above which no message is taken: MQTT has 65,535 packet numbers."""
_POLL_SECONDS = 0.1
_LAST_ANSWERS_SECONDS = 10.0


@dataclass(frozen=True)
class BrokerOptions:
    """The broker and the topics.

    Attributes:
        host: Host of the broker.
        port: Its port.
        client_id: Name of the persistent session.
        topic: Subscription, whose wildcards are the keys.
        answers: Topic of answers with ``{key}``.
        username: Name to log in with.
        password: Password to log in with.
        tls: Whether to connect by TLS.
    """

    host: str
    port: int
    client_id: str
    topic: str
    answers: str
    username: str | None = None
    password: str | None = None
    tls: bool = False


class MqttBridge:
    """Streams by key between two topics, with a checkpoint on disk.

    Args:
        scorer: The version.
        broker: The broker and the topics.
        checkpoint: File of the streams, which need not exist.
        lateness: See :class:`StreamShard`; that of an existing checkpoint stays.
        every_seconds: Seconds between checkpoints.
    """

    def __init__(
        self, scorer: Scorer, broker: BrokerOptions, checkpoint: Path, *, lateness: int, every_seconds: float
    ) -> None:
        self._keys = TopicKeys(broker.topic)
        self._broker = broker
        self._checkpoint = checkpoint
        self._every_seconds = every_seconds
        model = scorer.open()
        self._labels = class_labels(model.manifest)
        if checkpoint.exists():
            self.shard = StreamShard.load(scorer, checkpoint.read_bytes())
        else:
            self.shard = StreamShard(scorer, lateness=lateness)
        self.malformed = 0
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Packet numbers of answers. The network thread reports those that the broker has by the queue.
        self._unconfirmed: set[int] = set()
        self._confirmations: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._lacks_answers = False
        self._is_changed = False
        self._is_stopped = False
        self._client = self._create_client()

    def stop(self) -> None:
        """End :meth:`run` after the messages that it is working on. Safe in a signal handler."""
        self._is_stopped = True

    def run(self) -> dict[str, int]:
        """Answer messages until :meth:`stop` is called, and return the counts."""
        journal = Journal(journal_path(self._checkpoint))
        self._client.connect_async(self._broker.host, self._broker.port)
        self._client.loop_start()
        try:
            # Answers to these may not have reached the broker.
            self._advance(journal.read())
            written = time.monotonic()
            while not self._is_stopped:
                self._take(self._next_messages(), journal)
                if time.monotonic() - written >= self._every_seconds and self._store(journal):
                    written = time.monotonic()
            deadline = time.monotonic() + _LAST_ANSWERS_SECONDS
            while not self._store(journal) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        finally:
            self._client.disconnect()
            self._client.loop_stop()
            journal.close()
        return {**asdict(self.shard.counts), "malformed": self.malformed, "keys": len(self.shard)}

    def _create_client(self) -> Any:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        broker = self._broker
        # An acknowledgement tells the broker to forget a message, so it must wait for the disk.
        client: Any = Client(
            CallbackAPIVersion.VERSION2, client_id=broker.client_id, clean_session=False, manual_ack=True
        )
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password)
        if broker.tls:
            client.tls_set()
        client.reconnect_delay_set(1, 30)
        client.on_message = lambda client, data, message: self._messages.put(message)
        client.on_publish = lambda client, data, mid, reason, properties: self._confirmations.put(mid)
        client.on_connect = self._subscribe
        return client

    def _subscribe(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            logger.warning("The broker %s refuses the connection: %s", self._broker.host, reason)
            return
        logger.info("Connected to %s:%d", self._broker.host, self._broker.port)
        client.subscribe(self._broker.topic, qos=1)

    def _next_messages(self) -> list[Any]:
        """Return all messages that have come; none after a pause without any."""
        messages = []
        try:
            messages.append(self._messages.get(timeout=_POLL_SECONDS))
            while len(messages) < MAX_BATCH:
                messages.append(self._messages.get_nowait())
        except queue.Empty:
            pass
        return messages

    def _take(self, messages: Sequence[Any], journal: Journal) -> None:
        """Store, answer and acknowledge messages."""
        if not messages:
            return
        events = self._read_events(messages)
        journal.append(events)
        self._advance(events)
        for message in messages:
            self._client.ack(message.mid, message.qos)

    def _read_events(self, messages: Sequence[Any]) -> list[Event]:
        """Return the events of messages; those without a number get the next one of their key."""
        events: list[Event] = []
        next_numbers: dict[str, int] = {}
        for message in messages:
            key = self._keys.key(message.topic)
            try:
                sample, number = read_payload(message.payload)
            except ValueError as error:
                self.malformed += 1
                logger.warning("A message of '%s' is left out: %s", message.topic, error)
                continue
            # Topics that do not match come from subscriptions of an earlier run in this session.
            if key is None:
                continue
            following = next_numbers.get(key)
            if following is None:
                following = self.shard.next_number(key)
            number = following if number is None else number
            next_numbers[key] = max(following, number + 1)
            events.append(Event(key, number, sample))
        return events

    def _advance(self, events: Sequence[Event]) -> None:
        """Step the streams of events, and publish the answers."""
        if not events:
            return
        is_single = len(self.shard.sample_shape) == 1 and self.shard.sample_shape[0] == 1
        # A number alone is a sample of one feature.
        samples = [
            [event.sample] if is_single and not isinstance(event.sample, list) else event.sample for event in events
        ]
        numbers = np.array([event.number for event in events], np.int64)
        answers = self.shard.add([event.key for event in events], numbers, samples)
        self._is_changed = True
        for key, payload in zip(answers.keys, answer_payloads(answers, self._labels), strict=True):
            self._publish(self._broker.answers.replace("{key}", str(key)), payload)

    def _publish(self, topic: str, payload: bytes) -> None:
        """Publish an answer; without a connection, it is sent when there is one."""
        while len(self._unconfirmed) >= MAX_UNCONFIRMED and not self._is_stopped:
            self._read_confirmations(_POLL_SECONDS)
        if len(self._unconfirmed) >= MAX_UNCONFIRMED:
            # The events stay in the journal, so the next run answers them.
            self._lacks_answers = True
            return
        self._unconfirmed.add(self._client.publish(topic, payload, qos=1).mid)

    def _read_confirmations(self, wait_seconds: float = 0.0) -> None:
        try:
            if wait_seconds:
                self._unconfirmed.discard(self._confirmations.get(timeout=wait_seconds))
            while True:
                self._unconfirmed.discard(self._confirmations.get_nowait())
        except queue.Empty:
            pass

    def _store(self, journal: Journal) -> bool:
        """Write a checkpoint, unless the broker lacks answers; return False in this case."""
        self._read_confirmations()
        if self._unconfirmed or self._lacks_answers:
            return False
        if self._is_changed:
            write_checkpoint(self._checkpoint, self.shard.dump())
            journal.clear()
            self._is_changed = False
        return True
