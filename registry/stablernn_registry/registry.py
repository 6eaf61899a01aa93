"""The public class of the registry: publish, get, list, aliases, records, log, policy, verify.

Publishing is atomic and durable by these steps (``transaction.py`` has those that all writes share):

1. Everything is written and synced in ``tmp/NAME``, which only the holder of the model's lock changes.
2. Renames put blobs and the manifest in place; nothing refers to them yet.
3. Renaming the new ``log.jsonl`` over the old one makes the version visible. A process that is killed before that has
   changed nothing; the next writer removes what it left.

Readers take no lock: a log is always complete, and the files that it names already exist and never change.
"""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from stablernn_registry import atomic_io, log
from stablernn_registry.errors import AliasError, IntegrityError, ManifestError, PolicyError
from stablernn_registry.files import MAX_MANIFEST_BYTES, MAX_POLICY_BYTES, POLICY
from stablernn_registry.log import AliasEntry, History, LogEntry, PublishEntry, RecordEntry, utc_now
from stablernn_registry.manifest import (
    Manifest,
    ManifestFields,
    check_text,
    digest_of,
    verify_and_decode,
)
from stablernn_registry.model_version import ModelInfo, Record, Version, record_label
from stablernn_registry.policy import ALL_ALIASES, Policy, PolicyEntry, PolicyRules, check_pattern
from stablernn_registry.promotion import Check, move_alias
from stablernn_registry.refs import (
    Ref,
    check_alias,
    check_name,
    check_new_alias,
    check_new_name,
    check_version,
    parse_ref,
)
from stablernn_registry.storage import ENVIRONMENT_VARIABLE, Storage, WriteTarget, check_sources, stage_files

if TYPE_CHECKING:
    from stablernn_registry.verify import VerifyReport


