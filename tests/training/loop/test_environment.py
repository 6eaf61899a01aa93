"""The commit that a run records."""

import subprocess
from pathlib import Path

import pytest
import torch

from stablernn.training.loop.device import environment


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("stablernn/__init__.py", "docs/speed.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("first\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "first")
    module = "stablernn/training/loop/device.py"
    monkeypatch.setattr(f"{module.removesuffix('.py').replace('/', '.')}.__file__", str(tmp_path / module))
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def recorded() -> str | None:
    commit: str | None = environment(torch.device("cpu"))["commit"]
    return commit


def test_changed_code_is_marked(repository: Path) -> None:
    (repository / "stablernn" / "__init__.py").write_text("second\n")
    assert recorded() == git(repository, "rev-parse", "HEAD") + "-dirty"


def test_changed_pages_decide_nothing(repository: Path) -> None:
    (repository / "docs" / "speed.md").write_text("second\n")
    assert recorded() == git(repository, "rev-parse", "HEAD")


def test_outside_a_repository_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "stablernn/training/loop/device.py"
    monkeypatch.setattr(f"{module.removesuffix('.py').replace('/', '.')}.__file__", str(tmp_path / module))
    assert recorded() is None
