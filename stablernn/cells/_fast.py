"""The base of the FastRNN and FastGRNN cells: low-rank, sparse and int8-quantized matrices.

Kusupati, Singh, Bhatia, Kumar, Jain, Varma, "FastGRNN: a fast, accurate, stable and tiny kilobyte sized gated recurrent
neural network", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix
from stablernn.cells._base import StableCell, Weights, check_whole_number, empty_parameter, float64
from stablernn.cells._catalog import practical

Nonlinearity = Literal["tanh", "relu", "quant_tanh"]
NONLINEARITIES: tuple[Nonlinearity, ...] = ("tanh", "relu", "quant_tanh")
GateNonlinearity = Literal["sigmoid", "quant_sigmoid", "quant_sigmoid4"]
GATE_NONLINEARITIES: tuple[GateNonlinearity, ...] = ("sigmoid", "quant_sigmoid", "quant_sigmoid4")

PAPER = "Kusupati, Singh, Bhatia, Kumar, Jain, Varma: FastGRNN (NeurIPS 2018)"
PAPER_SOURCE = (
    "initial numbers as in the paper and its released code. Learning rate, batch size and the drop of the rate after "
    "200 of 300 epochs as in the paper for all tasks but pixel MNIST; it names the optimizer for one task only."
)
PAPER_TRAINING = {
    "lr": 0.01,
    "optimizer": "adam",
    "schedule": "step",
    "lr_decay": 0.1,
    "step_epochs": 200,
    "epochs": 300,
    "batch_size": 100,
}
TRAINING = {
    "practical": practical(0.01),
    "paper": PAPER_TRAINING,
}

INT8_MAX = 127
"""Quantized weights are integers from -127 to 127 times a scale; -128, which has no positive counterpart, is unused."""

THRESHOLD_INTERVAL = 15
"""Optimizer steps between two thresholdings in the second phase. Thresholded after every step, no weight would have the
time to grow back to the size of those that remain, and the first thresholding would be final."""


@dataclass(frozen=True)
class Compression:
    """Options of :class:`FastCell` for W (``input_``) and U (``recurrent_``); the defaults compress nothing."""

    input_rank: int | None = None
    recurrent_rank: int | None = None
    input_density: float = 1.0
    """Fraction of the entries of W, or of each factor, that stays nonzero; the option ``input_kept``."""
    recurrent_density: float = 1.0
    quantize_int8: bool = False
    """Quantize matrices and biases to int8 in evaluation; the option ``byte_weights``."""


class FastCell(StableCell):
    """Matrices W and U that may be of low rank, sparse and quantized to int8; biases start at one.

    A matrix of low rank is the product of two factors; each factor is sparsified and quantized as a matrix of its own.
    Training goes through three phases, each a third of its steps: all entries train; the smallest are set to zero every
    few steps and grow back where the gradient wants it (iterative hard thresholding); the support is frozen. In
    evaluation, in every phase, a matrix has no more nonzero entries than its density allows, and each entry is an int8
    number times a scale.

    A subclass makes its two trained scalars, then calls ``reset_parameters``.
    """

    biases = 1
    """Bias vectors, one after the other in ``bias_ih``."""

    def __init__(self, input_size: int, hidden_size: int, compression: Compression) -> None:
        super().__init__(input_size, hidden_size)
        self.input_rank = self._rank_of("input_rank", compression.input_rank, min(input_size, hidden_size))
        self.recurrent_rank = self._rank_of("recurrent_rank", compression.recurrent_rank, hidden_size)
        densities = {"input_kept": compression.input_density, "recurrent_kept": compression.recurrent_density}
        for name, density in densities.items():
            if not 0 < density <= 1:
                raise ValueError(
                    f"{name} must be greater than 0 and at most 1 for {type(self).__name__}, got {density}."
                )
        self.input_kept = compression.input_density
        self.recurrent_kept = compression.recurrent_density
        self.byte_weights = compression.quantize_int8
        # Only sparse training follows a schedule, of thirds of the whole run.
        self.plans_ahead = min(densities.values()) < 1
        self._projects_in_step = self.byte_weights or self.input_kept < 1
        self._input = self._add_matrix("weight_ih", hidden_size, input_size, self.input_rank, self.input_kept)
        self._recurrent = self._add_matrix(
            "weight_hh", hidden_size, hidden_size, self.recurrent_rank, self.recurrent_kept
        )
        self._densities = dict.fromkeys(self._input, self.input_kept)
        self._densities |= dict.fromkeys(self._recurrent, self.recurrent_kept)
        self.bias_ih = empty_parameter(self.biases * hidden_size)

    def _rank_of(self, name: str, rank: int | None, full_rank: int) -> int:
        check_whole_number(self, name, rank)
        return full_rank if rank is None else min(int(rank), full_rank)

    def _add_matrix(self, name: str, rows: int, columns: int, rank: int, density: float) -> tuple[str, ...]:
        """Register a matrix, or its left and right factor, with a mask for each if sparse; return the names."""
        shapes = {name: (rows, columns)}
        if rank < min(rows, columns):
            shapes = {name: (rows, rank), f"{name}_right": (rank, columns)}
        for factor, shape in shapes.items():
            self.register_parameter(factor, empty_parameter(*shape))
            if density < 1:
                self.register_buffer(f"{factor}_support", torch.ones(shape, dtype=torch.bool))
        return tuple(shapes)

    def reset_parameters(self) -> None:
        for name, density in self._densities.items():
            nn.init.normal_(getattr(self, name), std=0.1)
            if density < 1:
                getattr(self, f"{name}_support").fill_(True)
        nn.init.ones_(self.bias_ih)

    def missed_schedule(self) -> str | None:
        if not self.plans_ahead or not self._passes_since_schedule:
            return None
        return "have set the smallest weights to zero, so that training sees the sparse matrices that evaluation uses"

    def after_step(self, step: int, total_steps: int) -> None:
        super().after_step(step, total_steps)
        second, third = total_steps // 3 + 1, 2 * total_steps // 3 + 1
        if step < second:
            return
        for name, density in self._densities.items():
            if density == 1:
                continue
            weight: Tensor = getattr(self, name)
            support = getattr(self, f"{name}_support")
            if step >= third:
                # Full until the phase's first step; a run resumed later finds its support in the state dict.
                if bool(support.all()):
                    support.copy_(_largest_entries(weight, density))
                weight.mul_(support)
            elif (step - second) % THRESHOLD_INTERVAL == 0:
                weight.mul_(_largest_entries(weight, density))

    def effective_factor(self, name: str) -> Tensor:
        """Return a matrix, or one of its factors, as a step uses it: sparsified and in evaluation quantized."""
        weight: Tensor = getattr(self, name)
        density = self._densities[name]
        if density < 1:
            weight = weight * getattr(self, f"{name}_support")
            # The support is full until the third phase, but evaluation is sparse in every phase.
            if not self.training:
                weight = weight * _largest_entries(weight, density)
        return self._quantized(weight)

    def _quantized(self, weight: Tensor) -> Tensor:
        return _quantize_int8(weight) if self.byte_weights and not self.training else weight

    def recurrent_matrix(self) -> Tensor:
        matrix = self.effective_factor(self._recurrent[0])
        for name in self._recurrent[1:]:
            matrix = matrix @ self.effective_factor(name)
        return matrix

    def multiply_factors(self, names: Sequence[str]) -> Matrix:
        """Return the product of a matrix's factors in float64."""
        return reduce(np.matmul, (float64(self.effective_factor(name)) for name in names))

    def scalars(self) -> tuple[Tensor, ...]:
        """Return the two trained scalars as a step uses them."""
        raise NotImplementedError

    def materialize(self) -> Weights:
        """Return the scalars, each bias, the factors of W from left to right, and those of U."""
        factors = [self.effective_factor(name) for name in (*self._input, *self._recurrent)]
        return (*self.scalars(), *self._quantized(self.bias_ih).chunk(self.biases), *factors)

    def drive(self, x: Tensor) -> Tensor:
        # A compressed W acts in the step, as one of the materialized weights: it is compressed once a sequence.
        return x if self._projects_in_step else _apply_factors([getattr(self, name) for name in self._input], x)

    def pre_activation(self, weights: Weights, h: Tensor, drive: Tensor) -> Tensor:
        """Return ``W x + U h``."""
        # The scalars and the biases come first, see materialize.
        factors = weights[2 + self.biases :]
        count = len(self._input)
        driven = _apply_factors(factors[:count], drive) if self._projects_in_step else drive
        return driven + _apply_factors(factors[count:], h)


