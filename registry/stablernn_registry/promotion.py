"""Checks that may refuse to move an alias.

The registry decides on stored JSON only, by its policy. What needs the library (recomputing a certificate, running
parity again) is passed in by the caller as a ``Check``; so this package never imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from stablernn_registry.certificates import KINDS, Kind, current_certificate, format_kind, is_as_strong
from stablernn_registry.checks import CheckResult
from stablernn_registry.policy import MetricRule, PolicyRules

if TYPE_CHECKING:
    from stablernn_registry.model_version import Version


class Check(Protocol):
    """Anything that can be called with the two versions; it may be slow, since no lock is held while it runs."""

    def __call__(self, candidate: Version, current: Version | None, /) -> CheckResult:
        """Judge whether the alias may move.

        Args:
            candidate: The version that the alias is to point to.
            current: The version that it points to now; None if the alias is new.
        """
        ...


def failures(results: tuple[CheckResult, ...]) -> str:
    """Name every check that refused, e.g. ``check 'parity' failed (error 0.1 is above 1e-5)``."""
    lines = [f"check '{r.name}' failed" + (f" ({r.detail})" if r.detail else "") for r in results if not r.ok]
    return " and ".join(lines)


def policy_results(rules: PolicyRules, candidate: Version, current: Version | None) -> Iterator[CheckResult]:
    """What the policy says of a move, a result for each rule; a figure that is missing fails its rule."""
    if rules.kind is not None:
        yield CheckResult("policy kind", *_kind(rules.kind, candidate))
    if rules.max_parity is not None:
        yield CheckResult("policy parity", *_parity(rules.max_parity, candidate))
    if rules.metric is not None:
        yield CheckResult("policy metric", *_metric(rules.metric, candidate, current))
    if rules.model_signature is not None:
        yield CheckResult("policy model signature", *_signature(candidate))


def _kind(required: Kind, candidate: Version) -> tuple[bool, str]:
    certificate = current_certificate(candidate.manifest.certificate)
    if certificate is None:
        return False, f"no certificate is stored, kind '{required}' is required"
    kind = certificate.get("kind")
    if kind not in KINDS:
        return False, f"the certificate's kind must be one of {', '.join(KINDS)}, got {kind!r:.100}"
    shown = format_kind(certificate)
    if not is_as_strong(kind, required):
        what = f"certificate kind '{shown}' is weaker than '{required}'"
        return False, f"{what}, see stablernn certify {candidate.ref}"
    if kind != "none" and certificate.get("holds") is not True:
        return False, f"the certificate does not say that its kind '{kind}' holds"
    return True, f"certificate kind '{shown}', '{required}' is required"


def _parity(largest: float, candidate: Version) -> tuple[bool, str]:
    error = _number(candidate.manifest.parity.get("max_rel_error"))
    if error is None:
        return False, f"no figure 'max_rel_error' of parity is stored, at most {largest:g} is allowed"
    if error > largest:
        return False, f"parity's max_rel_error {error:g} is above {largest:g}"
    return True, f"parity's max_rel_error {error:g}, at most {largest:g} is allowed"


def _metric(rule: MetricRule, candidate: Version, current: Version | None) -> tuple[bool, str]:
    what = f"'{rule.name}' on '{rule.split}'"
    new = _figure(rule, candidate)
    if new is None:
        return False, f"version {candidate.version} has no figure {what}"
    if current is None:
        return True, f"{what} is {new:.6g}, and there is no version to compare with"
    old = _figure(rule, current)
    if old is None:
        return False, f"version {current.version}, where it points now, has no figure {what} to compare with"
    # Decimal: 0.98 - 0.97 is 0.01 for people, and 0.010000000000000009 for floats.
    worse = Decimal(str(old)) - Decimal(str(new))
    if rule.better == "lower":
        worse = -worse
    ok = worse <= Decimal(str(rule.worse_by))
    allowed = f"{rule.worse_by:g} worse is allowed" if rule.worse_by else "no worse is allowed"
    return ok, f"{what} is {new:.6g}, version {current.version} has {old:.6g}, {allowed}"


def _signature(candidate: Version) -> tuple[bool, str]:
    # That the states are those of both graphs was checked when the manifest was read.
    missing = [graph for graph in ("sequence", "step") if candidate.manifest.signature.get(graph) is None]
    if missing:
        return False, f"the manifest has no signature of the graph '{missing[0]}'"
    return True, "the manifest has a signature of both graphs"


def _figure(rule: MetricRule, version: Version) -> float | None:
    figures = version.manifest.metrics.get(rule.split)
    return _number(figures.get(rule.name)) if isinstance(figures, dict) else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
