"""The limit that times are compared with: the matrix products alone, with nothing in between.

Counted are the products of each step with the state, and for layers above the first those with the outputs of the layer
below. A cell without a step form counts as one product with a square matrix a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

import stablernn as srn
from stablernn.cells import StableCell
from stablernn_cli.bench.timing import Run


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network that reads sequences of one feature, in float32, and of its minibatches.

    Attributes:
        cell: A key of the catalog.
        hidden_size: Units of each layer.
        batch_size: Sequences in a minibatch.
        length: Time steps of each sequence.
        num_layers: Layers.
        members: Networks of an ensemble.
        cell_options: Options of the cell.
    """

    cell: str
    hidden_size: int
    batch_size: int
    length: int
    num_layers: int = 1
    members: int = 1
    cell_options: Mapping[str, Any] = field(default_factory=dict)


class LayerProducts(NamedTuple):
    """Matrix products of a layer.

    Attributes:
        recurrent: Products of a step with the state.
        input_shape: Inputs and outputs of the product with the layer below; None for the first layer, whose input of
            one feature costs nothing.
    """

    recurrent: int
    input_shape: tuple[int, int] | None


def layer_products(sizes: Sizes) -> list[LayerProducts]:
    """Return the products of each layer of a member."""
    rnn = srn.StableRNN(sizes.cell, 1, sizes.hidden_size, sizes.num_layers, **sizes.cell_options)
    products = []
    for depth, cell in enumerate(rnn.cells):
        drive_size = cell.drive(torch.zeros(1, 1, cell.input_size)).shape[-1]
        products.append(LayerProducts(_recurrent_products(cell), (cell.input_size, drive_size) if depth else None))
    return products


def _recurrent_products(cell: StableCell) -> int:
    form = cell.step_form(cell.materialize())
    if form is None:
        return 1
    evaluations = 2 if form.family == "two-stage" else 1
    return evaluations * (1 if form.linear is None else 2)


def training_limit(sizes: Sizes) -> Run:
    """Return the products of a training step.

    They are ``h K^T`` and ``g K`` for each time step, and one for the gradient of ``K``; for the input of an upper
    layer one each for the drive, the gradient of the input and that of the matrix.
    """
    hidden, length, layers = sizes.hidden_size, sizes.length, layer_products(sizes)
    state, matrix = torch.randn(sizes.batch_size, hidden), torch.randn(hidden, hidden)
    states, out, gradient = torch.randn(length * sizes.batch_size, hidden), torch.empty_like(state), matrix.clone()
    inputs = [
        (torch.randn(len(states), size), torch.randn(size, drive_size), torch.randn(len(states), drive_size))
        for size, drive_size in (layer.input_shape for layer in layers if layer.input_shape is not None)
    ]

    def run() -> None:
        for _ in range(sizes.members):
            for layer in layers:
                for _ in range(layer.recurrent):
                    for _ in range(2 * length):
                        torch.mm(state, matrix, out=out)
                    torch.mm(states.t(), states, out=gradient)
            for x, weight, drive in inputs:
                torch.mm(x, weight)
                torch.mm(drive, weight.t())
                torch.mm(x.t(), drive)

    return run


def forward_limit(sizes: Sizes) -> Run:
    """Return the products of the outputs of a batch."""
    hidden, layers = sizes.hidden_size, layer_products(sizes)
    state, matrix = torch.randn(sizes.batch_size, hidden), torch.randn(hidden, hidden)
    out = torch.empty_like(state)
    inputs = [
        (torch.randn(sizes.length * sizes.batch_size, size), torch.randn(size, drive_size))
        for size, drive_size in (layer.input_shape for layer in layers if layer.input_shape is not None)
    ]
    products = sizes.length * sum(layer.recurrent for layer in layers)

    def run() -> None:
        for _ in range(sizes.members):
            for _ in range(products):
                torch.mm(state, matrix, out=out)
            for x, weight in inputs:
                torch.mm(x, weight)

    return run
