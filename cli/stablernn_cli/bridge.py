"""Streams between the topics of a message broker and a version: topics, payloads, and what is on disk.

Events are appended and synced before the broker is told that they have come, and read again after a restart. Those that
were taken together stand in one line: they are stepped together again, so that the same numbers are skipped, and a line
that was cut by a crash holds none of which the broker was told. Each event has its number, so that a line which the
checkpoint has already seen is not stepped again.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import queue
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from stablernn_cli.errors import CommandError, UsageError
from stablernn_registry.atomic_io import lock_open_file, replacing, sync_folder
from stablernn_runtime.scoring import Scorer, StreamAnswers, StreamShard, map_checkpoint
from stablernn_runtime.scoring.stream_events import MAX_NUMBER
from stablernn_runtime.stream_spec import class_labels


class Event(NamedTuple):
    """An event of a stream: its key, its number, and its sample as JSON has it."""

    key: str
    number: int
    sample: Any


def journal_path(checkpoint: Path) -> Path:
    """Return the file of the events since a checkpoint."""
    return checkpoint.with_name(checkpoint.name + ".events")


def write_checkpoint(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Replace a file in one step, so that a crash leaves the old content or the new one.

    Args:
        path: The file.
        parts: Its content, parts that follow each other.
    """
    with replacing(path) as file:
        file.writelines(parts)


class Journal:
    """The events since the last checkpoint, open for appending and locked.

    The lock covers the checkpoint too: a program that writes it holds its journal open.

    Args:
        path: The file, which need not exist.

    Raises:
        CommandError: If another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+b")
        # None, on file systems without locks, is no refusal.
        if lock_open_file(self._file.fileno()) is False:
            self._file.close()
            raise CommandError(f"Another program is using {path}: end it first, or use another checkpoint.")
        # A power cut may undo the creation of the file until then.
        sync_folder(path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> list[list[Event]]:
        """Return the events, in lists of those that were appended together; a line that is cut is removed.

        Raises:
            CommandError: If a line is damaged.
        """
        self._file.seek(0)
        batches: list[list[Event]] = []
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                batches.append([Event(*event) for event in json.loads(line)])
            except (ValueError, TypeError) as error:
                raise CommandError(
                    f"Line {len(batches) + 1} of {self._path} is damaged: restore the file, or remove the line and "
                    "those after it, which loses their events."
                ) from error
            end += len(line)
        self._file.truncate(end)
        return batches

    def append(self, events: Sequence[Event]) -> None:
        """Write events, and wait until they are on disk."""
        self._file.write(json.dumps(events).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def clear(self) -> None:
        """Drop all events, once a checkpoint holds them."""
        self._file.truncate(0)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, which ends the lock."""
        self._file.close()


class TopicKeys:
    """Reads keys from topics.

    Args:
        topic: The subscription, with at least one ``+``, or a ``#`` at its end.

    Raises:
        UsageError: If it has no wildcard, one that does not stand for whole levels, or is a shared subscription.
    """

    def __init__(self, topic: str) -> None:
        levels = topic.split("/")
        if levels[0] == "$share":
            raise UsageError(f"--topic must not be a shared subscription, which splits the streams: '{topic}'.")
        is_misplaced = any(len(level) > 1 and {"+", "#"} & set(level) for level in levels) or "#" in levels[:-1]
        if is_misplaced or not {"+", "#"} & set(levels):
            raise UsageError(f"--topic must have '+' as a level, or '#' as the last one, to take keys from: '{topic}'.")
        patterns = {"+": "([^/]*)", "#": "(.*)"}
        self._pattern = re.compile("/".join(patterns.get(level, re.escape(level)) for level in levels), re.DOTALL)

    def key(self, topic: str) -> str | None:
        """Return the levels that the wildcards stand for, joined by ``/``; None if the topic is another one."""
        match = self._pattern.fullmatch(topic)
        return None if match is None else "/".join(match.groups())


