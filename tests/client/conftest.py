"""Fixtures of the tests of the client."""

from served_models import _certificates_read_once, server

__all__ = ["_certificates_read_once", "server"]
