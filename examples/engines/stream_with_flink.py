"""Answer events with PyFlink: state by key, in shards; files of JSON lines in, files of JSON lines out.

    pip install . apache-flink  # in the checkout of stablernn
    python stream_with_flink.py REGISTRY MODEL INPUT OUTPUT CHECKPOINTS

An event is a line such as {"key": "hall", "number": 0, "sample": [0.1]}, with a number within its key. A shard of keys
is a value of Flink's state. Events wait in the state, too, until a timer steps them at once. A start goes on from the
last checkpoint in the folder, if there is one. For Kafka, put its source and sink in place of those of files.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from pyflink.common import Configuration, Duration, Encoder, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, FileSource, RollingPolicy, StreamFormat
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor

from stablernn_runtime.scoring import Scorer, StreamShard

SHARDS = 4
"""Must not change once there is a checkpoint."""
BATCH_MS = 100
"""Events of a shard are stepped once in this time."""


class AdvanceShard(KeyedProcessFunction):
    """Collects events of a shard, and steps them by a timer."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def open(self, runtime_context: RuntimeContext) -> None:
        self.shard = runtime_context.get_state(ValueStateDescriptor("shard", Types.PICKLED_BYTE_ARRAY()))
        self.events = runtime_context.get_list_state(ListStateDescriptor("events", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: dict[str, Any], ctx: KeyedProcessFunction.Context) -> None:
        self.events.add(value)
        timers = ctx.timer_service()
        # Timers of a shard at the same time are one.
        timers.register_processing_time_timer((timers.current_processing_time() // BATCH_MS + 1) * BATCH_MS)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[str]:
        events = list(self.events.get() or [])
        if not events:
            return
        content = self.shard.value()
        shard = StreamShard.load(self.scorer, content) if content else StreamShard(self.scorer)
        answers = shard.add(*([event[name] for event in events] for name in ("key", "number", "sample")))
        self.shard.update(shard.dump())
        self.events.clear()
        columns = {name: getattr(column, "tolist", lambda c=column: c)() for name, column in answers.columns().items()}
        for row in zip(*columns.values(), strict=True):
            yield json.dumps(dict(zip(columns, row, strict=True)))


def main(registry: str, model: str, source: str, output: str, checkpoints: str) -> None:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.interval", "1 s")
    configuration.set_string("execution.checkpointing.dir", Path(checkpoints).absolute().as_uri())
    configuration.set_string("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION")
    if complete := list(Path(checkpoints).glob("*/chk-*/_metadata")):
        last = max(complete, key=lambda path: path.stat().st_mtime_ns).parent
        configuration.set_string("execution.state-recovery.path", last.absolute().as_uri())
    job = StreamExecutionEnvironment.get_execution_environment(configuration)
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), source)
    lines = lines.monitor_continuously(Duration.of_seconds(1)).build()
    # One reader, which keeps the order of the events.
    events = job.from_source(lines, WatermarkStrategy.no_watermarks(), "events").uid("events").set_parallelism(1)
    shards = events.map(json.loads).key_by(lambda event: crc32(event["key"].encode()) % SHARDS, Types.INT())
    answers = shards.process(AdvanceShard(Scorer.find(model, registry=registry)), Types.STRING()).uid("shards")
    # A file is complete, and gets its name, with a checkpoint.
    sink = FileSink.for_row_format(output, Encoder.simple_string_encoder())
    sink = sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build()
    answers.sink_to(sink).uid("answers")
    job.execute("stablernn")


if __name__ == "__main__":
    main(*sys.argv[1:])