def read_payload(payload: bytes) -> tuple[Any, int | None]:
    """Return the sample of a message, and its number if it has one.

    Args:
        payload: JSON: a number, an array of numbers, an array of samples, or an object with one of these as ``x`` and
            the number of its first sample as ``n``.

    Raises:
        ValueError: If it is not; a sentence.
    """
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The payload is not JSON: {error}.") from error
    number = None
    if isinstance(value, dict):
        if "x" not in value or set(value) - {"x", "n"}:
            raise ValueError("The payload is an object without 'x', or with names other than 'x' and 'n'.")
        number = value.get("n")
        # In Python, a bool is an int.
        if number is not None and (type(number) is not int or not 0 <= number < MAX_NUMBER):
            raise ValueError(f"n must be a whole number from 0 to 2**62 - 1, got {number!r:.40}.")
        value = value["x"]
    samples = value if isinstance(value, list) else [value]
    is_nested = bool(samples) and all(isinstance(part, list) for part in samples)
    parts = itertools.chain.from_iterable(samples) if is_nested else samples
    if any(isinstance(part, list | dict) for part in parts):
        raise ValueError(
            "The payload is not a number, an array of numbers or of samples, or an object with one of these as 'x'."
        )
    return value, number


def _answer_payloads(answers: StreamAnswers, labels: list[str] | None) -> list[bytes]:
    """Return answers as JSON objects with ``n``, the outputs or ``error``, ``gap`` and ``again``."""
    payloads = []
    for row in range(len(answers)):
        content: dict[str, Any] = {"n": int(answers.numbers[row])}
        if (error := answers.errors[row]) is not None:
            content["error"] = error
        elif labels is not None and "probabilities" in answers.outputs:
            shares = answers.outputs["probabilities"][row]
            content["label"] = labels[int(np.argmax(shares))]
            content["probabilities"] = dict(zip(labels, shares.tolist(), strict=True))
        else:
            content |= {name: value[row].tolist() for name, value in answers.outputs.items()}
        if answers.gaps[row]:
            content["gap"] = int(answers.gaps[row])
        if answers.is_again[row]:
            content["again"] = True
        payloads.append(json.dumps(content).encode())
    return payloads


logger = logging.getLogger(__name__)

