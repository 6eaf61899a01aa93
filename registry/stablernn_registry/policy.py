"""The policy: what an alias may point to, in ``policy.jsonl`` at the root; lines chained as those of the logs are.

Each line holds the whole of the rules for one alias, or for ``*``, every alias that has none of its own; the last line
for an alias counts. What is decided by them is in ``promotion.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from stablernn_registry import log
from stablernn_registry.certificates import REQUIRED_INSTEAD, WITHDRAWN_KIND, WITHDRAWN_SENTENCE, Kind
from stablernn_registry.errors import RESTORE, IntegrityError, PolicyError, RefError
from stablernn_registry.layout import POLICY, Layout
from stablernn_registry.manifest import format_validation_error, is_text
from stablernn_registry.refs import check_alias

logger = logging.getLogger(__name__)

EVERY = "*"
"""In place of an alias: all that have no rules of their own."""


WHERE = "The policy (policy.jsonl)"
"""How messages name the file."""


def missing(layout: Layout) -> str:
    """The sentence for a policy that was there: its lock still is."""
    return (
        f"{WHERE} is missing: {layout.relative(layout.lock(POLICY))} is there. {RESTORE}; if it was taken out on "
        f"purpose, take out {layout.relative(layout.lock(POLICY))} too."
    )


def check_pattern(alias: str) -> str:
    """Return ``alias`` if rules can be for it: an alias, or ``*``.

    Raises:
        RefError: If it is neither.
    """
    return alias if alias == EVERY else check_alias(alias, "NAME")


def _pattern(alias: str) -> str:
    try:
        return check_pattern(alias)
    except RefError as error:
        # pydantic says where, in a sentence of its own.
        raise ValueError(str(error).rstrip(".")) from error


def _replace_withdrawn(kind: object) -> object:
    if kind != WITHDRAWN_KIND:
        return kind
    logger.warning(WITHDRAWN_SENTENCE)
    return REQUIRED_INSTEAD


_Word = Annotated[str, AfterValidator(is_text), Field(min_length=1)]


class _Rules(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class MetricRule(_Rules):
    """A figure that must not get worse from the version an alias points to now to the next.

    Attributes:
        name: Such as ``accuracy``.
        split: The split it was measured on.
        worse_by: By how much it may be worse, in its own unit, 0 or more.
        better: Whether a ``higher`` or a ``lower`` figure is better.
    """

    name: _Word
    split: _Word = "test"
    worse_by: float = Field(ge=0, allow_inf_nan=False)
    better: Literal["higher", "lower"]


class PolicyRules(_Rules):
    """What a version must show before an alias may point to it; None asks nothing.

    Attributes:
        kind: The weakest kind of certificate that will do. The withdrawn kind ``local`` is taken for ``bounded``, and a
            warning is logged.
        max_parity: The largest ``max_rel_error`` in the parity report that will do, 0 or more.
        metric: A figure that must not get worse.
        model_signature: True asks for a signature of both graphs; whoever can open these holds it against them. It says
            nothing of who published the version.
    """

    kind: Annotated[Kind | None, BeforeValidator(_replace_withdrawn)] = None
    max_parity: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    metric: MetricRule | None = None
    model_signature: Literal[True] | None = None

    @classmethod
    def parse(cls, rules: PolicyRules | Mapping[str, object]) -> PolicyRules:
        """Check rules that were handed over.

        Raises:
            PolicyError: One sentence about the first that is wrong.
        """
        try:
            return cls.model_validate(rules if isinstance(rules, PolicyRules) else dict(rules))
        except ValidationError as error:
            raise PolicyError(f"The policy cannot be written: {format_validation_error(error, cls)}.") from error


class PolicyEntry(log.Line):
    """The rules for an alias were set or withdrawn.

    Attributes:
        seq: Number of the line, from 1.
        time: UTC, ``2026-11-20T07:30:00Z``.
        who: The user that set them.
        alias: The alias that they are for, or ``*``.
        rules: All of them; None where the alias has none of its own from here on, so that those of ``*`` count.
        why: Reason given.
        previous: Hash of the line before; 64 zeros for the first.
    """

    alias: Annotated[str, AfterValidator(_pattern)]
    rules: PolicyRules | None
    why: _Word
    previous: str = Field(pattern=log.HEX)


@dataclass(frozen=True)
class Policy:
    """What a registry's aliases may point to.

    Attributes:
        entries: The lines of ``policy.jsonl``, oldest first. A kind that was withdrawn since is replaced by what it
            means now.
        head: Hash of the last line.
        withdrawn: Numbers of the lines whose stored kind is the withdrawn one.
    """

    entries: tuple[PolicyEntry, ...] = ()
    head: str = log.FIRST
    withdrawn: frozenset[int] = frozenset()

    @property
    def in_force(self) -> dict[str, PolicyEntry]:
        """The line that counts for each alias with rules of its own, and for ``*``; by alias."""
        last = {entry.alias: entry for entry in self.entries}
        return {alias: last[alias] for alias in sorted(last) if last[alias].rules is not None}

    def of(self, alias: str) -> PolicyEntry | None:
        """The line whose rules an alias is under; None where nothing is asked."""
        found = self.in_force
        return found.get(alias) or found.get(EVERY)

    def rules(self, alias: str) -> PolicyRules:
        """The rules that an alias is under."""
        entry = self.of(alias)
        return (entry.rules if entry is not None else None) or PolicyRules()

    def last_line(self, alias: str) -> int:
        """Return the number of the last line that had a say in which rules an alias is under; 0 where none had.

        Lines are only ever added, so the rules are those of before exactly where this number is. Rules alone could be
        changed and changed back unnoticed.
        """
        patterns = {alias} if alias in self.in_force else {alias, EVERY}
        return max((entry.seq for entry in self.entries if entry.alias in patterns), default=0)

    def warnings(self, alias: str | None = None) -> tuple[str, ...]:
        """Return a sentence for each rule in force whose kind was withdrawn.

        Args:
            alias: Only the rules that this alias is under; None for all.
        """
        entry = None if alias is None else self.of(alias)
        entries = self.in_force.values() if alias is None else [] if entry is None else [entry]
        return tuple(
            f"Line {entry.seq} of the policy asks for the kind '{WITHDRAWN_KIND}' for '{entry.alias}'. "
            f"{WITHDRAWN_SENTENCE} Set the rule again: stablernn registry policy set --alias '{entry.alias}' --require "
            f"{REQUIRED_INSTEAD} --why '...'."
            for entry in entries
            if entry.seq in self.withdrawn
        )


def decode(data: bytes, where: str) -> Policy:
    """Read a whole policy and checks every line and the chain.

    Args:
        data: Bytes of ``policy.jsonl``.
        where: How messages name the file.

    Raises:
        IntegrityError: Naming the first line that is damaged.
        RegistryError: If a newer program wrote a line: rules that are not known here cannot be obeyed.
    """
    entries: list[PolicyEntry] = []
    withdrawn: set[int] = set()
    head = log.FIRST
    for number, tree, own in log.lines(data, where):
        rules = tree.get("rules")
        if not isinstance(rules, dict | None) or (rules or {}).keys() - PolicyRules.model_fields.keys():
            raise log.unknown_line(where, number)
        if isinstance(rules, dict) and rules.get("kind") == WITHDRAWN_KIND:
            # The hash was taken over the stored bytes, which stay as they are.
            withdrawn.add(number)
            tree["rules"] = {**rules, "kind": REQUIRED_INSTEAD}
        try:
            entry = PolicyEntry.model_validate(tree)
        except ValidationError as error:
            raise IntegrityError(
                f"{where} is damaged: line {number}: {format_validation_error(error, PolicyEntry)}. {RESTORE}."
            ) from error
        wrong = f"its seq is {entry.seq}" if entry.seq != number else None
        if entry.previous != head:
            wrong = wrong or "its previous hash is not that of the line before"
        if wrong is not None:
            raise IntegrityError(f"{where} is damaged: line {number} does not follow: {wrong}. {RESTORE}.")
        entries.append(entry)
        head = own
    return Policy(tuple(entries), head, frozenset(withdrawn))
