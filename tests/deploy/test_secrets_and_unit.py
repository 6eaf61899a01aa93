"""The secrets of a cluster, and the unit of systemd, as far as they can be run without either."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stablernn_cli.commands import dockerize as build_files
from stablernn_server import Settings
from stablernn_server.auth import Auth

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "stablernn.service"


def test_a_tokens_file_of_root_and_the_server_s_group_is_taken(tmp_path: Path) -> None:
    """As a cluster mounts a secret with mode 0440 and ``fsGroup``."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"infer {'a' * 32}\n")
    tokens.chmod(0o440)
    if os.getuid() == 0:
        tmp_path.chmod(0o755)
        os.chown(tokens, 0, build_files.USER)
    assert Auth.from_settings(Settings(tokens_file=tokens)).is_on


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_one(tmp_path: Path) -> None:
    block = UNIT.read_text(encoding="utf-8")
    unit = tmp_path / "stablernn.service"
    # The program that it names has to be there.
    unit.write_text(block.replace("/opt/stablernn/bin/stablernn", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert str(unit) not in done.stderr + done.stdout
    assert "stablernn.service" not in done.stderr + done.stdout, done.stderr
    assert done.returncode == 0, done.stderr
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", block, re.MULTILINE)
    assert int(seconds) >= build_files.STOP_SECONDS
