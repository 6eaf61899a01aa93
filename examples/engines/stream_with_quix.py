"""Answer a Kafka topic of events with Quix Streams: state by key, in shards.

    pip install . quixstreams  # in the checkout of stablernn
    python stream_with_quix.py BROKER REGISTRY MODEL INPUT OUTPUT

An event is JSON such as {"key": "hall", "number": 0, "sample": [0.1]}, with a number within its key. A shard of keys is
one value of Quix's state, which Kafka keeps in a changelog topic. Each checkpoint of Quix, several a second, steps all
events that came since the one before it. After a kill, answers may come again, with the same bits.
"""

import os
import sys
from itertools import groupby
from operator import attrgetter
from zlib import crc32

from quixstreams import Application, State
from quixstreams.sinks import BatchingSink, SinkBatch

from stablernn_runtime.scoring import Scorer, StreamShard

SHARDS = 4
"""Must not change once there is state. A shard is one message of the changelog topic, which Kafka limits to 1 MB."""


def check_delivery(error: object, message: object) -> None:
    if error is not None:
        raise RuntimeError(f"An answer was not delivered: {error}")


class ShardSink(BatchingSink):
    """Steps the events of a checkpoint. Quix writes sinks before it stores state and offsets."""

    def __init__(self, scorer: Scorer, app: Application, output: str) -> None:
        super().__init__()
        self.scorer = scorer
        self.topic = app.topic(output)
        self.producer = app.get_producer()

    def write(self, batch: SinkBatch) -> None:
        shard_of = attrgetter("key")
        for _, items in groupby(sorted(batch, key=shard_of), shard_of):
            events, states = zip(*(item.value for item in items), strict=True)
            self.step(events, states[0])
        if self.producer.flush():
            raise RuntimeError("Answers were not delivered in time.")

    def step(self, events: tuple[dict, ...], state: State) -> None:
        content = state.get_bytes("shard")
        shard = StreamShard.load(self.scorer, content) if content else StreamShard(self.scorer)
        answers = shard.add(*([event[name] for event in events] for name in ("key", "number", "sample")))
        state.set_bytes("shard", shard.dump())
        columns = {name: getattr(column, "tolist", lambda c=column: c)() for name, column in answers.columns().items()}
        for row in zip(*columns.values(), strict=True):
            message = self.topic.serialize(row[0], dict(zip(columns, row, strict=True)))
            self.producer.produce(self.topic.name, message.value, message.key, on_delivery=check_delivery)


def main(broker: str, registry: str, model: str, source: str, output: str) -> None:
    scorer = Scorer.find(model, registry=registry)
    app = Application(
        broker,
        consumer_group=f"stablernn-{source}",
        auto_offset_reset="earliest",
        commit_interval=0.2,
        # Partitions of a process that was killed are taken over after this time.
        consumer_extra_config={"session.timeout.ms": 6_000},
        state_dir=os.environ.get("STATE_DIR", "state"),
    )
    events = app.dataframe(app.topic(source))
    shards = events.group_by(lambda event: crc32(event["key"].encode()) % SHARDS, name="shard")
    shards.apply(lambda event, state: (event, state), stateful=True).sink(ShardSink(scorer, app, output))
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
