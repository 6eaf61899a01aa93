"""Deprecated name of :mod:`stablernn.certificates.certificate`, kept for one release."""

from __future__ import annotations

from stablernn._lazy import deprecated_module

__getattr__, __dir__ = deprecated_module(__name__, "stablernn.certificates.certificate")
