"""What the server raises, and the one table that turns each class into an HTTP status and a code word.

ServerError
├── InputError            (ValueError)     a request that cannot be answered as it stands
├── TooLargeError         (ValueError)     a request above a limit of this server
├── UnknownModelError     (LookupError)    a model, version or alias that is not served
├── ReadTimeoutError      (TimeoutError)   a body that arrives too slowly
├── NotReadyError         (RuntimeError)   the server is starting or draining
├── BusyError             (RuntimeError)   the server has its hands full
├── ModelLoadError        (RuntimeError)   a registry version that cannot be served
├── DeviceError           (RuntimeError)   a device that was asked for and is not there
└── SettingsError         (ValueError)     a setting that does not exist, or a value it cannot take

The last three are raised before the first request is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError


class ServerError(Exception):
    """Base of everything that this package raises on purpose."""


class InputError(ServerError, ValueError):
    pass


class TooLargeError(ServerError, ValueError):
    pass


class UnknownModelError(ServerError, LookupError):
    pass


class ReadTimeoutError(ServerError, TimeoutError):
    pass


class NotReadyError(ServerError, RuntimeError):
    pass


class BusyError(ServerError, RuntimeError):
    pass


class ModelLoadError(ServerError, RuntimeError):
    pass


class DeviceError(ServerError, RuntimeError):
    pass


class SettingsError(ServerError, ValueError):
    pass


STATUS_AND_CODE: dict[type[Exception], tuple[int, str]] = {
    InputError: (400, "bad_input"),
    UnknownModelError: (404, "unknown_model"),
    ReadTimeoutError: (408, "timeout"),
    TooLargeError: (413, "too_large"),
    NotReadyError: (503, "not_ready"),
    BusyError: (503, "busy"),
}
"""Every class that a request can raise. Whatever is not here is a fault of ours: 500, ``internal``."""

CODE_OF_STATUS: dict[int, str] = {404: "unknown_path", 405: "method_not_allowed"}
"""Code words for what the framework itself answers."""


def cut(text: str, limit: int = 100) -> str:
    """``text`` as errors repeat it: what a client sent may be as long as the body."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def sentence_of(error: ValidationError | Iterable[Any], root: str) -> str:
    """One sentence for a failed pydantic check: the first problem, and how many more there are.

    Args:
        error: The failed check, or pydantic's list of error dictionaries.
        root: What to call the whole when the problem lies in no field of it, such as ``"the body"``.
    """
    problems = error.errors(include_url=False) if isinstance(error, ValidationError) else list(error)
    first = problems[0]
    where = cut(".".join(str(part) for part in first["loc"])) or root
    given = first.get("input")
    got = f", got {given!r}" if isinstance(given, str | int | float) and len(str(given)) <= 80 else ""
    others = len(problems) - 1
    more = f" (and {others} more problem{'s' if others > 1 else ''})" if others else ""
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{where}: {message[:1].lower()}{message[1:]}{got}{more}."
