"""The policy, ``policy.jsonl`` at the root: rules for what an alias may point to, in lines chained like those of a log.

Each line has all rules for one alias, or for ``*``, every alias without rules of its own; the last line for an alias
counts. ``promotion.py`` applies the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from stablernn_registry import log
from stablernn_registry.certificates import REQUIRED_INSTEAD, WITHDRAWN_KIND, WITHDRAWN_SENTENCE, Kind
from stablernn_registry.errors import RESTORE, IntegrityError, PolicyError, RefError
from stablernn_registry.files import POLICY, Layout
from stablernn_registry.manifest import FrozenModel, check_text, format_validation_error
from stablernn_registry.refs import check_alias

logger = logging.getLogger(__name__)

ALL_ALIASES = "*"
"""Pattern for all aliases that have no rules of their own."""

POLICY_LABEL = "The policy (policy.jsonl)"
"""Name of the file in messages."""


def missing_policy_message(layout: Layout) -> str:
    """Return the message about a policy that is missing although its lock exists."""
    return (
        f"{POLICY_LABEL} is missing: {layout.relative(layout.lock(POLICY))} is there. {RESTORE}; if it was taken out "
        f"on purpose, take out {layout.relative(layout.lock(POLICY))} too."
    )


def check_pattern(alias: str) -> str:
    """Return ``alias`` if it can have rules: an alias, or ``*``.

    Raises:
        RefError: If it is neither.
    """
    return alias if alias == ALL_ALIASES else check_alias(alias, "NAME")


def _check_pattern_field(alias: str) -> str:
    try:
        return check_pattern(alias)
    except RefError as error:
        # format_validation_error adds the name of the field and the full stop.
        raise ValueError(str(error).rstrip(".")) from error


def _replace_withdrawn(kind: object) -> object:
    if kind != WITHDRAWN_KIND:
        return kind
    logger.warning(WITHDRAWN_SENTENCE)
    return REQUIRED_INSTEAD


_NonEmptyText = Annotated[str, AfterValidator(check_text), Field(min_length=1)]


class MetricRule(FrozenModel):
    """A metric that must not get worse when an alias moves.

    Attributes:
        name: Name such as ``accuracy``.
        split: Split that it was measured on.
        worse_by: Allowed loss, in the unit of the metric, 0 or more.
        better: Direction of improvement, ``higher`` or ``lower``.
    """

    name: _NonEmptyText
    split: _NonEmptyText = "test"
    worse_by: float = Field(ge=0, allow_inf_nan=False)
    better: Literal["higher", "lower"]


class InputRangeRule(FrozenModel):
    """The range of raw inputs, in the units of the data, for which a kind of certificate is required.

    Attributes:
        lower: Smallest value of each feature; one number stands for all features.
        upper: Largest values, as many, each greater than the smallest.
    """

    lower: list[Annotated[float, Field(allow_inf_nan=False)]] = Field(min_length=1)
    upper: list[Annotated[float, Field(allow_inf_nan=False)]]

    @model_validator(mode="after")
    def _check_order(self) -> InputRangeRule:
        if len(self.lower) != len(self.upper) or any(
            low >= high for low, high in zip(self.lower, self.upper, strict=True)
        ):
            raise ValueError("each lower must be below the upper of the same feature")
        return self

    def ranges(self, features: int) -> list[tuple[float, float]] | None:
        """Return the range of each of a number of features, or None if the rule is for another number."""
        ranges = list(zip(self.lower, self.upper, strict=True))
        return ranges * features if len(ranges) == 1 else ranges if len(ranges) == features else None


_INPUTS = "inputs_within"


class PolicyRules(FrozenModel):
    """Requirements for a version before an alias may point to it; None requires nothing.

    Attributes:
        kind: Weakest kind of certificate that is accepted. The withdrawn kind ``local`` counts as ``bounded``, and a
            warning is logged.
        inputs_within: Range of inputs for which ``kind`` is required; None for all inputs. It needs ``kind``.
        max_parity: Largest accepted ``max_rel_error`` in the parity report, 0 or more.
        metric: Metric that must not get worse.
        model_signature: True to require a signature of both graphs, which programs that open the graphs compare with
            them. It does not tell who published the version.
    """

    kind: Annotated[Kind | None, BeforeValidator(_replace_withdrawn)] = None
    max_parity: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    metric: MetricRule | None = None
    model_signature: Literal[True] | None = None
    inputs_within: InputRangeRule | None = None

    @model_serializer(mode="wrap")
    def _leave_out_no_range(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Programs from before this rule refuse lines with fields that they do not know.
        fields: dict[str, Any] = handler(self)
        return fields if self.inputs_within is not None else {key: fields[key] for key in fields if key != _INPUTS}

    @model_validator(mode="after")
    def _check_range_has_kind(self) -> PolicyRules:
        if self.inputs_within is not None and self.kind is None:
            raise ValueError("inputs_within needs the kind that is required for these inputs")
        return self

    @classmethod
    def parse(cls, rules: PolicyRules | Mapping[str, object]) -> PolicyRules:
        """Validate rules.

        Raises:
            PolicyError: If a rule is wrong; the message is one sentence about the first.
        """
        try:
            return cls.model_validate(rules if isinstance(rules, PolicyRules) else dict(rules))
        except ValidationError as error:
            raise PolicyError(f"The policy cannot be written: {format_validation_error(error, cls)}.") from error


class PolicyEntry(log.Line):
    """A line about rules for an alias that were set or withdrawn.

    Attributes:
        seq: Number of the line, from 1.
        time: UTC, ``2026-11-20T07:30:00Z``.
        who: User who set them.
        alias: Alias that they apply to, or ``*``.
        rules: All rules; None if the alias has none of its own from now on, so that those of ``*`` apply.
        why: Reason.
        previous: Hash of the line before; 64 zeros for the first.
    """

    alias: Annotated[str, AfterValidator(_check_pattern_field)]
    rules: PolicyRules | None
    why: _NonEmptyText
    previous: str = Field(pattern=log.SHA256_PATTERN)


@dataclass(frozen=True)
class Policy:
    """The rules for the aliases of a registry.

    Attributes:
        entries: Lines of ``policy.jsonl``, oldest first. The withdrawn kind is replaced by the one that it counts as.
        head: Hash of the last line.
        withdrawn: Numbers of the lines whose stored kind is the withdrawn one.
    """

    entries: tuple[PolicyEntry, ...] = ()
    head: str = log.INITIAL_HEAD
    withdrawn: frozenset[int] = frozenset()

    @property
    def in_force(self) -> dict[str, PolicyEntry]:
        """Current line of each alias with rules of its own, and of ``*``, by alias."""
        last_entries = {entry.alias: entry for entry in self.entries}
        return {alias: last_entries[alias] for alias in sorted(last_entries) if last_entries[alias].rules is not None}

    def of(self, alias: str) -> PolicyEntry | None:
        """Return the line whose rules apply to an alias, or None if there are no rules for it."""
        in_force = self.in_force
        return in_force.get(alias) or in_force.get(ALL_ALIASES)

    def rules(self, alias: str) -> PolicyRules:
        """Return the rules that apply to an alias."""
        entry = self.of(alias)
        return (entry.rules if entry is not None else None) or PolicyRules()

    def last_line(self, alias: str) -> int:
        """Return the number of the last line that affects which rules apply to an alias; 0 if there is none.

        Lines are only ever added, so the rules have not changed as long as this number has not. Comparing the rules
        instead would miss a change that was undone.
        """
        # A line for "*" matters only to aliases without rules of their own.
        patterns = {alias} if alias in self.in_force else {alias, ALL_ALIASES}
        return max((entry.seq for entry in self.entries if entry.alias in patterns), default=0)

    def warnings(self, alias: str | None = None) -> tuple[str, ...]:
        """Return a warning for each rule in force whose kind was withdrawn.

        Args:
            alias: Alias whose rules are considered; None for all rules.
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


