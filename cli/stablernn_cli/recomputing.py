"""Judges a version in a process of its own. Run as a module, it is that process.

Its deadline and its memory are bounded, since a graph can run for ever and a model can ask for any memory.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stablernn_cli.errors import UsageError

if TYPE_CHECKING:
    from stablernn_registry import CheckResult, PolicyRules, Registry, Version
    from stablernn_server.runtime.isolation import IsolatedProcess

SECONDS = "STABLERNN_CHECK_TIMEOUT_SECONDS"
MEMORY = "STABLERNN_CHECK_MEMORY_BYTES"
_DEFAULTS = {SECONDS: 600.0, MEMORY: 8 * 2.0**30}


def isolated(
    what: str, registry: Registry, version: Version, rules: PolicyRules | None, names: Sequence[str]
) -> list[CheckResult]:
    """Return the results of one kind of checks, found in another process.

    Args:
        what: ``recomputed`` or ``signature``.
        registry: Where the version is from.
        version: The version.
        rules: What the policy asks of it.
        names: Names of the results, for where there are none.

    Raises:
        stablernn_registry.IntegrityError: If a file is damaged.
        stablernn_registry.StorageError: If a file cannot be read.
        UsageError: If a bound in the environment is not a number above 0.
    """
    from stablernn_registry import CheckResult, IntegrityError, StorageError
    from stablernn_server.runtime.isolation import IsolationError

    request = {
        "what": what,
        "root": str(registry.root),
        "ref": version.ref,
        "digest": version.digest,
        "rules": rules.model_dump(mode="json") if rules is not None else None,
    }
    try:
        answer = _process().ask(request, _bound(SECONDS), int(_bound(MEMORY)))
    except IsolationError as error:
        return [CheckResult(name, False, str(error)) for name in names]
    for raised in (IntegrityError, StorageError):
        if raised.__name__ in answer:
            raise raised(str(answer[raised.__name__]))
    return [CheckResult(result["name"], result["ok"], result["detail"]) for result in answer["results"]]


def _bound(name: str) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else _DEFAULTS[name]
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"{name} must be a number above 0, got '{text:.100}'.")
    return value


@functools.cache
def _process() -> IsolatedProcess:
    from stablernn_server.runtime.isolation import IsolatedProcess

    return IsolatedProcess("stablernn_cli.recomputing")


def _judge(request: dict[str, Any]) -> dict[str, Any]:
    from stablernn_cli import gates
    from stablernn_registry import IntegrityError, PolicyRules, StorageError

    version = _version(request)
    rules = PolicyRules.parse(request["rules"]) if request["rules"] is not None else None
    results: Sequence[CheckResult]
    try:
        if request["what"] == "signature":
            results = [gates.open_graphs(version, rules)]
        else:
            results = gates.recompute_both(version, rules)
    except IntegrityError as error:
        # By the name of the base class: what is raised may be a subclass, which the parent does not look for.
        return {IntegrityError.__name__: str(error)}
    except StorageError as error:
        return {StorageError.__name__: str(error)}
    return {"results": [{"name": result.name, "ok": result.ok, "detail": result.detail} for result in results]}


def _prepare(request: dict[str, Any]) -> None:
    """Import what the work needs: its code takes address space that has nothing to do with the version."""
    files = _version(request).manifest.files
    try:
        import stablernn_server.runtime.onnx_model  # noqa: F401

        if request["what"] == "recomputed" and {"config.json", "weights.safetensors"} <= files.keys():
            import stablernn.export.reload  # noqa: F401
    except ModuleNotFoundError:
        # The check says what is missing.
        pass


def _version(request: dict[str, Any]) -> Version:
    from stablernn_registry import Registry

    version = Registry(request["root"]).get(request["ref"])
    if version.digest != request["digest"]:
        raise ValueError(f"'{version.ref}' is another version now")
    return version


if __name__ == "__main__":
    from stablernn_server.runtime.isolation import answer_requests

    answer_requests(_judge, _prepare)
