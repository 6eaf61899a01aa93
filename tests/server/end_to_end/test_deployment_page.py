"""docs/deployment.md: what it shows fits the image, and what can be run without an engine or a cluster is run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stablernn_cli.commands import dockerize as build_files
from stablernn_server import Settings
from stablernn_server.security.auth import Auth, required_access
from stablernn_server.security.key_files import create_state_tokens

PAGE = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


DEPLOYMENT, SERVICE, KSERVE = [tree for block in blocks("yaml") for tree in yaml.safe_load_all(block)]
PODS = {"Deployment": DEPLOYMENT["spec"]["template"]["spec"], "InferenceService": KSERVE["spec"]["predictor"]}


def test_the_secrets_that_it_makes_are_taken_by_the_server(tmp_path: Path) -> None:
    [block] = blocks("sh")
    subprocess.run(["sh", "-euc", block], env={**os.environ, "HOME": str(tmp_path)}, check=True)
    folder = tmp_path / "stablernn-secrets"
    settings = Settings(tokens_file=folder / "tokens", state_key_file=folder / "state_key")
    assert [identity.role for _, identity in Auth.from_settings(settings).digests] == ["infer", "admin"]
    assert len(create_state_tokens(settings).key) == 32


def test_docker_run_closes_what_the_printed_command_closes() -> None:
    commands = [command for block in blocks("console") for command in re.split(r"\n(?=docker )", block)]
    [line] = [command for command in commands if command.startswith("docker run --detach")]
    words = shlex.split(line.replace("\\\n", " "))
    for name, value in build_files.ENVIRONMENT.items():
        assert f"{name}={value}" in words
    assert {"--read-only", "--cap-drop", "--security-opt", "--user"} <= set(words)
    assert words[words.index("--stop-timeout") + 1] == str(build_files.STOP_SECONDS)


@pytest.mark.parametrize("kind", PODS)
def test_a_pod_fits_the_image(kind: str) -> None:
    pod: dict[str, Any] = PODS[kind]
    [container] = pod["containers"]
    user = pod["securityContext"]
    assert {user["runAsUser"], user["runAsGroup"], user["fsGroup"]} == {build_files.USER}
    assert [port["containerPort"] for port in container["ports"]] == [build_files.PORT]
    probes = [probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")]
    assert probes
    for probe in probes:
        assert required_access(probe["path"]) == "open"
        assert probe["port"] == build_files.PORT
    [secrets] = [volume for volume in pod["volumes"] if volume["name"] == "secrets"]
    assert secrets["secret"]["defaultMode"] == 0o440
    [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "secrets"]
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    assert values == {
        "STABLERNN_TOKENS_FILE": f"{mount['mountPath']}/tokens",
        "STABLERNN_STATE_KEY_FILE": f"{mount['mountPath']}/state_key",
    }


def test_a_pod_is_not_killed_while_it_drains() -> None:
    pod = PODS["Deployment"]
    [container] = pod["containers"]
    [pause] = re.findall(r"sleep\((\d+)\)", container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert int(pause) + build_files.STOP_SECONDS < pod["terminationGracePeriodSeconds"]
    assert [port["targetPort"] for port in SERVICE["spec"]["ports"]] == [build_files.PORT]


def test_a_tokens_file_of_root_and_the_server_s_group_is_taken(tmp_path: Path) -> None:
    """As a cluster mounts a secret with mode 0440 and ``fsGroup``."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"infer {'a' * 32}\n")
    tokens.chmod(0o440)
    if os.getuid() == 0:
        tmp_path.chmod(0o755)
        os.chown(tokens, 0, build_files.USER)
    assert Auth.from_settings(Settings(tokens_file=tokens)).is_on


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_one(tmp_path: Path) -> None:
    [block] = blocks("ini")
    unit = tmp_path / "stablernn.service"
    # The program that it names has to be there.
    unit.write_text(block.replace("/opt/stablernn/bin/stablernn", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert str(unit) not in done.stderr + done.stdout
    assert "stablernn.service" not in done.stderr + done.stdout, done.stderr
    assert done.returncode == 0, done.stderr
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", block, re.MULTILINE)
    assert int(seconds) >= build_files.STOP_SECONDS
