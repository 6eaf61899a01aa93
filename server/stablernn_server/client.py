"""Deprecated name of :mod:`stablernn_client`, kept for one release."""

from __future__ import annotations

import warnings

from stablernn_client import *  # noqa: F403
from stablernn_client import __all__ as __all__

warnings.warn(
    "stablernn_server.client is called stablernn_client now, and this name will be removed in the next release.",
    DeprecationWarning,
    stacklevel=2,
)
