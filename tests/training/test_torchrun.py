"""Data-parallel training: several processes on shares of each minibatch train what one process trains."""

from __future__ import annotations

import math
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stablernn.errors import ConfigError, DataError, TrainingError
from stablernn.estimators import StableClassifier
from stablernn.training import load_config, train
from stablernn.training.jobs import AbandonedJob, JobLocks, run_jobs
from stablernn.training.loop.launch import Launch, read_launch
from stablernn.training.loop.process_group import ProcessGroup, open_group, wait_for_processes
from stablernn.training.train_model import check_processes
from torchrun_cases import CASES, classification, run_case
from torchrun_helpers import finished, torchrun

SCRIPT = Path(__file__).parents[1] / "support/training/torchrun_cases.py"


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights and gradients of all cases by two processes."""
    folder = tmp_path_factory.mktemp("cases")
    finished(torchrun(2, str(SCRIPT), str(folder)))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"rank-rng"}))
def test_two_processes_train_what_one_does(shared_cases: Path, name: str) -> None:
    first, second = (load_file(shared_cases / f"{rank}-{name}.safetensors") for rank in (0, 1))
    alone = run_case(name)
    assert first.keys() == second.keys() == alone.keys()
    gradients = [tensor for key, tensor in alone.items() if key.startswith("gradient.")]
    # Otherwise the tolerance would hide mistakes.
    assert max(float(gradient.abs().max()) for gradient in gradients) > 1e-3
    assert all(tensor.dtype == torch.float64 for tensor in alone.values() if tensor.is_floating_point())
    for key, tensor in alone.items():
        # Both processes take the same step to the last bit, whatever a hook does with the parameters.
        assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(first[key], tensor, rtol=0, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_row_goes_to_one_process(size: int) -> None:
    groups = [ProcessGroup(Launch(rank, size)) for rank in range(size)]
    for total in range(1, 8):
        rows = [
            row for group in groups if not group.is_shard_empty(total) for row in range(total)[group.shard_rows(total)]
        ]
        assert sorted(rows) == list(range(total))


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
        ("model.cell=rocket", r"training\.method=closed-form takes one process"),
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

    def all_gather(self, value: Any) -> list[Any]:
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


class Relayed(ProcessGroup):
    """One of two processes, with the messages of the first in a list that both have."""

    def __init__(self, rank: int, messages: list[bytes]) -> None:
        super().__init__(Launch(rank, 2, rank))
        self._messages = messages
        self._read = 0

    def _broadcast_bytes(self, content: bytes, src: int) -> bytes:
        if self.rank == src:
            self._messages.append(content)
            self._read = len(self._messages)
            return content
        self._read += 1
        return self._messages[self._read - 1]


class Recorded(ProcessGroup):
    """One of three processes, of which each stores what it sends before any receives it."""

    def __init__(self, rank: int, contents: list[bytes]) -> None:
        super().__init__(Launch(rank, 3, rank))
        self._contents = contents

    def _all_gather_bytes(self, content: bytes) -> list[bytes]:
        if len(self._contents) < self.world_size:
            self._contents.append(content)
            return []
        return self._contents


def test_an_error_in_the_first_process_is_that_of_all() -> None:
    def fail() -> int:
        raise DataError("The file has changed.", settings={"data.source": "a"})

    messages: list[bytes] = []
    for rank in (0, 1):
        with pytest.raises(DataError, match=r"^The file has changed\.$"):
            Relayed(rank, messages).run_on_rank_zero(fail)
    values: list[bytes] = []
    assert [Relayed(rank, values).run_on_rank_zero(lambda: {"loss": math.nan}) for rank in (0, 1)] == [
        {"loss": pytest.approx(math.nan, nan_ok=True)}
    ] * 2


def test_an_error_of_another_module_is_one_of_its_public_base_class_elsewhere() -> None:
    def fail() -> int:
        raise AbandonedJob("Too many processes died.")

    messages: list[bytes] = []
    with pytest.raises(AbandonedJob):
        Relayed(0, messages).run_on_rank_zero(fail)
    with pytest.raises(TrainingError, match=r"^Too many processes died\.$") as caught:
        Relayed(1, messages).run_on_rank_zero(fail)
    assert type(caught.value) is TrainingError


def test_states_are_gathered_in_the_order_of_the_batch() -> None:
    states = (torch.arange(10.0).reshape(5, 2), torch.arange(5, dtype=torch.float64).reshape(5, 1))
    contents: list[bytes] = []
    groups = [Recorded(rank, contents) for rank in range(3)]
    for group in groups:
        group.all_gather_states(group.shard_states(states))
    for group in groups:
        whole = group.all_gather_states(group.shard_states(states))
        assert whole is not None
        assert all(torch.equal(state, expected) for state, expected in zip(whole, states, strict=True))


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


def test_processes_that_do_not_come_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("STABLERNN_RENDEZVOUS_SECONDS", "2")
    monkeypatch.setattr("stablernn.training.loop.process_group._REPORT_SECONDS", 0.5)
    with ThreadPoolExecutor() as threads:
        starts = [threads.submit(wait_for_processes, Launch(rank, 5, rank)) for rank in (0, 3)]
    for rank, start in zip((0, 3), starts, strict=True):
        with pytest.raises(
            TrainingError,
            match=rf"^Process {rank} of 5 waited 2 s at 127\.0\.0\.1:\d+ for processes 1, 2, 4\. Connected: 0, 3\.",
        ):
            start.result()
    assert all(
        message.startswith("Waiting for processes 1, 2, 4 of 5, at most another ") for message in caplog.messages
    )
    # The first process alone says so.
    assert len({record.thread for record in caplog.records}) == 1
