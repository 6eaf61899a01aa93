"""What is counted while requests are answered: once a run, once a request, on the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol
from weakref import WeakKeyDictionary

from stablernn_server.observability.multiprocess import share_metrics
from stablernn_server.observability.triton_statistics import ModelStatistics, Statistics
from stablernn_server.settings import Settings
from stablernn_server.version import package_version

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge

    from stablernn_server.observability.prometheus import BatchHistogram

Kind = Literal["sequence", "step", "call"]

INFERENCE = ("/infer", "/forecast", "/classify", "/step")
"""How the routes end whose requests count as inferences in Triton's statistics."""
MAX_ROUTES = 128
"""More routes than there are; what comes beyond is counted as :data:`OTHER`."""
OTHER = "other"
RATIO_RUNS = 64
"""The norm ratio is the largest of the last 64 to 128 runs."""


class Guard(Protocol):
    @property
    def violation_count(self) -> int: ...


class Served(Protocol):
    """What is counted by: a model, and its guard's count of states that left their balls."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def guard(self) -> Guard: ...


@dataclass(slots=True)
class _Runs:
    """Everything that a run of one kind of one version adds to."""

    queue_seconds: BatchHistogram
    compute_seconds: BatchHistogram
    batch_rows: BatchHistogram
    executions: Counter
    steps: Counter
    sequences: Counter | None
    statistics: ModelStatistics


@dataclass(slots=True)
class _Answers:
    """Everything that a request to one route, answered with one status, adds to."""

    requests: Counter
    seconds: BatchHistogram
    statistics: ModelStatistics | None


@dataclass(slots=True)
class _Ratio:
    gauge: Gauge
    before: float = 0.0
    now: float = 0.0
    shown: float = -1.0
    runs: int = 0


class Telemetry:
    """Metrics and statistics of one application. Not for several threads at once.

    Attributes:
        statistics: Counts and nanoseconds by version.
        metrics: The Prometheus families.
    """

    def __init__(self, settings: Settings) -> None:
        """Begin at zero.

        Raises:
            SettingsError: If the folder that metrics are to be shared in cannot be used.
        """
        directory = share_metrics(settings.metrics_dir)
        # Only now: its import decides where values live.
        from stablernn_server.observability.prometheus import Metrics

        self.metrics = Metrics(package_version(), directory)
        self.statistics = Statistics(directory)
        self._runs: dict[tuple[str, int, Kind], _Runs] = {}
        self._answers: dict[tuple[str, int, str, int], _Answers] = {}
        self._routes: set[str] = {OTHER}
        self._failures: dict[tuple[str, int, str], Counter] = {}
        self._ratios: dict[tuple[str, int], _Ratio] = {}
        self._dropped_lines = 0
        self._exits: WeakKeyDictionary[Served, int] = WeakKeyDictionary()

    def executed(
        self, model: Served, kind: Kind, requests: int, rows: int, steps: int, queue_ns: int, compute_ns: int
    ) -> None:
        """Count one run of a graph.

        Args:
            model: Whose graph.
            kind: ``sequence`` or ``step``, the graph; ``call``: several runs that follow from each other.
            requests: How many requests the batch was made of.
            rows: Sequences or streams in it.
            steps: Time steps of all rows together.
            queue_ns: Nanoseconds that the requests waited, summed over them.
            compute_ns: Nanoseconds of the run.
        """
        runs = self._runs.get((model.name, model.version, kind)) or self._begin_runs(model, kind)
        runs.queue_seconds.observe_many(queue_ns / 1e9, requests)
        runs.compute_seconds.observe_many(compute_ns / 1e9, 1)
        runs.batch_rows.observe_many(rows, 1)
        runs.executions.inc()
        runs.steps.inc(steps)
        if runs.sequences is not None:
            runs.sequences.inc(rows)
        runs.statistics.ran(requests, rows, queue_ns, compute_ns)
        self.statistics.is_changed = True
        exits = model.guard.violation_count
        if exits:
            self._count_exits(model, exits)

    def finished(self, model: Served | None, route: str, status: int, code: str | None, seconds: float) -> None:
        """Count one answered request.

        Args:
            model: Who answered, or would have; None where the request named none that is served.
            route: The pattern of its path, such as ``/v2/models/{model}/infer``.
            status: Of the answer.
            code: The code word of an error; None for none.
            seconds: From the head of the request to the end of the answer.
        """
        name, version = ("", 0) if model is None else (model.name, model.version)
        answers = self._answers.get((name, version, route, status)) or self._begin_answers(name, version, route, status)
        answers.requests.inc()
        answers.seconds.observe_many(seconds, 1)
        if answers.statistics is not None:
            answers.statistics.answered(int(seconds * 1e9), is_success=status < 400)
            self.statistics.is_changed = True
        if code is not None:
            self._failure(name, version, code).inc()

    def failed(self, model: Served | None, code: str) -> None:
        """Count a failure that ends no request, such as that of one frame of a WebSocket."""
        name, version = ("", 0) if model is None else (model.name, model.version)
        self._failure(name, version, code).inc()

    def pending(self, count: int) -> None:
        """Say how many requests wait or run."""
        self.metrics.pending.set(count)

    def sessions(self, count: int) -> None:
        """Say how many sessions are open."""
        self.metrics.sessions.set(count)

    def streams(self, count: int) -> None:
        """Say how many streams of WebSockets are open."""
        self.metrics.streams.set(count)

    def server(self, connections: int, idle: int, dropped_lines: int) -> None:
        """Say how many connections are open and idle, and how many lines of the log were dropped so far."""
        self.metrics.connections.set(connections)
        self.metrics.idle_connections.set(idle)
        self.metrics.dropped_lines.inc(dropped_lines - self._dropped_lines)
        self._dropped_lines = dropped_lines

    def loaded(self, name: str, version: int, ok: bool, seconds: float) -> None:
        """Count one attempt to open a model."""
        self.metrics.loads.labels(name, version, "ok" if ok else "failed").inc()
        self.metrics.load_seconds.observe(seconds)

    def norm_ratio(self, model: Served, ratio: float) -> None:
        """Note the largest state norm of a run, as a share of the certified radius."""
        entry = self._ratios.get((model.name, model.version))
        if entry is None:
            gauge = self.metrics.norm_ratio.labels(model.name, model.version)
            entry = self._ratios[model.name, model.version] = _Ratio(gauge)
        entry.runs += 1
        if entry.runs > RATIO_RUNS:
            entry.before, entry.now, entry.runs = entry.now, 0.0, 1
        entry.now = max(entry.now, ratio)
        largest = max(entry.before, entry.now)
        if largest != entry.shown:
            entry.shown = largest
            entry.gauge.set(largest)

    def close(self) -> None:
        """Write what is left to write; called when the last request is answered."""
        self.statistics.close()

    def _begin_runs(self, model: Served, kind: Kind) -> _Runs:
        metrics = self.metrics
        key = (model.name, model.version, kind)
        runs = self._runs[key] = _Runs(
            metrics.queue_seconds.labels(*key),
            metrics.compute_seconds.labels(*key),
            metrics.batch_rows.labels(*key),
            metrics.executions.labels(*key),
            metrics.steps.labels(*key),
            None if kind == "step" else metrics.sequences.labels(model.name, model.version),
            self.statistics.of(model.name, model.version),
        )
        return runs

    def _begin_answers(self, name: str, version: int, route: str, status: int) -> _Answers:
        metrics = self.metrics
        # Each value of a label is kept for the life of the process: what clients choose must not become one.
        if route not in self._routes:
            if len(self._routes) >= MAX_ROUTES:
                return self._begin_answers(name, version, OTHER, status)
            self._routes.add(route)
        shown = _shown(version)
        is_inference = bool(name) and route.endswith(INFERENCE)
        answers = self._answers[name, version, route, status] = _Answers(
            metrics.requests.labels(name, shown, route, status),
            metrics.request_seconds.labels(name, shown, route),
            self.statistics.of(name, version) if is_inference else None,
        )
        return answers

    def _failure(self, name: str, version: int, code: str) -> Counter:
        found = self._failures.get((name, version, code))
        if found is None:
            found = self._failures[name, version, code] = self.metrics.failures.labels(name, _shown(version), code)
        return found

    def _count_exits(self, model: Served, exits: int) -> None:
        # By object, not by name: while a version is reloaded, two of them count, each from zero.
        new = exits - self._exits.get(model, 0)
        if new:
            self._exits[model] = exits
            self.metrics.exits.labels(model.name, model.version).inc(new)


def _shown(version: int) -> str:
    return str(version) if version else ""