def decode_policy(data: bytes, label: str) -> Policy:
    """Decode a whole policy, and check every line and the chain.

    Args:
        data: Bytes of ``policy.jsonl``.
        label: Name of the file in messages.

    Raises:
        IntegrityError: If a line is damaged; the message names the first.
        RegistryError: If a newer program wrote a line: unknown rules cannot be applied.
    """
    entries: list[PolicyEntry] = []
    withdrawn_lines: set[int] = set()
    head = log.INITIAL_HEAD
    for number, tree, line_hash in log.parse_lines(data, label):
        rules = tree.get("rules")
        if not isinstance(rules, dict | None) or (rules or {}).keys() - PolicyRules.model_fields.keys():
            raise log.unknown_line_error(label, number)
        if isinstance(rules, dict) and rules.get("kind") == WITHDRAWN_KIND:
            # Only the parsed copy changes; the hash covers the stored bytes.
            withdrawn_lines.add(number)
            tree["rules"] = {**rules, "kind": REQUIRED_INSTEAD}
        try:
            entry = PolicyEntry.model_validate(tree)
        except ValidationError as error:
            raise IntegrityError(
                f"{label} is damaged: line {number}: {format_validation_error(error, PolicyEntry)}. {RESTORE}."
            ) from error
        problem = f"its seq is {entry.seq}" if entry.seq != number else None
        if entry.previous != head:
            problem = problem or "its previous hash is not that of the line before"
        if problem is not None:
            raise IntegrityError(f"{label} is damaged: line {number} does not follow: {problem}. {RESTORE}.")
        entries.append(entry)
        head = line_hash
    return Policy(tuple(entries), head, frozenset(withdrawn_lines))
