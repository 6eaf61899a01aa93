"""Moves of aliases: the policy and the checks judge a version, then a line in the log of the model records the move."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stablernn_registry.checks import CheckResult
from stablernn_registry.errors import GateRefused, StorageError
from stablernn_registry.log import AliasEntry, CheckLine, History, utc_now
from stablernn_registry.policy import PolicyRules
from stablernn_registry.promotion import Check, check_policy, format_failures
from stablernn_registry.refs import Ref
from stablernn_registry.storage import Storage

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 10
"""Maximum number of runs of the checks, if other processes keep changing what they depend on."""


@dataclass(frozen=True)
class _Move:
    """A move of an alias, with everything that the results of its checks depend on.

    Attributes:
        version: The version that the alias is to point to.
        digest: Digest of that version.
        current: The version that it points to now; None if it is new.
        current_digest: Digest of that version.
        rules: The policy's rules for the alias.
        policy_line: Number of the last line of the policy that these rules come from.
        warnings: Warnings about these rules.
    """

    version: int
    digest: str
    current: int | None
    current_digest: str | None
    rules: PolicyRules
    policy_line: int
    warnings: tuple[str, ...]


class _PolicyChangedError(Exception):
    """The rules for an alias were changed between the checks of its move and the commit."""


def move_alias(
    storage: Storage,
    action: str,
    name: str,
    alias: str,
    select_version: Callable[[History], int],
    *,
    who: str,
    why: str | None,
    force: bool,
    checks: Sequence[Check],
) -> AliasEntry:
    """Move an alias, if the policy and every check agree, and return the line that records it.

    Checks may take minutes, so they run before the model's lock is taken. Their results hold for one digest, one
    version that the alias points to, and the rules for the alias; if any of these has changed once the lock is held,
    the checks run again.

    Args:
        storage: The registry's files.
        action: ``alias`` or ``rollback``.
        name: Name of the model.
        alias: The alias.
        select_version: Function that returns the version that the alias is to point to, from the log.
        who: User who moves it.
        why: Reason for the log.
        force: True to move it even if it is refused.
        checks: Checks besides the policy.

    Raises:
        GateRefused: If the policy or a check refuses; nothing is changed.
        StorageError: If other processes changed the alias or the policy again and again.
    """
    logged_warnings: set[str] = set()
    for _ in range(_MAX_ATTEMPTS):
        move = _plan(storage, name, alias, select_version)
        for warning in move.warnings:
            # Once, not in every attempt.
            if warning not in logged_warnings:
                logger.warning(warning)
        logged_warnings.update(move.warnings)
        results = _run_checks(storage, name, move, checks)
        refusals = format_failures(results)
        if refusals and not force:
            outcome = f"stays at version {move.current}" if move.current else "is not set"
            raise GateRefused(
                f"'{name}@{alias}' {outcome}, version {move.version} is refused: {refusals}. Choose another version, "
                f"or move it all the same: {_format_command(action, name, alias, move.version)} --force --why '...'.",
                results,
            )
        with suppress(_PolicyChangedError), storage.writer.lock(storage.write_target(name)):
            # Nothing that the results depend on has changed since the checks ran.
            if _plan(storage, name, alias, select_version) == move:
                return _write(storage, action, name, alias, move, results, who=who, why=why)
    raise StorageError(
        f"'{name}@{alias}' was not moved: while its version was checked, the alias or the policy was changed, "
        f"{_MAX_ATTEMPTS} times in a row. Do it again when the other processes are done."
    )


def _plan(storage: Storage, name: str, alias: str, select_version: Callable[[History], int]) -> _Move:
    history = storage.existing_history(name)
    version, current = select_version(history), history.aliases.get(alias)
    policy = storage.policy()
    return _Move(
        version,
        history.digests[version],
        current,
        history.digests[current] if current else None,
        policy.rules(alias),
        policy.last_line(alias),
        policy.warnings(alias),
    )


def _write(
    storage: Storage,
    action: str,
    name: str,
    alias: str,
    move: _Move,
    results: tuple[CheckResult, ...],
    *,
    who: str,
    why: str | None,
) -> AliasEntry:
    """Write the line of a move; the caller holds the lock of the model.

    Raises:
        _PolicyChangedError: If the rules for the alias have changed; nothing is written then.
    """
    history = storage.existing_history(name)
    entry = AliasEntry.model_validate(
        {
            "seq": len(history.entries) + 1,
            "time": utc_now(),
            "who": who,
            "action": action,
            "alias": alias,
            "from": move.current,
            "to": move.version,
            "digest": move.digest,
            "why": why,
            "forced": bool(format_failures(results)),
            "checks": [CheckLine(name=result.name, ok=result.ok, detail=result.detail) for result in results],
            "previous": history.head,
        }
    )
    target = storage.write_target(name)
    with storage.writer.stage(target, f"move '{name}@{alias}'"):
        storage.writer.stage_line(target, entry)
        # The model's lock does not protect the policy, and staging waits for the disk: read the policy last.
        policy = storage.policy()
        if (policy.rules(alias), policy.last_line(alias)) != (move.rules, move.policy_line):
            raise _PolicyChangedError
        storage.writer.commit(target, f"'{name}@{alias}' is moved")
    return entry


def _run_checks(storage: Storage, name: str, move: _Move, checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    if not checks and move.rules == PolicyRules():
        return ()
    candidate = storage.get(Ref(name, move.version))
    current = storage.get(Ref(name, move.current)) if move.current else None
    return (*check_policy(move.rules, candidate, current), *(check(candidate, current) for check in checks))


def _format_command(action: str, name: str, alias: str, version: int) -> str:
    """Return the command that moves an alias in this way."""
    arguments = f"{name}@{alias} {version}" if action == "alias" else f"{name}@{alias}"
    return f"stablernn registry {action} {arguments}"
