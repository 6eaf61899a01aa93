"""Every cell, run by every engine, against the plain loop written from its paper: values and gradients."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.mapping import MAPPING, reference_states
from stablernn import StableRNN, create_cell, list_cells
from stablernn.engines import list_engines, select_engine
from stablernn.errors import ConfigError

# (batch, time, features, hidden)
SIZES = [(1, 1, 1, 1), (2, 7, 3, 1), (1, 7, 1, 7), (3, 63, 2, 7), (2, 7, 7, 63)]
# Every cell under its default options, then the options that change the equation.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((key, {}) for key in list_cells()),
    *((key, {"preset": "paper"}) for key in list_cells()),
    ("antisymmetric", {"step_size": 0.7, "damping": 0.0}),
    ("antisymmetric_g", {"step_size": 0.7, "damping": 0.3}),
    ("lipschitz", {"linear_scale": 0.4, "skew_weight": 0.6, "linear_damping": 0.8, "recurrent_damping": 0.3}),
    ("lipschitz", {"linear_scale": 0.0, "skew_weight": 1.0}),
    ("lipschitz_rk2", {"step_size": 0.9, "skew_weight": 0.5, "linear_damping": 0.8, "recurrent_damping": 0.3}),
    *(
        (key, {"nonlinearity": nonlinearity, "constraint": constraint, "step_size": 0.5})
        for key in ("lvf", "lvf_mid")
        for nonlinearity in ("tanh", "modrelu", "softshrink")
        for constraint in ("none", "hard")
    ),
    ("exprnn", {"parametrization": "cayley"}),
    ("dtriv", {"parametrization": "cayley"}),
    ("scornn", {"negative_signs": 1}),
    *(("rnn_orth", {"nonlinearity": nonlinearity}) for nonlinearity in ("tanh", "relu")),
    *(
        ("spectral_rnn", {"nonlinearity": nonlinearity, "margin": 0.3})
        for nonlinearity in ("tanh", "modrelu", "softshrink")
    ),
    *(("soft_orth", {"form": form}) for form in ("factored", "unbounded")),
    ("cornn", {"step_size": 0.7, "stiffness": 2.0, "damping": 0.5}),
    ("lem", {"step_size": 0.4}),
    ("unicornn", {"step_size": 0.9, "stiffness": 0.0}),
    ("ren", {"num_neurons": 1, "margin": 0.1}),
    ("ren", {"num_neurons": 5, "contraction_rate": 0.7}),
    ("cfc", {"backbone_layers": 0}),
    ("cfc", {"backbone_layers": 3, "backbone_units": 5}),
    *(("cfc", {"activation": activation}) for activation in ("tanh", "relu", "silu", "gelu")),
    ("ode_lstm", {"solver": "heun", "flow_size": 3}),
    ("momentum_lstm", {"momentum": 0.0, "input_scale": 0.3}),
    ("sr_lstm", {"restart": 1}),
    ("sr_lstm", {"restart": 5, "input_scale": 0.9}),
    ("fc_urnn", {"parametrization": "cayley"}),
    ("eunn", {"capacity": 5, "nonlinearity": "modrelu"}),
    *(("eunn", {"variant": "real", "nonlinearity": nonlinearity}) for nonlinearity in ("modrelu", "softshrink")),
    ("kru", {"factors": 1}),
    ("antisym_ablation", {"step_size": 0.7, "damping": 0.3}),
    ("fastrnn", {"nonlinearity": "relu", "input_rank": 2, "recurrent_rank": 3}),
    ("fastrnn", {"nonlinearity": "quant_tanh"}),
    ("fastgrnn", {"input_rank": 2, "recurrent_rank": 3, "input_kept": 0.7, "recurrent_kept": 0.2}),
    ("fastgrnn", {"byte_weights": False, "gate_nonlinearity": "quant_sigmoid"}),
    ("fastgrnn_lsq", {"nonlinearity": "quant_tanh", "gate_nonlinearity": "quant_sigmoid4"}),
    ("fastgrnn_lsq", {"nonlinearity": "relu"}),
    *(
        ("incremental", {"inner_steps": 3, "start": start, "nonlinearity": nonlinearity, "leak": 0.7})
        for start in ("previous", "zero")
        for nonlinearity in ("relu", "tanh")
    ),
    ("incremental", {"recurrent_rank": 3, "inner_steps": 2}),
    ("rocket", {"memory": 20}),
    ("smoothing", {"season": 3}),
    ("nais_net", {"margin": 0.3, "step_size": 0.5}),
    ("neural_ode_rnn", {"step_size": 0.2}),
    ("noisy_rnn", {"skew_weight": 0.5, "linear_damping": 0.7, "recurrent_damping": 0.3}),
    *(
        ("ode_rnn", {"solver": solver, "solver_steps": 2, "flow_size": 5, "step_size": 0.7})
        for solver in ("euler", "midpoint", "heun", "rk4")
    ),
]


def _id(value: object) -> str | None:
    if isinstance(value, dict):
        return ",".join(f"{name}={option}" for name, option in value.items()) or "default"
    if isinstance(value, tuple):
        return "B{}-T{}-F{}-H{}".format(*value)
    return None


def _random_layer(key: str, sizes: tuple[int, ...], options: dict[str, Any]) -> StableRNN:
    """A float64 layer away from its start, as an optimizer step leaves it: biases too are nonzero, norms about one."""
    _, _, features, hidden = sizes
    layer = StableRNN(key, features, hidden, engine="loop", **options).double().eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4 * hidden**-0.5)
    layer.after_step(1, 100)
    return layer


def _inputs(layer: StableRNN, sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, tuple[Tensor, ...]]:
    batch, time, features, _ = sizes
    x = torch.randn(batch, time, features, dtype=dtype)
    if layer.cells[0].takes_missing:
        x[torch.rand(x.shape) < 0.2] = torch.nan
    # The first row starts, the others go on from where other inputs led them.
    with torch.no_grad():
        _, reached = layer.run(torch.randn(batch, 4, features, dtype=torch.float64), layer.initial_state(batch))
    for tensor in reached:
        tensor[0] = 0
    return x, tuple(tensor.to(dtype) for tensor in reached)


def _weighted_sum(outputs: Tensor, last: tuple[Tensor, ...]) -> Tensor:
    """A scalar to which every output and every part of the last state contributes, each with its own weight."""
    total = (outputs * torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)).sum()
    for tensor in last:
        total = total + (tensor * torch.linspace(1, -2, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)).sum()
    return total


def _results(
    layer: StableRNN, x: Tensor, state: tuple[Tensor, ...], *, reference: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and last state; then the gradients by x, by the first state and by every parameter."""
    leaves = [x.clone().requires_grad_(), *(tensor.clone().requires_grad_() for tensor in state)]
    if reference:
        states = reference_states(layer.cells[0], leaves[0], tuple(leaves[1:]))
        outputs, last = states[0], tuple(tensor[:, -1] for tensor in states)
    else:
        outputs, last = layer.run(leaves[0], tuple(leaves[1:]))
    gradients = torch.autograd.grad(
        _weighted_sum(outputs, last), [*leaves, *layer.parameters()], allow_unused=True, materialize_grads=True
    )
    return [tensor.detach() for tensor in (outputs, *last)], list(gradients)