DEFAULT_LATENESS = 16
"""Numbers by which a message may be ahead where nothing else is stated."""
MAX_BATCH = 4096
"""Messages that are taken together."""
MAX_UNCONFIRMED = 10_000
"""Answers without an acknowledgement of the broker, above which no message is taken: MQTT has 65,535 packet numbers."""
_MAX_INFLIGHT = 1000
"""Answers that are sent before the broker acknowledges the first of them."""
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
        lateness: See :class:`StreamShard`; None for that of the checkpoint.
        every_seconds: Seconds between checkpoints.

    Attributes:
        shard: The streams.
        left_out: Messages that were no events.
        is_stored: Whether the checkpoint holds all events, as it does unless the broker lacks answers.

    Raises:
        UsageError: If the topics do not fit.
        CommandError: If another program is using the checkpoint.
        CheckpointError: If the checkpoint is cut, or of another version.
    """

    def __init__(
        self, scorer: Scorer, broker: BrokerOptions, checkpoint: Path, *, lateness: int | None, every_seconds: float
    ) -> None:
        self._keys = TopicKeys(broker.topic)
        if any(self._keys.key(broker.answers.replace("{key}", key)) is not None for key in ("x", "x/x")):
            raise UsageError(
                f"--answers '{broker.answers}' is one of the topics of --topic '{broker.topic}', so the bridge would "
                "read its own answers."
            )
        self._broker = broker
        self._checkpoint = checkpoint
        self._every_seconds = every_seconds
        model = scorer.open()
        self._labels = class_labels(model.manifest)
        self._journal = Journal(journal_path(checkpoint))
        self._is_continued = checkpoint.exists()
        if self._is_continued:
            with map_checkpoint(checkpoint) as content:
                self.shard = StreamShard.load(scorer, content)
        else:
            self.shard = StreamShard(scorer, lateness=DEFAULT_LATENESS if lateness is None else lateness)
        self._lateness = self.shard.lateness if lateness is None else lateness
        self.left_out = 0
        self.is_stored = False
        # The connections to the broker so far; each message comes with the number of its connection.
        self._connections = 0
        self._messages: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        # Packet numbers of answers. The network thread reports those that the broker has by the queue.
        self._unconfirmed: set[int] = set()
        self._confirmations: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._lacks_answers = False
        # The first checkpoint records version and lateness before any event.
        self._is_changed = True
        self._is_stopped = False
        self._client = self._create_client()

    def stop(self) -> None:
        """End :meth:`run` after the messages that it is working on. Safe in a signal handler."""
        self._is_stopped = True

    def run(self) -> dict[str, int]:
        """Answer messages until :meth:`stop` is called, and return the counts."""
        self._client.connect_async(self._broker.host, self._broker.port)
        self._client.loop_start()
        try:
            # Answers to these may not have reached the broker.
            for events in self._journal.read():
                self._advance(events)
            self.shard.lateness = self._lateness
            self._answer_messages()
            deadline = time.monotonic() + _LAST_ANSWERS_SECONDS
            while not self._store() and not self._lacks_answers and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        finally:
            self._client.disconnect()
            self._client.loop_stop()
            self._journal.close()
        return {**asdict(self.shard.counts), "left_out": self.left_out, "keys": len(self.shard)}

    def _answer_messages(self) -> None:
        """Take messages until :meth:`stop` is called, and write checkpoints."""
        next_checkpoint = 0.0
        while not self._is_stopped:
            if time.monotonic() < next_checkpoint:
                self._take(self._next_messages())
            elif self._store():
                next_checkpoint = time.monotonic() + self._every_seconds
            else:
                # Under steady load some answer is always on its way: no message is taken until the broker has them all.
                self._read_confirmations(_POLL_SECONDS)

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
        client.max_inflight_messages_set(_MAX_INFLIGHT)
        client.on_message = lambda client, data, message: self._messages.put((self._connections, message))
        client.on_publish = lambda client, data, mid, reason, properties: self._confirmations.put(mid)
        client.on_connect = self._subscribe
        client.on_subscribe = self._check_subscription
        client.on_connect_fail = lambda client, data: logger.warning(
            "Cannot connect to %s:%d; trying again", broker.host, broker.port
        )
        client.on_disconnect = self._report_disconnect
        return client

    def _subscribe(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            logger.warning("The broker %s refuses the connection: %s", self._broker.host, reason)
            return
        logger.info("Connected to %s:%d", self._broker.host, self._broker.port)
        self._connections += 1
        is_first = self._connections == 1
        if not flags.session_present and (self._is_continued or not is_first):
            logger.warning(
                "The broker %s has no session '%s' any more: messages since the last connection are lost",
                self._broker.host,
                self._broker.client_id,
            )
        # Each subscription makes the broker send retained messages again.
        if is_first or not flags.session_present:
            client.subscribe(self._broker.topic, qos=1)

    def _check_subscription(self, client: Any, data: Any, mid: int, reasons: Sequence[Any], properties: Any) -> None:
        for reason in reasons:
            if reason.is_failure:
                logger.warning("The broker refuses the subscription of '%s': %s", self._broker.topic, reason)

    def _report_disconnect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            logger.warning("Lost the connection to %s: %s; trying again", self._broker.host, reason)

    def _next_messages(self) -> list[tuple[int, Any]]:
        """Return all messages that have come, with their connections; none after a pause without any."""
        messages = []
        try:
            messages.append(self._messages.get(timeout=_POLL_SECONDS))
            while len(messages) < MAX_BATCH:
                messages.append(self._messages.get_nowait())
        except queue.Empty:
            pass
        return messages

    def _take(self, messages: Sequence[tuple[int, Any]]) -> None:
        """Store, answer and acknowledge messages."""
        events = self._read_events([message for _, message in messages])
        if events:
            self._journal.append(events)
            self._advance(events)
        for connection, message in messages:
            # Brokers that have lost the session use the packet number for another message by now.
            if connection == self._connections:
                self._client.ack(message.mid, message.qos)

    def _read_events(self, messages: Sequence[Any]) -> list[Event]:
        """Return the events of messages; those without a number get the next one of their key."""
        events: list[Event] = []
        next_numbers: dict[str, int] = {}
        for message in messages:
            try:
                events.append(self._read_event(message, next_numbers))
            except ValueError as error:
                self.left_out += 1
                logger.warning("A message of '%s' is left out: %s", message.topic, error)
        return events

    def _read_event(self, message: Any, next_numbers: dict[str, int]) -> Event:
        """Return the event of a message.

        Args:
            message: The message.
            next_numbers: Numbers that follow the events before it, by key; its own is added.

        Raises:
            ValueError: If it is none; a sentence.
        """
        key = self._keys.key(message.topic)
        if key is None:
            # The session may have subscriptions of an earlier run.
            raise ValueError(f"Its topic has no key by --topic '{self._broker.topic}'.")
        sample, number = read_payload(message.payload)
        if number is None and message.retain:
            raise ValueError("It is retained and has no 'n', so it may have been taken before.")
        following = next_numbers.get(key)
        if following is None:
            following = self.shard.next_number(key)
        if number is None:
            number = following
        if number >= MAX_NUMBER:
            raise ValueError("It has no 'n', and the one before it had the highest that there is.")
        count = self.shard.sample_count(self._shaped(sample))
        next_numbers[key] = max(following, number + count)
        return Event(key, number, sample)

    def _shaped(self, sample: Any) -> Any:
        """Return the samples of a message of a model of one feature with their axis of features, others as they are."""
        if self.shard.sample_shape != (1,):
            return sample
        if not isinstance(sample, list):
            return [sample]
        return [[value] for value in sample] if len(sample) > 1 and not isinstance(sample[0], list) else sample

    def _advance(self, events: Sequence[Event]) -> None:
        """Step the streams of events, and publish the answers."""
        samples = [self._shaped(event.sample) for event in events]
        numbers = np.array([event.number for event in events], np.int64)
        late = self.shard.counts.late
        answers = self.shard.add([event.key for event in events], numbers, samples)
        self._is_changed = True
        if self.shard.counts.late > late:
            logger.warning(
                "%d events were dropped: later ones of their keys came before, or the broker has sent them again",
                self.shard.counts.late - late,
            )
        for key, payload in zip(answers.keys, _answer_payloads(answers, self._labels), strict=True):
            self._publish(self._broker.answers.replace("{key}", str(key)), payload)

    def _publish(self, topic: str, payload: bytes) -> None:
        """Publish an answer; without a connection, it is sent when there is one."""
        while len(self._unconfirmed) >= MAX_UNCONFIRMED and not self._is_stopped:
            self._read_confirmations(_POLL_SECONDS)
        if len(self._unconfirmed) >= MAX_UNCONFIRMED:
            # The events stay in the journal, so the next run answers them.
            self._lacks_answers = True
            return
        try:
            self._unconfirmed.add(self._client.publish(topic, payload, qos=1).mid)
        except ValueError as error:
            # Such as a key with which the topic is too long.
            logger.warning("An answer cannot be published to '%.100s': %s", topic, error)

    def _read_confirmations(self, wait_seconds: float = 0.0) -> None:
        try:
            if wait_seconds:
                self._unconfirmed.discard(self._confirmations.get(timeout=wait_seconds))
            while True:
                self._unconfirmed.discard(self._confirmations.get_nowait())
        except queue.Empty:
            pass

    def _store(self) -> bool:
        """Write a checkpoint, unless the broker lacks answers; return False in this case."""
        self._read_confirmations()
        self.is_stored = not self._unconfirmed and not self._lacks_answers
        if self.is_stored and self._is_changed:
            write_checkpoint(self._checkpoint, self.shard.dump_parts())
            self._journal.clear()
            self._is_changed = False
        return self.is_stored
