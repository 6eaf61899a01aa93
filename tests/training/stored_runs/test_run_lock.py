from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stablernn.training.run_directory import is_running, mark_running


def test_a_run_is_marked_inside_the_block_only(tmp_path: Path) -> None:
    with mark_running(tmp_path):
        assert is_running(tmp_path)
    assert not is_running(tmp_path)


def test_the_mark_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from stablernn.training.run_directory import mark_running\n"
        "with mark_running(Path(sys.argv[1])): print('marked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "marked\n"
        assert is_running(tmp_path)
        process.kill()
    assert not is_running(tmp_path)
