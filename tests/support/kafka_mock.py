"""Kafka as the mock cluster of librdkafka, for programs in other processes; run with the interpreter of an engine.

``kafka_mock.py serve EVENTS ANSWERS`` prints the broker's address, produces the lines of a file as events, and appends
the answers to another file. ``kafka_mock.py run PROGRAM ...`` runs a program of Quix Streams. The mock cluster answers
no administrative requests: topics come to be when they are asked for, with four partitions.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer


def serve(events: Path, answers: Path) -> None:
    producer = Producer({"test.mock.num.brokers": 1, "partitioner": "murmur2"})
    (broker,) = producer.list_topics("events", 10).brokers.values()
    producer.list_topics("answers", 10)
    print(f"{broker.host}:{broker.port}", flush=True)
    for line in events.read_bytes().splitlines():
        while True:
            try:
                producer.produce("events", line, json.loads(line)["key"])
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    address = f"{broker.host}:{broker.port}"
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe(["answers"])
    with answers.open("ab") as file:
        while True:
            messages = consumer.consume(1000, 0.2)
            assert not any(message.error() for message in messages)
            file.write(b"".join(message.value() + b"\n" for message in messages))
            file.flush()


def run(program: str, *arguments: str) -> None:
    from quixstreams.models.topics import TopicAdmin, TopicConfig

    def inspect_topics(self: Any, names: list[str], timeout: float = 30) -> dict[str, Any]:
        # Asking for a topic by name is what creates it here.
        topics = {name: self.admin_client.list_topics(name, timeout).topics[name] for name in names}
        settings = {"retention.ms": "-1", "retention.bytes": "-1"}
        return {name: TopicConfig(len(topic.partitions), 1, settings) for name, topic in topics.items()}

    TopicAdmin.inspect_topics = inspect_topics
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*map(Path, sys.argv[2:]))
    else:
        run(*sys.argv[2:])
