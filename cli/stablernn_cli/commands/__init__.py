"""Commands, one file each. Heavy imports are made when a command runs, so that `stablernn --help` stays fast."""

from __future__ import annotations
