"""Which of a cell's free parameters is which letter of its paper: one row a cell.

A row only renames, reshapes and slices, by differentiable operations, so that gradients with respect to the cell's own
parameters flow through the reference. What a paper does with its letters stands in the reference's file.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reference import antisymmetric, antisymmetric_g, gru, lipschitz, lipschitz_rk2, lstm, lvf, lvf_mid, rnn


class Row(NamedTuple):
    """The reference of a cell, and its arguments read off the cell."""

    module: ModuleType
    params: Callable[[Any], dict[str, Tensor]]
    scalars: Callable[[Any], dict[str, Any]]


def _upper(free: Tensor, size: int) -> Tensor:
    """The strictly upper triangular (N, N) matrix whose rows, read one after the other, are ``free``."""
    rows = [
        torch.cat([free.new_zeros(i + 1), free[i * size - i * (i + 1) // 2 :][: size - i - 1]]) for i in range(size)
    ]
    return torch.stack(rows)


def _gru(cell: Any) -> dict[str, Tensor]:
    named = {"c_n": cell.bias_hn}
    for letter, parameter in (("W", cell.weight_ih), ("U", cell.weight_hh), ("b", cell.bias_ih)):
        for gate, part in zip("rzn", parameter.chunk(3), strict=True):
            named[f"{letter}_{gate}"] = part
    return named


def _antisymmetric_g(cell: Any) -> dict[str, Tensor]:
    (V_z, V_h), (b_z, b_h) = cell.weight_ih.chunk(2), cell.bias_ih.chunk(2)
    return {"Wh": _upper(cell.weight_hh, cell.hidden_size), "V_z": V_z, "V_h": V_h, "b_z": b_z, "b_h": b_h}


def _lipschitz(cell: Any) -> dict[str, Tensor]:
    return {"M_A": cell.weight_linear, "M_W": cell.weight_hh, "U": cell.weight_ih, "b": cell.bias_ih}


def _lipschitz_scalars(cell: Any) -> dict[str, Any]:
    return {
        "eps": cell.step_size,
        "beta": cell.skew_weight,
        "gamma_A": cell.linear_damping,
        "gamma_W": cell.recurrent_damping,
    }


def _lvf(cell: Any) -> dict[str, Tensor]:
    # The cell keeps S_ij = (V_ji - V_ij) / 2 for i < j; of the fields V with this S, take the strictly lower one.
    return {"V": 2 * _upper(cell.weight_hh, cell.hidden_size).T, "U": cell.weight_ih, "b": cell.bias}


def _lvf_scalars(cell: Any) -> dict[str, Any]:
    return {"dt": cell.step_size, "nonlinearity": cell.nonlinearity, "hard": cell.constraint == "hard"}


MAPPING: dict[str, Row] = {
    "rnn": Row(rnn, lambda c: {"W": c.weight_hh, "U": c.weight_ih, "b": c.bias_ih}, lambda c: {}),
    "lstm": Row(lstm, lambda c: {"W": c.weight_ih, "U": c.weight_hh, "b": c.bias_ih}, lambda c: {}),
    "gru": Row(gru, _gru, lambda c: {}),
    "antisymmetric": Row(
        antisymmetric,
        lambda c: {"Wh": _upper(c.weight_hh, c.hidden_size), "V": c.weight_ih, "b": c.bias_ih},
        lambda c: {"eps": c.step_size, "gamma": c.damping},
    ),
    "antisymmetric_g": Row(antisymmetric_g, _antisymmetric_g, lambda c: {"eps": c.step_size, "gamma": c.damping}),
    "lipschitz": Row(lipschitz, _lipschitz, lambda c: _lipschitz_scalars(c) | {"alpha": c.linear_scale}),
    "lipschitz_rk2": Row(lipschitz_rk2, _lipschitz, _lipschitz_scalars),
    "lvf": Row(lvf, _lvf, _lvf_scalars),
    "lvf_mid": Row(lvf_mid, _lvf, _lvf_scalars),
}


def reference_states(cell: nn.Module, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Every state of a cell by its reference: one (B, T, N) tensor for each tensor of the state."""
    row = MAPPING[str(cell.key)]
    states = row.module.sequence(row.params(cell), x, *state, **row.scalars(cell))
    return states if isinstance(states, tuple) else (states,)