def _assert_close(name: str, expected: list[Tensor], got: list[Tensor], tolerance: float) -> None:
    """Every tensor within ``tolerance`` of the largest expected entry."""
    for index, (want, have) in enumerate(zip(expected, got, strict=True)):
        if want.numel() == 0:
            continue  # the strict upper triangle of a 1 x 1 matrix
        allowed = tolerance * max(1.0, float(want.abs().max()))
        error = float((want - have.to(want.dtype)).abs().max())
        assert error <= allowed, f"{name} {index}: off by {error:.3g}, {allowed:.3g} allowed"


@dataclass(frozen=True)
class _Case:
    """A float64 layer on the engine ``loop``, what it is run with, and what its reference makes of that."""

    layer: StableRNN
    x: Tensor
    state: tuple[Tensor, ...]
    values: list[Tensor]
    gradients: list[Tensor]


# All engines of a case follow each other, so that the reference, the slowest part, runs once for them. The case is the
# same in whichever test it is built, because it draws from a seed of its own.
@functools.lru_cache(maxsize=1)
def _case(key: str, sizes: tuple[int, ...], options: str, dtype: torch.dtype) -> _Case:
    """Return a case.

    Args:
        key: Name of the cell.
        sizes: Batch, time, features, hidden.
        options: Options of the cell, as JSON.
        dtype: What the inputs are drawn in; parameters are numbers that this type holds exactly.
    """
    torch.manual_seed(0)
    layer = _random_layer(key, sizes, json.loads(options)).to(dtype).double()
    x, state = _inputs(layer, sizes, dtype)
    x, state = x.double(), tuple(tensor.double() for tensor in state)
    return _Case(layer, x, state, *_results(layer, x, state, reference=True))


