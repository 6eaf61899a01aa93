"""What holds for every cell of the catalog. No cell has a special case here, and a new one is covered by its entry."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from model_helpers import TRAINED
from stablernn import StableRNN, create_cell, list_cells
from stablernn.cells import StableCell, cached_weights, cell_info, recommended_training
from stablernn.training.settings.config import TrainingConfig

every_cell = pytest.mark.parametrize("key", list_cells())
# Fixed cells have neither gradients nor layers above them.
trained_cell = pytest.mark.parametrize("key", TRAINED)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
# What holds of three layers holds of each; one alone is a slow test.
every_depth = pytest.mark.parametrize(
    "num_layers", [pytest.param(1, marks=pytest.mark.slow), 3], ids=["1-layer", "3-layers"]
)
every_preset = pytest.mark.parametrize("preset", ["practical", "paper"])


def _layer(key: str, num_layers: int = 1, dropout: float = 0.0, preset: str = "practical") -> StableRNN:
    """A float64 layer of 3 features and 5 units in evaluation mode, with biases that are not at zero."""
    depth = num_layers if key in TRAINED else 1
    layer = StableRNN(key, 3, 5, depth, dropout=dropout, preset=preset).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def _inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _parts(state: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """A state as a list, whether the cell has one tensor or several."""
    return [state] if isinstance(state, Tensor) else list(state)


def _reached_state(layer: StableRNN, *batch: int) -> Tensor | tuple[Tensor, ...]:
    """A state to which random inputs led: counters and the like cannot be any number."""
    with torch.no_grad():
        _, state = layer(_inputs(*batch, 5, layer.input_size))
    return state if isinstance(state, Tensor) else tuple(state)


def _zero_state(layer: StableRNN, *batch: int) -> Tensor | tuple[Tensor, ...]:
    parts = [torch.zeros_like(part) for part in _parts(_reached_state(layer, *batch))]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _assert_equal(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for have, want in zip(got, expected, strict=True):
        assert torch.equal(have, want)


def _assert_close(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Equal in float64 but for the order of sums, which a product may change with the number of its rows."""
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-12, atol=1e-12)


@trained_cell
@every_dtype
@pytest.mark.parametrize(
    ("batch", "time", "features", "hidden"), [(2, 6, 3, 5), (1, 1, 1, 1), (3, 2, 1, 7)], ids=["usual", "ones", "odd"]
)
def test_layer_shapes_and_dtypes(
    key: str, dtype: torch.dtype, batch: int, time: int, features: int, hidden: int
) -> None:
    layer = StableRNN(key, features, hidden, num_layers=2).to(dtype)
    output, state = layer(torch.randn(batch, time, features, dtype=dtype))
    assert output.shape == (batch, time, layer.output_size)
    assert output.dtype == dtype
    first, second = layer.cells
    expected = [
        (1 + (name in second.state_names), batch, size)
        for name, size in zip(first.state_names, first.state_sizes, strict=True)
    ]
    assert [tensor.shape for tensor in _parts(state)] == expected
    assert second.state_sizes[0] == layer.output_size >= hidden
    assert {tensor.dtype for tensor in _parts(state)} == {dtype}


@every_cell
@every_preset
def test_a_fresh_layer_starts_finite_and_moves(key: str, preset: str) -> None:
    layer = StableRNN(key, 3, 16, preset=preset)
    output, _ = layer(torch.randn(4, 50, 3))
    assert torch.isfinite(output).all()
    assert output.abs().max() > 1e-3


@every_cell
@every_depth
def test_one_sequence_without_batch_equals_a_batch_of_one(key: str, num_layers: int) -> None:
    layer = _layer(key, num_layers)
    x, state = _inputs(9, 3), _reached_state(layer)
    batched_state = [tensor[:, None] for tensor in _parts(state)]
    output, last = layer(x, state)
    expected, expected_last = layer(x[None], batched_state[0] if len(batched_state) == 1 else batched_state)
    _assert_equal([output, *_parts(last)], [expected[0], *(tensor[:, 0] for tensor in _parts(expected_last))])


@every_cell
@every_depth
def test_time_first_equals_batch_first(key: str, num_layers: int) -> None:
    layer = _layer(key, num_layers)
    time_first = copy.deepcopy(layer)
    time_first.batch_first = False
    x = _inputs(2, 9, 3)
    output, last = layer(x)
    other, other_last = time_first(x.transpose(0, 1))
    _assert_close([other.transpose(0, 1), *_parts(other_last)], [output, *_parts(last)])


