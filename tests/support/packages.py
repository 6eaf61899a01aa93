"""The packages and their folders."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "stablernn": ROOT / "stablernn",
    "stablernn_registry": ROOT / "registry" / "stablernn_registry",
    "stablernn_client": ROOT / "client" / "stablernn_client",
    "stablernn_runtime": ROOT / "runtime" / "stablernn_runtime",
    "stablernn_server": ROOT / "server" / "stablernn_server",
    "stablernn_cli": ROOT / "cli" / "stablernn_cli",
    "stablernn_papers": ROOT / "papers" / "stablernn_papers",
}
