"""The kernels for AArch64, whose results are checked on an emulated processor."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from packages import ROOT

TOOLS = ("aarch64-linux-gnu-gcc", "qemu-aarch64", "cc")
missing = [tool for tool in TOOLS if shutil.which(tool) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not found")
def test_neon_equals_plain_c() -> None:
    program = [sys.executable, str(ROOT / "native" / "tests" / "cross_check.py")]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("neon on AArch64: 3832 blocks")
