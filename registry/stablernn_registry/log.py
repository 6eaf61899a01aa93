"""The log of a model: one JSON object per line, chained by sha256. A version is visible once it is in the log.

A line ends with its own hash, ``,"sha256":"<64 hex>"}``, taken over the bytes of the object without that member, so
another program can check a line without re-encoding it. ``previous`` is the hash of the line before. The lines of the
policy (``policy.py``) have the same form. Replayed logs are cached: reading an unchanged log costs one stat, reading a
longer one only its new lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from stablernn_registry.errors import RESTORE, IntegrityError, RegistryError
from stablernn_registry.files import MAX_LOG_BYTES, read_or_none
from stablernn_registry.manifest import FileEntry, FrozenModel, format_validation_error

# The ``previous`` of the first line.
INITIAL_HEAD = "0" * 64
RECORD_KIND_PATTERN = r"^[a-z][a-z0-9-]{0,31}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
_DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
MAX_LINES = 100_000
"""Maximum number of lines in all cached logs together; a line takes about 1.5 kB."""
_SETTLED_NS = 2_000_000_000
"""Age at which a file's times are sure to change with its next write: the coarsest timestamps have steps of 2 s."""

_Status = tuple[int, int, int, int, int]
# The hash is the last member and has a fixed length, so the hashed bytes are found without parsing the line.
_HASH_MEMBER_BYTES = len(',"sha256":""}') + 64


class CheckLine(FrozenModel):
    """The result of a check that ran before an alias moved."""

    name: str
    ok: bool
    detail: str


class Line(FrozenModel):
    """Fields of every line of a log or of the policy; subclasses add theirs, with ``previous`` last."""

    seq: int = Field(ge=1)
    time: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    who: str


class PublishEntry(Line):
    """A line about the publication of a version.

    Attributes:
        seq: Number of the line, from 1.
        time: UTC, ``2026-11-20T07:30:00Z``.
        who: User who published it.
        version: Number of the new version.
        digest: sha256 of its manifest file.
        why: Reason, or None.
        previous: Hash of the line before; 64 zeros for the first.
    """

    action: Literal["publish"] = "publish"
    version: int = Field(ge=1)
    digest: str = Field(pattern=_DIGEST_PATTERN)
    why: str | None = None
    previous: str = Field(pattern=SHA256_PATTERN)


class AliasEntry(Line):
    """A line about an alias that was set, moved or rolled back.

    Attributes:
        action: ``alias`` or ``rollback``.
        alias: The alias.
        from_version: Version it pointed to before, None if it is new; ``from`` in JSON.
        to_version: Version it points to now; ``to`` in JSON.
        digest: Digest of the version it points to now.
        why: Reason, or None.
        forced: True if a check refused and the move was forced.
        checks: Results of all checks that ran.
    """

    action: Literal["alias", "rollback"]
    alias: str
    from_version: int | None = Field(alias="from", ge=1)
    to_version: int = Field(alias="to", ge=1)
    digest: str = Field(pattern=_DIGEST_PATTERN)
    why: str | None = None
    forced: bool
    checks: list[CheckLine]
    previous: str = Field(pattern=SHA256_PATTERN)


class RecordEntry(Line):
    """A line about a report on a published version; the version itself does not change.

    Attributes:
        kind: Kind of the report: ``robustness``, ``stability``.
        version: Number of the version.
        digest: Digest of that version.
        files: Size and hash by file name; the files are blobs, as those of versions are.
        why: Reason, or None.
    """

    action: Literal["record"] = "record"
    kind: str = Field(pattern=RECORD_KIND_PATTERN)
    version: int = Field(ge=1)
    digest: str = Field(pattern=_DIGEST_PATTERN)
    files: dict[str, FileEntry] = Field(min_length=1)
    why: str | None = None
    previous: str = Field(pattern=SHA256_PATTERN)


LogEntry = PublishEntry | AliasEntry | RecordEntry
# Validators are built on first use, here and in the models: most commands need few of them.
_ENTRY_ADAPTER: TypeAdapter[LogEntry] = TypeAdapter(
    Annotated[LogEntry, Field(discriminator="action")], config=ConfigDict(defer_build=True)
)


