"""Data-parallel training: several processes on shares of each minibatch train what one process trains."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stablernn.errors import ConfigError, DataError, TrainingError
from stablernn.estimators import StableClassifier
from stablernn.training import load_config, train
from stablernn.training.jobs.locks import JobLocks
from stablernn.training.jobs.processes import run_jobs
from stablernn.training.loop.checkpoint import load_checkpoint
from stablernn.training.loop.launch import Launch, read_launch
from stablernn.training.loop.process_group import ProcessGroup, open_group
from stablernn.training.several_processes import check_processes
from torchrun_cases import CASES, classification, run_case

SCRIPT = Path(__file__).parents[1] / "support/torchrun_cases.py"
RUN = [
    "--data", "digits", "--cell", "lipschitz", "--hidden-size", "16", "--epochs", "8", "--device", "cpu",
    "--set", "training.plots=false", "--set", "training.keep_epochs=true",
]  # fmt: skip
STEPS = 8 * 34
"""Optimizer steps of :data:`RUN`."""


def torchrun(processes: int, *arguments: str) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [sys.executable, *launcher, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(process: subprocess.Popen[str]) -> str:
    """Standard error of a job that must end well."""
    with process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return errors


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights and gradients of all cases by two processes."""
    folder = tmp_path_factory.mktemp("cases")
    finished(torchrun(2, str(SCRIPT), str(folder)))
    return folder


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"own-draws"}))
def test_two_processes_train_what_one_does(shared_cases: Path, name: str) -> None:
    first, second = (load_file(shared_cases / f"{rank}-{name}.safetensors") for rank in (0, 1))
    alone = run_case(name)
    assert first.keys() == second.keys() == alone.keys()
    assert any(key.startswith("gradient.") for key in alone)
    for key, tensor in alone.items():
        # Both processes take the same step to the last bit, whatever a hook does with the parameters.
        assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(first[key], tensor, rtol=0, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}")


def test_dropout_between_layers_and_noise_leave_both_processes_equal(shared_cases: Path) -> None:
    first, second = (load_file(shared_cases / f"{rank}-own-draws.safetensors") for rank in (0, 1))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(tensor, first[key]) for key, tensor in run_case("own-draws").items())


@pytest.mark.parametrize("name", ["dtriv", "nais_net", "fastgrnn", "certified", "certified-lstm"])
def test_the_hooks_of_the_cases_have_changed_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = run_case(name)
    monkeypatch.setattr("stablernn.nn.models._base.SequenceModel.after_step", lambda *_: None)
    monkeypatch.setattr("stablernn.training.loop.trainer.project_model", lambda *_: None)
    plain = run_case(name)
    assert any(not torch.equal(tensor, plain[key]) for key, tensor in hooked.items())


def test_a_single_process_takes_whole_batches() -> None:
    group = ProcessGroup()
    parameter = torch.nn.Parameter(torch.ones(2))
    assert group.is_alone
    assert group.is_main
    assert group.sum_gradients([parameter], 0.5) == 0.5
    assert parameter.grad is None
    assert group.vote(True, False) == (True, False)
    assert group.gather(3) == [3]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_row_goes_to_one_process(size: int) -> None:
    groups = [ProcessGroup(Launch(rank, size)) for rank in range(size)]
    for total in range(1, 8):
        rows = [row for group in groups if not group.is_spare(total) for row in range(total)[group.rows(total)]]
        assert sorted(rows) == list(range(total))


# --- runs ------------------------------------------------------------------------------------------------------------


def scores(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["validation"] | {"step": line["step"], "loss": line["train_loss"]} for line in lines]


