"""The engine ``native`` computes what the loop computes, at any size and on every path of this machine."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from engine_runs import assert_near, perturbed, random_states, results
from stablernn.cells._step_form import StepForm
from stablernn.engines.fused import FusedEngine
from stablernn.errors import ConfigError
from stablernn.nn.ensemble import Ensemble
from step_forms import CELLS, needs_native

pytestmark = needs_native

try:
    from stablernn_native import available_paths
except ImportError:
    PATHS: list[str] = []
else:
    PATHS = available_paths()

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
FAMILIES = {"plain": "rnn", "residual": "antisymmetric", "with A": "lipschitz", "two-stage": "lipschitz_rk2"}
FAMILIES |= {"shared gate": "antisymmetric_g", "modrelu": "scornn", "relu": "identity_rnn"}


def create_rnn(key: str, hidden_size: int, dtype: torch.dtype, **options: Any) -> srn.StableRNN:
    return perturbed(srn.StableRNN(key, 3, hidden_size, **options).to(dtype))


def assert_same(rnn: srn.StableRNN, x: Tensor, lengths: list[int] | None = None, dt: Tensor | None = None) -> None:
    """Compare both engines."""
    state = random_states(rnn, len(x))
    expected = results(rnn, "loop", x, state, lengths, dt)
    assert_near(results(rnn, "native", x, state, lengths, dt), expected, TOLERANCES[x.dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])
@pytest.mark.parametrize(
    ("key", "hidden", "batch", "time"),
    [
        pytest.param(key, *sizes, marks=[] if key in FAMILIES.values() and sizes[0] in (1, 33) else pytest.mark.slow)
        for key in CELLS
        for sizes in [(1, 1, 1), (3, 9, 2), (17, 5, 7), (33, 9, 7), (33, 1, 2)]
    ],
)
def test_odd_sizes(key: str, hidden: int, batch: int, time: int, dtype: torch.dtype) -> None:
    if hidden == 1:
        try:
            create_rnn(key, 1, dtype)
        except (ValueError, ConfigError) as error:
            pytest.skip(f"{key} has no single unit: {error}")
    rnn = create_rnn(key, hidden, dtype)
    assert_same(rnn, torch.randn(batch, time, 3, dtype=dtype))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])
@pytest.mark.parametrize("key", FAMILIES.values(), ids=FAMILIES)
def test_every_path(key: str, dtype: torch.dtype, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLERNN_NATIVE_PATH", path)
    lengths = [7, 3, 7, 0, 1, 7, 7, 2, 7, 7, 7]
    # Several tiles of rows and panels of columns, and a part of each.
    for batch, hidden in ((11, 101), (3, 33)):
        rnn = create_rnn(key, hidden, dtype)
        x = torch.randn(batch, 7, 3, dtype=dtype)
        assert_same(rnn, x)
        assert_same(rnn, x, lengths[:batch])
        if all(cell.has_timed_step_form for cell in rnn.cells):
            assert_same(rnn, x, lengths[:batch], dt=3 * torch.rand(batch, 7, dtype=dtype))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("hidden", [5, 200])
@pytest.mark.parametrize("key", FAMILIES.values(), ids=FAMILIES)
def test_a_row_alone_equals_the_row_in_a_batch(
    key: str, hidden: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLERNN_NATIVE_PATH", path)
    rnn = create_rnn(key, hidden, torch.float32, engine="native")
    x = torch.randn(19, 6, 3)
    together = [tensor.detach() for tensor in rnn(x)]
    for count in (1, 2, 3, 5, 7, 11):
        outputs, last = rnn(x[-count:].clone())
        # The projections of the inputs are torch's, which may add in another order: only where they are the same.
        drives = [rnn.cells[0].drive(part) for part in (x[-count:].clone(), x)]
        if torch.equal(drives[0], drives[1][-count:]):
            assert torch.equal(outputs, together[0][-count:])
            assert torch.equal(last, together[1][:, -count:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("key", FAMILIES.values(), ids=FAMILIES)
def test_threads_change_no_bit(key: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from stablernn_native import engine

    monkeypatch.setattr(engine, "MIN_THREAD_WORK", 1)
    rnn = create_rnn(key, 33, dtype)
    x = torch.randn(45, 6, 3, dtype=dtype)
    expected = results(rnn, "native", x)
    # Only the number that the engine reads: torch's own products may add in another order.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert all(torch.equal(*pair) for pair in zip(results(rnn, "native", x), expected, strict=True))


def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    rnn = create_rnn("lipschitz", 33, torch.float32, engine="native")
    x = torch.randn(9, 5, 3)
    expected = rnn(x)[0]
    x[4, 2, 1] = torch.nan
    outputs = rnn(x)[0]
    assert outputs[4, 2:].isnan().all()
    assert torch.equal(outputs[4, :2], expected[4, :2])
    others = [row for row in range(9) if row != 4]
    assert torch.equal(outputs[others], expected[others])


@pytest.mark.skipif(sys.platform != "linux", reason="torch flushes denormal numbers on x86 alone")
def test_a_backward_pass_leaves_the_floating_point_mode() -> None:
    rnn = create_rnn("antisymmetric", 17, torch.float32, engine="native")
    tiny = torch.tensor([1e-40])
    rnn(torch.randn(3, 4, 3))[1].sum().backward()
    assert float(tiny * 1) > 0


def test_a_path_that_the_machine_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    from stablernn_native import NativeError

    monkeypatch.setenv("STABLERNN_NATIVE_PATH", "altivec")
    rnn = create_rnn("antisymmetric", 4, torch.float32, engine="native")
    with pytest.raises(NativeError) as error:
        rnn(torch.randn(3, 4, 3))
    assert str(error.value) == (
        f"STABLERNN_NATIVE_PATH names the path 'altivec', which this machine does not have; it has {', '.join(PATHS)}."
    )


@pytest.mark.parametrize(("time", "dimensions"), [(728, [4]), (729, [3, 3])], ids=["short", "long"])
def test_members_of_long_sequences_run_one_after_the_other(
    time: int, dimensions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = Ensemble(2, "lipschitz", 3, 9, 1).double()
    x = torch.randn(5, time, 3, dtype=torch.float64)
    state = tuple(h.double() for h in ensemble.initial_state(5))
    run_form, seen = FusedEngine.run_form, []

    def record(
        self: FusedEngine, cell: srn.StableCell, form: StepForm, drives: Tensor, *rest: Any, **options: Any
    ) -> Any:
        seen.append(drives.dim())
        return run_form(self, cell, form, drives, *rest, **options)

    ensemble.use_engine("loop")
    expected, _ = ensemble.run(x, state)
    monkeypatch.setattr(FusedEngine, "run_form", record)
    ensemble.use_engine("native")
    outputs, _ = ensemble.run(x, state)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-10)
    assert seen == dimensions