@dataclass
class History:
    """The state of a model after its log was replayed.

    Attributes:
        entries: Lines of the log, oldest first.
        digests: Digest by version number.
        records: Records of versions, oldest first.
        moves: Versions that an alias pointed to, oldest first and the current one last, by alias; a rollback drops one.
        head: Hash of the last line.
    """

    entries: list[LogEntry] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    records: list[RecordEntry] = field(default_factory=list)
    moves: dict[str, list[int]] = field(default_factory=dict)
    head: str = INITIAL_HEAD

    @property
    def aliases(self) -> dict[str, int]:
        """Version number by alias, sorted by alias."""
        return {alias: self.moves[alias][-1] for alias in sorted(self.moves)}

    @property
    def highest(self) -> int:
        """Number of the highest version, 0 if there is none; versions count from 1, without gaps."""
        return len(self.digests)

    def aliases_of(self, version: int) -> tuple[str, ...]:
        """Return the aliases that point to a version."""
        return tuple(alias for alias, number in self.aliases.items() if number == version)

    def apply(self, entry: LogEntry, head: str) -> str | None:
        """Add one line and return None, or return the reason why it does not follow the lines before."""
        if entry.seq != len(self.entries) + 1:
            return f"its seq is {entry.seq}"
        if entry.previous != self.head:
            return "its previous hash is not that of the line before"
        if isinstance(entry, PublishEntry):
            if entry.version != self.highest + 1:
                return f"it publishes version {entry.version} out of order"
            self.digests[entry.version] = entry.digest
        elif isinstance(entry, RecordEntry):
            if self.digests.get(entry.version) != entry.digest:
                return f"it records something of a version {entry.version} with another digest"
            self.records.append(entry)
        else:
            stack = self.moves.get(entry.alias, [])
            if entry.from_version != (stack[-1] if stack else None):
                return f"it moves '{entry.alias}' from {entry.from_version}, where it did not point"
            if self.digests.get(entry.to_version) != entry.digest:
                return f"it moves '{entry.alias}' to a version {entry.to_version} with another digest"
            if entry.action == "rollback":
                if len(stack) < 2 or stack[-2] != entry.to_version:
                    return f"it rolls '{entry.alias}' back to {entry.to_version}, where it was not before"
                stack.pop()
            # Setting an alias to the version it has adds no step that a rollback could undo.
            elif not stack or stack[-1] != entry.to_version:
                self.moves.setdefault(entry.alias, []).append(entry.to_version)
        self.entries.append(entry)
        self.head = head
        return None

    def copy(self) -> History:
        """Return a copy to which lines can be added; the lines themselves are shared."""
        return History(
            entries=self.entries.copy(),
            digests=self.digests.copy(),
            records=self.records.copy(),
            moves={alias: stack.copy() for alias, stack in self.moves.items()},
            head=self.head,
        )


def utc_now() -> str:
    """Return the current time in the format of a line, ``2026-11-20T07:30:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def encode(entry: Line) -> bytes:
    """Encode an entry as a line: ASCII JSON without spaces, its own hash as the last member, and a newline."""
    body = json.dumps(entry.model_dump(mode="json"), separators=(",", ":"), allow_nan=False).encode("ascii")
    line_hash = hashlib.sha256(body).hexdigest()
    return body[:-1] + f',"sha256":"{line_hash}"}}\n'.encode("ascii")


def parse_lines(data: bytes, label: str, first_number: int = 1) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield the lines of a log or of the policy: number, content without the hash, hash.

    Each line is checked against its own hash. The caller checks the chain.

    Args:
        data: Bytes of the file, or of its end.
        label: Name of the file in messages.
        first_number: Number of the first of these lines.

    Raises:
        IntegrityError: If a line is damaged; the message names the first.
        RegistryError: If a newer program wrote a line.
    """
    if not data.endswith(b"\n"):
        raise IntegrityError(f"{label} is damaged: it {'is cut off' if data else 'is empty'}. {RESTORE}.")
    for number, line in enumerate(data[:-1].split(b"\n"), start=first_number):
        # The bytes as they are, since encoding the parsed line again need not give the same bytes.
        body = line[:-_HASH_MEMBER_BYTES] + b"}"
        line_hash = hashlib.sha256(body).hexdigest()
        if line != body[:-1] + f',"sha256":"{line_hash}"}}'.encode("ascii"):
            raise IntegrityError(f"{label} is damaged: line {number} does not match its own sha256. {RESTORE}.")
        try:
            tree = json.loads(body)
        except RecursionError as error:
            raise IntegrityError(f"{label} is damaged: line {number} nests objects too deeply. {RESTORE}.") from error
        except ValueError as error:
            raise IntegrityError(f"{label} is damaged: line {number}: {error}. {RESTORE}.") from error
        if not isinstance(tree, dict):
            raise unknown_line_error(label, number)
        yield number, tree, line_hash


