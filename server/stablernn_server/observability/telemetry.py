"""Telemetry of one application: metrics and statistics, updated on the event loop once per run and per request."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from stablernn_server.observability.multiprocess import use_metrics_dir
from stablernn_server.observability.triton_statistics import ModelStatistics, Statistics
from stablernn_server.settings import Settings
from stablernn_server.version import package_version

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge

    from stablernn_runtime.online_streams import OnlineUpdate
    from stablernn_runtime.served_model import ServedModel
    from stablernn_server.observability.prometheus import BatchHistogram

WorkKind = Literal["sequence", "step", "call"]
"""Kind of a run: the sequence graph, the step graph, or a call that makes several runs."""

INFERENCE_ROUTES = ("/infer", "/forecast", "/classify", "/step")
"""Endings of the routes whose requests count as inferences in Triton's statistics."""
MAX_ROUTES = 128
"""More routes than there are; further ones are counted as :data:`OTHER_ROUTE`."""
OTHER_ROUTE = "other"
RATIO_RUNS = 64
"""Runs in a window of the norm ratio, which is the largest of this window and the one before: of 64 to 128 runs."""


@dataclass(slots=True)
class _RunMetrics:
    """Metrics that a run of one kind of one version updates."""

    queue_seconds: BatchHistogram
    compute_seconds: BatchHistogram
    batch_rows: BatchHistogram
    executions: Counter
    steps: Counter
    sequences: Counter | None
    statistics: ModelStatistics


@dataclass(slots=True)
class _RequestMetrics:
    """Metrics that a request to one route, answered with one status, updates.

    Attributes:
        durations: Seconds of the requests that are not counted in the metrics yet.
    """

    requests: Counter
    seconds: BatchHistogram
    statistics: ModelStatistics | None
    durations: deque[float] = field(default_factory=deque)

    def flush(self) -> None:
        """Count the requests that have been answered since the last call. Thread-safe."""
        # A metric takes a lock for each update, so that one for all of them is much cheaper.
        durations: list[float] = []
        with suppress(IndexError):
            while True:
                durations.append(self.durations.popleft())
        if durations:
            self.requests.inc(len(durations))
            self.seconds.observe_all(durations)


@dataclass(slots=True)
class _RatioWindow:
    """Largest norm ratios of the current window of runs and of the one before, and the value that the gauge has."""

    gauge: Gauge
    previous: float = 0.0
    current: float = 0.0
    gauge_value: float = -1.0
    runs: int = 0


