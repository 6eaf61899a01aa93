"""Checks that a version must pass before the command line points an alias at it, besides the registry's policy.

It must have a score on data that it was not fitted on, better than that of the trivial answer. Its bytes must be those
that were published, the certificate and the parity report in its manifest must come out again when they are computed
from its files, and its graphs must match its signature. The files are not trusted before they have passed, so
:mod:`stablernn_cli.recompute` runs in a process of its own, with a deadline and a limit on memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stablernn_cli.recompute import RECOMPUTED, SIGNATURE

if TYPE_CHECKING:
    from stablernn_registry import Check, CheckResult, PolicyRules, Registry, Version
    from stablernn_runtime.isolation import IsolatedProcess

SECONDS = "STABLERNN_CHECK_TIMEOUT_SECONDS"
MEMORY = "STABLERNN_CHECK_MEMORY_BYTES"


def promotion_checks(registry: Registry, alias: str) -> list[Check]:
    """Return the checks of every move of an alias; the first to need certificate or parity computes both."""
    from stablernn_registry import CheckResult, IntegrityError, check_score

    results: dict[tuple[str, str], tuple[CheckResult, CheckResult]] = {}

    def both(candidate: Version) -> tuple[CheckResult, CheckResult]:
        # Read the rules each time: if the policy has changed in between, the registry runs the checks again.
        rules = registry.policy().rules(alias)
        key = candidate.digest, rules.model_dump_json()
        # One process computes both results, which are two checks in the log.
        if key not in results:
            try:
                results[key] = recompute(registry, candidate, rules)
            except IntegrityError:
                first, second = (CheckResult(name, False, "its files are damaged") for name in RECOMPUTED)
                results[key] = first, second
        return results[key]

    # The registry also passes the version that the alias points to now, which no check of the files needs.
    def certificate_recomputed(candidate: Version, current: Version | None) -> CheckResult:
        del current
        return both(candidate)[0]

    def parity_recomputed(candidate: Version, current: Version | None) -> CheckResult:
        del current
        return both(candidate)[1]

    def signature_of_the_graphs(candidate: Version, current: Version | None) -> CheckResult:
        del current
        try:
            return check_signature(registry, candidate, registry.policy().rules(alias))
        except IntegrityError:
            return CheckResult(SIGNATURE, False, "its files are damaged")

    return [check_score, files_intact, certificate_recomputed, parity_recomputed, signature_of_the_graphs]


def files_intact(candidate: Version, current: Version | None) -> CheckResult:
    """Check that every byte of the version is the one that was published."""
    from stablernn_registry import CheckResult, IntegrityError

    del current
    try:
        for filename in candidate.manifest.files:
            candidate.check(filename)
    except IntegrityError as error:
        return CheckResult("files intact", ok=False, detail=str(error).rstrip("."))
    return CheckResult("files intact", ok=True, detail=f"{len(candidate.manifest.files)} files")


def check_signature(registry: Registry, version: Version, rules: PolicyRules | None = None) -> CheckResult:
    """Check in another process that the graphs have the inputs, outputs, states and labels that the manifest says.

    Args:
        registry: The registry that holds the version.
        version: Any version.
        rules: Rules of the policy that apply to the version; None for none.

    Raises:
        stablernn_registry.IntegrityError: If a graph is damaged.
    """
    return _run_isolated("signature", registry, version, rules, (SIGNATURE,))[0]


def recompute(
    registry: Registry, version: Version, rules: PolicyRules | None = None
) -> tuple[CheckResult, CheckResult]:
    """Compute certificate and parity of a version again in another process; return one result for each.

    Args:
        registry: The registry that holds the version.
        version: Any version.
        rules: Rules of the policy that apply to the version; None for none.

    Raises:
        stablernn_registry.IntegrityError: If a file is damaged.
    """
    certificate, parity = _run_isolated("recomputed", registry, version, rules, RECOMPUTED)
    return certificate, parity


def _run_isolated(
    checks: str, registry: Registry, version: Version, rules: PolicyRules | None, names: Sequence[str]
) -> list[CheckResult]:
    """Return the results of one kind of checks, run in another process.

    Args:
        checks: ``recomputed`` or ``signature``.
        registry: The registry that holds the version.
        version: The version.
        rules: Rules of the policy that apply to the version; None for none.
        names: Names of the results, which fail if the process exceeds its limits.

    Raises:
        stablernn_registry.IntegrityError: If a file is damaged.
        stablernn_registry.StorageError: If a file cannot be read.
        stablernn.errors.ConfigError: If a bound in the environment is not a number above 0.
    """
    from stablernn.environment_variables import read_positive_number
    from stablernn_registry import CheckResult, IntegrityError, StorageError
    from stablernn_runtime.isolation import IsolationError

    seconds = read_positive_number(SECONDS, 600)
    memory = read_positive_number(MEMORY, 8 * 2.0**30)
    request = {
        "what": checks,
        "root": str(registry.root),
        "ref": version.ref,
        "digest": version.digest,
        "rules": rules.model_dump(mode="json") if rules is not None else None,
    }
    try:
        answer = _process().ask(request, seconds, int(memory))
    except IsolationError as error:
        return [CheckResult(name, False, str(error)) for name in names]
    # Errors of the registry come back by the name of their class.
    for error_class in (IntegrityError, StorageError):
        if error_class.__name__ in answer:
            raise error_class(str(answer[error_class.__name__]))
    return [CheckResult(result["name"], result["ok"], result["detail"]) for result in answer["results"]]


# It uses a process again that has no work, with the modules that this has imported.
@functools.cache
def _process() -> IsolatedProcess:
    from stablernn_runtime.isolation import IsolatedProcess

    return IsolatedProcess("stablernn_cli.recompute")
