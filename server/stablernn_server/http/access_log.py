"""The access log: one line for each request, without its content, its query or a token."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import orjson

from stablernn_server.http.asgi import Scope, header_fields

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
            self._write(request, scope["method"], scope, status, _content_length(scope), sent_bytes, seconds)

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
        model = request.model
        fields: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
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
            "caller": request.identity.name,
            "role": None if request.identity.name == "anonymous" else request.identity.role,
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
        }
        line = orjson.dumps(fields).decode() if self._form == "json" else _text(fields)
        # Not logger.info, which walks the stack to find the line of code that calls it.
        logger.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, line, (), None))


def write_to_stderr() -> None:
    """Write the lines to standard error without a prefix, whatever other loggers do with theirs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]
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


def _text(fields: dict[str, Any]) -> str:
    parts = [fields["method"], fields["path"], str(fields["status"])]
    if fields["code"] is not None:
        parts.append(fields["code"])
    parts.append(f"{fields['ms']:.1f} ms")
    if fields["queue_ms"] is not None:
        parts.append(f"(queue {fields['queue_ms']:.1f})")
    if fields["model"] is not None:
        parts.append(f"{fields['model']}:{fields['version']}")
    if fields["rows"] is not None:
        parts.append(f"rows={fields['rows']}")
    for name in ("bytes_in", "bytes_out"):
        if fields[name]:
            parts.append(f"{name.removeprefix('bytes_')}={fields[name]}")
    return " ".join((*parts, fields["caller"], fields["request_id"]))


def _content_length(scope: Scope) -> int | None:
    """Return the length of the body as the request states it; None if it does not, as with a body in chunks."""
    value = header_fields(scope).get(b"content-length")
    return int(value) if value is not None and value.isdigit() else None
