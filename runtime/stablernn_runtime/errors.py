"""Errors that opening and running a version raise.

ServingError
├── InputError            (ValueError)     a request that cannot be answered as it stands
│   ├── BadTokenError                      a state token that was not signed with this key, or was changed
│   └── ExpiredTokenError                  a state token that has expired
├── ConflictError         (RuntimeError)   a request that does not fit the state it meets
│   ├── TimeOrderError                     a time that does not lie after the one before, or on no regular step
│   └── MissingStepsError                  a time before which regular steps are missing
├── NotReadyError         (RuntimeError)   the version is not open yet, or is being closed
├── ModelLoadError        (RuntimeError)   a registry version that cannot be served
├── DeviceError           (RuntimeError)   a device that was asked for and is not there
└── SettingsError         (ValueError)     a setting that does not exist, or a value it cannot take

The server adds its own, and maps each class to an HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping


class ServingError(Exception):
    """Base of everything that this package and the server raise on purpose.

    Attributes:
        headers: HTTP headers of the response that reports the error.
    """

    headers: Mapping[str, str] = {}


class InputError(ServingError, ValueError):
    pass


class BadTokenError(InputError):
    pass


class ExpiredTokenError(InputError):
    pass


class ConflictError(ServingError, RuntimeError):
    pass


class TimeOrderError(ConflictError):
    pass


class MissingStepsError(ConflictError):
    pass


class NotReadyError(ServingError, RuntimeError):
    headers: Mapping[str, str] = {"Retry-After": "5"}


class ModelLoadError(ServingError, RuntimeError):
    pass


class DeviceError(ServingError, RuntimeError):
    pass


class SettingsError(ServingError, ValueError):
    pass


def cut(text: str, limit: int = 100) -> str:
    """Return ``text`` as errors quote it, shortened: a client may have sent megabytes of it."""
    return text if len(text) <= limit else f"{text[:limit]}..."
