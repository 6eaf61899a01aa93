"""The REST service: registry and ONNX Runtime, no torch.

>>> from stablernn_server import Settings, create_app
>>> app = create_app(Settings(models=("digits@production",)))  # doctest: +SKIP

Names are imported when they are first used, so that using a part of the package does not load all of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablernn_server.app import create_app
    from stablernn_server.errors import (
        BadTokenError,
        BusyError,
        ClientGoneError,
        ConflictError,
        DeadlineError,
        DeviceError,
        DuplicateStepError,
        ExpiredTokenError,
        ForbiddenError,
        InputError,
        MethodError,
        MissingStepsError,
        ModelLoadError,
        NoExampleError,
        NoStreamsError,
        NotReadyError,
        OneProcessError,
        OtherModelError,
        OutOfMemoryError,
        ReadTimeoutError,
        ServerError,
        SettingsError,
        SkippedStepError,
        TimeOrderError,
        TooLargeError,
        TooManyError,
        UnauthorizedError,
        UnknownModelError,
        UnknownSequenceError,
        UnknownSessionError,
        VersionGoneError,
    )
    from stablernn_server.settings import Settings

__all__ = [
    "BadTokenError",
    "BusyError",
    "ClientGoneError",
    "ConflictError",
    "DeadlineError",
    "DeviceError",
    "DuplicateStepError",
    "ExpiredTokenError",
    "ForbiddenError",
    "InputError",
    "MethodError",
    "MissingStepsError",
    "ModelLoadError",
    "NoExampleError",
    "NoStreamsError",
    "NotReadyError",
    "OneProcessError",
    "OtherModelError",
    "OutOfMemoryError",
    "ReadTimeoutError",
    "ServerError",
    "Settings",
    "SettingsError",
    "SkippedStepError",
    "TimeOrderError",
    "TooLargeError",
    "TooManyError",
    "UnauthorizedError",
    "UnknownModelError",
    "UnknownSequenceError",
    "UnknownSessionError",
    "VersionGoneError",
    "create_app",
]

# Modules of the names that are not errors.
_MODULES = {
    "Settings": "stablernn_server.settings",
    "create_app": "stablernn_server.app",
}

if not TYPE_CHECKING:  # type checkers would take it for every name, misspelled ones too

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES.get(name, "stablernn_server.errors")), name)
        # The next use finds it without this function.
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
