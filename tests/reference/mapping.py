"""Which of a cell's free parameters is which letter of its paper: one row a cell.

A row only renames, reshapes and slices, by differentiable operations, so that gradients with respect to the cell's own
parameters flow through the reference. What a paper does with its letters stands in the reference's file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reference import (
    antisym_ablation,
    antisymmetric,
    antisymmetric_g,
    cfc,
    cornn,
    dtriv,
    eunn,
    exprnn,
    fastgrnn,
    fastrnn,
    fc_urnn,
    gru,
    gru_d,
    identity_rnn,
    incremental,
    indrnn,
    kru,
    lem,
    lipschitz,
    lipschitz_rk2,
    lru,
    lstm,
    lvf,
    lvf_mid,
    mingru,
    minlstm,
    momentum_lstm,
    nais_net,
    neural_ode_rnn,
    nnrnn,
    noisy_rnn,
    ode_lstm,
    ode_rnn,
    ren,
    rnn,
    rnn_orth,
    rocket,
    scornn,
    slstm,
    smoothing,
    soft_orth,
    spectral_rnn,
    sr_lstm,
    unicornn,
    urnn,
)


class Row(NamedTuple):
    """The reference of a cell, and its arguments read off the cell."""

    module: ModuleType
    params: Callable[[Any], dict[str, Tensor]]
    scalars: Callable[[Any], dict[str, Any]] = lambda cell: {}


def _by(**names: str) -> Callable[[Any], dict[str, Any]]:
    """Read attributes of a cell, by the paper's symbols."""
    return lambda cell: {symbol: getattr(cell, name) for symbol, name in names.items()}


def _gates(letters: str, **parameters: Tensor) -> dict[str, Tensor]:
    """Parameters whose rows are those of one gate after the other, as ``{name}_{letter}``."""
    return {
        f"{name}_{letter}": part
        for name, parameter in parameters.items()
        for letter, part in zip(letters, parameter.chunk(len(letters)), strict=True)
    }


