"""What is said of training before it is done holds when it is done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bad_files import ROWS, table
from stablernn.data.step_data import StepData
from stablernn.errors import ConfigError
from stablernn.training import Config, load_config, train
from stablernn.training.build import create_model
from stablernn.training.data_report import check_run_data
from stablernn.training.dry_run import _PEAK, _kept_bytes, add_plan, plan_training
from stablernn.training.resolve import resolve
from stablernn.training.run_data import load_run_data
from stablernn.training.tasks import task_for


def config(source: str | Path, *overrides: str, cell: str = "lipschitz") -> Config:
    return load_config(overrides=[f"data.source={source}", f"model.cell={cell}", "model.hidden_size=8", *overrides])


@pytest.mark.parametrize("name", ["d.csv", "d.npz", pytest.param("d.txt", marks=pytest.mark.slow)])
def test_the_plan_is_what_a_run_does(tmp_path: Path, name: str) -> None:
    table("d.csv", ROWS)(tmp_path)
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(1).normal(size=(40, 5)), y=[0, 1] * 20)
    (tmp_path / "d.txt").write_text("the cat sat on the mat. " * 100)
    settings = config(tmp_path / name, "training.epochs=2", "training.batch_size=7", "training.plots=false")
    plan = plan_training(settings, load_run_data(settings))
    done = train(settings, run_dir=tmp_path / "run")
    assert plan["task"] == done["task"]
    assert plan["parameters"] == done["parameters"]
    assert plan["steps"] == 2 * plan["steps_per_epoch"] == done["steps"]


def test_the_plan_leaves_the_random_numbers_as_they_are() -> None:
    settings = config("digits")
    data = load_run_data(settings)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    plan_training(settings, data)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("source", "cell"), [("digits", "lipschitz"), ("digits", "lstm"), ("co2", "lem")])
def test_the_memory_of_a_batch_is_in_step_with_what_autograd_keeps_of_it(source: str, cell: str) -> None:
    settings = config(source, "training.batch_size=7", cell=cell)
    data = load_run_data(settings)
    assert not isinstance(data, StepData)
    estimate = plan_training(settings, data)["memory"]["batch_bytes"]
    resolved = resolve(settings, task_for(data))
    model = create_model(resolved, data)
    sample, steps = task_for(data).largest_sample(resolved.training)
    kept = _kept_bytes(model, sample, 7, steps) + 7 * sample.x[0].nbytes
    assert estimate == pytest.approx(_PEAK * kept, rel=0.25)


def test_states_that_are_computed_again_take_less_memory() -> None:
    estimates = []
    for every in ("null", "8"):
        settings = config("digits", f"training.recompute_every={every}", "model.patch_size=1", cell="lipschitz")
        estimates.append(plan_training(settings, load_run_data(settings))["memory"]["batch_bytes"])
    # Of 64 steps 8 are kept at a time, and 8 states.
    assert estimates[1] < 0.4 * estimates[0]


def test_settings_that_do_not_go_with_the_data_are_a_problem(tmp_path: Path) -> None:
    times = np.cumsum(np.random.default_rng(0).integers(1, 9, (12, 5)), axis=1)
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(1).normal(size=(12, 5)), y=[0, 1] * 6, t=times)
    settings = config(tmp_path / "d.npz", cell="gru")
    report, plan = add_plan(check_run_data(settings), settings)
    assert plan is None
    assert report.data is not None
    with pytest.raises(ConfigError) as refused:
        train(settings, run_dir=tmp_path / "run")
    assert [(finding.code, finding.text) for finding in report.problems] == [("refused_model", str(refused.value))]


@pytest.mark.parametrize(
    ("sequences", "overrides", "remedy"),
    [
        (100, (), "--members 4 --set training.refit=true"),
        (100, ("model.members=2", "training.refit=true"), None),
        (150, (), None),
    ],
)
def test_a_small_set_is_told_what_helps(
    tmp_path: Path, sequences: int, overrides: tuple[str, ...], remedy: str | None
) -> None:
    x = np.random.default_rng(1).normal(size=(sequences, 5))
    np.savez(tmp_path / "d.npz", x=x, y=[0, 1] * (sequences // 2))
    settings = config(tmp_path / "d.npz", *overrides)
    report, plan = add_plan(check_run_data(settings), settings)
    assert plan is not None
    advice = {finding.code: finding.text for finding in report.warnings}.get("small_set", "")
    assert advice.endswith(f"{remedy}." if remedy else "")
    assert bool(advice) is bool(remedy)
