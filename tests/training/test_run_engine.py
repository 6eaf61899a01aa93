"""The engine of a run: chosen, stored, and changed where it is resumed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
import yaml

from stablernn.cells import create_cell
from stablernn.engines import select_engine
from stablernn.errors import ConfigError
from stablernn.training import load_config, train

TINY = [
    "data.source=digits",
    "model.hidden_size=6",
    "training.max_steps=2",
    "training.threads=1",
    "training.device=cpu",
    "training.plots=false",
]


def engine_of(run_dir: Path) -> str:
    """The engine that both the settings and the summary of a run name."""
    engine: str = yaml.safe_load((run_dir / "config.yaml").read_text())["model"]["engine"]
    assert json.loads((run_dir / "summary.json").read_text())["engine"] == engine
    return engine


@pytest.mark.parametrize("cell", ["lipschitz", "gru"])
def test_a_run_stores_the_engine_that_ran(tmp_path: Path, cell: str) -> None:
    layer = create_cell(cell, 1, 6)
    engine = select_engine("auto", layer, layer.drive(torch.zeros(1, 4, 1))).name
    summary = train(load_config(None, [*TINY, f"model.cell={cell}"]), tmp_path / "run")
    assert summary["engine"] == engine
    assert engine_of(tmp_path / "run") == engine


def test_a_resumed_run_keeps_its_engine_or_changes_it(tmp_path: Path) -> None:
    settings = [*TINY, "model.cell=lipschitz", "training.schedule=constant", "model.engine=loop"]
    train(load_config(None, settings), tmp_path / "run")
    longer = [*settings[:-1], "training.max_steps=4"]
    train(load_config(None, [*longer, "model.engine=loop"]), tmp_path / "run", resume=True)
    assert engine_of(tmp_path / "run") == "loop"
    train(load_config(None, [*longer, "training.max_steps=6", "model.engine=fused"]), tmp_path / "run", resume=True)
    assert engine_of(tmp_path / "run") == "fused"


@pytest.mark.slow
def test_a_run_goes_on_where_its_engine_cannot_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = [*TINY, "model.cell=lipschitz", "training.schedule=constant"]
    train(load_config(None, settings), tmp_path / "run")
    engine = engine_of(tmp_path / "run")
    # As a GPU leaves it.
    stored = tmp_path / "run" / "config.yaml"
    stored.write_text(stored.read_text().replace(f"engine: {engine}", "engine: cuda-graph"))
    longer = [*settings, "training.max_steps=4"]
    with pytest.raises(ConfigError, match="The engine 'triton' cannot run|needs the package triton"):
        train(load_config(None, [*longer, "model.engine=triton"]), tmp_path / "run", resume=True)
    with caplog.at_level(logging.INFO):
        # The command line gives the stored settings again.
        train(load_config(stored, ["training.max_steps=4"]), tmp_path / "run", resume=True)
    assert engine_of(tmp_path / "run") == engine
    assert f"The run began with the engine 'cuda-graph', which cannot run on cpu here; it goes on with '{engine}'" in (
        caplog.text
    )


def test_an_engine_that_cannot_run_the_cell(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="The engine 'fused' cannot run the cell 'gru' on cpu"):
        train(load_config(None, [*TINY, "model.cell=gru", "model.engine=fused"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
