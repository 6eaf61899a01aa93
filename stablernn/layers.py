"""Cells over time and depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stablernn.cells import StableCell, State, cell_info, create_cell
from stablernn.engines import check_engine, select_engine


class StableRNN(nn.Module):
    """A stack of recurrent layers; called and returning like ``torch.nn.RNN``.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Features per time step.
        hidden_size: Length of each layer's state.
        num_layers: Layers, 1 or more.
        batch_first: Whether input and output are ``(batch, time, feature)``. True by default, unlike ``torch.nn``.
        dropout: Share of each layer's outputs zeroed in training before the next layer, 0 to 1.
        engine: What runs the steps: ``auto``, or one of :func:`stablernn.engines.list_engines`.
        preset: ``practical`` (ours) or ``paper``, the cell's defaults.
        options: Options of the cell, which win over the preset.

    Shape:
        - input: ``(batch, time, input_size)``, or ``(time, input_size)`` for one sequence
        - state: ``(num_layers, batch, hidden_size)``, a tuple of them where the cell has several; without ``batch``
          for one sequence; zeros when omitted
        - lengths: ``(batch,)`` integers: steps from there on are padding, over which the state is held
        - output: ``(batch, time, hidden_size)``, the last layer's first state tensor, and the state after the last
          valid step. Over padding the output repeats the last valid one.

    Raises:
        ValueError: If a size or ``dropout`` is out of range, or an input has another shape.
        UnknownNameError: If there is no such cell or engine.

    Example:
        >>> rnn = StableRNN("lipschitz", input_size=3, hidden_size=8, num_layers=2)
        >>> output, state = rnn(torch.zeros(4, 10, 3), lengths=torch.tensor([10, 7, 3, 1]))
        >>> output.shape, state.shape
        (torch.Size([4, 10, 8]), torch.Size([2, 4, 8]))
    """

    def __init__(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = True,
        dropout: float = 0.0,
        engine: str = "auto",
        preset: str = "practical",
        **options: Any,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers must be 1 or more, got {num_layers}.")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout must be from 0 to 1, got {dropout}.")
        if dropout and num_layers == 1:
            raise ValueError(
                f"dropout acts between layers and needs num_layers of 2 or more, got dropout={dropout} with 1 layer."
            )
        check_engine(engine)
        self.cell = cell_info(cell).key
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.dropout = dropout
        self.engine = engine
        sizes = [input_size] + [hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(create_cell(cell, size, hidden_size, preset=preset, **options) for size in sizes)

    @property
    def cells(self) -> list[StableCell]:
        """The layers' cells, from input to output."""
        return [layer for layer in self.layers if isinstance(layer, StableCell)]

    def forward(
        self, input: Tensor, state: Tensor | Sequence[Tensor] | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        check_tensor(input, next(self.parameters()).dtype)
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"input has shape {tuple(input.shape)}, the layer expects (batch, time, {self.input_size}) "
                f"or (time, {self.input_size})."
            )
        single = input.dim() == 2
        x = input[None] if single else input
        if not self.batch_first and not single:
            x = x.transpose(0, 1)
        if lengths is not None and single:
            raise ValueError("lengths are for batches, got an input of one sequence; cut it to its length instead.")
        initial = self.initial_state(len(x)) if state is None else self._unstacked(state, len(x), single)
        output, final = self.run(x, initial, lengths)
        if not self.batch_first and not single:
            output = output.transpose(0, 1)
        width = len(self.cells[0].state_names)
        stacked = tuple(torch.stack(final[part::width]) for part in range(width))
        if single:
            output, stacked = output[0], tuple(tensor[:, 0] for tensor in stacked)
        return output, stacked[0] if width == 1 else self.cells[0].state_type()(*stacked)

    def run(self, x: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """:meth:`forward` on ``(batch, time, input_size)`` with the state as one flat tuple, layer after layer."""
        valid = valid_steps(x, lengths)
        if valid is not None:
            # What stands in the padding must not reach a gradient: there even a weight of zero gives NaN for NaN.
            x = x.masked_fill(~valid[..., None], 0)
        final: list[Tensor] = []
        for depth, cell in enumerate(self.cells):
            if depth and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            width = len(cell.state_names)
            drive = cell.drive(x)
            engine = select_engine(self.engine, cell, drive)
            x, last = engine.run(cell, cell.materialize(), drive, state[depth * width : (depth + 1) * width], valid)
            final.extend(last)
        return x, tuple(final)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, as one flat tuple, layer after layer."""
        return tuple(tensor for cell in self.cells for tensor in cell.initial_state(batch_size))

    def state_roles(self) -> list[str]:
        """What each tensor of the flat state is."""
        return [f"layer {depth} {name}" for depth, cell in enumerate(self.cells) for name in cell.state_names]

    def penalty(self) -> Tensor | None:
        """Sum of what the cells add to the training loss, or None."""
        penalties = [penalty for cell in self.cells if (penalty := cell.penalty()) is not None]
        return torch.stack(penalties).sum() if penalties else None

    def _unstacked(self, state: Tensor | Sequence[Tensor], batch_size: int, single: bool) -> State:
        parts = (state,) if isinstance(state, Tensor) else tuple(state)
        batch = () if single else (batch_size,)
        self.cells[0].check_state(parts, (self.num_layers, *batch, self.hidden_size))
        if single:
            parts = tuple(part[:, None] for part in parts)
        return tuple(part[depth] for depth in range(self.num_layers) for part in parts)

    def extra_repr(self) -> str:
        return (
            f"{self.cell!r}, {self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"batch_first={self.batch_first}, dropout={self.dropout}, engine={self.engine!r}"
        )


def check_tensor(x: Any, dtype: torch.dtype) -> None:
    """Refuse an input that is no tensor, or one of another dtype than the parameters.

    Raises:
        ValueError: If it is.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"input must be a tensor with lengths= where sequences differ, got {type(x).__name__}.")
    if x.dtype != dtype:
        raise ValueError(f"input is {x.dtype}, the parameters are {dtype}; convert one of them with .to().")


def valid_steps(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Which steps of ``(batch, time, features)`` are no padding, ``(batch, time)``; None when all count.

    Raises:
        ValueError: If there is no step, or ``lengths`` are not one whole number from 0 to time for each sequence.
    """
    batch, time = x.shape[:2]
    if time < 1:
        raise ValueError(f"input has shape {tuple(x.shape)}, the time axis must hold 1 step or more.")
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (batch,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths must be {batch} whole numbers, one for each sequence, "
            f"got shape {tuple(lengths.shape)} of {lengths.dtype}."
        )
    if batch == 0:
        return None
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < 0 or longest > time:
        raise ValueError(f"lengths must be from 0 to {time}, the steps of the input, got {shortest} to {longest}.")
    if shortest == time:
        return None
    return torch.arange(time, device=x.device) < lengths.to(x.device)[:, None]
