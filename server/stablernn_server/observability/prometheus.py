"""The Prometheus metrics of one application, of one process or of several that share a folder.

prometheus_client decides on its import whether values live in memory or in files of a shared folder. So nothing imports
this module before :func:`~stablernn_server.observability.multiprocess.use_metrics_dir` was called.
"""

from __future__ import annotations

import glob
import logging
import os
import platform
import re
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import prometheus_client
import prometheus_client.values
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

MODEL = ("model", "version")
RUN = (*MODEL, "kind")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHORT_SECONDS = (0.00005, 0.0001, 0.00025, *SECONDS)
LOAD_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
ROWS = tuple(2**power for power in range(13))

FILE_BYTES = 2**16
"""Bytes of a new file of values, as of prometheus_client."""
_MEMORY = "/proc/self/fd/"

# Each counter would have a second series with the time of its creation.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class ReservedDict(MmapedDict):
    """The values of one process in a file whose blocks are reserved before they are mapped.

    On a full disk, writing to a mapped block that the file does not have yet ends the process by SIGBUS. There the
    values move to memory instead, and are not reported.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        if not read_mode and not _reserve(filename, FILE_BYTES):
            filename = _move_to_memory(filename, b"")
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        # The entry of a value: length, key with its padding, value and timestamp.
        capacity = self._capacity
        while self._used + len(key.encode()) + 32 > capacity:
            capacity *= 2
        if capacity > self._capacity and not _reserve(self._fname, capacity):
            assert self._m is not None
            content = self._m[: self._used]
            self.close()  # type: ignore[no-untyped-call]
            super().__init__(_move_to_memory(self._fname, content))  # type: ignore[no-untyped-call]
        super()._init_value(key)  # type: ignore[no-untyped-call]


def _reserve(filename: str, size: int) -> bool:
    """Return whether the disk has room for a file of ``size`` bytes, which the file then has."""
    if not hasattr(os, "posix_fallocate") or filename.startswith(_MEMORY):
        return True
    try:
        with open(filename, "ab") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        return False
    return True


def _move_to_memory(filename: str, content: bytes) -> str:
    """Remove a file of the shared folder, and return the name of one in memory with ``content``."""
    logger.error("there is no room for %s; what it would hold is missing in the metrics from now on", filename)
    # It may have the beginning of its blocks, which other processes would read.
    with suppress(OSError):
        os.unlink(filename)
    memory = os.memfd_create("metrics")
    os.write(memory, content.ljust(FILE_BYTES, b"\0"))
    return f"{_MEMORY}{memory}"


prometheus_client.values.MmapedDict = ReservedDict  # type: ignore[attr-defined]


class BatchHistogram(Histogram):
    """A histogram that takes several observations at once."""

    def observe_many(self, total: float, count: int) -> None:
        """Count ``count`` observations whose sum is ``total``, as if each were their mean."""
        # One update each of sum and bucket, where `observe` would need `count` of them.
        self._sum.inc(total)
        self._buckets[bisect_left(self._upper_bounds, total / count)].inc(count)

    def observe_all(self, values: Sequence[float]) -> None:
        """Count several observations, each in its bucket."""
        self._sum.inc(sum(values))
        counts = Counts(bisect_left(self._upper_bounds, value) for value in values)
        for bucket, count in counts.items():
            self._buckets[bucket].inc(count)


class Metrics:
    """The metric families of an application, by attribute.

    Args:
        package_version: Version of the server.
        directory: Folder shared with other processes; None if this process does not share its metrics.
        flush: Called before the metrics are rendered; counts what is not counted in them yet.
    """

    def __init__(self, package_version: str, directory: str | None, flush: Callable[[], None]) -> None:
        self._directory = directory
        self._flush = flush
        self._registry = CollectorRegistry()
        # With a shared folder, its collector reports all families; registered as well, they would be reported twice.
        registry = self._registry if directory is None else None

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"stablernn_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, labels: Iterable[str], buckets: Iterable[float]) -> BatchHistogram:
            return BatchHistogram(f"stablernn_{name}", text, labels, registry=registry, buckets=tuple(buckets))

        def total(name: str, text: str) -> Gauge:
            return Gauge(f"stablernn_{name}", text, registry=registry, multiprocess_mode="livesum")

        def largest(name: str, text: str, labels: Iterable[str]) -> Gauge:
            return Gauge(f"stablernn_{name}", text, labels, registry=registry, multiprocess_mode="livemax")

        self.requests = counter("requests_total", "Answered requests by HTTP status.", (*MODEL, "route", "code"))
        self.request_seconds = histogram(
            "request_seconds", "From the head of a request to the end of its response.", (*MODEL, "route"), SECONDS
        )
        self.failures = counter(
            "failures_total", "Requests that were refused or failed, by error code.", (*MODEL, "code")
        )
        self.queue_seconds = histogram(
            "queue_seconds", "Wait of requests until their run began; those of one run count as their mean.",
            RUN, SHORT_SECONDS,
        )  # fmt: skip
        self.compute_seconds = histogram("compute_seconds", "Time of one run of a graph.", RUN, SHORT_SECONDS)
        self.batch_rows = histogram("batch_rows", "Sequences or streams in one run.", RUN, ROWS)
        self.executions = counter("executions_total", "Runs of a graph.", RUN)
        self.sequences = counter("sequences_total", "Whole sequences computed.", MODEL)
        self.steps = counter("steps_total", "Time steps computed.", RUN)
        self.pending = total("pending_requests", "Requests that wait or run.")
        self.sessions = total("sessions", "Open sessions.")
        self.streams = total("streams", "Open streams of WebSockets.")
        self.connections = total("connections", "Open connections.")
        self.idle_connections = total("idle_connections", "Open connections without a request in flight.")
        self.dropped_lines = counter(
            "log_lines_dropped_total", "Lines of the log that were dropped because standard error was blocked."
        )
        self.norm_ratio = largest(
            "state_norm_ratio", "Largest state norm in the last runs as a share of its certified radius.", MODEL
        )
        self.stale_aliases = largest(
            "stale_aliases",
            "1 for an alias that is answered by another version than the one it points to, which cannot be served.",
            ("model", "alias"),
        )
        self.violations = counter("state_exits_total", "States that a run left outside their certified balls.", MODEL)
        self.samples_outside = counter(
            "samples_outside_range_total", "Samples outside the range of inputs that a version is certified for.", MODEL
        )
        self.drift_alarms = counter("drift_alarms_total", "Alarms of the test for drift of streams.", MODEL)
        scores_text = "Forecasts of adaptive intervals whose true values arrived; result: covered or missed."
        self.interval_scores = counter("interval_scores_total", scores_text, (*MODEL, "nominal", "result"))
        self.loads = counter("loads_total", "Attempts to open a model, by result: ok or failed.", (*MODEL, "result"))
        self.load_seconds = histogram("load_seconds", "Time to open a model and warm it up.", (), LOAD_SECONDS)
        largest(
            "build_info",
            "Always 1; its labels are the versions of the server and what it runs on.",
            ("version", "python", "onnxruntime"),
        ).labels(package_version, platform.python_version(), _runtime_version()).set(1)
        if directory is None:
            ProcessCollector(registry=self._registry)
        else:
            MultiProcessCollector(self._registry, directory)  # type: ignore[no-untyped-call]
            # CPU, memory and files of the processes are not among the values in the folder.
            self._registry.register(_WorkerCollector(directory))

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text, and its content type.

        Args:
            accept: The header ``Accept`` of the request; OpenMetrics only for clients that ask for it.
        """
        self._flush()
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _WorkerCollector(Collector):
    """Collects CPU, memory and files of every live worker process, with its process id as a label."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for pid in live_workers(self._directory):
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.add_sample(sample.name, {**sample.labels, "pid": str(pid)}, sample.value)
        yield from families.values()


def live_workers(directory: str) -> list[int]:
    """Return the ids of the processes that share ``directory`` and whose gauges were not removed."""
    matches = (re.search(r"gauge_livesum_(\d+)\.db$", name) for name in glob.glob(os.path.join(directory, "*.db")))
    return sorted(int(match[1]) for match in matches if match is not None)


def _runtime_version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)
