"""The engine ``triton`` computes what the loop computes in float64: on a GPU, or in the interpreter."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from engine_runs import assert_near, perturbed
from stablernn.cells._step_form import StepForm
from stablernn.engines import base, check_engine, list_engines, select_engine
from stablernn.engines.triton import engine as triton_engine
from stablernn.engines.triton import plan
from stablernn.errors import ConfigError
from stablernn.nn.ensemble import Ensemble
from step_forms import CELLS

HAS_TRITON = find_spec("triton") is not None
needs_triton = pytest.mark.skipif(
    not HAS_TRITON, reason="triton is not installed: pip install -e '.[gpu]' in the checkout"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {"triton": 5e-6, "triton-tf32": 5e-3 if DEVICE == "cuda" else 5e-6, "triton-bf16": 5e-2}
"""Largest difference from the loop in float64, by the largest entry of a tensor; the interpreter has no tf32."""


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the matrices be read in tiles, as those of many units are."""
    monkeypatch.setattr(plan, "MAX_RESIDENT", {"ieee": 0, "tf32": 0, "bf16": 0})
    plan.make_plan.cache_clear()
    yield
    plan.make_plan.cache_clear()


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan() -> Iterator[None]:
    """Let torch fill new memory with NaN, so that a read of what no kernel wrote shows."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    yield
    torch.set_deterministic_debug_mode(before)


def run(
    rnn: srn.StableRNN,
    engine: str,
    x: Tensor,
    lengths: list[int] | None = None,
    dt: Tensor | None = None,
    *,
    every_output: bool = True,
) -> list[Tensor]:
    """Outputs, last states and all gradients, in float64; the loop computes in it."""
    dtype = torch.float64 if engine == "loop" else torch.float32
    device = "cpu" if engine == "loop" else DEVICE
    rnn = copy.deepcopy(rnn).to(device, dtype)
    rnn.engine = engine
    x = x.to(device, dtype).requires_grad_()
    state = tuple(
        torch.linspace(-0.5, 0.5, x.shape[0] * size, dtype=dtype, device=device).view(-1, size).requires_grad_()
        for cell in rnn.cells
        for size in cell.state_sizes
    )
    outputs, last = rnn.run(
        x,
        state,
        None if lengths is None else torch.tensor(lengths, device=device),
        None if dt is None else dt.to(device, dtype),
        every_output=every_output,
    )
    loss = torch.stack([tensor.square().sum() for tensor in last]).sum()
    if every_output:
        assert outputs is not None
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=dtype, device=device)
        loss = loss + (outputs * weights.view_as(outputs)).sum()
    gradients = torch.autograd.grad(loss, [x, *state, *rnn.parameters()], materialize_grads=True)
    results = [*last, *gradients] if outputs is None else [outputs, *last, *gradients]
    return [tensor.detach().cpu().double() for tensor in results]


def check(
    key: str,
    hidden: int,
    batch: int,
    time: int,
    lengths: list[int] | None = None,
    *,
    engine: str = "triton",
    dt: Tensor | None = None,
    layers: int = 1,
    every_output: bool = True,
    **options: Any,
) -> None:
    rnn = perturbed(srn.StableRNN(key, 2, hidden, num_layers=layers, **options))
    x = torch.randn(batch, time, 2)
    expected = run(rnn, "loop", x, lengths, dt, every_output=every_output)
    actual = run(rnn, engine, x, lengths, dt, every_output=every_output)
    assert_near(actual, expected, TOLERANCES[engine])


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


# The kernels.

FAMILIES = {"plain": "rnn", "residual": "antisymmetric", "linear": "lipschitz", "two-stage": "lipschitz_rk2"}
KEYS = [*FAMILIES.values(), "antisymmetric_g"]
"""A cell of each kind of kernel."""


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("key", CELLS)
def test_every_cell(key: str) -> None:
    check(key, 3, 2, 2, [2, 1])


@needs_triton
@pytest.mark.parametrize(
    ("hidden", "batch", "time", "lengths"),
    [
        (3, 5, 9, [3, 9, 0, 5, 1]),
        slow(3, 5, 9, [0, 0, 0, 0, 0]),
        slow(3, 5, 9, [9, 9, 2, 2, 9]),
        slow(3, 1, 9, None),
        slow(17, 5, 2, None),
        slow(33, 19, 1, None),
        slow(1, 1, 1, None),
        slow(16, 3, 2, None),
    ],
)
@pytest.mark.parametrize("key", KEYS)
def test_every_shape(key: str, hidden: int, batch: int, time: int, lengths: list[int] | None) -> None:
    check(key, hidden, batch, time, lengths)


@needs_triton
@pytest.mark.parametrize("engine", ["triton", slow("triton-tf32")])
@pytest.mark.parametrize("lengths", [slow(None), [3, 0, 1]])
@pytest.mark.parametrize("key", [key for key in KEYS if key != "rnn"])
def test_irregular_steps(key: str, lengths: list[int] | None, engine: str) -> None:
    # Of three sub-steps each.
    check(key, 3, 3, 3, lengths, engine=engine, dt=3 * torch.rand(3, 3), max_dt=3.0)


@needs_triton
@pytest.mark.parametrize("engine", [slow("triton-tf32"), "triton-bf16"])
@pytest.mark.parametrize("lengths", [slow(None), [2, 1, 0] * 6 + [1]])
@pytest.mark.parametrize("key", KEYS)
def test_tiles_of_several_rows(key: str, lengths: list[int] | None, engine: str) -> None:
    # Two tiles, of which the second has three rows.
    check(key, 17, 19, 2, lengths, engine=engine)


@needs_triton
@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("engine", ["triton", slow("triton-tf32"), slow("triton-bf16")])
@pytest.mark.parametrize("key", ["rnn", "lipschitz_rk2", *map(slow, ["antisymmetric", "lipschitz", "antisymmetric_g"])])
def test_matrices_that_are_not_on_chip(key: str, engine: str) -> None:
    check(key, 33, 5, 2, [2, 1, 0, 2, 2], engine=engine)


@pytest.mark.parametrize(
    ("batch", "members", "rows"),
    [(1, 1, 1), (132, 1, 1), (133, 1, 2), (264, 1, 2), (265, 1, 4), (10_000, 1, 4), (33, 4, 1), (34, 4, 2)],
)
def test_each_processor_streams_as_few_rows_as_it_can(
    batch: int, members: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "count_processors", lambda device: 132)
    assert plan.count_streamed_rows(batch, members, torch.device("cuda")) == rows


@needs_triton
@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize(("processors", "rows"), [slow(5, 1), slow(4, 2), (1, 4)])
def test_streamed_matrices_by_few_rows(processors: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "count_processors", lambda device: processors)
    assert plan.count_streamed_rows(5, 1, torch.device(DEVICE)) == rows
    for key in ("antisymmetric_g", "lipschitz_rk2"):
        check(key, 33, 5, 2, [2, 1, 0, 2, 2])


@needs_triton
@pytest.mark.parametrize("nonlinearity", ["relu", "modrelu", slow("tanh"), slow("softshrink")])
def test_every_nonlinearity(nonlinearity: str) -> None:
    check("rnn_orth", 5, 3, 4, [3, 4, 0], nonlinearity=nonlinearity)


@needs_triton
@pytest.mark.parametrize("every_output", [False, True])
@pytest.mark.parametrize("lengths", [slow(None), [3, 1, 0]])
def test_without_gradients(lengths: list[int] | None, every_output: bool) -> None:
    rnn, x = srn.StableRNN("lipschitz", 2, 5).to(DEVICE), torch.randn(3, 3, 2, device=DEVICE)
    sizes = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    with torch.no_grad():
        rnn.engine = "loop"
        expected, (expected_last,) = rnn.run(x, rnn.initial_state(3), sizes)
        rnn.engine = "triton"
        outputs, (last,) = rnn.run(x, rnn.initial_state(3), sizes, every_output=every_output)
    assert_near([last], [expected_last], TOLERANCES["triton"])
    if every_output:
        assert outputs is not None
        assert expected is not None
        assert_near([outputs], [expected], TOLERANCES["triton"])
    else:
        assert outputs is None


@needs_triton
def test_rounding_of_operands_is_the_one_of_the_name() -> None:
    rnn, x = srn.StableRNN("rnn", 2, 17), torch.randn(3, 4, 2)
    perturbed(rnn)
    exact, rounded = run(rnn, "triton", x), run(rnn, "triton-bf16", x)
    assert 1e-4 < float((rounded[0] - exact[0]).abs().max()) < 0.1


@needs_triton
def test_nan_reaches_the_outputs() -> None:
    for nonlinearity in ("tanh", "relu", "modrelu"):
        rnn = srn.StableRNN("rnn_orth", 1, 3, engine="triton", nonlinearity=nonlinearity).to(DEVICE)
        x = torch.tensor([[[0.0], [torch.nan]]], device=DEVICE)
        with torch.no_grad():
            outputs, _ = rnn(x)
        assert outputs[0, 0].isfinite().all()
        assert outputs[0, 1].isnan().all()


@needs_triton
def test_large_arguments_and_small_ones() -> None:
    z = torch.tensor([-1e30, -20.0, -1e-4, 0.0, 1e-6, 0.3, 5.0, 1e30], device=DEVICE)
    form = StepForm("plain", torch.zeros(8, 8, device=DEVICE))
    outputs, _ = triton_engine.TritonEngine().run_form(
        srn.create_cell("rnn", 1, 8), form, z[None, None], z.new_zeros(1, 8), None, None, 1, every_output=True
    )
    torch.testing.assert_close(outputs, torch.tanh(z)[None, None], rtol=3e-7, atol=0)


# Beyond the kernels.


@needs_triton
@pytest.mark.parametrize("key", [slow("rnn"), slow("antisymmetric_g"), "lipschitz_rk2"])
def test_second_derivatives(key: str) -> None:
    rnn, x, lengths = srn.StableRNN(key, 2, 3), torch.randn(3, 4, 2), torch.tensor([4, 2, 0], device=DEVICE)
    perturbed(rnn)
    results = []
    for engine, dtype in (("loop", torch.float64), ("triton", torch.float32)):
        copied = copy.deepcopy(rnn).to(DEVICE, dtype)
        copied.engine = engine
        outputs, last = copied(x.to(DEVICE, dtype), lengths=lengths)
        loss = outputs.square().sum() + last.sum()
        gradients = torch.autograd.grad(loss, list(copied.parameters()), create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        second = torch.autograd.grad(penalty, list(copied.parameters()), materialize_grads=True)
        results.append([tensor.cpu().double() for tensor in second])
    assert_near(results[1], results[0], TOLERANCES["triton"])


@needs_triton
def test_a_gradient_by_the_times() -> None:
    rnn, x = srn.StableRNN("lipschitz", 2, 3).to(DEVICE), torch.randn(2, 3, 2, device=DEVICE)
    gradients = []
    for engine in ("loop", "triton"):
        rnn.engine = engine
        dt = torch.linspace(0, 2, 6, device=DEVICE).view(2, 3).requires_grad_()
        gradients.extend(torch.autograd.grad(rnn(x, dt=dt)[1].square().sum(), dt))
    assert_near([gradients[1]], [gradients[0]], TOLERANCES["triton"])


@needs_triton
@pytest.mark.parametrize("lengths", [slow(None), [2, 0, 1]])
@pytest.mark.parametrize("key", ["rnn", *map(slow, KEYS[1:])])
def test_ensembles(key: str, lengths: list[int] | None) -> None:
    ensemble = perturbed(Ensemble(2, key, 1, 5, 1))
    x, results = torch.randn(3, 2, 1), []
    for engine, dtype in (("loop", torch.float64), ("triton", torch.float32)):
        copied = copy.deepcopy(ensemble).to(DEVICE, dtype)
        copied.use_engine(engine)
        sizes = None if lengths is None else torch.tensor(lengths, device=DEVICE)
        outputs, last = copied.run(x.to(DEVICE, dtype), copied.initial_state(3), sizes)
        assert outputs is not None
        loss = outputs.square().sum() + torch.stack([tensor.sum() for tensor in last]).sum()
        gradients = torch.autograd.grad(loss, list(copied.parameters()), materialize_grads=True)
        results.append([tensor.detach().cpu().double() for tensor in (outputs, *last, *gradients)])
    assert_near(results[1], results[0], TOLERANCES["triton"])


# Where it runs.


@needs_triton
def test_what_it_supports() -> None:
    cell = srn.StableRNN("lipschitz", 2, 3).to(DEVICE).cells[0]
    drive = cell.drive(torch.zeros(1, 4, 2, device=DEVICE))
    assert select_engine("triton", cell, drive).name == "triton"
    assert (select_engine("auto", cell, drive).name == "triton") == (DEVICE == "cuda")
    with pytest.raises(ConfigError, match=r"cannot run the cell 'lipschitz' on \w+ in torch.float64"):
        select_engine("triton", cell, drive.double())
    with pytest.raises(ConfigError, match="cannot run the cell 'gru'"):
        select_engine("triton", srn.create_cell("gru", 2, 3), drive)
    wide = srn.create_cell("rnn", 1, plan.MAX_HIDDEN + 1)
    with pytest.raises(ConfigError, match="cannot run the cell 'rnn'"):
        select_engine("triton", wide, drive)


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_ENGINES", {"loop": base._ENGINES["loop"]})
    monkeypatch.setattr(base, "_MISSING", {})
    monkeypatch.setattr(triton_engine, "find_spec", lambda name: None)
    triton_engine.register_engines()
    assert "triton" not in list_engines()
    with pytest.raises(ConfigError) as error:
        check_engine("triton")
    assert str(error.value) == (
        "The engine 'triton' needs the package triton: pip install -e '.[gpu]' in the checkout, on Linux. Or take "
        "engine='auto'."
    )


# Sizes of the kernels.

H100 = 232_448
A100 = 166_912
"""Bytes of shared memory that a block may take."""


def test_matrices_stay_on_chip_where_they_fit() -> None:
    for limit in (H100, A100):
        for precision, hidden in plan.MAX_RESIDENT.items():
            sizes = plan.make_plan(precision, "plain", hidden, False, is_backward=True, limit=limit)
            assert sizes is not None
            assert sizes.is_resident
            assert sizes.shared_bytes <= limit
    both = plan.make_plan("bf16", "two-stage", 256, True, is_backward=True, limit=H100)
    assert both is not None
    assert not both.is_resident


def test_a_kernel_that_does_not_fit_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan._log_misfit.cache_clear()
    monkeypatch.setattr(plan, "shared_limit", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a small GPU")
    with caplog.at_level(logging.WARNING):
        assert not plan.fits("tf32", 128, torch.device("cuda"))
        assert not plan.fits("tf32", 128, torch.device("cuda"))
    assert [record.getMessage() for record in caplog.records] == [
        "The engine 'triton' cannot run 128 units in tf32 on a small GPU: its kernel needs 25600 bytes of shared "
        "memory, the GPU has 1000 for a block. 'auto' takes the next engine."
    ]
    plan._log_misfit.cache_clear()


@needs_triton
@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter alone runs on the CPU")
def test_auto_takes_the_next_engine_where_a_kernel_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, drive = srn.StableRNN("antisymmetric", 3, 128).cells[0], torch.zeros(1)
    others = select_engine("auto", cell, drive).name
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a small GPU")
    monkeypatch.setitem(base._AUTO_DEVICES, "triton", ("cpu",))
    # `auto` prefers the engine registered last, which on the CPU is another one.
    order = sorted(base._ENGINES, key=lambda name: name == "triton")
    monkeypatch.setattr(base, "_ENGINES", {name: base._ENGINES[name] for name in order})
    assert select_engine("auto", cell, drive).name == "triton"
    monkeypatch.setattr(plan, "shared_limit", lambda device: 1000)
    plan._log_misfit.cache_clear()
    assert select_engine("auto", cell, drive).name == others
    with pytest.raises(ConfigError, match="The engine 'triton' cannot run the cell 'antisymmetric' on cpu"):
        select_engine("triton", cell, drive)
    plan._log_misfit.cache_clear()
