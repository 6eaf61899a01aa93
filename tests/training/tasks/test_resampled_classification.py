"""Classification with resampled sequences: defaults, refusals, and runs that are stopped, scored and certified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stablernn.data import load_data
from stablernn.errors import ConfigError, InterruptedRun
from stablernn.training import Config, Progress, load_config, load_run, train
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.checkpoint import load_checkpoint
from stablernn.training.resolve import resolve
from stablernn.training.tasks import task_for
from stablernn.training.tasks.classify import refuse_early


def gestures(path: Path, *, times: bool = False) -> Path:
    """Write sequences of 8 to 80 samples whose classes are three curves, and two lengths of the first."""
    random = np.random.default_rng(0)
    lengths = np.array([8, 12, 80, 60] * 15)
    x = np.zeros((60, 80, 1), np.float32)
    for row, length in enumerate(lengths):
        progress = np.linspace(0, 1, length)
        curve = [np.sin(6 * progress), progress, np.sin(6 * progress), np.cos(9 * progress)][row % 4]
        x[row, :length, 0] = curve + 0.1 * random.normal(size=length)
    t = {"t": np.cumsum(np.ones((60, 80)), axis=1)} if times else {}
    np.savez(path, x=x, lengths=lengths, y=np.array(["quick", "line", "slow", "cosine"] * 15), **t)
    return path


def config(source: Path, *overrides: str) -> Config:
    return load_config(
        overrides=[
            f"data.source={source}",
            "model.resample_steps=48",
            "model.cell=lru",
            "model.hidden_size=8",
            "training.device=cpu",
            "training.plots=false",
            *overrides,
        ]
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gestures(tmp_path_factory.mktemp("data") / "gestures.npz")


def test_patches_are_those_of_the_resampled_sequence(source: Path) -> None:
    model = resolve(config(source), task_for(load_data(source))).model
    assert (model.resample_steps, model.patch_stride, model.patch_size) == (48, 2, 8)


@pytest.mark.parametrize("setting", ["model.scaling=window", "model.scaling=context"])
def test_a_scaling_that_leaves_nothing_of_the_length_is_refused(source: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.resample_steps adds the length of a sequence as a feature"):
        resolve(config(source, setting), task_for(load_data(source)))


def test_samples_with_times_are_refused_unless_these_are_ignored(tmp_path: Path) -> None:
    source = gestures(tmp_path / "timed.npz", times=True)
    task = task_for(load_data(source))
    with pytest.raises(ConfigError, match=r"says when they were; set model\.time=ignore"):
        resolve(config(source), task)
    assert resolve(config(source, "model.time=ignore"), task).model.max_dt is None


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_weights(source: Path, tmp_path: Path) -> None:
    settings = config(source, "training.max_steps=18", "training.batch_size=8")
    train(settings, tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.step == 10:
            raise KeyboardInterrupt

    with pytest.raises((InterruptedRun, KeyboardInterrupt)):
        train(settings, tmp_path / "parts", progress=stop)
    train(None, tmp_path / "parts", resume=True)
    first, second = (load_checkpoint(tmp_path / name / "checkpoints/last.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(value, second.tensors[name]) for name, value in first.tensors.items())
    loaded = load_run(tmp_path / "whole")
    assert loaded.data["resampling"] == {"steps": 48, "shortest": 8, "longest": 80}
    assert len(loaded.data["scaling"]["mean"]) == 1
    with pytest.raises(ConfigError, match="has no answer before the last one"):
        refuse_early(TorchPredictor(loaded.model))