@every_cell
@every_depth
def test_rows_of_a_batch_do_not_see_each_other(key: str, num_layers: int) -> None:
    layer = _layer(key, num_layers)
    x = _inputs(4, 9, 3)
    output, last = layer(x)
    rows = [layer(x[row : row + 1]) for row in range(4)]
    _assert_close([output], [torch.cat([row_output for row_output, _ in rows])])
    for part, tensor in enumerate(_parts(last)):
        _assert_close([tensor], [torch.cat([_parts(row_last)[part] for _, row_last in rows], dim=1)])


@every_cell
@every_depth
@pytest.mark.parametrize(
    "cuts",
    [[5, 6], [1] * 11, pytest.param([10, 1], marks=pytest.mark.slow)],
    ids=["two-chunks", "single-steps", "one-left"],
)
def test_a_run_in_chunks_equals_the_whole_run(key: str, num_layers: int, cuts: list[int]) -> None:
    layer = _layer(key, num_layers)
    x, state = _inputs(2, 11, 3), _reached_state(layer, 2)
    output, last = layer(x, state)
    pieces = []
    for chunk in x.split(cuts, dim=1):
        piece, state = layer(chunk, state)
        pieces.append(piece)
    _assert_close([torch.cat(pieces, dim=1), *_parts(state)], [output, *_parts(last)])


@every_cell
def test_stepping_the_cell_equals_the_layer(key: str) -> None:
    layer = _layer(key)
    x = _inputs(2, 7, 3)
    output, last = layer(x)
    state = None
    for t in range(7):
        state = layer.cells[0](x[:, t], state)
        _assert_close([_parts(state)[0]], [output[:, t]])
    _assert_close(_parts(state), [tensor[0] for tensor in _parts(last)])


@every_cell
def test_omitted_state_is_zeros(key: str) -> None:
    layer = _layer(key, num_layers=2)
    x = _inputs(2, 7, 3)
    output, last = layer(x)
    expected, expected_last = layer(x, _zero_state(layer, 2))
    _assert_equal([output, *_parts(last)], [expected, *_parts(expected_last)])


@every_cell
@every_depth
def test_a_padded_sequence_equals_the_sequence_alone(key: str, num_layers: int) -> None:
    layer = _layer(key, num_layers)
    x, lengths, state = _inputs(4, 9, 3), torch.tensor([9, 6, 1, 4]), _reached_state(layer, 4)
    output, last = layer(x, state, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone_state = [tensor[:, row : row + 1] for tensor in _parts(state)]
        alone, alone_last = layer(x[row : row + 1, :length], alone_state)
        _assert_close([output[row, :length]], [alone[0]])
        _assert_close([tensor[:, row] for tensor in _parts(last)], [tensor[:, 0] for tensor in _parts(alone_last)])


@every_cell
@every_depth
def test_what_stands_in_the_padding_changes_no_bit_of_output_or_gradient(key: str, num_layers: int) -> None:
    layer = _layer(key, num_layers)
    lengths = torch.tensor([9, 6, 1])
    padding = torch.arange(9) >= lengths[:, None]
    results, gradients = [], []
    for filler in (0.0, 1e6, math.nan, math.inf):
        x = _inputs(3, 9, 3).copy_(torch.linspace(-1, 1, 81).reshape(3, 9, 3))
        x[padding] = filler
        output, last = layer(x, lengths=lengths)
        results.append([output, *_parts(last)])
        gradients.append(torch.autograd.grad(output.square().sum(), list(layer.parameters())))
    for result, gradient in zip(results[1:], gradients[1:], strict=True):
        _assert_equal(result, results[0])
        _assert_equal(gradient, gradients[0])


@every_cell
@every_depth
def test_the_state_dict_comes_back_through_safetensors(key: str, num_layers: int) -> None:
    layer, other = _layer(key, num_layers), _layer(key, num_layers)
    x = _inputs(2, 7, 3)
    assert not torch.equal(layer(x)[0], other(x)[0])
    other.load_state_dict(load(save(layer.state_dict())), strict=True)
    assert torch.equal(layer(x)[0], other(x)[0])


@trained_cell
@every_depth
@every_preset
def test_gradients_are_finite_and_reach_every_parameter(key: str, num_layers: int, preset: str) -> None:
    layer = StableRNN(key, 3, 5, num_layers, preset=preset).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # a zero may have no gradient
    values = _inputs(8, 25, 3)  # of few units without slope, some sequence has one that is alive
    if layer.cells[0].takes_missing:
        for feature in range(3):
            values[:, 1 + feature :: 3, feature] = math.nan
    x = values.requires_grad_()
    layer(x)[0].square().mean().backward()
    assert x.grad is not None
    assert x.grad.abs().amax(dim=(0, 2)).gt(0).all(), "some time step does not influence the output"
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@every_cell
def test_reset_draws_parameters_from_the_same_distribution(key: str) -> None:
    torch.manual_seed(5)
    cell = create_cell(key, 3, 8)
    fresh = copy.deepcopy(cell.state_dict())
    for parameter in cell.parameters():
        nn.init.constant_(parameter, 9.0)
    torch.manual_seed(5)
    cell.reset_parameters()
    _assert_equal(list(cell.state_dict().values()), list(fresh.values()))


@every_cell
@every_preset
def test_repr_names_sizes_and_every_option(key: str, preset: str) -> None:
    cell = create_cell(key, 3, 8, preset=preset)
    shown = repr(cell)
    assert shown.startswith(f"{type(cell).__name__}(3, 8")
    for name in cell_info(key).options(preset):
        assert f"{name}={getattr(cell, name)!r}" in shown
    assert f"'{key}', 3, 8, num_layers=1" in repr(StableRNN(key, 3, 8))


@trained_cell
def test_dropout_between_layers_acts_in_training_only(key: str) -> None:
    layer, without = _layer(key, num_layers=3, dropout=0.5), _layer(key, num_layers=3)
    without.load_state_dict(layer.state_dict())
    x = _inputs(2, 30, 3)
    layer.training = True  # of the layer alone: a cell may draw noise of its own in training
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], without(x)[0])


