"""The REST service: registry and ONNX Runtime, no torch.

>>> from stablernn_server import Settings, create_app
>>> app = create_app(Settings(models=("digits@production",)))  # doctest: +SKIP
"""

from __future__ import annotations

from stablernn_server.app import create_app
from stablernn_server.errors import (
    BusyError,
    DeviceError,
    InputError,
    ModelLoadError,
    NotReadyError,
    ReadTimeoutError,
    ServerError,
    SettingsError,
    TooLargeError,
    UnknownModelError,
)
from stablernn_server.runtime.onnx_model import OnnxModel
from stablernn_server.settings import Settings

__all__ = [
    "BusyError",
    "DeviceError",
    "InputError",
    "ModelLoadError",
    "NotReadyError",
    "OnnxModel",
    "ReadTimeoutError",
    "ServerError",
    "Settings",
    "SettingsError",
    "TooLargeError",
    "UnknownModelError",
    "create_app",
]
