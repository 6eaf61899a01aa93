"""The access log: one line for each request, without its content, its query or a token."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import orjson

from stablernn_server.http.request import Scope, header_fields

if TYPE_CHECKING:
    from stablernn_server.http.request import ActiveRequest

logger = logging.getLogger("stablernn_server.access")

Form = Literal["text", "json", "off"]

MAX_PATH = 200
POLLED_PATHS = frozenset({"/metrics", "/v2/health/live", "/v2/health/ready"})
"""Paths that machines ask for every few seconds; only a failure is worth a line."""
_READS = frozenset({"GET", "HEAD"})
SESSIONS = "/v1/sessions/"
SESSION_PREFIX = 8
"""Characters of a session id in a line: the whole id is all that it takes to continue the session."""


class AccessLog:
    """Writes the lines to the logger ``stablernn_server.access``, at the level INFO.

    Args:
        form: ``text``, short and for people; ``json``, one object per line; or ``off``.
    """

    def __init__(self, form: Form) -> None:
        self._form = form

    def log_request(self, request: ActiveRequest, scope: Scope, status: int, sent_bytes: int, seconds: float) -> None:
        """Write the line of one request, unless it is a successful poll of the metrics or of health.

        Args:
            request: The request, answered.
            scope: The scope of the ASGI call.
            status: Status of the response.
            sent_bytes: Bytes of its body.
            seconds: From the head of the request to the end of the response.
        """
        if self._is_on and not (status < 400 and scope["method"] in _READS and scope["path"] in POLLED_PATHS):
            bytes_in = _content_length(scope) if request.content_length is None else request.content_length
            self._write(request, scope["method"], scope, status, bytes_in, sent_bytes, seconds)

    def log_websocket(self, request: ActiveRequest, scope: Scope, status: int, seconds: float) -> None:
        """Write the line of one WebSocket, when it has ended or was refused.

        Args:
            request: Its handshake.
            scope: The scope of the ASGI call.
            status: 101, or the status of the refusal.
            seconds: From the handshake to its end.
        """
        if self._is_on:
            self._write(request, "WS", scope, status, None, None, seconds)

    @property
    def _is_on(self) -> bool:
        return self._form != "off" and logger.isEnabledFor(logging.INFO)

    def _write(
        self,
        request: ActiveRequest,
        method: str,
        scope: Scope,
        status: int,
        bytes_in: int | None,
        bytes_out: int | None,
        seconds: float,
    ) -> None:
        model, identity = request.model, request.identity
        fields: dict[str, Any] = {
            "request_id": request.request_id,
            "method": method,
            "path": redact_path(scope["path"]),
            "status": status,
            "code": request.error_code,
            "ms": round(1e3 * seconds, 3),
            "queue_ms": round(request.queue_ns / 1e6, 3) if request.rows else None,
            "model": None if model is None else model.name,
            "version": None if model is None else model.version,
            "rows": request.rows or None,
            "caller": identity.name,
            "role": None if identity.name == "anonymous" else identity.role,
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
        }
        if self._form == "json":
            _log(orjson.dumps({"time": _format_time(time.time()), **fields}).decode())
        else:
            _log(_text_line(fields))


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class LineHandler(logging.StreamHandler[Any]):
    """Writes the lines of the access log to a stream as they are."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.setFormatter(logging.Formatter("%(message)s"))

    def write_line(self, line: str) -> None:
        """Write a line without a log record, which takes more time than the line."""
        try:
            with self.lock or nullcontext():
                self.stream.write(line + self.terminator)
                self.stream.flush()
        except (OSError, ValueError):
            # As for a record: a log that cannot be written stops no request.
            self.handleError(_create_record(line))


def _log(line: str) -> None:
    handlers = logger.handlers
    if len(handlers) == 1 and type(handlers[0]) is LineHandler and not (logger.propagate or logger.filters):
        handlers[0].write_line(line)
    else:
        logger.handle(_create_record(line))


def _create_record(line: str) -> logging.LogRecord:
    # Not by logger.info, which walks the stack to find the line of code that calls it.
    return logger.makeRecord(logger.name, logging.INFO, __file__, 0, line, (), None)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, with the time first as in a line of the access log."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _format_time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(fields).decode()


def log_to_stderr(form: Form, *, quiet: bool) -> None:
    """Write the access log, and the records of the server at the level INFO, to standard error.

    Args:
        form: Form of the access log; with ``json``, all other records are objects, too.
        quiet: Whether only warnings are written.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if form == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    for package in ("stablernn_server", "stablernn_runtime"):
        logging.getLogger(package).setLevel(logging.WARNING if quiet else logging.INFO)
    if not quiet:
        # Without a prefix, whatever other loggers do with theirs.
        logger.handlers[:] = [LineHandler(sys.stderr)]
        logger.propagate = False
        logger.setLevel(logging.INFO)


def quieten_uvicorn() -> None:
    """Keep uvicorn from logging the query of every WebSocket, and an error for each that was refused."""
    uvicorn_logger = logging.getLogger("uvicorn.error")
    if _is_worth_logging not in uvicorn_logger.filters:
        uvicorn_logger.addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    # uvicorn says this also of a handshake that was refused with a response: https://github.com/Kludex/uvicorn/pull/3138
    return record.levelno >= logging.WARNING and record.msg != "ASGI callable returned without completing handshake."


def redact_path(path: str) -> str:
    """Return a decoded path for the log: short, in printable characters, and without the whole id of a session."""
    if path.startswith(SESSIONS):
        session, slash, suffix = path[len(SESSIONS) :].partition("/")
        if len(session) > SESSION_PREFIX:
            path = f"{SESSIONS}{session[:SESSION_PREFIX]}...{slash}{suffix}"
    if len(path) > MAX_PATH:
        path = f"{path[:MAX_PATH]}..."
    # A decoded path can hold line breaks, and so what looks like a line of the log of its own.
    return path if path.isprintable() and " " not in path else quote(path, safe="/@:", errors="replace")


def _text_line(fields: dict[str, Any]) -> str:
    code = "" if fields["code"] is None else f" {fields['code']}"
    queue = "" if fields["queue_ms"] is None else f" (queue {fields['queue_ms']:.1f})"
    version = "" if fields["model"] is None else f" {fields['model']}:{fields['version']}"
    counts = ((" rows", "rows"), (" in", "bytes_in"), (" out", "bytes_out"))
    counts_text = "".join(f"{label}={fields[name]}" for label, name in counts if fields[name])
    return (
        f"{fields['method']} {fields['path']} {fields['status']}{code} {fields['ms']:.1f} ms{queue}{version}"
        f"{counts_text} {fields['caller']} {fields['request_id']}"
    )


def _content_length(scope: Scope) -> int | None:
    """Return the length of the body as the request states it; None if it does not, as with a body in chunks."""
    value = header_fields(scope).get(b"content-length")
    return int(value) if value is not None and value.isdigit() else None