def _upper(free: Tensor, size: int) -> Tensor:
    """The strictly upper triangular (N, N) matrix whose rows, read one after the other, are ``free``."""
    rows = [
        torch.cat([free.new_zeros(i + 1), free[i * size - i * (i + 1) // 2 :][: size - i - 1]]) for i in range(size)
    ]
    return torch.stack(rows)


def _gru(cell: Any) -> dict[str, Tensor]:
    return _gates("rzn", W=cell.weight_ih, U=cell.weight_hh, b=cell.bias_ih) | {"c_n": cell.bias_hn}


def _antisymmetric_g(cell: Any) -> dict[str, Tensor]:
    return {"Wh": _upper(cell.weight_hh, cell.hidden_size), **_gates("zh", V=cell.weight_ih, b=cell.bias_ih)}


_lipschitz = _by(M_A="weight_linear", M_W="weight_hh", U="weight_ih", b="bias_ih")


_lipschitz_scalars = _by(eps="step_size", beta="skew_weight", gamma_A="linear_damping", gamma_W="recurrent_damping")


def _lem(cell: Any) -> dict[str, Tensor]:
    named = {"Wy": cell.weight_memory}
    for letter, parameter in (("W", cell.weight_hh), ("V", cell.weight_ih), ("b", cell.bias_ih)):
        # W has no fourth block of its own: Wy acts on the memory.
        for index, part in zip("12zy", parameter.split(cell.hidden_size), strict=False):
            named[f"{letter}{index}"] = part
    return named


def _momentum_lstm(cell: Any) -> dict[str, Tensor]:
    return _gates("ifgq", W=cell.weight_ih, U=cell.weight_hh, bx=cell.bias_ih, bh=cell.bias_hh)


def _slstm(cell: Any) -> dict[str, Tensor]:
    recurrent = _gates("ifzo", R=cell.weight_hh)
    heads = {name: part.unflatten(0, (cell.num_heads, -1)) for name, part in recurrent.items()}
    return _gates("ifzo", W=cell.weight_ih, b=cell.bias_ih) | heads


def _lvf(cell: Any) -> dict[str, Tensor]:
    # The cell keeps S_ij = (V_ji - V_ij) / 2 for i < j; of the fields V with this S, take the strictly lower one.
    return {"V": 2 * _upper(cell.weight_hh, cell.hidden_size).T, "U": cell.weight_ih, "b": cell.bias}


def _lvf_scalars(cell: Any) -> dict[str, Any]:
    return {"step": cell.step_size, "nonlinearity": cell.nonlinearity, "hard": cell.constraint == "hard"}


def _modrelu_bias(cell: Any) -> Tensor:
    # softshrink is modReLU whose bias is -|b|.
    bias: Tensor = -cell.bias.abs() if cell.nonlinearity == "softshrink" else cell.bias
    return bias


def _scornn(cell: Any) -> dict[str, Tensor]:
    N, negative = cell.hidden_size, cell.negative_signs
    D = torch.cat([cell.bias.new_ones(N - negative), -cell.bias.new_ones(negative)])
    return {"A": _upper(cell.weight_hh, N), "D": D, "U": cell.weight_ih, "b": _modrelu_bias(cell)}


def _exprnn(cell: Any) -> dict[str, Tensor]:
    return {"M": _upper(cell.weight_hh, cell.hidden_size), "U": cell.weight_ih, "b": _modrelu_bias(cell)}


def _nnrnn(cell: Any) -> dict[str, Tensor]:
    N, rows, start = cell.hidden_size, [], 0
    for i in range(N):
        # Rows of T without the entries up to the end of their 2 x 2 block, for which the cell keeps no number.
        first = min(i + 2 - i % 2, N)
        rows.append(torch.cat([cell.gain.new_zeros(first), cell.weight_upper[start : start + N - first]]))
        start += N - first
    return {
        "A": _upper(cell.weight_hh, N),
        "T": torch.stack(rows),
        "gamma": cell.gain,
        "theta": cell.phase,
        "U": cell.weight_ih,
        "b": _modrelu_bias(cell),
    }


def _spectral_rnn(cell: Any) -> dict[str, Tensor]:
    named = {"u": cell.weight_left, "v": cell.weight_right, "p": cell.spectrum, "M": cell.weight_ih}
    return {**named, "b": _modrelu_bias(cell)}


def _plain_scalars(cell: Any) -> dict[str, Any]:
    return {"nonlinearity": "modrelu" if cell.nonlinearity == "softshrink" else cell.nonlinearity}


def _soft_orth(cell: Any) -> dict[str, Tensor]:
    named = {"U": cell.weight_ih, "b": cell.bias_ih}
    if cell.form == "penalty":
        return {**named, "W": cell.weight_hh}
    A_P, A_Q = (_upper(free, cell.hidden_size) for free in (cell.weight_left, cell.weight_right))
    return {**named, "A_P": A_P, "A_Q": A_Q, "p": cell.spectrum, "h_0": cell.hidden_0}


def _soft_orth_scalars(cell: Any) -> dict[str, Any]:
    if cell.form == "penalty":
        return {"form": "penalty"}
    return {"form": "factored", "margin": cell.margin if cell.form == "factored" else math.inf}


def _complex(cell: Any) -> dict[str, Tensor]:
    """What complex cells have in common; two rows of numbers are [Re | Im]."""
    return {"b": _modrelu_bias(cell)} | _parts(cell.weight_ih, "V")


def _parts(stacked: Tensor, letter: str, dim: int = 0) -> dict[str, Tensor]:
    re, im = stacked.chunk(2, dim=dim)
    return {f"{letter}_re": re, f"{letter}_im": im}


def _urnn(cell: Any) -> dict[str, Tensor]:
    named = {"theta": cell.phases, "permutation": cell.permutation}
    return named | _complex(cell) | _parts(cell.hidden_0, "h0") | _parts(cell.reflections, "v", dim=1)


def _eunn(cell: Any) -> dict[str, Tensor]:
    if cell.variant == "real":
        # The real reference adds .01 to the modulus, which soft thresholding does without.
        bias = cell.bias if cell.nonlinearity == "modrelu" else -cell.bias.abs() - 0.01
        return {"theta": cell.theta, "U": cell.weight_ih, "b": bias}
    angles = {"theta": cell.theta, "phi": cell.phi, "omega": cell.omega}
    return angles | {"b": _modrelu_bias(cell)} | _parts(cell.weight_ih, "U")


def _antisym_ablation(cell: Any) -> dict[str, Tensor]:
    return {"K": cell.weight_hh, **_gates("zh", V=cell.weight_ih, b=cell.bias_ih)}


def _in_bytes(weight: Tensor) -> Tensor:
    """Whole numbers from -127 to 127 times a scale that makes the largest entry 127."""
    scale = weight.abs().max() / 127
    return torch.round(weight / scale) * scale


def _kept(weight: Tensor, fraction: float) -> Tensor:
    """1 at the largest entries, as many as the fraction allows, one at least."""
    count = max(1, int(fraction * weight.numel() + 1e-6))
    smallest = torch.sort(weight.detach().abs().flatten()).values[-count]
    return (weight.detach().abs() >= smallest).to(weight.dtype)


def _fast_matrices(cell: Any) -> dict[str, Tensor]:
    """W and U, or their factors, as the cell evaluates with them, and their masks."""
    named = {}
    for letter, name, kept in (("W", "weight_ih", cell.input_kept), ("U", "weight_hh", cell.recurrent_kept)):
        factors = {letter: getattr(cell, name)}
        if hasattr(cell, f"{name}_right"):
            factors = {f"{letter}1": getattr(cell, name), f"{letter}2": getattr(cell, f"{name}_right")}
        for factor, weight in factors.items():
            named[factor] = _in_bytes(weight) if cell.byte_weights else weight
            named[f"mask_{factor}"] = _kept(weight, kept)
    return named


def _fastrnn(cell: Any) -> dict[str, Tensor]:
    return _fast_matrices(cell) | {"b": cell.bias_ih, "alpha": cell.alpha, "beta": cell.beta}


def _fastgrnn(cell: Any) -> dict[str, Tensor]:
    b_g, b_u = (_in_bytes(cell.bias_ih) if cell.byte_weights else cell.bias_ih).chunk(2)
    return _fast_matrices(cell) | {"b_g": b_g, "b_u": b_u, "zeta": cell.zeta, "nu": cell.nu}


_QUANT = {"quant_tanh": "quantTanh", "quant_sigmoid": "quantSigm", "quant_sigmoid4": "quantSigm4"}


def _fast_functions(cell: Any) -> dict[str, Any]:
    named = {name: getattr(cell, name, None) for name in ("nonlinearity", "gate_nonlinearity")}
    return {name: _QUANT.get(word, word) for name, word in named.items() if word}


def _incremental(cell: Any) -> dict[str, Tensor]:
    named = {"W": cell.weight_ih, "b": cell.bias_ih, "e": cell.inner_lengths}
    if hasattr(cell, "weight_hh_right"):
        return named | {"U1": cell.weight_hh, "U2": cell.weight_hh_right}
    return named | {"U": cell.weight_hh}


def _ode_rnn(cell: Any) -> dict[str, Tensor]:
    flow = {"F_1": cell.flow_in, "c_1": cell.flow_in_bias, "F_2": cell.flow_out, "c_2": cell.flow_out_bias}
    return flow | _gru(cell)


def _fc_urnn(cell: Any) -> dict[str, Tensor]:
    M, B_0 = cell.weight_hh, cell.base_matrix()
    generator = {"S": M.triu(1), "Y": M.tril(-1).T + 2**0.5 * torch.diag(M.diagonal())}
    return generator | {"B0_re": B_0.real, "B0_im": B_0.imag} | _complex(cell) | _parts(cell.hidden_0, "h0")


def _kru(cell: Any) -> dict[str, Tensor]:
    named = {"b": _modrelu_bias(cell)} | _parts(cell.weight_ih, "U")
    pieces = cell.weight_hh.split([2 * p * p for p in cell.sizes])
    for f, (p, piece) in enumerate(zip(cell.sizes, pieces, strict=True), start=1):
        named |= _parts(piece.reshape(2 * p, p), f"W_{f}")
    return named


def _lru(cell: Any) -> dict[str, Tensor]:
    (B_re, B_im), (C_re, C_im) = cell.weight_ih.chunk(2), cell.weight_output.chunk(2, dim=1)
    named = {"nu": cell.log_decay, "th": cell.log_phase, "gm": cell.log_gain, "D": cell.weight_skip}
    return {**named, "B_re": B_re, "B_im": B_im, "C_re": C_re, "C_im": C_im}


def _gru_d(cell: Any) -> dict[str, Tensor]:
    gates = _gates("zrn", W=cell.weight_ih, U=cell.weight_hh, V=cell.weight_mask, b=cell.bias_ih)
    inputs = {"w_gx": cell.input_decay, "b_gx": cell.input_decay_bias}
    return {**gates, **inputs, "W_gh": cell.state_decay, "b_gh": cell.state_decay_bias}


def _cfc(cell: Any) -> dict[str, Tensor]:
    maps = [(torch.cat([cell.weight_ih, cell.weight_hh], dim=1), cell.bias_ih)]
    if cell.backbone_layers > 1:
        maps += zip(cell.weight_backbone, cell.bias_backbone, strict=True)
    if cell.backbone_layers:
        maps.append((cell.weight_head, cell.bias_head))
    *layers, head = maps
    named = {}
    for letter, parameter in zip("Wb", head, strict=True):
        for name, part in zip(("f1", "f2", "ta", "tb"), parameter.chunk(4), strict=True):
            named[f"{letter}_{name}"] = part
    for index, (weight, bias) in enumerate(layers, start=1):
        named |= {f"W_{index}": weight, f"b_{index}": bias}
    return named


def _ode_lstm(cell: Any) -> dict[str, Tensor]:
    flow = {"W_1": cell.flow_in, "b_1": cell.flow_in_bias, "W_2": cell.flow_out, "b_2": cell.flow_out_bias}
    return {**flow, **_gates("ifgq", W=cell.weight_ih, U=cell.weight_hh, b=cell.bias_ih)}


def _ren(cell: Any) -> dict[str, Tensor]:
    n, q = cell.hidden_size, cell.num_neurons
    D12, B2, D22 = cell.weight_ih.split([q, n, n])
    bv, bx, by = cell.bias_ih.split([q, n, n])
    C2, D21 = cell.weight_output.split([n, q], dim=1)
    free = {"X": cell.weight_hh, "Y1": _upper(cell.weight_skew, n)}
    return {**free, "B2": B2, "D12": D12, "D22": D22, "bx": bx, "bv": bv, "by": by, "C2": C2, "D21": D21}


MAPPING: dict[str, Row] = {
    "rnn": Row(rnn, _by(W="weight_hh", U="weight_ih", b="bias_ih")),
    "lstm": Row(lstm, _by(W="weight_ih", U="weight_hh", b="bias_ih")),
    "gru": Row(gru, _gru),
    "antisymmetric": Row(
        antisymmetric,
        lambda c: {"Wh": _upper(c.weight_hh, c.hidden_size), "V": c.weight_ih, "b": c.bias_ih},
        _by(eps="step_size", gamma="damping"),
    ),
    "antisymmetric_g": Row(antisymmetric_g, _antisymmetric_g, _by(eps="step_size", gamma="damping")),
    "antisym_ablation": Row(antisym_ablation, _antisym_ablation, _by(eps="step_size", gamma="damping")),
    "fastrnn": Row(fastrnn, _fastrnn, _fast_functions),
    "fastgrnn": Row(fastgrnn, _fastgrnn, _fast_functions),
    "fastgrnn_lsq": Row(fastgrnn, _fastgrnn, _fast_functions),
    "incremental": Row(incremental, _incremental, _by(a="leak", nonlinearity="nonlinearity", start="start")),
    "nais_net": Row(
        nais_net,
        _by(R="weight_hh", B="weight_ih", b="bias_ih"),
        _by(e="margin", eps="step_size"),
    ),
    "neural_ode_rnn": Row(
        neural_ode_rnn,
        _by(W="weight_hh", U="weight_ih", b="bias_ih"),
        _by(eps="step_size"),
    ),
    "noisy_rnn": Row(
        noisy_rnn,
        lambda c: _lipschitz(c) | {"d": c.unit_steps},
        _by(beta="skew_weight", gamma_A="linear_damping", gamma_W="recurrent_damping"),
    ),
    "ode_rnn": Row(ode_rnn, _ode_rnn, _by(solver="solver", substeps="solver_steps", eps="step_size")),
    "lipschitz": Row(lipschitz, _lipschitz, lambda c: _lipschitz_scalars(c) | {"alpha": c.linear_scale}),
    "lipschitz_rk2": Row(lipschitz_rk2, _lipschitz, _lipschitz_scalars),
    "rnn_orth": Row(rnn_orth, lambda c: {"W": c.weight_hh, "U": c.weight_ih, "b": _modrelu_bias(c)}, _plain_scalars),
    "soft_orth": Row(soft_orth, _soft_orth, _soft_orth_scalars),
    "scornn": Row(scornn, _scornn),
    "spectral_rnn": Row(spectral_rnn, _spectral_rnn, lambda c: {"r": c.margin} | _plain_scalars(c)),
    "urnn": Row(urnn, _urnn),
    "fc_urnn": Row(fc_urnn, _fc_urnn, _by(parametrization="parametrization")),
    "kru": Row(kru, _kru),
    "eunn": Row(eunn, _eunn, _by(variant="variant", capacity="capacity", style="style")),
    "exprnn": Row(exprnn, _exprnn, _by(parametrization="parametrization")),
    "dtriv": Row(dtriv, lambda c: {**_exprnn(c), "B_0": c.base_matrix()}, _by(parametrization="parametrization")),
    "nnrnn": Row(nnrnn, _nnrnn),
    "lru": Row(lru, _lru, _by(activation="activation")),
    "mingru": Row(mingru, lambda c: _gates("zh", W=c.weight_ih, b=c.bias_ih)),
    "minlstm": Row(minlstm, lambda c: _gates("fih", W=c.weight_ih, b=c.bias_ih)),
    "ren": Row(ren, _ren, _by(eps="margin", ab="contraction_rate")),
    "gru_d": Row(gru_d, _gru_d),
    "cfc": Row(cfc, _cfc, _by(backbone="activation")),
    "ode_lstm": Row(ode_lstm, _ode_lstm, _by(solver="solver")),
    "lvf": Row(lvf, _lvf, _lvf_scalars),
    "lvf_mid": Row(lvf_mid, _lvf, _lvf_scalars),
    "cornn": Row(
        cornn,
        _by(W="weight_hh", Wz="weight_velocity", V="weight_ih", b="bias_ih"),
        _by(step="step_size", gamma="stiffness", epsilon="damping"),
    ),
    "lem": Row(lem, _lem, _by(step="step_size")),
    "unicornn": Row(
        unicornn,
        _by(w="weight_hh", c="speed", V="weight_ih", b="bias_ih"),
        _by(step="step_size", alpha="stiffness"),
    ),
    "momentum_lstm": Row(momentum_lstm, _momentum_lstm, _by(mu="momentum", s="input_scale")),
    "sr_lstm": Row(sr_lstm, _momentum_lstm, _by(s="input_scale", F="restart")),
    "slstm": Row(slstm, _slstm),
    "indrnn": Row(indrnn, _by(u="weight_hh", W="weight_ih", b="bias_ih")),
    "rocket": Row(rocket, lambda c: {"b": c.threshold, "C": c.channels}, _by(memory="memory")),
    "smoothing": Row(smoothing, lambda c: {"c": c.constants}, _by(season="season", hidden="hidden_size")),
    "identity_rnn": Row(identity_rnn, _by(W="weight_hh", U="weight_ih", b="bias")),
}


def reference_states(cell: nn.Module, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Every state of a cell by its reference: one (B, T, N) tensor for each tensor of the state."""
    row = MAPPING[str(cell.key)]
    states = row.module.sequence(row.params(cell), x, *state, **row.scalars(cell))
    return states if isinstance(states, tuple) else (states,)
