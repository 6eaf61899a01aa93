"""The kernel of diagonal recurrences computes what chunks of time compute: on a GPU, or in the interpreter."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import stablernn as srn
from stablernn.buffers import BufferPool
from stablernn.engines import scan
from stablernn.engines.scan import LinearScan
from stablernn.engines.triton import plan

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed: pip install -e '.[gpu]' in the checkout"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {torch.float32: 2e-6, torch.float64: 1e-13}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def with_kernel(monkeypatch: pytest.MonkeyPatch, *, runs: bool) -> None:
    monkeypatch.setattr(scan, "has_kernel", lambda tensor: runs)


def gradients(decay: Tensor, increment: Tensor, first: Tensor, *, reverse: bool) -> list[Tensor]:
    """The states and the gradients by all arguments."""
    leaves = [tensor.clone().requires_grad_() for tensor in (decay, increment, first)]
    states: Tensor = LinearScan.apply(BufferPool(), *leaves, reverse)  # type: ignore[no-untyped-call]
    weights = torch.linspace(-1, 1, states.numel()).to(states).view_as(states)
    return [states, *torch.autograd.grad((weights * states.square()).sum(), leaves)]


def assert_equal(results: list[Tensor], expected: list[Tensor]) -> None:
    for result, reference in zip(results, expected, strict=True):
        assert result.dtype == reference.dtype
        largest = max(1.0, float(reference.detach().abs().max()))
        torch.testing.assert_close(result, reference, rtol=0, atol=TOLERANCES[result.dtype] * largest)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["complex", "real", "gated"])
@pytest.mark.parametrize(
    ("time", "batch", "units"),
    [(9, 2, 67), pytest.param(1, 1, 1, marks=pytest.mark.slow), pytest.param(5, 3, 7, marks=pytest.mark.slow)],
)
def test_equals_chunks_of_time(
    time: int, batch: int, units: int, kind: str, reverse: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(time)
    parts = 2 if kind == "complex" else 1
    shape = (time, batch, 1, units) if kind == "gated" else (parts, units)
    decay = (torch.rand(shape, dtype=dtype, device=DEVICE) - 0.2) * 0.9
    # As the engine passes it on: time first, of a tensor whose batch is first.
    increment = torch.randn(batch, time, parts, units, dtype=dtype, device=DEVICE).transpose(0, 1)
    first = torch.randn(batch, parts, units, dtype=dtype, device=DEVICE)
    with_kernel(monkeypatch, runs=False)
    expected = gradients(decay, increment, first, reverse=reverse)
    with_kernel(monkeypatch, runs=True)
    assert_equal(gradients(decay, increment, first, reverse=reverse), expected)


@pytest.mark.parametrize("kind", ["sum", "last", "transposed"])
def test_gradients_may_have_any_strides(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a sum is one number in memory."""
    torch.manual_seed(0)
    shape = (5, 3, 2, 7)
    leaves = [torch.rand(*size, device=DEVICE).requires_grad_() for size in (shape[2:], shape, shape[1:])]

    def differentiate() -> list[Tensor]:
        states: Tensor = LinearScan.apply(BufferPool(), *leaves, False)  # type: ignore[no-untyped-call]
        if kind == "transposed":
            weights = torch.linspace(-1, 1, states.numel(), device=DEVICE).view(shape[::-1]).permute(3, 2, 1, 0)
            return list(torch.autograd.grad(states, leaves, weights))
        return list(torch.autograd.grad((states if kind == "sum" else states[-1]).sum(), leaves))

    with_kernel(monkeypatch, runs=False)
    expected = differentiate()
    with_kernel(monkeypatch, runs=True)
    assert_equal(differentiate(), expected)


@pytest.mark.parametrize("key", ["lru", "mingru", "minlstm"])
def test_cells_equal_the_loop(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    with_kernel(monkeypatch, runs=True)
    rnn = srn.StableRNN(key, 3, 5, 2).to(DEVICE)
    x, lengths = torch.randn(4, 11, 3, device=DEVICE), torch.tensor([11, 4, 0, 7], device=DEVICE)
    # The inputs of gates would be part of another kernel, of the CPU.
    monkeypatch.setattr(scan, "_GATES", {})
    results: dict[str, list[Tensor]] = {}
    for engine in ("loop", "scan"):
        rnn.engine = engine
        output, last = rnn(x, lengths=lengths)
        loss = output.square().sum() + sum(part.pow(3).sum() for part in (last if isinstance(last, tuple) else [last]))
        results[engine] = [output, *torch.autograd.grad(loss, list(rnn.parameters()))]
    for result, reference in zip(results["scan"], results["loop"], strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-5)


def test_second_derivatives_equal_those_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    decay, first = torch.rand(2, 4, dtype=torch.float64), torch.randn(2, 2, 4, dtype=torch.float64)
    arguments = [tensor.to(DEVICE).requires_grad_() for tensor in (decay, torch.randn(6, *first.shape).double(), first)]

    def curvature() -> list[Tensor]:
        states: Tensor = LinearScan.apply(BufferPool(), *arguments, False)  # type: ignore[no-untyped-call]
        grads = torch.autograd.grad(states.pow(3).sum(), arguments, create_graph=True)
        loss = torch.stack([grad.square().sum() for grad in grads]).sum()
        return list(torch.autograd.grad(loss, arguments))

    with_kernel(monkeypatch, runs=False)
    expected = curvature()
    with_kernel(monkeypatch, runs=True)
    for result, reference in zip(curvature(), expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("compiler", "found", "logged"), [(None, True, 0), (None, False, 1), ("cc", False, 0)])
def test_without_a_c_compiler_other_engines_run(
    compiler: str | None,
    found: bool,
    logged: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("CC", raising=False)
    if compiler is not None:
        monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if found else None)
    plan._can_compile.cache_clear()
    try:
        results = [plan._can_compile() for _ in range(2)]
    finally:
        plan._can_compile.cache_clear()
    assert results == [found or compiler is not None] * 2
    assert [record.message.startswith("Triton needs a C compiler") for record in caplog.records] == [True] * logged


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_gpu_takes_the_kernel_where_no_mode_is_active() -> None:
    x = torch.zeros(1, device="cuda")
    assert scan.has_kernel(x)
    assert not scan.has_kernel(x.cpu())
    assert not scan.has_kernel(x[:0])
    with FlopCounterMode(display=False):
        assert not scan.has_kernel(x)
