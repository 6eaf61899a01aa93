"""OpenTelemetry traces: a span for each request, with child spans of its wait and its run. Needs the extra ``otel``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stablernn_server.errors import SettingsError
from stablernn_server.settings import Settings
from stablernn_server.version import package_version

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

INSTALL = "pip install -e '.[otel]' in the checkout"
CLOSE_SECONDS = 3.0
# Supported values of standard variables: with another value ignored, the spans would be lost.
SUPPORTED_VALUES = {
    "OTEL_TRACES_EXPORTER": ("otlp",),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("http/protobuf",),
}


class RequestSpan:
    """The span of one request, from :meth:`Tracing.begin` on."""

    def __init__(self, tracing: Tracing, span: Span, method: str) -> None:
        self._tracing = tracing
        self._span = span
        self._method = method

    def record_run(self, model: str, version: int, rows: int, batch_rows: int, queue_ns: int, compute_ns: int) -> None:
        """Add spans of the wait and of the run, which ended just now.

        Args:
            model: Name of the model.
            version: Number of its version.
            rows: Sequences or streams of this request.
            batch_rows: Sequences or streams in the run, those of other requests included.
            queue_ns: Nanoseconds until the run began.
            compute_ns: Nanoseconds of the run.
        """
        # An unsampled span.
        if not self._span.is_recording():
            return
        attributes: dict[str, Any] = {"stablernn.model": model, "stablernn.version": version, "stablernn.rows": rows}
        self._span.set_attributes(attributes)
        run_end = time.time_ns()
        run_start = run_end - compute_ns
        self._tracing.add_child(self._span, "queue", run_start - queue_ns, run_start, attributes)
        self._tracing.add_child(
            self._span, "compute", run_start, run_end, {**attributes, "stablernn.batch_rows": batch_rows}
        )

    def end(self, route: str, status: int, code: str | None = None) -> None:
        """End the span.

        Args:
            route: Pattern of the path.
            status: Status of the response.
            code: Code of the error; None for none.
        """
        if self._span.is_recording():
            from opentelemetry.trace import StatusCode

            self._span.set_attributes({"http.route": route, "http.response.status_code": status})
            if code is not None:
                self._span.set_attribute("error.type", code)
            if status >= 500:
                self._span.set_status(StatusCode.ERROR)
            self._span.update_name(f"{self._method} {route}")
        self._span.end()


class Tracing:
    """Sends spans to an OTLP collector over HTTP, from a thread of its own."""

    def __init__(self, provider: TracerProvider, propagator: TextMapPropagator) -> None:
        self._provider = provider
        self._propagator = propagator
        self._tracer = provider.get_tracer("stablernn_server", package_version())

    @classmethod
    def open(cls, settings: Settings) -> Tracing | None:
        """Return the tracing that the settings ask for; None if traces are off.

        Endpoint, headers, sampler, limits and so on come from the standard environment variables ``OTEL_*``.

        Raises:
            SettingsError: If the extra is not installed, or a variable asks for what is not supported.
        """
        if settings.traces == "off":
            return None
        for variable, supported in SUPPORTED_VALUES.items():
            value = os.environ.get(variable)
            if value and value not in supported:
                raise SettingsError(f"{variable} is '{value}'; traces are sent by {supported[0]} only. Leave it unset.")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise SettingsError(
                f"traces is '{settings.traces}', but OpenTelemetry is not installed here. Install it with: {INSTALL}"
            ) from error
        try:
            from opentelemetry.propagate import get_global_textmap

            service = Resource({"service.name": "stablernn", "service.version": package_version()})
            provider = TracerProvider(
                # The later ones win: our name over the default, and the operator's variables over our name.
                resource=Resource.create().merge(service).merge(OTELResourceDetector().detect()),
                # At exit, it would wait half a minute for a collector that does not answer.
                shutdown_on_exit=False,
            )
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except ValueError as error:
            raise SettingsError(f"A variable OTEL_* is not valid: {error}.") from error
        return cls(provider, get_global_textmap())

    def begin(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan:
        """Begin the span of a request, below the caller's if there is a ``traceparent``.

        Args:
            method: Method of the request.
            headers: Headers of the ASGI scope.
        """
        from opentelemetry.trace import SpanKind

        fields = self._propagator.fields
        carrier = {
            text: value.decode("latin-1") for name, value in headers if (text := name.decode("latin-1")) in fields
        }
        parent = self._propagator.extract(carrier)
        span = self._tracer.start_span(method, parent, kind=SpanKind.SERVER, attributes={"http.request.method": method})
        return RequestSpan(self, span, method)

    def add_child(self, parent: Span, name: str, start_ns: int, end_ns: int, attributes: dict[str, Any]) -> None:
        """Add a span of the past below ``parent``; times in nanoseconds of Unix time."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(parent)
        self._tracer.start_span(name, context, attributes=attributes, start_time=start_ns).end(end_ns)

    def close(self) -> None:
        """Send the remaining spans, for at most :data:`CLOSE_SECONDS`. Blocks."""
        # On a thread: the provider's own shutdown takes no timeout.
        thread = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)
