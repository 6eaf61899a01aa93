"""Steps of unequal length: what holds for every cell that takes ``dt``."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stablernn as srn
from cells.irregular_time.steps import (
    TIMED,
    assert_close,
    every_timed_cell,
    normal_inputs,
    step_lengths,
    timed_layer,
)
from model_helpers import mark_fitted
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell
from stablernn.cells import NoisyRNNCell, StableCell


def _repeats_its_step(key: str) -> bool:
    """Whether a long step is the regular one several times over, the input held; others have a way of their own."""
    cell = type(create_cell(key, 2, 3))
    # Without noise the noisy cell's own way is that one.
    own = cell.advance is not StableCell.advance and cell is not NoisyRNNCell
    return not own and cell.substeps is StableCell.substeps


REPEATING = [key for key in TIMED if _repeats_its_step(key)]
# The midpoint rule's reference has no dt: a test of its own says what its step is.
REFERENCED = [key for key in TIMED if "dt" in inspect.signature(MAPPING[key].module.sequence).parameters]
every_repeating_cell = pytest.mark.parametrize("key", REPEATING)


def _parts(state: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else list(state)


@every_timed_cell
@pytest.mark.parametrize("num_layers", [1, 2])
def test_regular_steps_said_are_regular_steps_unsaid(key: str, num_layers: int) -> None:
    layer = timed_layer(key, num_layers)
    x = normal_inputs(3, 9, 3)
    output, last = layer(x, dt=torch.ones(3, 9, dtype=torch.float64))
    expected, expected_last = layer(x)
    assert_close([output, *_parts(last)], [expected, *_parts(expected_last)])


@every_timed_cell
def test_each_sample_has_lengths_of_its_own(key: str) -> None:
    layer = timed_layer(key, max_dt=2.5)
    x, dt = normal_inputs(3, 7, 3), step_lengths(3, 7)
    output, last = layer(x, dt=dt)
    for row in range(3):
        alone, alone_last = layer(x[row], dt=dt[row])
        assert_close([alone, *_parts(alone_last)], [output[row], *(part[:, row] for part in _parts(last))])


@every_repeating_cell
def test_a_step_of_two_in_two_parts_is_two_regular_steps_of_one_input(key: str) -> None:
    layer = timed_layer(key)
    x = normal_inputs(2, 6, 3)
    output, last = layer(x, dt=torch.full((2, 6), 2.0, dtype=torch.float64))
    expected, expected_last = layer(x.repeat_interleave(2, dim=1))
    assert_close([output, *_parts(last)], [expected[:, 1::2], *_parts(expected_last)])


@every_repeating_cell
def test_a_step_of_no_length_leaves_the_state(key: str) -> None:
    cell = timed_layer(key).cells[0]
    state = cell(normal_inputs(2, 3))
    assert_close(_parts(cell(normal_inputs(2, 3), state, dt=0.0)), _parts(state))


@every_repeating_cell
def test_no_part_of_a_step_is_longer_than_a_regular_one(key: str) -> None:
    cell = create_cell(key, 3, 5)
    assert [cell.substeps(longest) for longest in (0.1, 1.0, 1.01, 2.0, 2.5, 7.0)] == [1, 1, 2, 2, 3, 7]


def test_the_longest_step_decides_the_parts_of_all_steps() -> None:
    # max_dt fixes the parts once, so that a model gives the same numbers whatever else is in a batch.
    layer, free = timed_layer("lipschitz", max_dt=2.5), timed_layer("lipschitz")
    free.load_state_dict(layer.state_dict())
    x, ones = normal_inputs(1, 5, 3), torch.ones(1, 5, dtype=torch.float64)
    in_three, whole = layer(x, dt=ones)[0], free(x, dt=ones)[0]
    assert not torch.allclose(in_three, whole)
    longer = ones.clone()
    longer[0, -1] = 2.5
    assert torch.equal(layer(x, dt=longer)[0][:, :-1], in_three[:, :-1])
    assert_close([free(x, dt=longer)[0][:, :-1]], [in_three[:, :-1]])


@pytest.mark.parametrize(
    ("key", "options"),
    [
        *((key, {}) for key in REFERENCED),
        ("cfc", {"backbone_layers": 0}),
        ("ode_lstm", {"solver": "heun"}),
        ("ode_lstm", {"solver": "rk4", "flow_size": 3}),
    ],
)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 7, 3, 7), (2, 20, 2, 32)], ids=["ones", "odd", "usual"])
def test_values_and_gradients_are_those_of_the_reference(
    key: str, options: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    batch, time, features, hidden = sizes
    module = MAPPING[key].module
    layer = StableRNN(key, features, hidden, **options).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4 * hidden**-0.5)
    layer.after_step(1, 100)
    cell = layer.cells[0]
    # Up to 1 no cell divides a step; beyond it only those that take any length at once do not.
    longest = 3.0 if cell.substeps(3.0) == 1 else 1.0
    x, dt = normal_inputs(batch, time, features), step_lengths(batch, time, longest=longest)
    if cell.takes_missing:
        x[torch.rand(x.shape) < 0.2] = math.nan
    leaves = [x.requires_grad_(), dt.requires_grad_()]
    zeros = cell.initial_state(batch)

    def flat(states: Any) -> Tensor:
        outputs = states[0] if isinstance(states, tuple) else states
        return (outputs * torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)).sum()

    output, _ = layer.run(leaves[0], zeros, dt=leaves[1])
    scalars = MAPPING[key].scalars(cell)
    expected = module.sequence(MAPPING[key].params(cell), leaves[0], *zeros, **scalars, dt=leaves[1])
    assert_close([output], [expected[0] if isinstance(expected, tuple) else expected], 1e-9)
    wanted = [*leaves, *layer.parameters()]
    arguments: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    got = torch.autograd.grad(flat(output), wanted, **arguments)
    for have, want in zip(got, torch.autograd.grad(flat(expected), wanted, **arguments), strict=True):
        if want.numel():
            torch.testing.assert_close(have, want, rtol=0, atol=1e-9 * max(1.0, float(want.abs().max())))


@every_timed_cell
@pytest.mark.parametrize("filler", [-3.0, math.nan])
def test_what_stands_in_the_padding_of_dt_changes_no_bit(key: str, filler: float) -> None:
    layer = timed_layer(key, num_layers=2, max_dt=2.5)
    lengths = torch.tensor([8, 5, 1])
    x, dt = normal_inputs(3, 8, 3), step_lengths(3, 8)
    results = []
    for value in (1.0, filler):
        filled = dt.masked_fill(torch.arange(8) >= lengths[:, None], value)
        output, last = layer(x, lengths=lengths, dt=filled)
        gradients = torch.autograd.grad(output.square().sum(), list(layer.parameters()), allow_unused=True)
        results.append([output, *_parts(last), *(gradient for gradient in gradients if gradient is not None)])
    for have, want in zip(results[1], results[0], strict=True):
        assert torch.equal(have, want)


@every_timed_cell
@pytest.mark.parametrize("cuts", [[5, 6], [1] * 11], ids=["two-chunks", "single-steps"])
def test_a_run_in_chunks_equals_the_whole_run(key: str, cuts: list[int]) -> None:
    layer = timed_layer(key, num_layers=2, max_dt=2.5)
    x, dt = normal_inputs(2, 11, 3), step_lengths(2, 11)
    output, last = layer(x, dt=dt)
    state, pieces = None, []
    for chunk, lengths in zip(x.split(cuts, dim=1), dt.split(cuts, dim=1), strict=True):
        piece, state = layer(chunk, state if state is None or isinstance(state, Tensor) else tuple(state), dt=lengths)
        pieces.append(piece)
    assert state is not None
    assert_close([torch.cat(pieces, dim=1), *_parts(state)], [output, *_parts(last)])


@every_timed_cell
def test_stepping_the_cell_equals_the_layer(key: str) -> None:
    layer = timed_layer(key)
    x, dt = normal_inputs(2, 6, 3), step_lengths(2, 6, longest=1.0)
    output, _ = layer(x, dt=dt)
    state = None
    for t in range(6):
        state = layer.cells[0](x[:, t], state, dt=dt[:, t])
        assert_close([_parts(state)[0]], [output[:, t]])


@every_timed_cell
def test_without_gradients_the_numbers_are_the_same(key: str) -> None:
    layer = timed_layer(key)
    x, dt = normal_inputs(2, 6, 3), step_lengths(2, 6)
    expected = layer(x, dt=dt)[0]
    with torch.no_grad():
        regular = layer(x)[0]
        assert_close([layer(x, dt=dt)[0]], [expected])
        # Matrices are kept between calls, those for dt apart from those for regular steps.
        assert torch.equal(layer(x)[0], regular)
        assert_close([layer(x, dt=dt)[0]], [expected])


FAST = ("lvf_mid", "neural_ode_rnn")


@pytest.mark.parametrize("key", [key if key in FAST else pytest.param(key, marks=pytest.mark.slow) for key in TIMED])
def test_a_model_for_irregular_time_exports_to_both_formats_with_parity(key: str, tmp_path: Path) -> None:
    model = mark_fitted(srn.Classifier(key, 2, 3, 17, max_dt=2.5))
    report = srn.export(model, tmp_path, formats=("onnx", "torchscript"))
    assert report.signature["max_dt"] == 2.5
    assert report.parity["stream_equals_sequence"] is True
    assert report.parity["batch_equals_single"] is True
    assert all(row["torchscript_rel_error"] <= row["allowed_rel_error"] for row in report.parity["compared"])
