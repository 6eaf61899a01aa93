"""The command that a benchmark was started by, for its results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path


def given_command(placeholders: Mapping[str, str] | None = None) -> str:
    """Return the command of this process as it was given.

    Args:
        placeholders: Option -> the word that stands for its value, which is a path of this machine.
    """
    script, *words = sys.argv
    shown = [f"benchmarks/{Path(script).name}"]
    for option, word in zip(["", *words], words, strict=False):
        name, equals, _ = word.partition("=")
        if placeholders and option in placeholders:
            word = placeholders[option]
        elif placeholders and equals and name in placeholders:
            word = f"{name}={placeholders[name]}"
        shown.append(word)
    return "python " + shlex.join(shown)
