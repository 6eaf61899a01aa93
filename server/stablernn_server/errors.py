"""Errors that the server raises, and the one table that maps each class to an HTTP status and an error code.

ServerError
├── InputError            (ValueError)     a request that cannot be answered as it is
│   ├── NoStreamsError                     a stream of a model that needs complete sequences
│   ├── BadTokenError                      a state token that this server did not sign, or that was changed
│   └── ExpiredTokenError                  a state token that has expired
├── TooLargeError         (ValueError)     a request above a limit of this server
├── HeadTooLargeError     (ValueError)     a request whose head is above a limit
├── UnauthorizedError     (PermissionError) no bearer token, or an unknown one
├── ForbiddenError        (PermissionError) a known caller without the right to do this, or a page of another origin
├── UnknownModelError     (LookupError)    a model, version or alias that is not served
├── MethodError           (LookupError)    a method that the path does not support
├── NoExampleError        (LookupError)    a version that stores no example, or one that cannot be read
├── UnknownSessionError   (LookupError)    a session that does not exist, has expired or was evicted
├── ConflictError         (RuntimeError)   a request that does not fit the state it applies to
│   ├── VersionGoneError                   a stream whose version is not served any more
│   ├── OtherModelError                    a stream, or its token, of another model than the one requested
│   ├── DuplicateStepError                 samples that a stream has already taken
│   ├── SkippedStepError                   samples before which others of the stream are missing
│   ├── TimeOrderError                     a time that is not after the one before, or not on a regular step
│   ├── MissingStepsError                  a time before which regular steps are missing
│   ├── UnknownSequenceError               a sequence of the v2 protocol that was not begun, or has expired
│   └── OneProcessError                    state of one process, requested where several share the port
├── TooManyError          (RuntimeError)   more at a time than this client may have
├── DeadlineError         (TimeoutError)   a request whose deadline passed before it was worked on
├── ClientGoneError       (ConnectionError) a client that did not wait; nobody reads the response
├── ReadTimeoutError      (TimeoutError)   a head or a body that arrives too slowly
├── NotReadyError         (RuntimeError)   the server is starting or draining
├── BusyError             (RuntimeError)   the server is overloaded
├── ModelLoadError        (RuntimeError)   a registry version that cannot be served
├── OutOfMemoryError      (MemoryError)    a run for which the device has too little memory
├── DeviceError           (RuntimeError)   a requested device that is not available
└── SettingsError         (ValueError)     a setting that does not exist, or a value that is not valid

The last is raised before the first request is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from stablernn_runtime.errors import BadTokenError as BadTokenError
from stablernn_runtime.errors import ConflictError as ConflictError
from stablernn_runtime.errors import DeviceError as DeviceError
from stablernn_runtime.errors import ExpiredTokenError as ExpiredTokenError
from stablernn_runtime.errors import InputError as InputError
from stablernn_runtime.errors import MissingStepsError as MissingStepsError
from stablernn_runtime.errors import ModelLoadError as ModelLoadError
from stablernn_runtime.errors import NoStreamsError as NoStreamsError
from stablernn_runtime.errors import NotReadyError as NotReadyError
from stablernn_runtime.errors import OutOfMemoryError as OutOfMemoryError
from stablernn_runtime.errors import ServingError
from stablernn_runtime.errors import SettingsError as SettingsError
from stablernn_runtime.errors import TimeOrderError as TimeOrderError
from stablernn_runtime.errors import cut as cut

ServerError = ServingError
"""Base class of all errors that the server raises on purpose."""


class TooLargeError(ServerError, ValueError):
    pass


class HeadTooLargeError(ServerError, ValueError):
    pass


class UnauthorizedError(ServerError, PermissionError):
    # RFC 9110, section 11.6.1: a 401 must say which scheme it takes.
    headers: Mapping[str, str] = {"WWW-Authenticate": 'Bearer realm="stablernn"'}


class ForbiddenError(ServerError, PermissionError):
    pass


class UnknownModelError(ServerError, LookupError):
    pass


class MethodError(ServerError, LookupError):
    def __init__(self, method: str, path: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{cut(path)} does not support {cut(method)}; send {' or '.join(allowed)}.")
        # RFC 9110, section 15.5.6: a 405 must list the methods.
        self.headers = {"Allow": ", ".join(allowed)}


class NoExampleError(ServerError, LookupError):
    pass


class UnknownSessionError(ServerError, LookupError):
    pass


class VersionGoneError(ConflictError):
    pass


class OtherModelError(ConflictError):
    pass


class DuplicateStepError(ConflictError):
    pass


class SkippedStepError(ConflictError):
    pass


class UnknownSequenceError(ConflictError):
    pass


class OneProcessError(ConflictError):
    pass


class TooManyError(ServerError, RuntimeError):
    # Any answer to this client makes room.
    headers: Mapping[str, str] = {"Retry-After": "1"}


class DeadlineError(ServerError, TimeoutError):
    pass


class ClientGoneError(ServerError, ConnectionError):
    pass


class ReadTimeoutError(ServerError, TimeoutError):
    pass


class BusyError(ServerError, RuntimeError):
    def __init__(self, message: str, retry_after_seconds: int = 5) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(retry_after_seconds)}


STATUS_AND_CODE: dict[type[Exception], tuple[int, str]] = {
    InputError: (400, "bad_input"),
    NoStreamsError: (400, "no_streams"),
    BadTokenError: (400, "bad_token"),
    ExpiredTokenError: (400, "expired_token"),
    UnauthorizedError: (401, "unauthorized"),
    ForbiddenError: (403, "forbidden"),
    UnknownModelError: (404, "unknown_model"),
    NoExampleError: (404, "no_example"),
    UnknownSessionError: (404, "unknown_session"),
    MethodError: (405, "method_not_allowed"),
    ReadTimeoutError: (408, "timeout"),
    VersionGoneError: (409, "version_gone"),
    OtherModelError: (409, "other_model"),
    DuplicateStepError: (409, "duplicate_step"),
    SkippedStepError: (409, "skipped_step"),
    TimeOrderError: (409, "time_order"),
    MissingStepsError: (409, "missing_steps"),
    UnknownSequenceError: (409, "unknown_sequence"),
    OneProcessError: (409, "one_process_only"),
    ConflictError: (409, "conflict"),
    ModelLoadError: (409, "load_failed"),
    DeviceError: (409, "load_failed"),
    TooLargeError: (413, "too_large"),
    OutOfMemoryError: (413, "too_large"),
    TooManyError: (429, "too_many"),
    HeadTooLargeError: (431, "head_too_large"),
    # nginx's status for it. Nobody reads such a response: it is for logs and metrics.
    ClientGoneError: (499, "client_gone"),
    NotReadyError: (503, "not_ready"),
    BusyError: (503, "busy"),
    DeadlineError: (504, "deadline"),
}
"""Status and code of every class that a request can raise. A class that is missing here is a bug: 500, ``internal``."""

NOT_READY = "The server is starting or shutting down; try again later."
CODE_BY_STATUS: dict[int, str] = {404: "unknown_path"}
"""Codes of errors that the framework itself answers with."""


def format_validation_error(error: ValidationError | Iterable[Any], root: str) -> str:
    """Return one sentence for a failed pydantic validation: the first problem, and how many more there are.

    Args:
        error: The failed validation, or pydantic's list of error dictionaries.
        root: Name of the whole, for a problem that is in no field of it, such as ``"the body"``.
    """
    problems = error.errors(include_url=False) if isinstance(error, ValidationError) else list(error)
    first = problems[0]
    location = cut(".".join(str(part) for part in first["loc"])) or root
    value = first.get("input")
    # Only short scalars: an array or a long text would fill the sentence.
    got = f", got {value!r}" if isinstance(value, str | int | float) and len(str(value)) <= 80 else ""
    others = len(problems) - 1
    more = f" (and {others} more problem{'s' if others > 1 else ''})" if others else ""
    # Pydantic's prefix of what our own validators raise.
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{location}: {message[:1].lower()}{message[1:]}{got}{more}."
