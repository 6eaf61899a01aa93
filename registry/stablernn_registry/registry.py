"""The store: publish, get, list, aliases, records, log, policy, verify.

What makes it safe, in the order it happens while publishing (``transaction.py`` has the steps that all writes share):

1. Everything is written and synced in ``tmp/NAME``, which only the holder of the model's lock touches.
2. Renames put blobs and the manifest in place; nobody refers to them yet.
3. Renaming the new ``log.jsonl`` over the old one makes the version visible. A process killed before that has changed
   nothing; the next writer removes what it left.

Readers take no lock: a log is always whole, and what it names is already there and never changes.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from stablernn_registry import atomic_io, log
from stablernn_registry.aliases import move_alias
from stablernn_registry.errors import AliasError, IntegrityError, ManifestError, PolicyError
from stablernn_registry.layout import MAX_MANIFEST_BYTES, MAX_POLICY_BYTES, POLICY
from stablernn_registry.log import AliasEntry, History, LogEntry, PublishEntry, RecordEntry, utc_now
from stablernn_registry.manifest import (
    Manifest,
    ManifestFields,
    checked,
    digest_of,
    is_text,
)
from stablernn_registry.model_version import ModelInfo, Record, Version, record_name
from stablernn_registry.policy import EVERY, Policy, PolicyEntry, PolicyRules, check_pattern
from stablernn_registry.promotion import Check
from stablernn_registry.refs import (
    Ref,
    check_alias,
    check_name,
    check_new_alias,
    check_new_name,
    check_version,
    parse_ref,
)
from stablernn_registry.storage import ENVIRONMENT, Storage, check_sources, stage_files
from stablernn_registry.transaction import WriteTarget
from stablernn_registry.verify import Verifier, VerifyReport


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
        self._storage = Storage(self.root, lock_timeout_seconds)

    def __repr__(self) -> str:
        return f"Registry({str(self.root)!r})"

    def check_name(self, name: str, alias: str | None = None) -> None:
        """Check that versions can be published under a name, and that an alias of it can be set.

        Names and aliases that are there already may be such as a new one may not: ``aux.txt``, ``a..b``.

        Raises:
            RefError: If the name or the alias is not well formed, or reserved.
            IntegrityError: If the model's log is damaged.
        """
        history = self._storage.history(check_name(name)) or History()
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
        """Make the next version of a model from copies of the files; all of it becomes visible at once, or nothing.

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
        sources = check_sources(files, f"A version needs at least one file, got none for '{name}'.")
        place = self._storage.write_target(name)
        with self._storage.writer.locked(place), self._storage.writer.staged(place, f"publish '{name}'") as staging:
            history = self._storage.history(name) or History()
            entries = stage_files(staging, sources)
            time = utc_now()
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
            path = self._storage.layout.manifest(name, manifest.version)
            # Decoded here, as a reader will: once the version is published, nothing that can fail is left to do.
            manifest = checked(data, name, manifest.version, digest_of(data), self._storage.layout.relative(path))
            atomic_io.write_new(staging / "manifest.json", data)
            line = PublishEntry(
                seq=len(history.entries) + 1,
                time=time,
                who=who,
                version=manifest.version,
                digest=digest_of(data),
                why=why,
                previous=history.head,
            )
            self._storage.writer.stage_line(place, line)
            # Nothing of size is written from here on: a full disk has shown itself by now.
            self._storage.place_files(staging, entries)
            atomic_io.make_folders(self._storage.layout.versions(name))
            atomic_io.place(staging / "manifest.json", path)
            self._storage.writer.commit(place, f"'{name}:{manifest.version}' is published")
        return Version(name, manifest.version, line.digest, manifest, (), _layout=self._storage.layout)

    def get(self, ref: str | Ref) -> Version:
        """Look a version up; its manifest is checked against the digest in the log.

        Args:
            ref: ``NAME`` (the highest version), ``NAME:VERSION`` or ``NAME@ALIAS``.

        Raises:
            RefError: If the reference is not well formed.
            UnknownRefError: If there is no such model, version or alias.
            IntegrityError: If the log or the manifest is damaged.
        """
        return self._storage.get(parse_ref(ref) if isinstance(ref, str) else ref)

    def record(
        self,
        ref: str | Ref,
        kind: str,
        files: Mapping[str, str | Path],
        *,
        who: str | None = None,
        why: str | None = None,
    ) -> Record:
        """Keep beside a version what was found out after it was published; version and digest stay as they are.

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
        if not re.fullmatch(log.KIND, kind):
            raise ManifestError(
                f"The kind of a record is a word like 'robustness' (a-z 0-9 -, at most 32, beginning with a letter), "
                f"got {kind!r:.100}."
            )
        sources = check_sources(files, f"A record needs at least one file, got none for '{version.ref}'.")
        place = self._storage.write_target(name)
        with (
            self._storage.writer.locked(place),
            self._storage.writer.staged(place, f"record '{kind}' of '{version.ref}'") as staging,
        ):
            history = self._storage.existing_history(name)
            entries = stage_files(staging, sources)
            said = [one for one in history.records if (one.version, one.kind) == (version.version, kind)]
            is_new = not said or said[-1].files != entries
            line = RecordEntry(
                seq=len(history.entries) + 1,
                time=utc_now(),
                who=who,
                kind=kind,
                version=version.version,
                digest=version.digest,
                files=entries,
                why=why,
                previous=history.head,
            )
            if is_new:
                self._storage.writer.stage_line(place, line)
            self._storage.place_files(staging, entries)
            if not is_new:
                return Record(version.ref, said[-1], self._storage.layout)
            self._storage.writer.commit(place, f"{record_name(version.ref, kind).capitalize()} is kept")
        return Record(version.ref, line, self._storage.layout)

    def records(self, ref: str | Ref) -> tuple[Record, ...]:
        """Return what was recorded of a version, oldest first.

        Raises:
            RefError, UnknownRefError, IntegrityError: As for :meth:`get`.
        """
        version = self.get(ref)
        return tuple(
            Record(version.ref, entry, self._storage.layout)
            for entry in self._storage.existing_history(version.name).records
            if entry.version == version.version
        )

    def list(self) -> tuple[ModelInfo, ...]:
        """List every model with its versions and aliases, by name; empty if there is no registry yet.

        Raises:
            IntegrityError: If a log is damaged.
        """
        found = []
        for name in self._storage.names():
            if (history := self._storage.history(name)) is not None:
                found.append(ModelInfo(name, tuple(history.digests), history.aliases))
        return tuple(found)

    def resolve(self, ref: str | Ref) -> int:
        """Return the number of the version that a reference names; reads the log alone, which is in memory.

        Raises:
            RefError, UnknownRefError: As for :meth:`get`.
            IntegrityError: If the log is damaged.
        """
        ref = parse_ref(ref) if isinstance(ref, str) else ref
        return self._storage.resolve(ref, self._storage.existing_history(ref.name))

    def aliases(self, name: str) -> dict[str, int]:
        """Return the version that each alias of a model points to, by alias.

        Raises:
            RefError, UnknownRefError, IntegrityError: As for :meth:`log`.
        """
        return self._storage.existing_history(check_name(name)).aliases

    def log(self, name: str) -> tuple[LogEntry, ...]:
        """Return everything that happened to a model, oldest first.

        Raises:
            RefError, UnknownRefError: If there is no such model.
            IntegrityError: If the log is damaged.
        """
        return tuple(self._storage.existing_history(check_name(name)).entries)

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
        """Point an alias to a version, if the policy and every check agree; returns the line that records it.

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
        history = self._storage.existing_history(name)
        if alias not in history.moves:
            check_new_alias(alias, name)
        self._storage.resolve(Ref(name, version), history)
        return move_alias(
            self._storage, "alias", name, alias, lambda history: version, who=who, why=why, force=force, checks=checks
        )

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
        """Point an alias back to the version before; each further rollback goes one further back.

        Args, errors: As for ``set_alias``.

        Raises:
            AliasError: If the alias never pointed elsewhere.
        """
        check_alias(alias, check_name(name))
        who = _said(who, why)
        _check_force(force, why)
        self._storage.resolve(Ref(name, alias=alias), self._storage.existing_history(name))

        def target(history: History) -> int:
            stack = history.moves[alias]
            if len(stack) < 2:
                raise AliasError(
                    f"'{name}@{alias}' cannot be rolled back: before version {stack[-1]} it pointed nowhere. "
                    f"Set it to another version instead."
                )
            return stack[-2]

        return move_alias(self._storage, "rollback", name, alias, target, who=who, why=why, force=force, checks=checks)

    def policy(self) -> Policy:
        """Return what the aliases may point to; empty if no rules were set.

        Raises:
            IntegrityError: If ``policy.jsonl`` is damaged or missing: no alias moves by rules that are not known.
        """
        return self._storage.policy()

    def set_policy(
        self, rules: PolicyRules | Mapping[str, object] | None, *, why: str, alias: str = EVERY, who: str | None = None
    ) -> PolicyEntry:
        """Say what an alias may point to from now on; where it points already is not touched.

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
        layout = self._storage.layout
        place = WriteTarget("the policy", layout.policy, layout.lock(POLICY), layout.staging(POLICY), MAX_POLICY_BYTES)
        with self._storage.writer.locked(place), self._storage.writer.staged(place, "write the policy"):
            before = self.policy()
            entry = PolicyEntry(
                seq=len(before.entries) + 1,
                time=utc_now(),
                who=who,
                alias=alias,
                rules=parsed,
                why=why,
                previous=before.head,
            )
            self._storage.writer.stage_line(place, entry)
            self._storage.writer.commit(place, "The policy is written")
        return entry

    def verify(self, ref: str | Ref | None = None) -> VerifyReport:
        """Check every byte below the root, or the root's own files and one version.

        Damage is reported, not raised.

        Raises:
            RefError: If the reference is not well formed.
            UnknownRefError: If there is no such model, version or alias.
        """
        ref = parse_ref(ref) if isinstance(ref, str) else ref
        verifier = Verifier(self._storage.layout)
        # A folder that is no registry is the user's mistake and raised; a damaged registry.json is one of the findings.
        with suppress(IntegrityError):
            self._storage.exists()
        names = verifier.root()
        if ref is None:
            for name in names:
                verifier.model(name)
            verifier.all_blobs()
        else:
            history = verifier.model(ref.name)
            if history is None and not verifier.problems:
                self._storage.existing_history(ref.name)
            if history is not None:
                verifier.blobs_of(f"{ref.name}:{self._storage.resolve(ref, history)}")
        return VerifyReport(str(ref or self.root), verifier.checked, tuple(verifier.problems), tuple(verifier.notes))


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


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that no user database knows.
        return f"uid:{os.getuid()}"
