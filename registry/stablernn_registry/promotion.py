"""Moves of aliases: the policy and the checks judge a version, then a line in the log of the model records the move.

The policy judges stored JSON only. Checks that need the stablernn library (recomputing a certificate, measuring parity
again) are passed in by the caller as a ``Check``, so that this package never imports it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from stablernn_registry.certificates import (
    KINDS,
    Kind,
    current_certificate,
    format_input_ranges,
    format_kind,
    input_ranges,
    is_as_strong,
)
from stablernn_registry.errors import CheckResult, GateRefused, StorageError
from stablernn_registry.log import AliasEntry, CheckLine, History, utc_now
from stablernn_registry.policy import InputRangeRule, MetricRule, PolicyRules
from stablernn_registry.refs import Ref
from stablernn_registry.storage import Storage

if TYPE_CHECKING:
    from stablernn_registry.model_version import Version
logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 10
"""Maximum number of runs of the checks, if other processes keep changing what they depend on."""
_SPLITS = ("test", "cross_validation", "validation")
"""Splits by which a version is judged, the first that it has a score on: the last one has chosen the weights."""
_TRIVIAL_ANSWERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "majority": ("the most frequent class", {"accuracy": "higher", "log_loss": "lower"}),
    "seasonal_naive": ("the seasonal naive forecast", {"mase": "lower", "mae": "lower"}),
    "frequencies": ("the frequencies of the targets", {"nll": "lower"}),
    "mean": ("the mean of the targets", {"mse": "lower"}),
}
"""Trivial answers by the name of their scores: in words, and the better direction of the metrics to compare by."""
_LEAST_GAIN = 0.99
"""Share of the log loss of constant probabilities that a useful classifier stays below: probabilities of one that has
learned nothing are calibrated to within a percent of it."""


class Check(Protocol):
    """A callable that judges a move of an alias; it may be slow, since no lock is held while it runs."""

    def __call__(self, candidate: Version, current: Version | None, /) -> CheckResult:
        """Judge whether the alias may move.

        Args:
            candidate: The version that the alias is to point to.
            current: The version that it points to now; None if the alias is new.
        """
        ...


def format_failures(results: tuple[CheckResult, ...]) -> str:
    """List every check that refused, e.g. ``check 'parity' failed (error 0.1 is above 1e-5)``."""
    messages = [
        f"check '{result.name}' failed" + (f" ({result.detail})" if result.detail else "")
        for result in results
        if not result.ok
    ]
    return " and ".join(messages)


def check_score(candidate: Version, current: Version | None = None) -> CheckResult:
    """Check that a version was scored on data it was not fitted on, and is better than the trivial answer there.

    That is the most frequent class, the seasonal naive forecast, or the frequencies or the mean of the targets; one
    figure that is better suffices. A version whose metrics have no trivial answer passes by its score alone. It judges
    the version alone, and is one of the checks of ``stablernn registry alias``.
    """
    del current
    metrics = candidate.manifest.metrics
    splits = {name: scores for name, scores in metrics.items() if isinstance(scores, Mapping) and _has_figure(scores)}
    split = next((name for name in (*_SPLITS, *splits) if name in splits), None)
    if split is None:
        return CheckResult("score", False, "it has no score on data that it was not fitted on")
    scores = splits[split]
    answer = next((name for name in _TRIVIAL_ANSWERS if isinstance(scores.get(name), Mapping)), None)
    if answer is None:
        return CheckResult("score", True, f"scored on '{split}', with no trivial answer to compare with")
    title, better_directions = _TRIVIAL_ANSWERS[answer]
    worse = []
    for metric, better in better_directions.items():
        value, trivial = _number_or_none(scores.get(metric)), _number_or_none(scores[answer].get(metric))
        if value is None or trivial is None:
            continue
        text = f"'{metric}' on '{split}' is {value:.4g}, {title} has {trivial:.4g}"
        limit = _LEAST_GAIN * trivial if metric == "log_loss" else trivial
        if value > limit if better == "higher" else value < limit:
            return CheckResult("score", True, text)
        worse.append(text)
    if not worse:
        return CheckResult("score", True, f"scored on '{split}', with no figure of {title} to compare with")
    return CheckResult("score", False, f"it is no better than {title}: {' and '.join(worse)}")


def _has_figure(scores: Mapping[str, Any]) -> bool:
    return any(_number_or_none(value) is not None for value in scores.values())


def check_policy(rules: PolicyRules, candidate: Version, current: Version | None) -> Iterator[CheckResult]:
    """Yield a result for each rule of the policy; a rule whose figure is missing fails."""
    if rules.kind is not None:
        yield CheckResult("policy kind", *_check_kind(rules.kind, rules.inputs_within, candidate))
    if rules.max_parity is not None:
        yield CheckResult("policy parity", *_check_parity(rules.max_parity, candidate))
    if rules.metric is not None:
        yield CheckResult("policy metric", *_check_metric(rules.metric, candidate, current))
    if rules.model_signature is not None:
        yield CheckResult("policy model signature", *_check_signature(candidate))


def _check_kind(required_kind: Kind, within: InputRangeRule | None, candidate: Version) -> tuple[bool, str]:
    certificate = current_certificate(candidate.manifest.certificate)
    if certificate is None:
        return False, f"no certificate is stored, kind '{required_kind}' is required"
    result = _check_strength(required_kind, certificate, candidate)
    if within is None:
        return result
    # Before the strength: ranges of other features are a mistake in the rule, even where the kind holds for all inputs.
    mismatch = _describe_mismatch(within, certificate, candidate)
    if mismatch is not None:
        return False, mismatch
    if result[0]:
        # What holds for all inputs holds for those of any range.
        return result
    bounded = certificate.get("bounded_inputs")
    certified = input_ranges(bounded) if isinstance(bounded, Mapping) else None
    if not isinstance(bounded, Mapping) or certified is None:
        return False, (
            f"{result[1]}; the version has no certificate for inputs within a range, export it again with this version "
            "of stablernn"
        )
    required = within.ranges(len(certified))
    # Another number of features is a mismatch, and has been refused.
    assert required is not None
    texts = format_input_ranges(certified), format_input_ranges(required)
    pairs = zip(certified, required, strict=True)
    if not all(low <= needed_low and needed_high <= high for (low, high), (needed_low, needed_high) in pairs):
        return False, f"the version's certificate is for inputs {texts[0]}, '{required_kind}' is required {texts[1]}"
    ok, detail = _check_strength(required_kind, bounded, candidate)
    if not ok and required != certified:
        # A smaller range can prove more, which only the weights can tell.
        detail = (
            f"{detail}, for inputs {texts[0]}; for the smaller range that is required, {texts[1]}, no certificate is "
            f"stored: see stablernn certify {candidate.ref} --inputs-within, and set the rule for the version's range"
        )
    return ok, f"{detail}, {texts[1]}" if ok else detail


def _describe_mismatch(within: InputRangeRule, certificate: Mapping[str, Any], candidate: Version) -> str | None:
    """Return why the ranges of a rule are not those of a version's features; None if they can be."""
    bounded = certificate.get("bounded_inputs")
    certified = input_ranges(bounded) if isinstance(bounded, Mapping) else None
    manifest = candidate.manifest
    if certified is None and _reads_tokens(manifest.signature):
        # Their names in the manifest are the vocabulary.
        version_text = "reads tokens, which have no ranges"
        is_match = len(within.lower) == 1
    else:
        count = len(manifest.features or ()) if certified is None else len(certified)
        version_text = f"has {count}"
        is_match = within.ranges(count) is not None
    return None if is_match else f"the rule has ranges of {len(within.lower)} features, the version {version_text}"


