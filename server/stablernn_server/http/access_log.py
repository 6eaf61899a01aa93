"""One line about each request; never what it holds, nor its query, nor a token."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import orjson

if TYPE_CHECKING:
    from stablernn_server.http.app_context import ActiveRequest

logger = logging.getLogger("stablernn_server.access")

Form = Literal["text", "json", "off"]

MAX_PATH = 200
POLLED_PATHS = frozenset({"/metrics", "/v2/health/live", "/v2/health/ready"})
"""Asked by machines every few seconds for as long as the server runs; only a failure is worth a line."""
_READS = frozenset({"GET", "HEAD"})
SESSIONS = "/v1/sessions/"
SESSION_PREFIX = 8
"""A session's whole number is all that it takes to continue it, so that lines show this much of it."""


class AccessLog:
    """Writes the lines to the logger ``stablernn_server.access``, at the level INFO.

    Args:
        form: ``text``, short and for people; ``json``, an object a line; or ``off``.
    """

    def __init__(self, form: Form) -> None:
        self._form = form

    def http(
        self, item: ActiveRequest, scope: MutableMapping[str, Any], status: int, sent_bytes: int, seconds: float
    ) -> None:
        """Write the line of one request, unless it is a successful look at the metrics or at health.

        Args:
            item: The request, answered.
            scope: Of ASGI.
            status: Of the answer.
            sent_bytes: Of the answer's body.
            seconds: From the head of the request to the end of the answer.
        """
        if self._is_on and not (status < 400 and scope["method"] in _READS and scope["path"] in POLLED_PATHS):
            self._write(item, scope["method"], scope, status, _content_length(scope), sent_bytes, seconds)

    def websocket(self, item: ActiveRequest, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        """Write the line of one WebSocket, when it has ended or was refused.

        Args:
            item: Its handshake.
            scope: Of ASGI.
            status: 101, or that of the refusal.
            seconds: From the handshake to its end.
        """
        if self._is_on:
            self._write(item, "WS", scope, status, None, None, seconds)

    @property
    def _is_on(self) -> bool:
        return self._form != "off" and logger.isEnabledFor(logging.INFO)

    def _write(
        self,
        item: ActiveRequest,
        method: str,
        scope: MutableMapping[str, Any],
        status: int,
        bytes_in: int | None,
        bytes_out: int | None,
        seconds: float,
    ) -> None:
        model = item.model
        fields: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": item.request_id,
            "method": method,
            "path": shown_path(scope["path"]),
            "status": status,
            "code": item.code,
            "ms": round(1e3 * seconds, 3),
            "queue_ms": round(item.queue_ns / 1e6, 3) if item.rows else None,
            "model": None if model is None else model.name,
            "version": None if model is None else model.version,
            "rows": item.rows or None,
            "caller": item.identity.name,
            "role": None if item.identity.name == "anonymous" else item.identity.role,
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
        }
        line = orjson.dumps(fields).decode() if self._form == "json" else _text(fields)
        # Past logger.info, which looks for the line of code that calls it.
        logger.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, line, (), None))


def write_to_stderr() -> None:
    """Have the lines on standard error as they are, whatever other loggers do with theirs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)


def quieten_uvicorn() -> None:
    """Keep uvicorn from writing the query of every WebSocket, and an error for each that was refused."""
    uvicorn_logger = logging.getLogger("uvicorn.error")
    if _is_news not in uvicorn_logger.filters:
        uvicorn_logger.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    # Wrong of a refusal that was sent: https://github.com/Kludex/uvicorn/pull/3138
    return record.levelno >= logging.WARNING and record.msg != "ASGI callable returned without completing handshake."


def shown_path(path: str) -> str:
    """A decoded path as logs show it: short, of printable characters, and without the number of a session."""
    if path.startswith(SESSIONS):
        session, slash, rest = path[len(SESSIONS) :].partition("/")
        if len(session) > SESSION_PREFIX:
            path = f"{SESSIONS}{session[:SESSION_PREFIX]}...{slash}{rest}"
    if len(path) > MAX_PATH:
        path = f"{path[:MAX_PATH]}..."
    # A decoded path can hold line breaks and whatever else would look like a line of its own.
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


def _content_length(scope: MutableMapping[str, Any]) -> int | None:
    """What the request says itself; a body in chunks says nothing."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None