def activate(z: Tensor, nonlinearity: Nonlinearity | GateNonlinearity) -> Tensor:
    """Apply a nonlinearity; those named ``quant_`` are piecewise linear, for arithmetic without exponentials."""
    match nonlinearity:
        case "tanh":
            return torch.tanh(z)
        case "relu":
            return torch.relu(z)
        case "sigmoid":
            return torch.sigmoid(z)
        case "quant_tanh":
            return torch.clamp(z, -1, 1)
        case "quant_sigmoid":
            return torch.clamp((z + 1) / 2, 0, 1)
        case "quant_sigmoid4":
            return torch.clamp((z + 2) / 4, 0, 1)


def _apply_factors(factors: Sequence[Tensor], v: Tensor) -> Tensor:
    # From the right, W1 (W2 v): the full matrix is never formed.
    for factor in reversed(factors):
        v = nn.functional.linear(v, factor)
    return v


def _largest_entries(weight: Tensor, density: float) -> Tensor:
    """Return a mask of the largest magnitudes: at most a fraction ``density``, but at least one entry, and no zeros."""
    magnitudes = weight.detach().abs().flatten()
    # Rounded first: 0.29 of 100 is 28.999999999999996 in floating point.
    count = max(1, math.floor(round(density * magnitudes.numel(), 6)))
    mask = torch.zeros_like(magnitudes, dtype=torch.bool).index_fill(0, magnitudes.topk(count).indices, True)
    return (mask & (magnitudes > 0)).view_as(weight)


def _quantize_int8(weight: Tensor) -> Tensor:
    """Round each entry to an integer from -127 to 127 times one scale for the tensor: the largest entry is 127."""
    # In float64, so that an entry halfway between two integers rounds alike in every precision.
    precise = weight.double()
    scale = precise.abs().max().clamp_min(torch.finfo(torch.float32).tiny) / INT8_MAX
    return (torch.round(precise / scale) * scale).to(weight.dtype)