def _reads_tokens(signature: Mapping[str, Any]) -> bool:
    graphs = [signature.get(name) for name in ("sequence", "step")]
    inputs = [row for graph in graphs if isinstance(graph, Mapping) for row in graph.get("inputs", ())]
    return any(isinstance(row, Mapping) and row.get("name") == "tokens" for row in inputs)


def _check_strength(required_kind: Kind, certificate: Mapping[str, Any], candidate: Version) -> tuple[bool, str]:
    kind = certificate.get("kind")
    if kind not in KINDS:
        return False, f"the certificate's kind must be one of {', '.join(KINDS)}, got {kind!r:.100}"
    kind_text = format_kind(certificate)
    if not is_as_strong(kind, required_kind):
        return False, (
            f"certificate kind '{kind_text}' is weaker than '{required_kind}', see stablernn certify {candidate.ref}"
        )
    # A certificate of the kind "none" proves nothing, so there is nothing that could hold.
    if kind != "none" and certificate.get("holds") is not True:
        return False, f"the certificate does not say that its kind '{kind}' holds"
    return True, f"certificate kind '{kind_text}', '{required_kind}' is required"


def _check_parity(max_error: float, candidate: Version) -> tuple[bool, str]:
    error = _number_or_none(candidate.manifest.parity.get("max_rel_error"))
    if error is None:
        return False, f"no figure 'max_rel_error' of parity is stored, at most {max_error:g} is allowed"
    if error > max_error:
        return False, f"parity's max_rel_error {error:g} is above {max_error:g}"
    return True, f"parity's max_rel_error {error:g}, at most {max_error:g} is allowed"


def _check_metric(rule: MetricRule, candidate: Version, current: Version | None) -> tuple[bool, str]:
    label = f"'{rule.name}' on '{rule.split}'"
    candidate_value = _metric_value(rule, candidate)
    if candidate_value is None:
        return False, f"version {candidate.version} has no figure {label}"
    if current is None:
        return True, f"{label} is {candidate_value:.6g}, and there is no version to compare with"
    current_value = _metric_value(rule, current)
    if current_value is None:
        return False, f"version {current.version}, where it points now, has no figure {label} to compare with"
    # Decimal: 0.98 - 0.97 is 0.01 for people, and 0.010000000000000009 for floats.
    loss = Decimal(str(current_value)) - Decimal(str(candidate_value))
    if rule.better == "lower":
        loss = -loss
    ok = loss <= Decimal(str(rule.worse_by))
    tolerance_text = f"{rule.worse_by:g} worse is allowed" if rule.worse_by else "no worse is allowed"
    return ok, f"{label} is {candidate_value:.6g}, version {current.version} has {current_value:.6g}, {tolerance_text}"


def _check_signature(candidate: Version) -> tuple[bool, str]:
    # Reading the manifest has already checked that the states belong to both graphs.
    signature = candidate.manifest.signature
    needs_complete = signature.get("resample_steps") is not None
    graphs = ("sequence",) if needs_complete else ("sequence", "step")
    missing_graphs = [graph for graph in graphs if signature.get(graph) is None]
    if missing_graphs:
        return False, f"the manifest has no signature of the graph '{missing_graphs[0]}'"
    if needs_complete:
        return True, "the manifest has a signature of the graph over complete sequences"
    return True, "the manifest has a signature of both graphs"


def _metric_value(rule: MetricRule, version: Version) -> float | None:
    figures = version.manifest.metrics.get(rule.split)
    return _number_or_none(figures.get(rule.name)) if isinstance(figures, dict) else None


def _number_or_none(value: object) -> float | None:
    # bool is an int, but no figure.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


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