@trained_cell
def test_dropout_leaves_the_input_and_the_last_output_alone(key: str) -> None:
    layer, without = _layer(key, num_layers=2, dropout=1.0), _layer(key, num_layers=2)
    without.load_state_dict(layer.state_dict())
    layer.training = True
    with torch.no_grad():
        _, state = without.run(_inputs(2, 5, 3), without.initial_state(2))
    x, width = _inputs(2, 6, 3), len(layer.cells[0].state_names)
    output, last = layer.run(x, state)
    # The first layer saw the input. All that it gave was dropped, so the second saw zeros.
    _assert_equal(last[:width], without.run(x, state)[1][:width])
    second = copy.deepcopy(without)
    second.layers = without.layers[1:]
    zeros = torch.zeros(2, 6, layer.cells[0].output_size, dtype=torch.float64)
    expected, _ = second.run(zeros, state[width:])
    assert torch.equal(output, expected)
    assert expected.abs().max() > 0


@every_cell
def test_a_step_uses_what_it_is_given_and_nothing_else(key: str) -> None:
    # Engines and the exported graph rely on it: with weights and drive fixed, the parameters no longer matter.
    cell = create_cell(key, 3, 5)
    weights, drive = tuple(cell.materialize()), cell.drive(torch.randn(2, 3))
    weights, state = tuple(tensor.clone() for tensor in weights), cell.initial_state(2)
    before = cell.step(weights, state, drive)
    for tensor in [*cell.parameters(), *cell.buffers()]:
        if tensor.is_floating_point():
            nn.init.constant_(tensor, float("nan"))
    _assert_equal(cell.step(weights, state, drive), before)


@every_cell
def test_the_drive_of_a_sequence_is_the_drive_of_its_steps(key: str) -> None:
    cell = create_cell(key, 3, 5).double().eval()
    x = _inputs(2, 7, 3)
    _assert_close([cell.drive(x)], [torch.stack([cell.drive(x[:, t]) for t in range(7)], dim=1)])


@every_cell
def test_the_catalog_has_a_full_row(key: str) -> None:
    info = cell_info(key)
    assert info.key == key == info.cell.key
    assert info.title
    assert str(info.year) in info.paper
    assert info.guarantee
    assert info.equation
    assert info.family in {"plain", "residual", "two-stage", "shared gate", "general"}
    assert set(info.paper_options) <= set(info.options("practical"))
    assert set(info.training) == {"practical", "paper"}
    assert "Guarantee:" in (info.cell.__doc__ or "")


@every_cell
@every_preset
def test_recommended_training_settings_are_settings_of_the_trainer(key: str, preset: str) -> None:
    settings = recommended_training(key, preset)
    config = TrainingConfig.model_validate(settings)
    assert settings["lr"] > 0
    assert {name: getattr(config, name) for name in settings} == settings


@every_cell
def test_matrices_are_built_once_a_sequence_and_once_for_all_if_they_are_cached(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = _layer(key, num_layers=2), _inputs(2, 9, 3)
    calls: list[StableCell] = []
    original = type(layer.cells[0]).materialize

    def counted(cell: StableCell) -> tuple[Tensor, ...]:
        calls.append(cell)
        return original(cell)

    monkeypatch.setattr(type(layer.cells[0]), "materialize", counted)
    before = layer(x)[0]
    assert calls == layer.cells
    with cached_weights(layer):
        for _ in range(3):
            output = layer(x)[0]
            assert torch.equal(output, before)
            assert not output.requires_grad
    assert calls == layer.cells * 2
    for parameter in layer.parameters():
        parameter.data.mul_(50)
    assert not torch.equal(layer(x)[0], before)
