"""``training.keep_epochs``: the weights after each epoch stay in the run."""

from __future__ import annotations

from pathlib import Path

import torch

from stablernn.training import load_config, load_run, train
from stablernn.training.loop.checkpoint import load_checkpoint

SETTINGS = (
    *("data.source=digits", "model.cell=rnn", "model.hidden_size=4", "training.epochs=3", "training.batch_size=128"),
    "training.plots=false",
)


def checkpoints(run: Path) -> set[str]:
    return {path.stem for path in (run / "checkpoints").glob("*.safetensors")}


def test_one_of_each_epoch_is_there_and_the_best_is_among_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = load_config(overrides=[*SETTINGS, "training.keep_epochs=true", "training.calibrate=false"])
    best = train(given, run)["best_epoch"]
    assert checkpoints(run) == {"best", "last", "epoch-1", "epoch-2", "epoch-3"}
    kept = [load_run(run, epoch).model.state_dict() for epoch in (1, 2, 3)]
    assert not any(torch.equal(kept[0]["head.maps.0.weight"], other["head.maps.0.weight"]) for other in kept[1:])
    for name, value in load_run(run).model.state_dict().items():
        assert torch.equal(value, kept[best - 1][name])
    states = [load_checkpoint(run / "checkpoints" / f"epoch-{epoch}.safetensors").state for epoch in (1, 2, 3)]
    assert [state["epoch"] for state in states] == [1, 2, 3]
    assert max(state["value"] for state in states) == states[best - 1]["value"]
