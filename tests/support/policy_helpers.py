"""Aliases that a policy guards, and the sentences of refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli_helpers import Workplace
from stablernn_registry import Registry

STABLE, UNSTABLE = "digits:1", "digits:2"
"""Of an lru, contracting by construction; of a tanh network that was trained for five steps, bounded."""
RECOMPUTED = ["certificate recomputed", "parity recomputed"]
CHECKS = ["policy kind", "score", "files intact", *RECOMPUTED, "signature of the graphs"]


def require(workplace: Workplace, rules: str) -> Any:
    return workplace.ok(f"-q registry policy set {rules} --why 'runs unattended' --json").json


def aliases(workplace: Workplace) -> dict[str, int]:
    return {model.name: model.aliases for model in Registry(workplace.registry).list()}["digits"]


def bytes_of(workplace: Workplace) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in workplace.registry.rglob("*") if path.is_file()}


def instead(action: str, version: int | str = "") -> str:
    """What a refusal says last."""
    command = f"stablernn registry {action} digits@production {version}".strip()
    return f"Choose another version, or move it all the same: {command} --force --why '...'."


def weaker(version: int) -> str:
    """What a refusal says of a version that is bounded only."""
    what = "certificate kind 'bounded' is weaker than 'contracting'"
    return f"check 'policy kind' failed ({what}, see stablernn certify digits:{version})"
