"""Paths of all files below the root. Every path of the registry is built here, from checked names only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MARKER = b'{"format":"stablernn-registry","schema":1}\n'
SCHEMA = 1
# Present if the root is the mount point of a file system; neither part of the registry nor a stray.
FILESYSTEM_FOLDERS = frozenset({"lost+found"})
# Limits for each kind of file: readers check the size before they read, writers before they write.
MAX_MARKER_BYTES = 2**12
MAX_MANIFEST_BYTES = 2**26
MAX_LOG_BYTES = 2**28
MAX_POLICY_BYTES = 2**24
SHA256 = re.compile(r"[0-9a-f]{64}")
# Names that a writer stages; in a staging folder any other file is a stray.
STAGED_NAME = re.compile(r"file-[0-9]+|manifest\.json|log\.jsonl|registry\.json")
STAGED_POLICY_NAME = re.compile(r"policy\.jsonl|registry\.json")
# Name of the policy's lock and staging folder; no model name contains "@".
POLICY = "@policy"


@dataclass(frozen=True)
class Layout:
    """Paths below one root; names must have passed ``refs.check_name`` and hashes ``SHA256``."""

    root: Path

    @property
    def marker(self) -> Path:
        return self.root / "registry.json"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs" / "sha256"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def policy(self) -> Path:
        return self.root / "policy.jsonl"

    def blob(self, sha256: str) -> Path:
        return self.blobs / sha256[:2] / sha256

    def model(self, name: str) -> Path:
        return self.models / name

    def log(self, name: str) -> Path:
        return self.models / name / "log.jsonl"

    def versions(self, name: str) -> Path:
        return self.models / name / "versions"

    def manifest(self, name: str, version: int) -> Path:
        return self.models / name / "versions" / f"{version}.json"

    def lock(self, name: str) -> Path:
        """Return the lock file of a model, or of the policy if the name is ``POLICY``."""
        return self.locks / name

    def staging(self, name: str) -> Path:
        """Return the folder that only the holder of that lock writes to; nothing in it is published."""
        return self.tmp / name

    def relative(self, path: Path) -> str:
        """Return the path below the root, with forward slashes, for messages."""
        return path.relative_to(self.root).as_posix()
