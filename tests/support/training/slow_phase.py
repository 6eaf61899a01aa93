"""Trains with a phase that takes a minute in process 0: ``torchrun ... slow_phase.py PHASE CALL HOW OPTIONS...``.

Prints ``PHASE`` when call number CALL of the phase begins. HOW is ``python`` for a minute of Python instructions, or
``blocking`` for one call that Python cannot leave.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from stablernn_cli.main import main as stablernn

PHASES = {
    "loading": "stablernn.training.train_model:load_run_data",
    "step": "stablernn.training.loop.trainer:Trainer._project",
    "validation": "stablernn.training.evaluation.scorers:SampleScorer.score_of",
    "certificate": "stablernn.training.loop.certificate_log:stability_figures",
    "checkpoint": "stablernn_registry.atomic_io:os.fsync",
    "scoring": "stablernn.training.train_model:finish",
}


def slow_down(phase: str, slow_call: int, is_blocking: bool) -> None:
    """Replace the function of a phase by one that first waits, in one of its calls."""
    module, _, path = PHASES[phase].partition(":")
    *parents, name = path.split(".")
    owner: Any = import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    function: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def slow(*args: Any, **options: Any) -> Any:
        nonlocal calls
        if phase != "checkpoint" or ".last.safetensors." in os.readlink(f"/proc/self/fd/{args[0]}"):
            calls += 1
            if calls == slow_call:
                print(phase, flush=True)
                for _ in range(1 if is_blocking else 1200):
                    time.sleep(60 if is_blocking else 0.05)
        return function(*args, **options)

    setattr(owner, name, slow)


def main() -> None:
    phase, call, how, *arguments = sys.argv[1:]
    if os.environ["RANK"] == "0":
        slow_down(phase, int(call), how == "blocking")
    stablernn(["train", *arguments])


if __name__ == "__main__":
    main()