def assert_equal_runs(run: Path, other: Path) -> None:
    """The same figures in every epoch, to the rounding of sums in another order over hundreds of steps."""
    for line, expected in zip(scores(run), scores(other), strict=True):
        assert line == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert json.loads((run / "summary.json").read_text())["steps"] == STEPS


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    command = [sys.executable, "-m", "stablernn_cli", "train", *RUN, "--run-dir", str(run)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return run


def children(process: subprocess.Popen[str]) -> Iterator[int]:
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def rank_of(child: int) -> str:
    variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    return next((entry[5:].decode() for entry in variables if entry.startswith(b"RANK=")), "")


def wait_for_epoch(process: subprocess.Popen[str], epoch: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"epoch {epoch}/"):
            return
    pytest.fail("the job ended before the epoch")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_killed_process_ends_the_job_and_any_number_goes_on(tmp_path: Path, whole_run: Path, rank: str) -> None:
    run = tmp_path / "run"
    with torchrun(2, "-m", "stablernn_cli", "train", *RUN, "--run-dir", str(run)) as process:
        wait_for_epoch(process, 2)
        (victim,) = (child for child in children(process) if rank_of(child) == rank)
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - killed < 10
        assert process.returncode != 0
    assert "bug in stablernn" not in errors
    assert load_checkpoint(run / "checkpoints/last.safetensors").state["position"]["epoch"] >= 1
    for processes in (1, 2, 3) if rank == "1" else (2,):
        copy = tmp_path / f"resumed-{processes}"
        shutil.copytree(run, copy)
        finished(torchrun(processes, "-m", "stablernn_cli", "train", "--resume", "--run-dir", str(copy)))
        assert_equal_runs(copy, whole_run)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_processes_at_the_same_step(tmp_path: Path, whole_run: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    with torchrun(2, "-m", "stablernn_cli", "train", *RUN, "--run-dir", str(run)) as process:
        wait_for_epoch(process, 2)
        process.send_signal(number)
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 10
    step = load_checkpoint(run / "checkpoints/last.safetensors").state["position"]["step"]
    assert errors.count(f"Stopped at step {step} of {STEPS}.") == 2, errors
    assert 2 * 34 <= step < STEPS
    finished(torchrun(2, "-m", "stablernn_cli", "train", "--resume", "--run-dir", str(run)))
    assert_equal_runs(run, whole_run)


@pytest.mark.slow
def test_only_the_first_process_prints_and_writes(tmp_path: Path, whole_run: Path) -> None:
    run = tmp_path / "run"
    process = torchrun(3, "-m", "stablernn_cli", "train", *RUN, "--run-dir", str(run), "--json")
    with process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    # One document, and one line of each epoch.
    assert json.loads(output)["steps"] == STEPS
    assert errors.count("epoch 8/8") == 1
    assert {path.name for path in run.rglob("*")} == {path.name for path in whole_run.rglob("*")}
    assert_equal_runs(run, whole_run)


@pytest.mark.slow
def test_a_machine_with_another_run_of_the_same_name_takes_the_weights_of_the_first(
    tmp_path: Path, whole_run: Path
) -> None:
    # Two machines that share no directory: on the second, the path is that of a run that is done.
    shutil.copytree(whole_run, tmp_path / "1/runs/digits-lipschitz-1")
    (tmp_path / "0").mkdir()
    script = tmp_path / "machine.py"
    script.write_text(
        "import os, sys\nfrom stablernn_cli.main import main\n"
        f"os.chdir({str(tmp_path)!r} + '/' + os.environ['RANK'])\nmain(sys.argv[1:])\n"
    )
    finished(torchrun(2, str(script), "train", *RUN))
    assert_equal_runs(tmp_path / "0/runs/digits-lipschitz-1", whole_run)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.fixture
def as_second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("as_second_of_two")
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.cell=auto", r"The search for a cell \(--cell auto\) takes one process, and torchrun has started 2\."),
        (
            "training.method=closed-form",
            r"training\.method=closed-form takes one process, .* run it without torchrun\.",
        ),
    ],
)
def test_settings_of_one_process_are_refused_before_anything_is_written(
    tmp_path: Path, override: str, sentence: str
) -> None:
    overrides = ["data.source=digits", "model.cell=rnn", override]
    with pytest.raises(ConfigError, match=sentence):
        train(load_config(overrides=overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("as_second_of_two")
def test_work_that_starts_its_own_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"A series of jobs takes one process, and torchrun has started 2\."):
        run_jobs([], 1, JobLocks(tmp_path), lambda job: None)
    with pytest.raises(ConfigError, match=r"An estimator takes one process, and torchrun has started 2\."):
        StableClassifier(cell="rnn").fit([[[0.0], [1.0]]] * 4, [0, 1, 0, 1])


@pytest.mark.usefixtures("as_second_of_two")
def test_a_variable_that_torchrun_would_set_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_launch() == Launch(1, 2, 1)
    monkeypatch.delenv("RANK")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=2 says that 2 processes train one model, and RANK is not set\."):
        read_launch()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE must be a whole number, got 'two'\."):
        read_launch()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert read_launch() == Launch()


class Everyone(ProcessGroup):
    """Two processes, of which the second answers ``other``."""

    def __init__(self, other: Any) -> None:
        super().__init__(Launch(0, 2, 0))
        self._other = other

    def gather(self, value: Any) -> list[Any]:
        return [value, self._other]


def test_processes_with_other_data_or_settings_are_refused() -> None:
    config = load_config(overrides=["data.source=toy", "model.cell=rnn", "model.engine=loop", "training.batch_size=8"])
    data, cpu = classification(), torch.device("cpu")
    own = config.by_key()
    with pytest.raises(DataError, match=r"Process 1 has read other data than process 0"):
        check_processes(Everyone(("sha256:1", "cpu", own)), config, data, cpu)
    with pytest.raises(ConfigError, match=r"Process 1 trains on cuda and process 0 on cpu\."):
        check_processes(Everyone(("sha256:0", "cuda", own)), config, data, cpu)
    with pytest.raises(ConfigError, match=r"'model\.engine' is 'fused' in process 1 and 'loop' in process 0\."):
        check_processes(Everyone(("sha256:0", "cpu", own | {"model.engine": "fused"})), config, data, cpu)
    check_processes(Everyone(("sha256:0", "cpu", own)), config, data, cpu)


def test_a_minibatch_has_a_row_for_each_process() -> None:
    config = load_config(overrides=["data.source=toy", "model.cell=rnn", "training.batch_size=1"])
    with pytest.raises(ConfigError, match=r"2 processes cannot share minibatches of 1\. Start at most 1, or"):
        check_processes(Everyone(()), config, classification(), torch.device("cpu"))


def test_recorded_graphs_of_a_gpu_are_refused() -> None:
    config = load_config(overrides=["data.source=toy", "model.cell=rnn", "model.engine=cuda-graph"])
    with pytest.raises(ConfigError, match=r"Take --engine loop"):
        check_processes(Everyone(()), config, classification(), torch.device("cuda"))


class Relayed(ProcessGroup):
    """One of two processes, with the messages of the first in a list that both have."""

    def __init__(self, rank: int, messages: list[Any]) -> None:
        super().__init__(Launch(rank, 2, rank))
        self._messages = messages

    def _broadcast(self, value: Any, source: int) -> Any:
        if self.rank == source:
            self._messages.append(value)
        return self._messages[-1]


def test_an_error_in_the_first_process_is_that_of_all() -> None:
    def fail() -> int:
        raise DataError("The file has changed.", settings={"data.source": "a"})

    messages: list[Any] = []
    for rank in (0, 1):
        with pytest.raises(DataError, match=r"^The file has changed\.$"):
            Relayed(rank, messages).from_main(fail)
    assert [Relayed(rank, messages).from_main(lambda: 3) for rank in (0, 1)] == [3, 3]


def test_a_port_that_another_program_has_is_an_error_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with (
            pytest.raises(TrainingError, match=r"^Process 0 of 2 cannot connect to the others at 127\.0\.0\.1:"),
            open_group(Launch(0, 2, 0), torch.device("cpu")),
        ):
            pass


def test_a_group_of_the_program_must_be_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    with (
        pytest.raises(ConfigError, match=r"rank 1 of 2, and the environment as rank 0 of 1\."),
        open_group(Launch(), torch.device("cpu")),
    ):
        pass
    with open_group(Launch(1, 2, 1), torch.device("cpu")) as group:
        assert group.size == 2


def test_a_lost_process_is_an_error_with_a_sentence() -> None:
    group = ProcessGroup(Launch(1, 2, 1))

    def fail(tensor: torch.Tensor) -> None:
        raise RuntimeError(
            "[/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer. This is typically caused by a remote "
            "worker crashing. Check the logs of the remote worker.\nstack"
        )

    with pytest.raises(
        TrainingError, match=r"^Process 1 of 2 lost the connection to another one \(Connection closed by peer\)\."
    ):
        group._run(fail, torch.zeros(1))
