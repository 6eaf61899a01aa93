"""Trains in a process of its own, which the tests stop: ``stopped_run.py RUN_DIR STOP_STEP RESUME OVERRIDES...``.

Prints a line when step STOP_STEP is done and then waits, so that a signal finds it in the middle of an epoch.
"""

from __future__ import annotations

import sys
import time

from stablernn.errors import InterruptedRun
from stablernn.training import Progress, load_config, train


def main() -> int:
    run_dir, stop_step, resume, *overrides = sys.argv[1:]

    def wait_for_the_signal(progress: Progress) -> None:
        if progress.step == int(stop_step):
            print("here", flush=True)
            time.sleep(1)

    config = None if resume == "yes" else load_config(overrides=overrides)
    try:
        train(config, run_dir, resume == "yes", wait_for_the_signal)
    except InterruptedRun as error:
        print(error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
