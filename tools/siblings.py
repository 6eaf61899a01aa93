"""Requirements of this repository's distributions on each other, added to their wheels by hatchling.

Nothing is on a package index, where strangers could claim their names: a wheel refers to the folders of the checkout
that it was built from, or, with STABLERNN_PINS=1, to the same version, for installation from a folder of wheels. They
are no static requirements, since an editable installation of the root has all packages on its path, and copies would
hide them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]


class Siblings(BuildHookInterface[Any]):
    """Adds the ``siblings`` of a project's configuration; with ``editable = false`` not to editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" and not self.config.get("editable", True):
            return
        build_data["dependencies"] += [requirement(name) for name in self.config["siblings"]]


def requirement(name: str) -> str:
    """Return the requirement on a distribution of this repository."""
    if os.environ.get("STABLERNN_PINS") == "1":
        [version] = re.findall(
            r'^__version__ = "(.+)"$', (ROOT / "stablernn" / "_version.py").read_text(), re.MULTILINE
        )
        return f"{name}=={version}"
    return f"{name} @ {(ROOT / name.removeprefix('stablernn').removeprefix('-')).as_uri()}"
