"""Rows of a training step: forward, backward and Adam, with a linear classifier on the last state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablernn.engines import list_engines, select_engine
from stablernn.errors import ConfigError
from stablernn.nn.ensemble import Ensemble
from stablernn_cli.bench.limit import Sizes, training_limit
from stablernn_cli.bench.timing import LIMIT, Run

CLASSES = 10
PeerType = type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]
PEERS: tuple[PeerType, ...] = (nn.LSTM, nn.GRU, nn.RNN)
"""Layers of torch, of as many units, layers and members."""


class EnsembleState(nn.Module):
    """Last state of an ensemble; outputs before the last are not computed, as in a model with the readout ``last``.

    Args:
        sizes: Sizes of the network.
        engine: The engine that runs the steps.
        max_dt: Longest step to be passed as ``dt``.
    """

    def __init__(self, sizes: Sizes, engine: str = "auto", max_dt: float | None = None) -> None:
        super().__init__()
        self.rnn = Ensemble(
            sizes.members,
            sizes.cell,
            1,
            sizes.hidden_size,
            sizes.num_layers,
            engine=engine,
            max_dt=max_dt,
            **sizes.cell_options,
        )
        self.output_size = self.rnn.output_size

    def forward(self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None) -> Tensor:
        _, state = self.rnn.run(x, self.rnn.initial_state(len(x)), lengths, dt, every_output=False)
        return self.rnn.output(state)


class HandWritten(nn.Module):
    """The loop that anyone would write by hand, for cells with a step form."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.rnn = Ensemble(sizes.members, sizes.cell, 1, sizes.hidden_size, sizes.num_layers, **sizes.cell_options)
        self.output_size = self.rnn.output_size
        self.num_layers = sizes.num_layers

    def forward(self, x: Tensor) -> Tensor:
        cells = self.rnn.cells
        outputs: list[Tensor] = []
        for first in range(0, len(cells), self.num_layers):
            sequence, states = x, list[Tensor]()
            for cell in cells[first : first + self.num_layers]:
                if states:
                    sequence = torch.stack(states, dim=1)
                form = cell.step_form(cell.materialize())
                assert form is not None
                (h,) = cell.initial_state(len(x))
                states = []
                # Not `drive[:, step]`, whose backward pass fills a tensor of the whole sequence for each step.
                for drive in cell.drive(sequence).unbind(1):
                    h = form.step(h, drive)
                    states.append(h)
            outputs.append(states[-1])
        return torch.cat(outputs, dim=-1)


class Peer(nn.Module):
    """Last state of a recurrent layer of torch; of several where there are several members."""

    def __init__(self, layer: PeerType, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList([peer_layer(layer, sizes) for _ in range(sizes.members)])
        self.output_size = sizes.members * sizes.hidden_size

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for layer in self.layers:
            _, state = layer(x)
            last = state[0] if isinstance(state, tuple) else state
            outputs.append(last[-1])
        return torch.cat(outputs, dim=-1)


def peer_layer(layer: PeerType, sizes: Sizes) -> nn.LSTM | nn.GRU | nn.RNN:
    """Return a recurrent layer of torch with the same sizes."""
    return layer(input_size=1, hidden_size=sizes.hidden_size, num_layers=sizes.num_layers, batch_first=True)


SHOOTING_STEPS = 2_048
"""Length from which the engine ``shooting`` is timed; it is for long sequences."""


def supported_engines(sizes: Sizes, *, timed: bool = False) -> list[str]:
    """Return the engines that can run a cell on the CPU, sorted; ``timed`` for steps that take ``dt``."""
    cell = EnsembleState(sizes).rnn.cells[0]
    drive = cell.drive(torch.zeros(sizes.batch_size, 1, cell.input_size))
    engines = []
    for name in list_engines():
        if name == "shooting" and sizes.length < SHOOTING_STEPS:
            continue
        try:
            select_engine(name, cell, drive, timed=timed)
        except ConfigError:
            continue
        engines.append(name)
    return engines


def training_step(model: EnsembleState | HandWritten | Peer, x: Tensor, **inputs: Tensor) -> Run:
    """Return a function that trains a network by one minibatch ``x``, ``(batch, time, 1)``.

    Args:
        model: The network.
        x: Its input.
        inputs: Further inputs by name, such as ``lengths``.
    """
    head = nn.Linear(model.output_size, CLASSES)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    labels = torch.randint(0, CLASSES, (len(x),))

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(model(x, **inputs)), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def training_rows(sizes: Sizes) -> dict[str, Run]:
    """Return the rows of a training step: every engine that runs the cell, a loop by hand, layers of torch."""
    x = torch.randn(sizes.batch_size, sizes.length, 1)
    rows: dict[str, Run] = {LIMIT: training_limit(sizes)}
    for engine in supported_engines(sizes):
        rows[f"engine {engine}"] = training_step(EnsembleState(sizes, engine), x)
    if EnsembleState(sizes).rnn.cells[0].has_step_form:
        rows["hand-written loop"] = training_step(HandWritten(sizes), x)
    for peer in PEERS:
        rows[f"nn.{peer.__name__}"] = training_step(Peer(peer, sizes), x)
    return rows