class Registry:
    """Trained models on disk, in versions that never change.

    Nothing is created before the first write, so a registry can be read without permission to write.

    Args:
        root: Folder of the registry. Default: ``STABLERNN_REGISTRY``, else the user's data folder.
        lock_timeout_seconds: Maximum wait for another write to the same model, or to the policy.
    """

    def __init__(self, root: str | Path | None = None, *, lock_timeout_seconds: float = 300.0) -> None:
        folder = (
            root
            or os.environ.get(ENVIRONMENT_VARIABLE)
            or platformdirs.user_data_path("stablernn", appauthor=False) / "registry"
        )
        self.root = Path(folder).expanduser().absolute()
        self._storage = Storage(self.root, lock_timeout_seconds)

    def __repr__(self) -> str:
        return f"Registry({str(self.root)!r})"

    def check_name(self, name: str, alias: str | None = None) -> None:
        """Check that versions can be published under a name, and that an alias of it can be set.

        Existing names and aliases pass even if they are forbidden for new ones, such as ``aux.txt`` and ``a..b``.

        Raises:
            RefError: If the name or the alias is malformed or reserved.
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
        """Publish the next version of a model from copies of files, either all of it or nothing.

        Args:
            name: Name of the model; the first version creates the model.
            files: Current path of each file, by its name in the version.
            fields: Publisher's part of the manifest.
            who: User who publishes it. Default: the user of the process.
            why: Reason for the log.

        Raises:
            RefError: If :meth:`check_name` rejects the name.
            ManifestError: If a file is missing or badly named, there are no files, or a field is wrong.
            StorageError: If the disk is full or does not allow it, or another process holds the lock for too long.
            IntegrityError: If the model's log is damaged.
        """
        self.check_name(name)
        who, why = _resolve_authorship(who, why)
        manifest_fields = ManifestFields.parse(fields)
        sources = check_sources(files, f"A version needs at least one file, got none for '{name}'.")
        _check_cell(manifest_fields.cell, sources.get("config.json"))
        target = self._storage.write_target(name)
        with self._storage.writer.lock(target), self._storage.writer.stage(target, f"publish '{name}'") as staging:
            history = self._storage.history(name) or History()
            entries = stage_files(staging, sources)
            time = utc_now()
            manifest = Manifest(
                **manifest_fields.model_dump(),
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
            # Decode it as a reader will: after the commit, nothing that can fail is left to do.
            manifest = verify_and_decode(
                data, name, manifest.version, digest_of(data), self._storage.layout.relative(path)
            )
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
            self._storage.writer.stage_line(target, line)
            # No data is written from here on: a full disk would have shown itself by now.
            self._storage.install_blobs(staging, entries)
            atomic_io.make_folders(self._storage.layout.versions(name))
            atomic_io.rename_and_sync(staging / "manifest.json", path)
            self._storage.writer.commit(target, f"'{name}:{manifest.version}' is published")
        return Version(name, manifest.version, line.digest, manifest, (), _layout=self._storage.layout)

    def get(self, ref: str | Ref) -> Version:
        """Look up a version, and check its manifest against the digest in the log.

        Args:
            ref: ``NAME`` (the highest version), ``NAME:VERSION`` or ``NAME@ALIAS``.

        Raises:
            RefError: If the reference is malformed.
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
        """Attach a report to a published version, whose number and digest do not change.

        If the last record of this kind has the same files, byte for byte, that record is returned instead.

        Args:
            ref: Reference to the version, as in :meth:`get`.
            kind: Kind of the report, such as ``robustness``.
            files: Current path of each file, by its name in the record.
            who: User who records it. Default: the user of the process.
            why: Reason for the log.

        Raises:
            RefError, UnknownRefError: If :meth:`get` raises them.
            ManifestError: If a file is missing or badly named, there are no files, or the kind is malformed.
            StorageError, IntegrityError: If the write fails as in :meth:`publish`.
        """
        version = self.get(ref)
        name = version.name
        who, why = _resolve_authorship(who, why)
        if not re.fullmatch(log.RECORD_KIND_PATTERN, kind):
            raise ManifestError(
                f"The kind of a record is a word like 'robustness' (a-z 0-9 -, at most 32, beginning with a letter), "
                f"got {kind!r:.100}."
            )
        sources = check_sources(files, f"A record needs at least one file, got none for '{version.ref}'.")
        target = self._storage.write_target(name)
        with (
            self._storage.writer.lock(target),
            self._storage.writer.stage(target, f"record '{kind}' of '{version.ref}'") as staging,
        ):
            history = self._storage.existing_history(name)
            entries = stage_files(staging, sources)
            records = [record for record in history.records if (record.version, record.kind) == (version.version, kind)]
            is_new = not records or records[-1].files != entries
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
                self._storage.writer.stage_line(target, line)
            # Also for a record that exists, since this repairs damaged blobs.
            self._storage.install_blobs(staging, entries)
            if not is_new:
                return Record(version.ref, records[-1], self._storage.layout)
            self._storage.writer.commit(target, f"{record_label(version.ref, kind).capitalize()} is kept")
        return Record(version.ref, line, self._storage.layout)

    def records(self, ref: str | Ref) -> tuple[Record, ...]:
        """Return the records of a version, oldest first.

        Raises:
            RefError, UnknownRefError, IntegrityError: If :meth:`get` raises them.
        """
        version = self.get(ref)
        return tuple(
            Record(version.ref, entry, self._storage.layout)
            for entry in self._storage.existing_history(version.name).records
            if entry.version == version.version
        )

    def list(self) -> tuple[ModelInfo, ...]:
        """Return every model with its versions and aliases, sorted by name; empty if there is no registry yet.

        Raises:
            IntegrityError: If a log is damaged.
        """
        models = []
        for name in self._storage.names():
            if (history := self._storage.history(name)) is not None:
                models.append(ModelInfo(name, tuple(history.digests), history.aliases))
        return tuple(models)

    def resolve(self, ref: str | Ref) -> int:
        """Return the number of the version that a reference names; only the log is read, which is cached.

        Raises:
            RefError, UnknownRefError: If :meth:`get` raises them.
            IntegrityError: If the log is damaged.
        """
        ref = parse_ref(ref) if isinstance(ref, str) else ref
        return self._storage.resolve(ref, self._storage.existing_history(ref.name))

    def aliases(self, name: str) -> dict[str, int]:
        """Return the version that each alias of a model points to, by alias.

        Raises:
            RefError, UnknownRefError, IntegrityError: If :meth:`log` raises them.
        """
        return self._storage.existing_history(check_name(name)).aliases

    def log(self, name: str) -> tuple[LogEntry, ...]:
        """Return the log of a model, oldest line first.

        Raises:
            RefError: If the name is malformed.
            UnknownRefError: If there is no such model.
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
        """Point an alias to a version, if the policy and every check agree, and return the line that records it.

        Args:
            name: Name of the model.
            alias: A movable name such as ``production``; ``latest``, digits and ``v`` with digits are reserved.
            version: Number of the version.
            who: User who moves it. Default: the user of the process.
            why: Reason for the log.
            force: True to move it even if it is refused; needs ``why``, and the log shows the refusal.
            checks: Checks besides the policy. All of them run, so that a refusal names every failure.

        Raises:
            RefError: If name, alias or version is malformed.
            UnknownRefError: If there is no such model or version.
            AliasError: If ``force`` is given without ``why``.
            GateRefused: If the policy or a check refuses; nothing is changed.
            StorageError, IntegrityError: If the write fails as in :meth:`publish`.
        """
        check_alias(alias, check_name(name))
        check_version(version)
        who, why = _resolve_authorship(who, why)
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
        """Point an alias back to the version before; each further rollback goes back by one more.

        The arguments, and further errors, are those of :meth:`set_alias`.

        Raises:
            AliasError: If the alias never pointed elsewhere.
        """
        check_alias(alias, check_name(name))
        who, why = _resolve_authorship(who, why)
        _check_force(force, why)
        self._storage.resolve(Ref(name, alias=alias), self._storage.existing_history(name))

        def select_previous(history: History) -> int:
            stack = history.moves[alias]
            if len(stack) < 2:
                raise AliasError(
                    f"'{name}@{alias}' cannot be rolled back: before version {stack[-1]} it pointed nowhere. "
                    f"Set it to another version instead."
                )
            return stack[-2]

        return move_alias(
            self._storage, "rollback", name, alias, select_previous, who=who, why=why, force=force, checks=checks
        )

    def policy(self) -> Policy:
        """Return the policy for aliases; it is empty if no rules were set.

        Raises:
            IntegrityError: If ``policy.jsonl`` is damaged or missing: no alias may move under unknown rules.
        """
        return self._storage.policy()

    def set_policy(
        self,
        rules: PolicyRules | Mapping[str, object] | None,
        *,
        why: str,
        alias: str = ALL_ALIASES,
        who: str | None = None,
    ) -> PolicyEntry:
        """Set the rules for future moves of an alias; the alias itself does not move.

        Args:
            rules: All rules for the alias, replacing earlier ones; None withdraws them, so that those of ``*`` apply.
            why: Reason, stored with the rules.
            alias: Alias, of any model; ``*`` for every alias that has no rules of its own.
            who: User who sets them. Default: the user of the process.

        Raises:
            RefError: If the alias is malformed.
            PolicyError: If a rule is wrong, or there is no reason.
            StorageError, IntegrityError: If the write fails as in :meth:`publish`.
        """
        check_pattern(alias)
        who, reason = _resolve_authorship(who, why)
        if not (reason and reason.strip()):
            raise PolicyError("A change of the policy needs a reason, got none. Give why.")
        policy_rules = None if rules is None else PolicyRules.parse(rules)
        # Raises if the policy was lost: starting a new one would hide that there was one.
        self.policy()
        layout = self._storage.layout
        target = WriteTarget("the policy", layout.policy, layout.lock(POLICY), layout.staging(POLICY), MAX_POLICY_BYTES)
        with self._storage.writer.lock(target), self._storage.writer.stage(target, "write the policy"):
            policy = self.policy()
            entry = PolicyEntry(
                seq=len(policy.entries) + 1,
                time=utc_now(),
                who=who,
                alias=alias,
                rules=policy_rules,
                why=why,
                previous=policy.head,
            )
            self._storage.writer.stage_line(target, entry)
            self._storage.writer.commit(target, "The policy is written")
        return entry

    def verify(self, ref: str | Ref | None = None) -> VerifyReport:
        """Check every byte below the root, or the root's own files and one version.

        Damage is reported, not raised.

        Raises:
            RefError: If the reference is malformed.
            UnknownRefError: If there is no such model, version or alias.
        """
        # Imported here, since most commands verify nothing.
        from stablernn_registry.verify import Verifier, VerifyReport

        ref = parse_ref(ref) if isinstance(ref, str) else ref
        verifier = Verifier(self._storage.layout)
        # A folder that is not a registry is a mistake of the user and raises; a damaged registry.json is a finding.
        with suppress(IntegrityError):
            self._storage.exists()
        names = verifier.check_root()
        if ref is None:
            for name in names:
                verifier.check_model(name)
            verifier.check_all_blobs()
        else:
            history = verifier.check_model(ref.name)
            if history is None and not verifier.problems:
                self._storage.existing_history(ref.name)
            if history is not None:
                verifier.check_version_blobs(f"{ref.name}:{self._storage.resolve(ref, history)}")
        return VerifyReport(str(ref or self.root), verifier.checked, tuple(verifier.problems), tuple(verifier.notes))


def _check_cell(cell: str, path: Path | None) -> None:
    """Refuse another cell than that of the network in ``config.json``, as stablernn writes it; others may write more.

    Raises:
        ManifestError: If there is one.
    """
    try:
        stored = None if path is None else json.loads(path.read_bytes())["model"]["cell"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if stored not in (None, cell):
        raise ManifestError(f"The manifest cannot be written: config.json has the cell '{stored}', got '{cell}'.")


def _resolve_authorship(who: str | None, why: str | None) -> tuple[str, str | None]:
    """Return the user who acts, by default that of the process, and the reason, as lines without control characters.

    Raises:
        ManifestError: If ``who`` or ``why`` is not text.
    """
    lines: list[str | None] = []
    for field, value in (("who", who), ("why", why)):
        try:
            if not isinstance(value, str | None):
                raise ValueError(f"it must be text, got {value!r:.100}")
            lines.append(None if value is None else " ".join(check_text(value).splitlines()))
        except ValueError as error:
            raise ManifestError(f"The log cannot be written: field '{field}': {error}.") from error
    return lines[0] or _process_user(), lines[1]


def _check_force(force: bool, why: str | None) -> None:
    """Check that a forced move has a reason.

    Raises:
        AliasError: If it has none.
    """
    if force and not (why and why.strip()):
        raise AliasError("A forced move needs a reason, got none. Give why.")


def _process_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a user ID that no user database has.
        return f"uid:{os.getuid()}"
