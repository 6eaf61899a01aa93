"""The store: publish, get, list, aliases, records, log, policy, verify.

What makes it safe, in the order it happens while publishing (``writes.py`` has the steps that all writes share):

1. Everything is written and synced in ``tmp/NAME``, which only the holder of the model's lock touches.
2. Renames put blobs and the manifest in place; nobody refers to them yet.
3. Renaming the new ``log.jsonl`` over the old one makes the version visible. A process killed before that has changed
   nothing; the next writer removes what it left.

Readers take no lock: a log is always whole, and what it names is already there and never changes.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import platformdirs

from . import disk, journal, plain_files
from . import policy as rulebook
from .checks import CheckResult
from .errors import (
    AliasError,
    GateRefused,
    IntegrityError,
    ManifestError,
    PolicyError,
    StorageError,
    UnknownRefError,
    near,
)
from .gates import Check, failures, policy_results
from .journal import AliasEntry, CheckLine, History, LogEntry, PublishEntry, RecordEntry
from .layout import (
    FOREIGN,
    MARKER,
    MAX_LOG_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_MARKER_BYTES,
    MAX_POLICY_BYTES,
    POLICY,
    SCHEMA,
    Layout,
)
from .log_cache import LogCache
from .manifest import FileEntry, Manifest, ManifestFields, check_filenames, checked, digest_of, is_text
from .policy import EVERY, Policy, PolicyEntry, PolicyRules, check_pattern
from .refs import (
    Ref,
    check_alias,
    check_name,
    check_new_alias,
    check_new_name,
    check_version,
    is_name,
    parse_ref,
)
from .verify import Verifier, VerifyReport
from .version import ModelInfo, Record, Version, quoted, record_name
from .writes import Place, Writer

logger = logging.getLogger(__name__)

ENVIRONMENT = "STABLERNN_REGISTRY"
_JUDGEMENTS = 10
"""How often a move is judged at most, where others change what it is about in the meantime."""
_SHOWN = 8
"""Names of models that an error lists."""


class Registry:
    """Trained models on disk, in versions that never change.

    Nothing is created until something is published, so a registry can be read where writing is not allowed.

    Args:
        root: Folder of the registry. Default: ``STABLERNN_REGISTRY``, else the user's data folder.
        lock_timeout_seconds: How long a write waits for another write to the same model, or to the policy.
    """

    def __init__(self, root: str | Path | None = None, *, lock_timeout_seconds: float = 300.0) -> None:
        chosen = (
            root
            or os.environ.get(ENVIRONMENT)
            or platformdirs.user_data_path("stablernn", appauthor=False) / "registry"
        )
        self.root = Path(chosen).expanduser().absolute()
        self._layout = Layout(self.root)
        self._writer = Writer(self._layout, self._exists, lock_timeout_seconds)
        self._logs = LogCache()

    def __repr__(self) -> str:
        return f"Registry({str(self.root)!r})"

    def check_name(self, name: str, alias: str | None = None) -> None:
        """Checks that versions can be published under a name, and that an alias of it can be set.

        Names and aliases that are there already may be such as a new one may not: ``aux.txt``, ``a..b``.

        Raises:
            RefError: If the name or the alias is not well formed, or reserved.
            IntegrityError: If the model's log is damaged.
        """
        history = self._history(check_name(name)) or History()
        if not history.entries:
            check_new_name(name)
        if alias is not None and alias not in history.moves:
            check_new_alias(alias, name)

    def publish(
        self,
        name: str,
        files: Mapping[str, str | Path],
        fields: ManifestFields | Mapping[str, object],
        *,
        who: str | None = None,
        why: str | None = None,
    ) -> Version:
        """Makes the next version of a model from copies of the files; all of it becomes visible at once, or nothing.

        Args:
            name: Name of the model; a new one is made.
            files: Where each file lies now, by its name in the version.
            fields: The rest of the manifest.
            who: Who publishes. Default: the user of the process.
            why: Reason for the log.

        Raises:
            RefError: As for :meth:`check_name`.
            ManifestError: If a file is missing, badly named or there is none, or a field is wrong.
            StorageError: If the disk is full or does not allow it, or another process holds the lock for too long.
            IntegrityError: If the model's log is damaged.
        """
        self.check_name(name)
        who = _said(who, why)
        parsed = ManifestFields.parse(fields)
        sources = _sources(files, f"A version needs at least one file, got none for '{name}'.")
        place = self._place(name)
        with self._writer.locked(place), self._writer.staged(place, f"publish '{name}'") as staging:
            history = self._history(name) or History()
            entries = _stage_files(staging, sources)
            time = _now()
            manifest = Manifest(
                **parsed.model_dump(),
                name=name,
                version=history.highest + 1,
                created=time,
                files=entries,
            )
            data = manifest.encode()
            if len(data) > MAX_MANIFEST_BYTES:
                raise ManifestError(
                    f"The manifest cannot be written: it would have {len(data)} bytes, at most {MAX_MANIFEST_BYTES} "
                    f"are read. Shorten its fields."
                )
            path = self._layout.manifest(name, manifest.version)
            # Decoded here, as a reader will: once the version is published, nothing that can fail is left to do.
            manifest = checked(data, name, manifest.version, digest_of(data), self._layout.relative(path))
            disk.write_new(staging / "manifest.json", data)
            line = PublishEntry(
                seq=len(history.entries) + 1,
                time=time,
                who=who,
                version=manifest.version,
                digest=digest_of(data),
                why=why,
                previous=history.head,
            )
            self._writer.stage_line(place, line)
            # Nothing of size is written from here on: a full disk has shown itself by now.
            self._place_files(staging, entries)
            disk.make_folders(self._layout.versions(name))
            disk.place(staging / "manifest.json", path)
            self._writer.commit(place, f"'{name}:{manifest.version}' is published")
        return Version(name, manifest.version, line.digest, manifest, (), _layout=self._layout)

    def get(self, ref: str | Ref) -> Version:
        """Looks a version up; its manifest is checked against the digest in the log.

        Args:
            ref: ``NAME`` (the highest version), ``NAME:VERSION`` or ``NAME@ALIAS``.

        Raises:
            RefError: If the reference is not well formed.
            UnknownRefError: If there is no such model, version or alias.
            IntegrityError: If the log or the manifest is damaged.
        """
        ref = parse_ref(ref) if isinstance(ref, str) else ref
        history = self._known_history(ref.name)
        number = self._resolve(ref, history)
        path = self._layout.manifest(ref.name, number)
        with disk.explained(f"read '{ref}'", self.root):
            data = plain_files.read_or_none(path, self.root, MAX_MANIFEST_BYTES)
        manifest = checked(data, ref.name, number, history.digests[number], self._layout.relative(path))
        return Version(
            ref.name, number, history.digests[number], manifest, history.aliases_of(number), _layout=self._layout
        )

    def record(
        self,
        ref: str | Ref,
        kind: str,
        files: Mapping[str, str | Path],
        *,
        who: str | None = None,
        why: str | None = None,
    ) -> Record:
        """Keeps beside a version what was found out after it was published; version and digest stay as they are.

        What the last record of this kind says already, to the byte, is not recorded once more.

        Args:
            ref: As for :meth:`get`.
            kind: What it is, such as ``robustness``.
            files: Where each file lies now, by its name in the record.
            who: Who records it. Default: the user of the process.
            why: Reason for the log.

        Raises:
            RefError, UnknownRefError: As for :meth:`get`.
            ManifestError: If a file is missing, badly named or there is none, or the kind is no such word.
            StorageError, IntegrityError: As for :meth:`publish`.
        """
        version = self.get(ref)
        name, who = version.name, _said(who, why)
        if not re.fullmatch(journal.KIND, kind):
            raise ManifestError(
                f"The kind of a record is a word like 'robustness' (a-z 0-9 -, at most 32, beginning with a letter), "
                f"got {kind!r:.100}."
            )
        sources = _sources(files, f"A record needs at least one file, got none for '{version.ref}'.")
        place = self._place(name)
        with (
            self._writer.locked(place),
            self._writer.staged(place, f"record '{kind}' of '{version.ref}'") as staging,
        ):
            history = self._known_history(name)
            entries = _stage_files(staging, sources)
            said = [one for one in history.records if (one.version, one.kind) == (version.version, kind)]
            is_new = not said or said[-1].files != entries
            line = RecordEntry(
                seq=len(history.entries) + 1,
                time=_now(),
                who=who,
                kind=kind,
                version=version.version,
                digest=version.digest,
                files=entries,
                why=why,
                previous=history.head,
            )
            if is_new:
                self._writer.stage_line(place, line)
            self._place_files(staging, entries)
            if not is_new:
                return Record(version.ref, said[-1], self._layout)
            self._writer.commit(place, f"{record_name(version.ref, kind).capitalize()} is kept")
        return Record(version.ref, line, self._layout)

    def records(self, ref: str | Ref) -> tuple[Record, ...]:
        """Returns what was recorded of a version, oldest first.

        Raises:
            RefError, UnknownRefError, IntegrityError: As for :meth:`get`.
        """
        version = self.get(ref)
        return tuple(
            Record(version.ref, entry, self._layout)
            for entry in self._known_history(version.name).records
            if entry.version == version.version
        )

    def list(self) -> tuple[ModelInfo, ...]:
        """Lists every model with its versions and aliases, by name; empty if there is no registry yet.

        Raises:
            IntegrityError: If a log is damaged.
        """
        found = []
        for name in self._names():
            if (history := self._history(name)) is not None:
                found.append(ModelInfo(name, tuple(history.digests), history.aliases))
        return tuple(found)

    def resolve(self, ref: str | Ref) -> int:
        """Returns the number of the version that a reference names; reads the log alone, which is in memory.

        Raises:
            RefError, UnknownRefError: As for :meth:`get`.
            IntegrityError: If the log is damaged.
        """
        ref = parse_ref(ref) if isinstance(ref, str) else ref
        return self._resolve(ref, self._known_history(ref.name))

    def aliases(self, name: str) -> dict[str, int]:
        """Returns the version that each alias of a model points to, by alias.

        Raises:
            RefError, UnknownRefError, IntegrityError: As for :meth:`log`.
        """
        return self._known_history(check_name(name)).aliases

    def log(self, name: str) -> tuple[LogEntry, ...]:
        """Returns everything that happened to a model, oldest first.

        Raises:
            RefError, UnknownRefError: If there is no such model.
            IntegrityError: If the log is damaged.
        """
        return tuple(self._known_history(check_name(name)).entries)

    def set_alias(
        self,
        name: str,
        alias: str,
        version: int,
        *,
        who: str | None = None,
        why: str | None = None,
        force: bool = False,
        checks: Sequence[Check] = (),
    ) -> AliasEntry:
        """Points an alias to a version, if the policy and every check agree; returns the line that records it.

        Args:
            name: Name of the model.
            alias: A movable name such as ``production``; ``latest``, digits and ``v`` with digits are reserved.
            version: Number of the version.
            who: Who moves it. Default: the user of the process.
            why: Reason for the log.
            force: Move it even if it is refused; needs ``why``, and the refusal is logged with it.
            checks: What must agree beside the policy. All are run, so that a refusal names every failure.

        Raises:
            RefError: If name, alias or version is not well formed.
            UnknownRefError: If there is no such model or version.
            AliasError: If ``force`` is given without ``why``.
            GateRefused: If the policy or a check refuses; nothing is changed.
            StorageError, IntegrityError: As for ``publish``.
        """
        check_alias(alias, check_name(name))
        check_version(version)
        who = _said(who, why)
        _check_force(force, why)
        history = self._known_history(name)
        if alias not in history.moves:
            check_new_alias(alias, name)
        self._resolve(Ref(name, version), history)
        return self._move("alias", name, alias, lambda history: version, who=who, why=why, force=force, checks=checks)

    def rollback(
        self,
        name: str,
        alias: str,
        *,
        who: str | None = None,
        why: str | None = None,
        force: bool = False,
        checks: Sequence[Check] = (),
    ) -> AliasEntry:
        """Points an alias back to the version before; each further rollback goes one further back.

        Args, errors: As for ``set_alias``.

        Raises:
            AliasError: If the alias never pointed elsewhere.
        """
        check_alias(alias, check_name(name))
        who = _said(who, why)
        _check_force(force, why)
        self._resolve(Ref(name, alias=alias), self._known_history(name))

        def target(history: History) -> int:
            stack = history.moves[alias]
            if len(stack) < 2:
                raise AliasError(
                    f"'{name}@{alias}' cannot be rolled back: before version {stack[-1]} it pointed nowhere. "
                    f"Set it to another version instead."
                )
            return stack[-2]

        return self._move("rollback", name, alias, target, who=who, why=why, force=force, checks=checks)

    def policy(self) -> Policy:
        """Returns what the aliases may point to; empty where nobody has said.

        Raises:
            IntegrityError: If ``policy.jsonl`` is damaged or missing: no alias moves by rules that are not known.
        """
        if not self._exists():
            return Policy()
        layout = self._layout
        with disk.explained("read the policy", self.root):
            data = plain_files.read_or_none(layout.policy, self.root, MAX_POLICY_BYTES)
            if data is None and layout.lock(POLICY).exists() and not layout.staging(POLICY).exists():
                # Read again: the first line may have been written between the looks.
                data = plain_files.read_or_none(layout.policy, self.root, MAX_POLICY_BYTES)
                if data is None and layout.lock(POLICY).exists():
                    raise IntegrityError(rulebook.missing(layout))
        return Policy() if data is None else rulebook.decode(data, rulebook.WHERE)

    def set_policy(
        self, rules: PolicyRules | Mapping[str, object] | None, *, why: str, alias: str = EVERY, who: str | None = None
    ) -> PolicyEntry:
        """Says what an alias may point to from now on; where it points already is not touched.

        Args:
            rules: All rules for the alias, in place of those before; None withdraws them, so that those of ``*`` count.
            why: Reason, kept with the rules.
            alias: The alias, of any model; ``*`` for every alias that has no rules of its own.
            who: Who sets them. Default: the user of the process.

        Raises:
            RefError: If the alias is not well formed.
            PolicyError: If a rule is wrong, or there is no reason.
            StorageError, IntegrityError: As for ``publish``.
        """
        check_pattern(alias)
        who = _said(who, why)
        if not why.strip():
            raise PolicyError("A change of the policy needs a reason, got none. Give why.")
        parsed = None if rules is None else PolicyRules.parse(rules)
        # Not begun anew where it was lost: it would be forgotten that there was one.
        self.policy()
        layout = self._layout
        place = Place("the policy", layout.policy, layout.lock(POLICY), layout.staging(POLICY), MAX_POLICY_BYTES)
        with self._writer.locked(place), self._writer.staged(place, "write the policy"):
            before = self.policy()
            entry = PolicyEntry(
                seq=len(before.entries) + 1,
                time=_now(),
                who=who,
                alias=alias,
                rules=parsed,
                why=why,
                previous=before.head,
            )
            self._writer.stage_line(place, entry)
            self._writer.commit(place, "The policy is written")
        return entry

    def verify(self, ref: str | Ref | None = None) -> VerifyReport:
        """Checks every byte below the root, or the root's own files and one version.

        Damage is reported, not raised.

        Raises:
            RefError: If the reference is not well formed.
            UnknownRefError: If there is no such model, version or alias.
        """
        ref = parse_ref(ref) if isinstance(ref, str) else ref
        verifier = Verifier(self._layout)
        # A folder that is no registry is the user's mistake and raised; a damaged registry.json is one of the findings.
        with suppress(IntegrityError):
            self._exists()
        names = verifier.root()
        if ref is None:
            for name in names:
                verifier.model(name)
            verifier.all_blobs()
        else:
            history = verifier.model(ref.name)
            if history is None and not verifier.problems:
                self._known_history(ref.name)
            if history is not None:
                verifier.blobs_of(f"{ref.name}:{self._resolve(ref, history)}")
        return VerifyReport(str(ref or self.root), verifier.checked, tuple(verifier.problems), tuple(verifier.notes))

    def _move(
        self,
        action: str,
        name: str,
        alias: str,
        target: Callable[[History], int],
        *,
        who: str,
        why: str | None,
        force: bool,
        checks: Sequence[Check],
    ) -> AliasEntry:
        """Moves an alias to the version that ``target`` finds in the log.

        Judging may take minutes, so it is done before the model's lock is taken. The judgement is of one digest, one
        version that the alias points to, and the rules that the alias is under; where any of them is another under the
        lock, it is done again.
        """
        warned: set[str] = set()
        for _ in range(_JUDGEMENTS):
            case = self._case(name, alias, target)
            for sentence in case.warnings:
                if sentence not in warned:
                    logger.warning(sentence)
            warned.update(case.warnings)
            results = self._judge(name, case, checks)
            refused = failures(results)
            if refused and not force:
                stays = f"stays at version {case.current}" if case.current else "is not set"
                raise GateRefused(
                    f"'{name}@{alias}' {stays}, version {case.version} is refused: {refused}. Choose another version, "
                    f"or move it all the same: {_command(action, name, alias, case.version)} --force --why '...'.",
                    results,
                )
            with suppress(_OvertakenError), self._writer.locked(self._place(name)):
                if self._case(name, alias, target) == case:
                    return self._write_move(action, name, alias, case, results, who=who, why=why)
        raise StorageError(
            f"'{name}@{alias}' was not moved: while its version was checked, the alias or the policy was changed, "
            f"{_JUDGEMENTS} times in a row. Do it again when the other processes are done."
        )

    def _case(self, name: str, alias: str, target: Callable[[History], int]) -> _Case:
        history = self._known_history(name)
        version, current = target(history), history.aliases.get(alias)
        policy = self.policy()
        return _Case(
            version,
            history.digests[version],
            current,
            history.digests[current] if current else None,
            policy.rules(alias),
            policy.last_line(alias),
            policy.warnings(alias),
        )

    def _write_move(
        self,
        action: str,
        name: str,
        alias: str,
        case: _Case,
        results: tuple[CheckResult, ...],
        *,
        who: str,
        why: str | None,
    ) -> AliasEntry:
        """Writes the line of a move; the caller holds the lock of the model.

        Raises:
            _OvertakenError: If the alias is under other rules by now; nothing is written then.
        """
        history = self._known_history(name)
        entry = AliasEntry.model_validate(
            {
                "seq": len(history.entries) + 1,
                "time": _now(),
                "who": who,
                "action": action,
                "alias": alias,
                "from": case.current,
                "to": case.version,
                "digest": case.digest,
                "why": why,
                "forced": bool(failures(results)),
                "checks": [CheckLine(name=r.name, ok=r.ok, detail=r.detail) for r in results],
                "previous": history.head,
            }
        )
        place = self._place(name)
        with self._writer.staged(place, f"move '{name}@{alias}'"):
            self._writer.stage_line(place, entry)
            # The model's lock does not hold the policy still, and staging waits for the disk: so it is read last.
            policy = self.policy()
            if (policy.rules(alias), policy.last_line(alias)) != (case.rules, case.policy_line):
                raise _OvertakenError
            self._writer.commit(place, f"'{name}@{alias}' is moved")
        return entry

    def _judge(self, name: str, case: _Case, checks: Sequence[Check]) -> tuple[CheckResult, ...]:
        if not checks and case.rules == PolicyRules():
            return ()
        candidate = self.get(Ref(name, case.version))
        incumbent = self.get(Ref(name, case.current)) if case.current else None
        return (*policy_results(case.rules, candidate, incumbent), *(check(candidate, incumbent) for check in checks))

    def _resolve(self, ref: Ref, history: History) -> int:
        if ref.alias is not None:
            if (version := history.aliases.get(ref.alias)) is None:
                has = f"It has {quoted(history.aliases)}." if history.aliases else "It has no aliases."
                raise UnknownRefError(
                    f"Model '{ref.name}' has no alias '{ref.alias}'.{near(ref.alias, history.aliases)} {has}"
                )
            return version
        number = ref.version or history.highest
        if number not in history.digests:
            has = "only version 1" if history.highest == 1 else f"versions 1 to {history.highest}"
            raise UnknownRefError(f"Model '{ref.name}' has no version {number}, it has {has}.")
        return number

    def _names(self) -> tuple[str, ...]:
        """The models that were published, by name."""
        if not self._exists():
            return ()
        with disk.explained("list the models", self.root):
            try:
                found = [entry.name for entry in self._layout.models.iterdir() if is_name(entry.name)]
            except FileNotFoundError:
                return ()
            return tuple(name for name in sorted(found) if self._layout.log(name).exists())

    def _history(self, name: str) -> History | None:
        """The replayed log of a model, which is not to be changed; None if nothing was published under that name."""
        if not self._exists():
            return None
        path = self._layout.log(name)
        with disk.explained(f"read '{name}'", self.root):
            return self._logs.read(path, self.root, f"The log of '{name}' ({self._layout.relative(path)})")

    def _known_history(self, name: str) -> History:
        if (history := self._history(name)) is not None:
            return history
        if not self._exists():
            raise UnknownRefError(
                f"Unknown model '{name}': the registry {self.root} is empty. Publish a model, or point {ENVIRONMENT} "
                f"to the registry that has it."
            )
        names = self._names()
        few = quoted(names) if len(names) <= _SHOWN else f"{len(names)} models, see 'stablernn registry list'"
        raise UnknownRefError(
            f"Unknown model '{name}' in the registry {self.root}.{near(name, names)} It has {few or 'no models'}."
        )

    def _exists(self) -> bool:
        """Whether the root is a registry; False if nothing is there yet.

        Raises:
            StorageError: If the root is something else.
            IntegrityError: If ``registry.json`` is damaged or missing.
        """
        with disk.explained("open it", self.root):
            marker = plain_files.read_or_none(self._layout.marker, self.root, MAX_MARKER_BYTES)
            if marker is None:
                if not self.root.exists():
                    return False
                if not self.root.is_dir():
                    raise StorageError(f"The registry {self.root} is a file, not a folder. Choose a folder.")
                names = {entry.name for entry in self.root.iterdir()} - FOREIGN - {"locks", "tmp"}
                # Read again: the first version may have been published between the two looks.
                marker = plain_files.read_or_none(self._layout.marker, self.root, MAX_MARKER_BYTES)
                if marker is None and not names:
                    return False
                if marker is None and not names & {"models", "blobs", "policy.jsonl"}:
                    few = quoted(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
                    raise StorageError(
                        f"{self.root} is not a registry: it has no registry.json but holds {few}. "
                        f"Point {ENVIRONMENT} to a registry, or to a new or empty folder."
                    )
        if marker is None:
            raise IntegrityError(
                f"The registry {self.root} has lost its registry.json. Restore it: its whole content is "
                f"{MARKER.decode().strip()} and a newline."
            )
        if marker != MARKER:
            raise IntegrityError(
                f"registry.json of the registry {self.root} is damaged, or written by a newer stablernn. With schema "
                f"{SCHEMA} its whole content is {MARKER.decode().strip()} and a newline."
            )
        return True

    def _place_files(self, staging: Path, entries: Mapping[str, FileEntry]) -> None:
        """Renames staged files to their blobs; also where one is there already, which mends it if it was damaged."""
        for staged, entry in zip(_staged(staging), entries.values(), strict=False):
            blob = self._layout.blob(entry.sha256)
            self._writer.refuse_links(blob.parent)
            disk.make_folders(blob.parent)
            disk.place(staged, blob)

    def _place(self, name: str) -> Place:
        """Where a model is written."""
        layout = self._layout

        def orphan() -> Path:
            # Of a write whose staged log is still there: no version was made visible, so this manifest is nobody's.
            return layout.manifest(name, (self._history(name) or History()).highest + 1)

        return Place(
            what=f"'{name}'",
            file=layout.log(name),
            lock=layout.lock(name),
            staging=layout.staging(name),
            max_bytes=MAX_LOG_BYTES,
            guarded=(layout.versions(name), layout.blobs),
            folders=(layout.versions(name), layout.model(name)),
            orphan=orphan,
        )


@dataclass(frozen=True)
class _Case:
    """The facts that a judgement of an alias move is about, and bound to.

    Attributes:
        version: Where the alias is to point.
        digest: Of that version.
        current: Where it points; None if it is new.
        current_digest: Of that version.
        rules: What the policy asks of it.
        policy_line: Number of the last line of the policy that had a say in these rules.
        warnings: What there is to say of these rules.
    """

    version: int
    digest: str
    current: int | None
    current_digest: str | None
    rules: PolicyRules
    policy_line: int
    warnings: tuple[str, ...]


class _OvertakenError(Exception):
    """The rules of an alias were changed between the judgement of its move and the commit."""


def _sources(files: Mapping[str, str | Path], none: str) -> dict[str, Path]:
    """Where files are to be copied from, by name and in its order.

    Args:
        files: What the caller gave.
        none: The sentence where that is nothing.

    Raises:
        ManifestError: If a file is missing, badly named or there is none.
    """
    if not files:
        raise ManifestError(none)
    check_filenames(sorted(files))
    sources = {filename: Path(files[filename]) for filename in sorted(files)}
    for filename, source in sources.items():
        if not source.is_file():
            raise ManifestError(f"Cannot publish '{filename}': there is no file {source}.")
    return sources


def _staged(staging: Path) -> Iterator[Path]:
    """Names for files in a staging folder, in the order of the entries."""
    return (staging / f"file-{index}" for index in count())


def _stage_files(staging: Path, sources: Mapping[str, Path]) -> dict[str, FileEntry]:
    """Copies files into a staging folder; size and hash by name."""
    return {
        filename: disk.copy_new(source, staged, filename)
        for (filename, source), staged in zip(sources.items(), _staged(staging), strict=False)
    }


def _command(action: str, name: str, alias: str, version: int) -> str:
    """What moves an alias in this way."""
    target = f"{name}@{alias} {version}" if action == "alias" else f"{name}@{alias}"
    return f"stablernn registry {action} {target}"


def _check_force(force: bool, why: str | None) -> None:
    if force and not (why and why.strip()):
        raise AliasError("A forced move needs a reason, got none. Give why.")


def _said(who: str | None, why: str | None) -> str:
    """Who did it, by default the user of the process.

    Raises:
        ManifestError: If one of the two is not text.
    """
    for word, value in (("who", who), ("why", why)):
        try:
            if not isinstance(value, str | None):
                raise ValueError(f"it must be text, got {value!r:.100}")
            is_text(value or "")
        except ValueError as error:
            raise ManifestError(f"The log cannot be written: field '{word}': {error}.") from error
    return who or _user()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that no user database knows.
        return f"uid:{os.getuid()}"
