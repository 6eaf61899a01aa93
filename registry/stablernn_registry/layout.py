"""Where everything lies below the root. Every path of the registry is built here, from checked names only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MARKER = b'{"format":"stablernn-registry","schema":1}\n'
SCHEMA = 1
# A file system of its own mounted as the root brings this folder along; it is not ours and not a stray file.
FOREIGN = frozenset({"lost+found"})
# No file of its kind is larger: a reader looks at the size before it reads, a writer before it writes.
MAX_MARKER_BYTES = 2**12
MAX_MANIFEST_BYTES = 2**26
MAX_LOG_BYTES = 2**28
MAX_POLICY_BYTES = 2**24
SHA256 = re.compile(r"[0-9a-f]{64}")
STAGED = re.compile(r"file-[0-9]+|manifest\.json|log\.jsonl|registry\.json")
STAGED_POLICY = re.compile(r"policy\.jsonl|registry\.json")
# In locks and tmp, beside the models' names; no model can be called that.
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
        """Lock file of a model, or of the policy where the name is ``POLICY``."""
        return self.locks / name

    def staging(self, name: str) -> Path:
        """Folder that only the holder of that lock writes to; what lies there is not published."""
        return self.tmp / name

    def relative(self, path: Path) -> str:
        """The path below the root, with forward slashes, as messages show it."""
        return path.relative_to(self.root).as_posix()
