"""Writes again and again, each time stopped at another line: by SIGKILL in a forked child, or by Ctrl-C.

Run as a script by test_interrupted.py, so that it forks from a process without threads. Prints one JSON object a write.
The stop comes right before a line of the modules that write to disk, for each line that runs and for its first and
its last time. The test judges the state after each stop.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from stablernn_registry import Registry, atomic_io, files, promotion, storage
from stablernn_registry import registry as registry_module

# Copies are the functions of files.py that write.
COPIES = str(Path(files.__file__))
WRITING = {str(Path(module.__file__)) for module in (atomic_io, promotion, registry_module, storage)}
FIELDS: dict[str, Any] = {"task": "predict-next", "cell": "lipschitz", "signature": {}, "features": ["x"]}
Line = tuple[str, int]


def act(registry: Registry, source: Path, action: str) -> None:
    if action == "publish":
        registry.publish("digits", {"a": source, "b/c": source.with_name("second")}, FIELDS, who="ada")
    elif action == "record":
        report = source.with_name("report")
        # A report with the same bytes would not be recorded again.
        report.write_text(str(len(registry.log("digits"))))
        registry.record("digits:1", "robustness", {"robustness.json": report, "plots/one.png": source}, who="ada")
    elif action == "policy":
        # Asks nothing that the versions here could not show.
        registry.set_policy({}, alias="gated", why="because", who="ada")
    else:
        registry.set_alias("digits", "production", 1 + len(registry.log("digits")) % 2, who="ada")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise KeyboardInterrupt


def run_counting(
    registry: Registry, source: Path, action: str, stop: tuple[Line, int] | None, how: Callable[[], None]
) -> Counter[Line]:
    """Run the action once and count the executed lines; stop at the given line and count."""
    counts: Counter[Line] = Counter()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code.co_filename not in WRITING and (
            code.co_filename != COPIES or code.co_name not in ("copy_new", "hash_file", "write_stream")
        ):
            return None
        if event == "line":
            line = (Path(frame.f_code.co_filename).name, frame.f_lineno)
            counts[line] += 1
            if stop == (line, counts[line]):
                how()
        return trace

    sys.settrace(trace)
    try:
        act(registry, source, action)
    finally:
        sys.settrace(None)
    return counts


def is_killed(registry: Registry, source: Path, action: str, stop: tuple[Line, int]) -> bool:
    child = os.fork()
    if child == 0:
        run_counting(registry, source, action, stop, kill)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def is_interrupted(registry: Registry, source: Path, action: str, stop: tuple[Line, int]) -> bool:
    try:
        run_counting(registry, source, action, stop, interrupt)
    except KeyboardInterrupt:
        return True
    return False


def observe(registry: Registry) -> dict[str, Any]:
    report = registry.verify()
    models = registry.list()
    return {
        "versions": list(models[0].versions) if models else [],
        "aliases": models[0].aliases if models else {},
        "lines": (len(registry.log("digits")) if models else 0) + len(registry.policy().entries),
        "content": registry.get("digits").read("a").decode() if models else None,
        "problems": report.problems,
        "notes": report.notes,
    }


def main(folder: Path, action: str, fresh: bool, stopped: Callable[..., bool]) -> None:
    source = folder / "source"
    source.write_text("a")
    source.with_name("second").write_text("b")
    registry = Registry(folder / "registry", lock_timeout_seconds=5)
    if not fresh:
        act(registry, source, "publish")
        act(registry, source, "publish")
    probe = Registry(folder / "probe")
    if not fresh:
        act(probe, source, "publish")
        act(probe, source, "publish")
    counts = run_counting(probe, source, action, None, kill)
    stops = sorted({(line, count) for line in counts for count in (1, counts[line])})
    before = observe(registry)
    for number, stop in enumerate(stops):
        if fresh:
            registry = Registry(folder / f"registry-{number}")
            before = observe(registry)
        done = stopped(registry, source, action, stop)
        after = observe(registry)
        print(json.dumps({"stop": stop, "stopped": done, "before": before, "after": after}))
        before = after
        if fresh or stop == stops[-1]:
            act(registry, source, action)
            print(json.dumps({"stop": stop, "stopped": False, "before": before, "after": observe(registry)}))


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        fresh=sys.argv[3] == "fresh",
        stopped={"kill": is_killed, "interrupt": is_interrupted}[sys.argv[4]],
    )
