"""The log of one model: one JSON object a line, chained by sha256; the only thing that makes a version visible.

A line ends with its own hash, ``,"sha256":"<64 hex>"}``, taken over the bytes of the object without that member, so
another program checks a line without re-encoding it. ``previous`` holds the hash of the line before. The lines of the
registry's policy (``policy.py``) are made in the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from stablernn_registry.errors import RESTORE, IntegrityError, RegistryError
from stablernn_registry.manifest import FileEntry, format_validation_error

FIRST = "0" * 64
KIND = r"^[a-z][a-z0-9-]{0,31}$"
"""Of a record."""
HEX = r"^[0-9a-f]{64}$"
_DIGEST = r"^sha256:[0-9a-f]{64}$"
_TAIL = len(',"sha256":""}') + 64


class CheckLine(BaseModel):
    """One check that was run before an alias moved."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    ok: bool
    detail: str


class Line(BaseModel):
    """What every line of a log or of the policy says; the subclasses add the rest, and ``previous`` last."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    seq: int = Field(ge=1)
    time: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    who: str


class PublishEntry(Line):
    """A version came into being.

    Attributes:
        seq: Number of the line, from 1.
        time: UTC, ``2026-11-20T07:30:00Z``.
        who: The user that published.
        version: Number of the new version.
        digest: sha256 of its manifest file.
        why: Reason given, or None.
        previous: Hash of the line before; 64 zeros for the first.
    """

    action: Literal["publish"] = "publish"
    version: int = Field(ge=1)
    digest: str = Field(pattern=_DIGEST)
    why: str | None = None
    previous: str = Field(pattern=HEX)


class AliasEntry(Line):
    """An alias was set, moved or rolled back.

    Attributes:
        action: ``alias`` or ``rollback``.
        alias: The alias.
        from_version: Version it pointed to before, None if it is new; ``from`` in JSON.
        to_version: Version it points to now; ``to`` in JSON.
        digest: Digest of the version it points to now.
        why: Reason given, or None.
        forced: True if a check refused and the move was forced.
        checks: Every check that was run.
    """

    action: Literal["alias", "rollback"]
    alias: str
    from_version: int | None = Field(alias="from", ge=1)
    to_version: int = Field(alias="to", ge=1)
    digest: str = Field(pattern=_DIGEST)
    why: str | None = None
    forced: bool
    checks: list[CheckLine]
    previous: str = Field(pattern=HEX)


class RecordEntry(Line):
    """Something was said of a version after it was published; the version itself stays as it is.

    Attributes:
        kind: What was said: ``robustness``, ``stability``.
        version: Number of the version that it is about.
        digest: Digest of that version.
        files: Size and hash of what was said, by file name; the bytes are blobs as those of versions are.
        why: Reason given, or None.
    """

    action: Literal["record"] = "record"
    kind: str = Field(pattern=KIND)
    version: int = Field(ge=1)
    digest: str = Field(pattern=_DIGEST)
    files: dict[str, FileEntry] = Field(min_length=1)
    why: str | None = None
    previous: str = Field(pattern=HEX)


LogEntry = PublishEntry | AliasEntry | RecordEntry
_ENTRY: TypeAdapter[LogEntry] = TypeAdapter(Annotated[LogEntry, Field(discriminator="action")])


@dataclass
class History:
    """What a log amounts to.

    Attributes:
        entries: The lines, oldest first.
        digests: Digest by version number.
        records: What was recorded of versions, oldest first.
        moves: For each alias the versions it pointed to, oldest first and the current one last; a rollback drops one.
        head: Hash of the last line.
    """

    entries: list[LogEntry] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    records: list[RecordEntry] = field(default_factory=list)
    moves: dict[str, list[int]] = field(default_factory=dict)
    head: str = FIRST

    @property
    def aliases(self) -> dict[str, int]:
        return {alias: self.moves[alias][-1] for alias in sorted(self.moves)}

    @property
    def highest(self) -> int:
        """Number of the highest version, 0 if there is none: versions count from 1, without gaps."""
        return len(self.digests)

    def aliases_of(self, version: int) -> tuple[str, ...]:
        return tuple(alias for alias, target in self.aliases.items() if target == version)

    def apply(self, entry: LogEntry, head: str) -> str | None:
        """Add one line; returns what is wrong with it, or None."""
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
    """Return the time as a line states it, ``2026-11-20T07:30:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def encode(entry: Line) -> bytes:
    """Return the line of an entry: ASCII JSON without spaces, its own hash as the last member, and a newline."""
    body = json.dumps(entry.model_dump(mode="json"), separators=(",", ":"), allow_nan=False).encode("ascii")
    own = hashlib.sha256(body).hexdigest()
    return body[:-1] + f',"sha256":"{own}"}}\n'.encode("ascii")