def unknown_line_error(label: str, number: int) -> RegistryError:
    """Return the error for an undamaged line that only a newer program can have written."""
    return RegistryError(f"{label} has a line {number} that this stablernn does not know. Update stablernn.")


def decode(data: bytes, label: str, history: History | None = None) -> History:
    """Replay a whole log; check every line, the chain and the moves of aliases.

    Args:
        data: Bytes of ``log.jsonl``, or of the lines after those of ``history``.
        label: Name of the file in messages.
        history: State before these lines; it is not changed.

    Raises:
        IntegrityError: If a line is damaged; the message names the first.
        RegistryError: If a newer program wrote a line.
    """
    history = History() if history is None else history.copy()
    for number, tree, line_hash in parse_lines(data, label, first_number=len(history.entries) + 1):
        # An unknown action in an undamaged line is a newer format, not damage.
        if tree.get("action") not in ("publish", "alias", "rollback", "record"):
            raise unknown_line_error(label, number)
        try:
            entry = _ENTRY_ADAPTER.validate_python(tree)
        except ValidationError as error:
            raise IntegrityError(
                f"{label} is damaged: line {number}: {format_validation_error(error, AliasEntry)}. {RESTORE}."
            ) from error
        if (problem := history.apply(entry, line_hash)) is not None:
            raise IntegrityError(f"{label} is damaged: line {number} does not follow: {problem}. {RESTORE}.")
    return history


@dataclass(frozen=True)
class _Entry:
    """A cached log.

    Attributes:
        status: Status of its file; None if the file changed while it was read, or so recently that its status may not
            show the next change.
        size: Number of bytes that were read.
        sha256: Hash of these bytes.
        history: Replay of these bytes; shared with callers, and never changed.
    """

    status: _Status | None
    size: int
    sha256: bytes
    history: History


class LogCache:
    """A thread-safe cache of the most recently read logs, by path."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()
        # Guards the dictionary, not the reads: a slow disk must not block readers of other logs.
        self._lock = threading.Lock()

    def read(self, path: Path, root: Path, label: str) -> History | None:
        """Return the replay of a log, which callers must not change; None if there is no such file.

        Args:
            path: Path of the log.
            root: Root folder of the registry.
            label: Name of the file in messages.

        Raises:
            OSError: If it cannot be read.
            IntegrityError: If it is damaged, or not a plain file.
            RegistryError: If a newer program wrote a line.
        """
        # Before the data: if the file changes in between, the two do not match and the entry gets no status.
        status = _read_status(path)
        with self._lock:
            cached_entry = self._entries.get(path)
            if cached_entry is not None:
                self._entries.move_to_end(path)
        if cached_entry is not None and status is not None and cached_entry.status == status:
            return cached_entry.history
        data = read_or_none(path, root, MAX_LOG_BYTES)
        if data is None:
            with self._lock:
                self._entries.pop(path, None)
            return None
        history = _replay(data, label, cached_entry)
        is_stable = status is not None and status == _read_status(path) and _is_settled(status)
        entry = _Entry(status if is_stable else None, len(data), hashlib.sha256(data).digest(), history)
        with self._lock:
            self._entries[path] = entry
            self._entries.move_to_end(path)
            lines = sum(len(entry.history.entries) for entry in self._entries.values())
            # The newest log stays even if it exceeds the limit by itself.
            while lines > MAX_LINES and len(self._entries) > 1:
                _, oldest_entry = self._entries.popitem(last=False)
                lines -= len(oldest_entry.history.entries)
        return history


def _replay(data: bytes, label: str, cached_entry: _Entry | None) -> History:
    """Replay a log; if it begins with the cached bytes, replay only the lines after them."""
    if cached_entry is None or len(data) < cached_entry.size:
        return decode(data, label)
    # Writers only append, but a log that was restored from a copy may differ.
    if hashlib.sha256(memoryview(data)[: cached_entry.size]).digest() != cached_entry.sha256:
        return decode(data, label)
    if len(data) == cached_entry.size:
        return cached_entry.history
    return decode(data[cached_entry.size :], label, cached_entry.history)


def _read_status(path: Path) -> _Status | None:
    """Return the fields of its status that change when a file is replaced or written to; None if there is no file."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_settled(status: _Status) -> bool:
    # The change time, too: programs can set the modification time.
    *_, mtime_ns, ctime_ns = status
    return time.time_ns() - max(mtime_ns, ctime_ns) > _SETTLED_NS
