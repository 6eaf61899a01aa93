"""The history of a registry version: who published it, and who moved an alias to it, when, why, under which policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablernn_registry import Registry, Version
    from stablernn_registry.log import AliasEntry


def version_history(registry: Registry, version: Version) -> dict[str, Any]:
    """Return publication, promotions and current aliases of a version.

    Raises:
        stablernn_registry.RegistryError: If log or policy are damaged.
    """
    from stablernn_registry.log import AliasEntry, PublishEntry

    published: dict[str, Any] | None = None
    moves = []
    for entry in registry.log(version.name):
        if isinstance(entry, PublishEntry) and entry.version == version.version:
            published = {"time": entry.time, "who": entry.who, "why": entry.why, "log_line": entry.seq}
        elif isinstance(entry, AliasEntry) and version.version in (entry.to_version, entry.from_version):
            moves.append(_move(registry, entry, version.version))
    # The log has the past of an alias, and this its present.
    aliases = registry.aliases(version.name)
    return {
        "published": published,
        "aliases": sorted(alias for alias, number in aliases.items() if number == version.version),
        "moves": moves,
    }


def _move(registry: Registry, entry: AliasEntry, version: int) -> dict[str, Any]:
    """Return one move of an alias; only moves to the version have checks and a policy that concern it."""
    is_promotion = entry.to_version == version
    return {
        "time": entry.time,
        "who": entry.who,
        "action": entry.action,
        "alias": entry.alias,
        "from": entry.from_version,
        "to": entry.to_version,
        "why": entry.why,
        "forced": entry.forced,
        # The checks of a move away from the version were those of another version.
        "checks": [check.model_dump() for check in entry.checks] if is_promotion else [],
        "policy": _policy_at(registry, entry) if is_promotion else None,
        "log_line": entry.seq,
    }


def _policy_at(registry: Registry, entry: AliasEntry) -> dict[str, Any] | None:
    """Return the rules that applied to an alias when it moved; None if there were none.

    Times have a resolution of one second: of rules that were set in the second of the move the last ones count.
    """
    from stablernn_registry.policy import Policy

    earlier = tuple(line for line in registry.policy().entries if line.time <= entry.time)
    # The registry applies the last line for the alias, or for all aliases; so does this.
    line = Policy(earlier).of(entry.alias)
    if line is None or line.rules is None:
        return None
    return {
        "policy_line": line.seq,
        "alias": line.alias,
        "time": line.time,
        "who": line.who,
        "why": line.why,
        "rules": {key: value for key, value in line.rules.model_dump(mode="json").items() if value is not None},
    }