def lines(data: bytes, where: str, first: int = 1) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield the lines of a log or of the policy: number, content without the hash, hash.

    Each is checked against its own hash; whether they follow each other is for the caller.

    Args:
        data: Bytes of the file, or of its end.
        where: How messages name it.
        first: Number of the first of these lines.

    Raises:
        IntegrityError: Naming the first line that is damaged.
    """
    if not data.endswith(b"\n"):
        raise IntegrityError(f"{where} is damaged: it {'is cut off' if data else 'is empty'}. {RESTORE}.")
    for number, line in enumerate(data[:-1].split(b"\n"), start=first):
        body = line[:-_TAIL] + b"}"
        own = hashlib.sha256(body).hexdigest()
        if line != body[:-1] + f',"sha256":"{own}"}}'.encode("ascii"):
            raise IntegrityError(f"{where} is damaged: line {number} does not match its own sha256. {RESTORE}.")
        try:
            tree = json.loads(body)
        except RecursionError as error:
            raise IntegrityError(f"{where} is damaged: line {number} nests objects too deeply. {RESTORE}.") from error
        except ValueError as error:
            raise IntegrityError(f"{where} is damaged: line {number}: {error}. {RESTORE}.") from error
        if not isinstance(tree, dict):
            raise unknown_line(where, number)
        yield number, tree, own


def unknown_line(where: str, number: int) -> RegistryError:
    """What to raise for a sound line that only a newer program can have written."""
    return RegistryError(f"{where} has a line {number} that this stablernn does not know. Update stablernn.")


def decode(data: bytes, where: str) -> History:
    """Read a whole log and checks every line, the chain and that the moves make sense.

    Args:
        data: Bytes of ``log.jsonl``.
        where: How messages name the file.

    Raises:
        IntegrityError: Naming the first line that is damaged.
        RegistryError: If a newer program wrote a line.
    """
    history = History()
    _add_lines(history, data, where)
    return history


def continued(history: History, data: bytes, where: str) -> History:
    """Return a history with the lines that were appended to its log, checked as by :func:`decode`.

    Args:
        history: What the log amounted to before; it stays as it is.
        data: Bytes behind those.
        where: How messages name the file.

    Raises:
        IntegrityError, RegistryError: As for :func:`decode`.
    """
    longer = history.copy()
    _add_lines(longer, data, where)
    return longer


def _add_lines(history: History, data: bytes, where: str) -> None:
    for number, tree, own in lines(data, where, first=len(history.entries) + 1):
        if tree.get("action") not in ("publish", "alias", "rollback", "record"):
            raise unknown_line(where, number)
        try:
            entry = _ENTRY.validate_python(tree)
        except ValidationError as error:
            raise IntegrityError(
                f"{where} is damaged: line {number}: {format_validation_error(error, AliasEntry)}. {RESTORE}."
            ) from error
        if (wrong := history.apply(entry, own)) is not None:
            raise IntegrityError(f"{where} is damaged: line {number} does not follow: {wrong}. {RESTORE}.")
