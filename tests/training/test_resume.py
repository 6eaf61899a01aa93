"""A run that was stopped and resumed equals one that was not, to the last bit."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stablernn.errors import ConfigError, DataError, InterruptedRun
from stablernn.training import Progress, load_config, train
from stablernn.training.loop import certificate_log
from stablernn.training.loop.checkpoint import load_checkpoint

SCRIPT = Path(__file__).parent / "stopped_run.py"
TINY = ["model.hidden_size=6", "training.threads=1", "training.device=cpu", "training.plots=false"]
# Two layers with dropout draw from torch's generator at each step; 9 steps make an epoch.
DIGITS = [
    "data.source=digits",
    "model.cell=lipschitz",
    "model.num_layers=2",
    "model.dropout=0.3",
    "training.batch_size=128",
    "training.max_steps=22",
    "training.schedule=one-cycle",
    *TINY,
]
# With a patience of 1 the run ends early or not by the validation metric alone.
CO2 = [
    "data.source=co2",
    "task.horizon=8",
    "task.context_length=16",
    "model.cell=antisymmetric_g",
    "training.optimizer=rmsprop",
    "training.momentum=0.5",
    "training.schedule=step",
    "training.step_epochs=1",
    "training.batch_size=200",
    "training.epochs=3",
    "training.patience=2",
    "training.clip_norm=1",
    *TINY,
]


def start(run_dir: Path, overrides: list[str], *, stop_step: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(run_dir), str(stop_step), "no", *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stopped(run_dir: Path, overrides: list[str], number: signal.Signals, *, stop_step: int) -> tuple[int, str]:
    with start(run_dir, overrides, stop_step=stop_step) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert line == "here\n", errors
        return process.returncode, output


def resumed_elsewhere(run_dir: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(run_dir), "-1", "yes"]
    subprocess.run(command, check=True, timeout=60, capture_output=True)


def contents(run_dir: Path) -> dict[str, Any]:
    """All numbers of a run but times."""
    last = load_checkpoint(run_dir / "checkpoints/last.safetensors")
    last.state["position"].pop("seconds")
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run_dir / "summary.json").read_text())
    return {
        "best": (run_dir / "checkpoints/best.safetensors").read_bytes(),
        "last": {name: value.numpy().tobytes() for name, value in last.tensors.items()},
        "state": last.state,
        "records": [{key: value for key, value in record.items() if key != "seconds"} for record in records],
        "summary": {key: value for key, value in summary.items() if key not in ("run", "seconds")},
    }


def assert_same(run: Path, reference: Path) -> None:
    got, expected = contents(run), contents(reference)
    assert got["records"] == expected["records"]
    assert got["state"] == expected["state"]
    assert got["last"].keys() == expected["last"].keys()
    assert [name for name in got["last"] if got["last"][name] != expected["last"][name]] == []
    assert got["best"] == expected["best"]
    assert got["summary"] == expected["summary"]


@pytest.fixture(scope="module", autouse=True)
def _certified_in_every_epoch() -> Iterator[None]:
    """On a busy machine the certificate of an epoch can take so long that later epochs go without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate_log, "MOST_SECONDS", math.inf)
        yield


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that nobody stopped."""
    folder = tmp_path_factory.mktemp("references")
    for name, overrides in (("digits", DIGITS), ("co2", CO2)):
        train(load_config(overrides=overrides), folder / name)
    return {name: folder / name for name in ("digits", "co2")}


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_an_epoch(tmp_path: Path, references: dict[str, Path]) -> None:
    run = tmp_path / "run"
    code, output = stopped(run, DIGITS, signal.SIGINT, stop_step=14)
    assert code == 3
    assert output == f"Stopped at step 14 of 22. Go on with it by --resume --run-dir {run}.\n"
    assert load_checkpoint(run / "checkpoints/last.safetensors").state["position"]["step"] == 14
    assert not (run / "summary.json").exists()
    resumed_elsewhere(run)
    assert_same(run, references["digits"])


@pytest.mark.slow
def test_a_kill_in_the_middle_of_an_epoch(tmp_path: Path, references: dict[str, Path]) -> None:
    run = tmp_path / "run"
    code, _ = stopped(run, CO2, signal.SIGKILL, stop_step=15)
    assert code == -signal.SIGKILL
    assert load_checkpoint(run / "checkpoints/last.safetensors").state["position"]["step"] == 11
    train(None, run, resume=True)
    assert_same(run, references["co2"])


@pytest.mark.slow
def test_a_kill_before_the_first_checkpoint(tmp_path: Path, references: dict[str, Path]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.yaml", "env.json", "data.json"):
        shutil.copy(references["co2"] / name, run)
    train(None, run, resume=True)
    assert_same(run, references["co2"])


def test_a_kill_between_a_line_of_figures_and_its_checkpoint(tmp_path: Path, references: dict[str, Path]) -> None:
    run = tmp_path / "run"
    with pytest.raises(InterruptedRun):
        train(load_config(overrides=DIGITS), run, progress=StopEvery(12))
    for name in ("metrics.jsonl", "checkpoints/best.safetensors"):
        shutil.copy(references["digits"] / name, run / name)
    train(None, run, resume=True)
    assert_same(run, references["digits"])


class StopEvery:
    """Raises a signal after so many reports, wherever in an epoch that is."""

    def __init__(self, steps: int, number: signal.Signals = signal.SIGINT) -> None:
        self.steps = steps
        self.number = number
        self.seen = 0

    def __call__(self, progress: Progress) -> None:
        self.seen += 1
        if self.seen == self.steps:
            signal.raise_signal(self.number)


# 9 reports end with an epoch's last step, 10 with its validation.
@pytest.mark.parametrize("steps", [4, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (9, 10))])
def test_stopping_again_and_again(steps: int, tmp_path: Path, references: dict[str, Path]) -> None:
    run = tmp_path / "run"
    config = load_config(overrides=DIGITS)
    for attempt in range(9):
        try:
            train(config, run, resume=attempt > 0, progress=StopEvery(steps, signal.SIGTERM))
        except InterruptedRun:
            continue
        break
    assert attempt >= 2
    assert_same(run, references["digits"])


@pytest.mark.slow
def test_a_longer_run_equals_one_that_was_long_from_the_start(tmp_path: Path) -> None:
    shared = [*DIGITS, "training.schedule=step", "training.step_epochs=1"]
    train(load_config(overrides=[*shared, "training.max_steps=13"]), tmp_path / "grown")
    longer = load_config(tmp_path / "grown/config.yaml", ["training.max_steps=22"])
    train(longer, tmp_path / "grown", resume=True)
    train(load_config(overrides=shared), tmp_path / "whole")
    assert_same(tmp_path / "grown", tmp_path / "whole")


@pytest.mark.slow
def test_a_run_is_resumed_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ["ds,y", *(f"{step},{step % 7}" for step in range(80))]
    Path("series.csv").write_text("\n".join(rows))
    shared = ["data.source=series.csv", "task.horizon=2", "model.cell=rnn", "training.schedule=constant", *TINY]
    train(load_config(overrides=[*shared, "training.max_steps=1"]), "run")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    Path("series.csv").write_text("ds,y\n1,1\n")
    assert train(None, "../run", resume=True)["steps"] == 1
    longer = load_config(overrides=[*shared, "training.max_steps=2"])
    assert train(longer, "../run", resume=True)["steps"] == 2
    assert load_config(Path("../run/config.yaml")).data.source == "series.csv"


WITH_MEMORY = {
    "dtriv": {"rebase": 4, "project": 2},
    "fc_urnn": {"rebase": 3},
    "fastgrnn": {"recurrent_kept": 0.3},
    "noisy_rnn": {},
}
"""Cells that carry buffers from step to step, change with the length of the run or draw noise."""


@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=[] if cell == "dtriv" else pytest.mark.slow) for cell in WITH_MEMORY]
)
def test_cells_that_remember_their_training_resume_to_the_last_bit(tmp_path: Path, cell: str) -> None:
    options = [f"model.cell_options.{name}={value}" for name, value in WITH_MEMORY[cell].items()]
    shared = [f"model.cell={cell}", "data.source=digits", "training.batch_size=128", "training.max_steps=18"]
    config = load_config(overrides=[*shared, *options, *TINY])
    train(config, tmp_path / "reference")
    with pytest.raises(InterruptedRun):
        train(config, tmp_path / "run", progress=StopEvery(11))
    train(None, tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tmp_path / "reference")


def test_the_data_cannot_change(tmp_path: Path) -> None:
    rows = ["unique_id,ds,y", *(f"a,{step},{step % 7}" for step in range(80))]
    source = tmp_path / "series.csv"
    source.write_text("\n".join(rows))
    config = load_config(
        overrides=[f"data.source={source}", "task.horizon=2", "model.cell=rnn", "training.max_steps=1", *TINY]
    )
    train(config, tmp_path / "run")
    source.write_text("\n".join([*rows[:-1], "a,79,100"]))
    with pytest.raises(DataError, match=r"'series\.csv' has changed"):
        train(None, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("training.max_steps=30", "The schedule 'one-cycle'"), ("model.hidden_size=7", r"'model\.hidden_size' was 6")],
)
def test_settings_that_cannot_change(references: dict[str, Path], setting: str, reason: str) -> None:
    config = load_config(references["digits"] / "config.yaml", [setting])
    with pytest.raises(ConfigError, match=reason):
        train(config, references["digits"], resume=True)


def test_nothing_to_resume(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, f"no run to resume in '{tmp_path}'"), (None, "--run-dir")):
        with pytest.raises(ConfigError, match=reason):
            train(None, path, resume=True)


def test_the_callers_torch_is_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    # Two threads that wait for each other take processor time, so that the data is tiny.
    (tmp_path / "series.csv").write_text("\n".join(["ds,y", *(f"{step},{step % 7}" for step in range(80))]))
    overrides = [f"data.source={tmp_path / 'series.csv'}", "task.horizon=2", "model.cell=rnn", "training.max_steps=1"]
    train(load_config(overrides=[*overrides, *TINY, "training.threads=2"]), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
