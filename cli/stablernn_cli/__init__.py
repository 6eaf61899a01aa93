"""The command line `stablernn`."""

from __future__ import annotations
