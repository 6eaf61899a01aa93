from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stablernn.training import load_config, train

SETTINGS = (
    "data.source=digits",
    "model.cell=lipschitz",
    "model.hidden_size=8",
    "training.epochs=2",
    "training.plots=false",
)


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of two epochs; not to be changed."""
    path = tmp_path_factory.mktemp("trained") / "digits-run"
    train(load_config(overrides=SETTINGS), path)
    return path


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return shutil.copytree(trained, tmp_path / "digits-run")
