"""Runs with every random change of sequences: the same seed gives the same run, also after a stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stablernn.errors import InterruptedRun
from stablernn.training import Progress, load_config, train
from stablernn.training.loop.checkpoint import load_checkpoint

CHANGES = ["training.mixup=0.4", "training.magnitude_warp=0.2", "training.crop=0.7", "training.channel_dropout=0.3"]
TINY = ["model.cell=rnn", "model.hidden_size=4", "training.batch_size=8", "training.threads=1", "training.device=cpu"]


def overrides(folder: Path) -> list[str]:
    """Settings of a run on sequences of unequal length, with gaps, in two classes of two features."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 20, 2)).astype(np.float32)
    x[random.random(x.shape) < 0.1] = np.nan
    path = folder / "sequences.npz"
    np.savez(path, x=x, y=np.arange(40) % 2, lengths=random.integers(8, 21, 40))
    return [f"data.source={path}", *TINY, *CHANGES, "training.plots=false", "training.max_steps=11"]


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    """Weights, moments and states of random numbers after the last step."""
    return load_checkpoint(run / "checkpoints/last.safetensors").tensors


@pytest.mark.slow
def test_a_run_stopped_in_the_middle_of_an_epoch_resumes_to_the_same_weights(tmp_path: Path) -> None:
    settings = overrides(tmp_path)
    whole = train(load_config(overrides=settings), tmp_path / "whole")

    def stop(progress: Progress) -> None:
        # Four steps make an epoch.
        if progress.step == 6:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        train(load_config(overrides=settings), tmp_path / "run", progress=stop)
    resumed = train(None, tmp_path / "run", resume=True)
    assert resumed["metrics"] == whole["metrics"]
    weights, expected = last_weights(tmp_path / "run"), last_weights(tmp_path / "whole")
    assert weights.keys() == expected.keys()
    assert [name for name in weights if not torch.equal(weights[name], expected[name])] == []
