"""Errors of opening and running a version.

ServingError
├── InputError            (ValueError)     a request that cannot be answered in this form
│   ├── NoStreamsError                     a stream of a model that needs complete sequences
│   ├── BadTokenError                      a state token that was not signed with this key, or was changed
│   ├── ExpiredTokenError                  a state token that has expired
│   └── CheckpointError                    a checkpoint that is cut, or of streams of another version
├── ConflictError         (RuntimeError)   a request that does not fit the state it meets
│   ├── TimeOrderError                     a time that does not lie after the one before, or on no regular step
│   └── MissingStepsError                  a time before which regular steps are missing
├── NotReadyError         (RuntimeError)   the version is not open yet, or is being closed
├── ModelLoadError        (RuntimeError)   a registry version that cannot be served
├── OutOfMemoryError      (MemoryError)    a run for which the device has too little memory
├── DeviceError           (RuntimeError)   a device that was asked for and is not there
└── SettingsError         (ValueError)     a setting that does not exist, or a value it cannot take

The server adds its own, and maps each class to an HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping


class ServingError(Exception):
    """Base class of the errors that this package and the server raise on purpose.

    Attributes:
        headers: HTTP headers of the response that reports the error.
    """

    headers: Mapping[str, str] = {}


class InputError(ServingError, ValueError):
    """A request that cannot be answered in this form: a name, a shape or a value does not fit."""


class NoStreamsError(InputError):
    """A stream, a step or a state of a model that resamples complete sequences and has none of them.

    Args:
        ref: ``NAME:VERSION`` of the model.
        steps: Samples to which it resamples a sequence.
    """

    def __init__(self, ref: str, steps: int | None) -> None:
        super().__init__(
            f"'{ref}' cannot stream: it resamples each sequence to {steps} samples over its whole length, which is "
            "known after the last sample only. Send complete sequences to /v2/models/NAME/infer or "
            "/v1/timeseries/classify, or train without model.resample_steps."
        )


class BadTokenError(InputError):
    """A state token that was not signed with this key, or was changed."""


class ExpiredTokenError(InputError):
    """A state token that has expired."""


class CheckpointError(InputError):
    """A checkpoint of streams that is cut or damaged, or that another version made."""


class ConflictError(ServingError, RuntimeError):
    """A request that does not fit the state it meets."""


class TimeOrderError(ConflictError):
    """A time that does not lie after the one before, or on no regular step."""


class MissingStepsError(ConflictError):
    """A time before which regular steps are missing."""


class NotReadyError(ServingError, RuntimeError):
    """A version that is not open yet or is being closed, or a run that was ended."""

    headers: Mapping[str, str] = {"Retry-After": "5"}


class ModelLoadError(ServingError, RuntimeError):
    """A registry version that cannot be served."""


class OutOfMemoryError(ServingError, MemoryError):
    """A run for which the device has too little memory; smaller ones work."""


class DeviceError(ServingError, RuntimeError):
    """A device that was asked for and is not there."""


class SettingsError(ServingError, ValueError):
    """A setting that does not exist, or a value it cannot take."""


def cut(text: str, limit: int = 100) -> str:
    """Return ``text`` shortened to ``limit`` characters, for errors: a client may have sent megabytes of it."""
    return text if len(text) <= limit else f"{text[:limit]}..."