def _run(case: _Case, engine: str, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    layer = copy.deepcopy(case.layer).to(dtype)
    layer.engine = engine
    return _results(layer, case.x.to(dtype), tuple(tensor.to(dtype) for tensor in case.state), reference=False)


def test_every_cell_of_the_catalog_has_a_reference() -> None:
    assert sorted(MAPPING) == list_cells()


def _engines(key: str, options: dict[str, Any], dtype: torch.dtype) -> list[str]:
    """Return the engines that run a cell on the CPU; ``structured`` runs large matrices only (``tests/engines``)."""
    cell, drive = create_cell(key, 3, 5, **options), torch.empty(2, 7, 3, dtype=dtype)
    names = []
    for name in list_engines():
        with contextlib.suppress(ConfigError):
            select_engine(name, cell, drive)
            names.append(name)
    return names


# Quick are a unit alone and many steps under the default options, few steps under others, and a wide layer in float32.
# The engines of a case stand next to each other.
CASES = [
    pytest.param(key, options, sizes, engine, marks=[] if sizes in quick else pytest.mark.slow)
    for key, options in VARIANTS
    for engines, quick in [(_engines(key, options, torch.float64), SIZES[2:3] if options else SIZES[0:4:3])]
    for sizes in SIZES
    for engine in engines
]
FLOAT32_CASES = [
    pytest.param(key, sizes, engine, marks=[] if sizes == SIZES[-1] else pytest.mark.slow)
    for key in list_cells()
    for engines in [_engines(key, {}, torch.float32)]
    for sizes in SIZES
    for engine in engines
]


@pytest.mark.parametrize(("key", "options", "sizes", "engine"), CASES, ids=_id)
def test_float64_values_and_gradients_are_those_of_the_reference(
    key: str, options: dict[str, Any], sizes: tuple[int, ...], engine: str
) -> None:
    case = _case(key, sizes, json.dumps(options), torch.float64)
    values, gradients = _run(case, engine, torch.float64)
    _assert_close("value", case.values, values, 1e-9)
    _assert_close("gradient", case.gradients, gradients, 1e-9)


@pytest.mark.parametrize(("key", "sizes", "engine"), FLOAT32_CASES, ids=_id)
def test_float32_values_and_gradients_are_those_of_the_float64_reference(
    key: str, sizes: tuple[int, ...], engine: str
) -> None:
    case = _case(key, sizes, "{}", torch.float32)
    values, gradients = _run(case, engine, torch.float32)
    # One rounding is 6e-8; sums over 63 units and 63 steps leave about a hundred of them in a value, and gradients
    # also add up over time.
    _assert_close("value", case.values, values, 1e-5)
    _assert_close("gradient", case.gradients, gradients, 3e-5)
