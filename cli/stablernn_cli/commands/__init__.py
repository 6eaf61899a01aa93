"""One file a command. Nothing heavy is imported before a command runs, so that `stablernn --help` stays fast."""

from __future__ import annotations
