from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from stablernn.atomic_files import write_bytes
from stablernn.errors import CheckpointError
from stablernn.training.loop.checkpoint import (
    Checkpoint,
    load_checkpoint,
    optimizer_state,
    restore_optimizer,
    save_checkpoint,
)

STATE = {"step": 3, "lr": 0.1 + 0.2, "best": None, "groups": [{"betas": [0.9, 0.999], "foreach": None}]}


def test_everything_comes_back_exactly(tmp_path: Path) -> None:
    tensors = {
        "model.w": torch.randn(3, 2).t(),
        "optimizer.0.step": torch.tensor(7.0),
        "random.cpu": torch.get_rng_state(),
    }
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, Checkpoint(tensors, STATE))
    got = load_checkpoint(path)
    assert got.state == STATE
    assert {name: (value.dtype, value.tolist()) for name, value in got.tensors.items()} == {
        name: (value.dtype, value.tolist()) for name, value in tensors.items()
    }
    assert list(got.group("model")) == ["w"]


@pytest.mark.parametrize("size", [0, 5, 60], ids=lambda n: f"{n} bytes")
def test_cut_off(size: int, tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, Checkpoint({"model.w": torch.zeros(9)}, STATE))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=f"^The checkpoint '{path}' is damaged: .*\\.$"):
        load_checkpoint(path)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    path = tmp_path / "last.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
    assert not (tmp_path / "sprung").exists()


def test_a_full_disk_is_one_sentence_and_keeps_the_old_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="file size limits need POSIX")
    path = tmp_path / "file"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(CheckpointError) as caught:
            write_bytes(path, b"n" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert str(caught.value) == f"Cannot write '{path}': File too large."
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == {"file": b"old"}


@pytest.mark.parametrize("kind", [Adam, AdamW, SGD])
def test_an_optimizer_goes_on_by_other_kernels(kind: type[Adam | AdamW | SGD]) -> None:
    """A run from a GPU, where one kernel updates all parameters, goes on where the optimizer has none, and back."""
    weights, target = torch.randn(3, 4), torch.randn(4)

    def build(is_fused: bool | None) -> tuple[Parameter, Optimizer]:
        parameter = Parameter(weights.clone())
        return parameter, kind([parameter], lr=0.01, fused=is_fused)

    def step(parameter: Parameter, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        (parameter - target).square().sum().backward()
        optimizer.step()

    for first, second in ((True, None), (None, True)):
        parameter, optimizer = build(first)
        reference, reference_optimizer = build(None)
        other, other_optimizer = build(second)
        for _ in range(3):
            step(parameter, optimizer)
            step(reference, reference_optimizer)
        tensors, state = optimizer_state(optimizer)
        with torch.no_grad():
            other.copy_(parameter)
        restore_optimizer(other_optimizer, tensors, state)
        assert other_optimizer.param_groups[0]["fused"] is second
        for _ in range(3):
            step(other, other_optimizer)
            step(reference, reference_optimizer)
        torch.testing.assert_close(other, reference)
