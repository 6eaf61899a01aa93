"""Runs a program, and prints as JSON the time and the memory that it and all of its descendants used.

    python benchmarks/process_use.py PROGRAM [ARGUMENT ...]

It is a process of its own, since the system sums up all children that a process ever had. Its standard output is the
JSON; that of the program is dropped, and its standard error is passed on.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
ORPHAN_SECONDS = 30.0
"""Time to wait for processes that outlive the program, such as the Java process of Spark, to end."""


def wait_for_orphans() -> None:
    """Wait for the descendants that the program left behind, whose use counts only after they have ended."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < deadline:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            time.sleep(0.01)
    print("Processes of the program are still running; their time is not counted.", file=sys.stderr)


def main() -> None:
    # Without it, orphans would be handed to the first process of the system, and their use with them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begin = time.perf_counter()
    status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
    seconds = time.perf_counter() - begin
    wait_for_orphans()
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    # ru_maxrss is that of the largest process, in KiB on Linux.
    row = {
        "seconds": seconds,
        "processor_seconds": use.ru_utime + use.ru_stime,
        "memory_mib": use.ru_maxrss / 1024,
    }
    print(json.dumps(row))
    sys.exit(status)


if __name__ == "__main__":
    main()