class Telemetry:
    """Metrics and statistics of one application. Not thread-safe.

    The children of the Prometheus families are cached by what they are counted by: looking them up by their labels
    takes a lock each.

    Attributes:
        statistics: Counts and nanoseconds by version.
        metrics: The Prometheus families.
    """

    def __init__(self, settings: Settings) -> None:
        """Start with all counts at zero.

        Raises:
            SettingsError: If the folder for shared metrics cannot be used.
        """
        directory = use_metrics_dir(settings.metrics_dir)
        # Imported only now: the import decides where values live.
        from stablernn_server.observability.prometheus import Metrics

        self.metrics = Metrics(package_version(), directory, self.flush)
        self.statistics = Statistics(directory)
        self._run_metrics: dict[tuple[str, int, WorkKind], _RunMetrics] = {}
        self._request_metrics: dict[tuple[str, int, str, int], _RequestMetrics] = {}
        self._routes: set[str] = {OTHER_ROUTE}
        self._failures: dict[tuple[str, int, str], Counter] = {}
        self._ratios: dict[tuple[str, int], _RatioWindow] = {}
        self._dropped_lines = 0
        # By model, the counts of its guards that are in the metrics already.
        self._violations: WeakKeyDictionary[ServedModel, int] = WeakKeyDictionary()
        self._samples_outside: WeakKeyDictionary[ServedModel, int] = WeakKeyDictionary()

    def record_run(
        self, model: ServedModel, kind: WorkKind, requests: int, rows: int, steps: int, queue_ns: int, compute_ns: int
    ) -> None:
        """Count one run of a graph.

        Args:
            model: The model of the graph.
            kind: ``sequence`` or ``step``, the graph; ``call``: several runs that depend on each other.
            requests: Number of requests in the batch.
            rows: Sequences or streams in it.
            steps: Time steps of all rows together.
            queue_ns: Nanoseconds that the requests waited, summed over them.
            compute_ns: Nanoseconds of the run.
        """
        run = self._run_metrics.get((model.name, model.version, kind)) or self._create_run_metrics(model, kind)
        run.queue_seconds.observe_many(queue_ns / 1e9, requests)
        run.compute_seconds.observe_many(compute_ns / 1e9, 1)
        run.batch_rows.observe_many(rows, 1)
        run.executions.inc()
        run.steps.inc(steps)
        if run.sequences is not None:
            run.sequences.inc(rows)
        run.statistics.record_run(requests, rows, queue_ns, compute_ns)
        self.statistics.is_changed = True
        if violations := model.guard.violation_count:
            _count_new(self.metrics.violations, self._violations, model, violations)
        if samples_outside := model.guard.inputs.outside_count:
            _count_new(self.metrics.samples_outside, self._samples_outside, model, samples_outside)

    def record_request(
        self, model: ServedModel | None, route: str, status: int, code: str | None, seconds: float
    ) -> None:
        """Count one answered request.

        Args:
            model: The model that answered, or would have; None if the request named none that is served.
            route: Pattern of its path, such as ``/v2/models/{model}/infer``.
            status: Status of the response.
            code: Code of the error; None for none.
            seconds: From the head of the request to the end of the response.
        """
        name, version = ("", 0) if model is None else (model.name, model.version)
        request = self._request_metrics.get((name, version, route, status)) or self._create_request_metrics(
            name, version, route, status
        )
        request.durations.append(seconds)
        if request.statistics is not None:
            request.statistics.record_request(int(seconds * 1e9), is_success=status < 400)
            self.statistics.is_changed = True
        if code is not None:
            self._failure(name, version, code).inc()

    def flush(self) -> None:
        """Count in the metrics what :meth:`record_request` has noted; called before each use of the metrics, and often
        enough for other processes to see it. Thread-safe."""
        for request in list(self._request_metrics.values()):
            request.flush()

    def record_failure(self, model: ServedModel | None, code: str) -> None:
        """Count a failure that does not end its request, such as that of one frame of a WebSocket."""
        name, version = ("", 0) if model is None else (model.name, model.version)
        self._failure(name, version, code).inc()

    def set_load(self, pending: int, sessions: int, streams: int) -> None:
        """Set the numbers of requests that wait or run, of open sessions, and of open streams of WebSockets."""
        self.metrics.pending.set(pending)
        self.metrics.sessions.set(sessions)
        self.metrics.streams.set(streams)

    def set_connections(self, connections: int, idle: int, dropped_lines: int) -> None:
        """Set the numbers of open and of idle connections, and of lines of the log that were dropped so far."""
        self.metrics.connections.set(connections)
        self.metrics.idle_connections.set(idle)
        # A counter only takes increments.
        self.metrics.dropped_lines.inc(dropped_lines - self._dropped_lines)
        self._dropped_lines = dropped_lines

    def record_load(self, name: str, version: int, ok: bool, seconds: float) -> None:
        """Count one attempt to open a model."""
        self.metrics.loads.labels(name, version, "ok" if ok else "failed").inc()
        self.metrics.load_seconds.observe(seconds)

    def set_stale_alias(self, name: str, alias: str, *, is_stale: bool) -> None:
        """Set whether an alias is answered by another version than the one it points to."""
        self.metrics.stale_aliases.labels(name, alias).set(is_stale)

    def record_norm_ratio(self, model: ServedModel, ratio: float) -> None:
        """Record the largest state norm of a run, as a share of the certified radius."""
        window = self._ratios.get((model.name, model.version))
        if window is None:
            gauge = self.metrics.norm_ratio.labels(model.name, model.version)
            window = self._ratios[model.name, model.version] = _RatioWindow(gauge)
        window.runs += 1
        if window.runs > RATIO_RUNS:
            window.previous, window.current, window.runs = window.current, 0.0, 1
        window.current = max(window.current, ratio)
        largest = max(window.previous, window.current)
        if largest != window.gauge_value:
            window.gauge_value = largest
            window.gauge.set(largest)

    def record_estimates(self, name: str, version: int, update: OnlineUpdate) -> None:
        """Count the alarms and the scored intervals of streams that have taken their samples."""
        if alarms := int(update.alarms.sum()):
            self.metrics.drift_alarms.labels(name, version).inc(alarms)
        for nominal, (scored, missed) in update.scores.items():
            if scored:
                for result, count in (("covered", scored - missed), ("missed", missed)):
                    self.metrics.interval_scores.labels(name, version, f"{nominal:g}", result).inc(count)

    def close(self) -> None:
        """Write out what was counted last; called when the last request is answered."""
        self.flush()
        self.statistics.close()

    def _create_run_metrics(self, model: ServedModel, kind: WorkKind) -> _RunMetrics:
        metrics = self.metrics
        key = (model.name, model.version, kind)
        run = self._run_metrics[key] = _RunMetrics(
            metrics.queue_seconds.labels(*key),
            metrics.compute_seconds.labels(*key),
            metrics.batch_rows.labels(*key),
            metrics.executions.labels(*key),
            metrics.steps.labels(*key),
            None if kind == "step" else metrics.sequences.labels(model.name, model.version),
            self.statistics.by_version(model.name, model.version),
        )
        return run

    def _create_request_metrics(self, name: str, version: int, route: str, status: int) -> _RequestMetrics:
        metrics = self.metrics
        # Each value of a label is kept for the life of the process: what clients choose must not become one.
        if route not in self._routes:
            if len(self._routes) >= MAX_ROUTES:
                key = (name, version, OTHER_ROUTE, status)
                return self._request_metrics.get(key) or self._create_request_metrics(*key)
            self._routes.add(route)
        label = _version_label(version)
        is_inference = bool(name) and route.endswith(INFERENCE_ROUTES)
        request = self._request_metrics[name, version, route, status] = _RequestMetrics(
            metrics.requests.labels(name, label, route, status),
            metrics.request_seconds.labels(name, label, route),
            self.statistics.by_version(name, version) if is_inference else None,
        )
        return request

    def _failure(self, name: str, version: int, code: str) -> Counter:
        counter = self._failures.get((name, version, code))
        if counter is None:
            label = _version_label(version)
            counter = self._failures[name, version, code] = self.metrics.failures.labels(name, label, code)
        return counter


def _count_new(
    counter: Counter, reported_counts: WeakKeyDictionary[ServedModel, int], model: ServedModel, count: int
) -> None:
    # By object, not by name: while a version is reloaded, two of them count, each from zero.
    new = count - reported_counts.get(model, 0)
    if new:
        reported_counts[model] = count
        counter.labels(model.name, model.version).inc(new)


def _version_label(version: int) -> str:
    # 0: the request named no model that is served.
    return str(version) if version else ""
