"""Cells over time and depth."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stablernn.cells import StableCell, State, Weights, cell_info, create_cell
from stablernn.cells._base import check_at_least, check_dt, longest_step
from stablernn.engines import EnsembleEngine, InputEngine, check_engine, select_engine
from stablernn.engines.base import Result
from stablernn.errors import ConfigError
from stablernn.nn.segments import Batch, run_segments, valid_steps


class StableRNN(nn.Module):
    """A stack of recurrent layers; called and returning like ``torch.nn.RNN``.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Features per time step.
        hidden_size: Length of each layer's state.
        num_layers: Layers, 1 or more.
        batch_first: Whether input and output are ``(batch, time, feature)``. True by default, unlike ``torch.nn``.
        dropout: Share of each layer's outputs zeroed in training before the next layer, 0 to 1.
        engine: The engine that runs the steps: ``auto``, or one of :func:`stablernn.engines.list_engines`.
        preset: ``practical`` (ours) or ``paper``, the cell's defaults.
        max_dt: Longest step to be passed as ``dt``, 1 or more, which fixes the number of sub-steps of each step. When
            omitted, each call divides by its own longest step.
        recompute_every: Time steps after which a state is kept for the backward pass, which computes again what lies
            between them: memory for ``time / recompute_every + recompute_every`` steps in place of all, for a second
            forward pass. None keeps everything.
        options: Options of the cell, which override the preset.

    Shape:
        - input: ``(batch, time, input_size)``, or ``(time, input_size)`` for one sequence
        - state: ``(num_layers, batch, size)``, a tuple of them where the cell has several; without ``batch`` for one
          sequence; zeros when omitted. ``size`` is ``hidden_size``, except for tensors with a size of their own
          (``state_sizes``); a tensor that upper layers do not need is stacked over the layers that have it.
        - lengths: ``(batch,)`` integers: steps from there on are padding, over which the state is held
        - dt: ``(batch, time)``, or ``(time,)`` for one sequence: the time from the step before to each step, in units
          of the regular one; only for cells that come from a differential equation
        - output: ``(batch, time, output_size)``, the last layer's first state tensor, and the state after the last
          valid step. Over padding the output repeats the last valid one.

    Raises:
        ValueError: If a size, ``dropout`` or ``recompute_every`` is out of range, or an input has another shape.
        ConfigError: If ``dt`` or ``max_dt`` is given and the cell takes none, or a ``dt`` is longer than ``max_dt``.
        UnknownNameError: If there is no such cell or engine.

    In a custom training loop, add :meth:`penalty` to the loss and call :meth:`after_step` after each optimizer step,
    which moves base points and sparsifies matrices; constraints hold without it. The ``orthogonal`` parameters of
    :meth:`parameter_groups` may need a smaller learning rate.

    Examples:
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
        max_dt: float | None = None,
        recompute_every: int | None = None,
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
        if recompute_every is not None:
            check_at_least(self, 1, recompute_every=recompute_every)
        if max_dt is not None and not 1 <= max_dt < float("inf"):
            raise ValueError(f"max_dt must be a finite number of 1, the regular step, or more, got {max_dt}.")
        info = cell_info(cell)
        if num_layers > 1 and info.cell.is_fixed:
            raise ConfigError(
                f"The cell '{cell}' has no layer above it, for its output is what a head reads, got "
                f"num_layers={num_layers}. Take 1."
            )
        self.cell = info.key
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.dropout = dropout
        self.engine = engine
        self.max_dt = max_dt
        self.recompute_every = recompute_every
        layers = [create_cell(cell, input_size, hidden_size, preset=preset, **options)]
        if max_dt is not None:
            layers[0].check_takes_dt()
        # Upper layers read the layer below, and some cells take other options there.
        for _ in range(num_layers - 1):
            size = layers[-1].output_size
            layers.append(create_cell(cell, size, hidden_size, preset=preset, **{**options, **info.upper_options}))
        self.layers = nn.ModuleList(layers)

    @property
    def output_size(self) -> int:
        """Length of the output of each step."""
        return self.cells[-1].output_size

    @property
    def output_index(self) -> int:
        """Index in the flat state of the tensor that the output of a step is."""
        return -len(self.cells[-1].state_names)

    @property
    def cells(self) -> list[StableCell]:
        """The layers' cells, from input to output."""
        return [layer for layer in self.layers if isinstance(layer, StableCell)]

    def forward(
        self,
        input: Tensor,
        state: Tensor | Sequence[Tensor] | None = None,
        lengths: Tensor | None = None,
        dt: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        check_tensor(input, next(self.parameters()))
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"input has shape {tuple(input.shape)}, the layer expects (batch, time, {self.input_size}) "
                f"or (time, {self.input_size})."
            )
        # From here on everything is batched, and batch first.
        single = input.dim() == 2
        x = input[None] if single else input
        steps = dt[None] if single and dt is not None else dt
        if not self.batch_first and not single:
            x = x.transpose(0, 1)
            steps = None if steps is None else steps.transpose(0, 1)
        if lengths is not None and single:
            raise ValueError("lengths are for batches, got an input of one sequence; cut it to its length instead.")
        initial = self.initial_state(len(x)) if state is None else self._unstacked(state, len(x), single)
        output, final = self.run(x, initial, lengths, steps)
        assert output is not None
        if not self.batch_first and not single:
            output = output.transpose(0, 1)
        names = self.cells[0].state_names
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        for (_, name, _), tensor in zip(self._state_parts(), final, strict=True):
            parts[name].append(tensor)
        stacked = tuple(torch.stack(tensors) for tensors in parts.values())
        # Back to the shapes of an unbatched input.
        if single:
            output, stacked = output[0], tuple(tensor[:, 0] for tensor in stacked)
        return output, stacked[0] if len(names) == 1 else self.cells[0].state_type()(*stacked)

    def run(
        self,
        x: Tensor,
        state: State,
        lengths: Tensor | None = None,
        dt: Tensor | None = None,
        *,
        every_output: bool = True,
    ) -> Result:
        """Run :meth:`forward` on ``(batch, time, input_size)`` with the state as one flat tuple, layer after layer.

        Without ``every_output`` the outputs of the last layer are None.
        """
        ((outputs, final),) = run_stacks([self], [x], [state], lengths, dt, every_output=every_output)
        return outputs, final

    def advance(self, weights: Sequence[Weights], x: Tensor, state: State, dt: Tensor | None = None) -> State:
        """Return the flat state after one step of all layers.

        Args:
            weights: Each layer's matrices, as ``cell.weights`` returns them.
            x: ``(batch, input_size)``.
            state: As :meth:`run` takes it.
            dt: ``(batch, 1)``, up to ``max_dt``, which must be set.
        """
        next_state: list[Tensor] = []
        start = 0
        for cell, cell_weights in zip(self.cells, weights, strict=True):
            end = start + len(cell.state_names)
            substeps = cell.substeps(self.max_dt) if self.max_dt is not None else 1
            last = cell.advance(cell_weights, state[start:end], cell.drive(x), dt, substeps)
            x = last[0]
            next_state.extend(last)
            start = end
        return tuple(next_state)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros, as one flat tuple, layer after layer."""
        return tuple(tensor for cell in self.cells for tensor in cell.initial_state(batch_size))

    def state_roles(self) -> list[tuple[str, int]]:
        """Return the role and the length of each tensor of the flat state."""
        return [(f"layer {depth} {name}", size) for depth, name, size in self._state_parts()]

    def after_step(self, step: int, total_steps: int) -> None:
        """Let the cells project their parameters after optimizer step ``step`` (from 1) of ``total_steps``."""
        with torch.no_grad():
            for cell in self.cells:
                cell.after_step(step, total_steps)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters behind ``orthogonal`` and unitary matrices, and all ``other`` ones."""
        return group_parameters(self)

    def penalty(self) -> Tensor | None:
        """Return the sum of the cells' penalties for the training loss, or None."""
        penalties = [penalty for cell in self.cells if (penalty := cell.penalty()) is not None]
        return torch.stack(penalties).sum() if penalties else None

    def _state_parts(self) -> list[tuple[int, str, int]]:
        """Return layer, name and length of each tensor of the flat state."""
        return [
            (depth, name, size)
            for depth, cell in enumerate(self.cells)
            for name, size in zip(cell.state_names, cell.state_sizes, strict=True)
        ]

    def _unstacked(self, state: Tensor | Sequence[Tensor], batch_size: int, single: bool) -> State:
        """Return the flat state of a stacked one, and check its shapes."""
        tensors = (state,) if isinstance(state, Tensor) else tuple(state)
        batch = () if single else (batch_size,)
        parts, cell = self._state_parts(), self.cells[0]
        # Of a tensor that only some layers have, as many rows as these.
        shapes = {
            name: (sum(other == name for _, other, _ in parts), *batch, size)
            for name, size in zip(cell.state_names, cell.state_sizes, strict=True)
        }
        if [tuple(tensor.shape) for tensor in tensors] != list(shapes.values()):
            expected = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(
                f"The state of the cell '{cell.key}' is {expected} here, "
                f"got {' and '.join(str(tuple(tensor.shape)) for tensor in tensors)}."
            )
        device = next(self.parameters()).device
        if (elsewhere := next((tensor.device for tensor in tensors if tensor.device != device), None)) is not None:
            raise ValueError(f"The state is on {elsewhere}, the parameters are on {device}; move one with .to().")
        if single:
            tensors = tuple(tensor[:, None] for tensor in tensors)
        # A stacked tensor holds the layers in the order in which the flat state names them.
        rows = {name: iter(tensor) for name, tensor in zip(cell.state_names, tensors, strict=True)}
        return tuple(next(rows[name]) for _, name, _ in parts)

    def checked_dt(self, dt: Tensor, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return the times of the steps of ``x`` in its dtype and on its device, 1 over padding.

        Raises:
            ValueError: If there is not one for each step, or one is not a finite number of 0 or more.
            ConfigError: If the cell takes no ``dt``, or a time is longer than ``max_dt``.
        """
        self.cells[0].check_takes_dt()
        if dt.shape != x.shape[:2]:
            raise ValueError(f"dt has shape {tuple(dt.shape)}, the input's steps are {tuple(x.shape[:2])}.")
        # As lengths, times may be on another device.
        dt = dt.to(x)
        if valid is not None:
            dt = torch.where(valid, dt, 1.0)
        check_dt(dt)
        longest = longest_step(dt)
        # Rounding to float32 can put a dt just above max_dt.
        if self.max_dt is not None and longest > self.max_dt * (1 + 1e-6):
            raise ConfigError(
                f"dt is at most max_dt={self.max_dt:g}, the longest step that the model takes, got {longest:g}; divide "
                "the gap into steps with missing values."
            )
        return dt

    def extra_repr(self) -> str:
        return (
            f"{self.cell!r}, {self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"batch_first={self.batch_first}, dropout={self.dropout}, engine={self.engine!r}, max_dt={self.max_dt}"
        )


def run_stacks(
    stacks: Sequence[StableRNN],
    inputs: Sequence[Tensor],
    states: Sequence[State],
    lengths: Tensor | None = None,
    dt: Tensor | None = None,
    *,
    every_output: bool = True,
) -> list[Result]:
    """Run stacks that differ in their parameters only, the members of an ensemble, layer after layer.

    Args:
        stacks: The members.
        inputs: ``(batch, time, input_size)`` for each member.
        states: The flat state of each.
        lengths: As for :meth:`StableRNN.forward`, the same for all.
        dt: Likewise.
        every_output: Whether the outputs of the last layer are needed.

    Returns:
        For each member the outputs of the last layer, None unless needed, and the flat state after the last valid step.
    """
    first, timed = stacks[0], dt is not None
    valid = valid_steps(inputs[0], lengths)
    if valid is not None:
        # Padding must not reach a gradient: even a weight of zero gives NaN for NaN.
        inputs = [x.masked_fill(~valid[..., None], 0) for x in inputs]
    longest = 1.0
    if dt is not None:
        dt = first.checked_dt(dt, inputs[0], valid)
        # With max_dt the number of sub-steps does not depend on the batch.
        longest = first.max_dt or longest_step(dt)
    weights = [[cell.weights(timed=timed) for cell in stack.cells] for stack in stacks]
    run = functools.partial(_run_layers, stacks, weights, longest, every_output)
    recompute_every = first.recompute_every if torch.is_grad_enabled() else None
    return run_segments(run, Batch(inputs, states, valid, dt), recompute_every, first.output_index)


def _run_layers(
    stacks: Sequence[StableRNN],
    weights: Sequence[Sequence[Weights]],
    longest: float,
    every_output: bool,
    batch: Batch,
) -> list[Result]:
    """Run all layers over some time steps; see :func:`run_stacks`.

    Args:
        stacks: The members.
        weights: The matrices of each layer, by member.
        longest: The longest step that sub-steps are for.
        every_output: Whether the outputs of the last layer are needed.
        batch: The time steps.
    """
    first, (inputs, states, valid, dt) = stacks[0], batch
    final: list[list[Tensor]] = [[] for _ in stacks]
    start = 0
    outputs: list[Tensor | None] = list(inputs)
    for depth, cell in enumerate(first.cells):
        end = start + len(cell.state_names)
        cells = [stack.cells[depth] for stack in stacks]
        members_inputs = []
        for x in outputs:
            assert x is not None
            if depth and first.dropout:
                x = nn.functional.dropout(x, first.dropout, first.training)
            members_inputs.append(x)
        matrices = [member_weights[depth] for member_weights in weights]
        results = _run_layer(
            first,
            cells,
            matrices,
            Batch(members_inputs, [state[start:end] for state in states], valid, dt),
            cell.substeps(longest),
            every_output=every_output or depth < first.num_layers - 1,
        )
        outputs = [output for output, _ in results]
        for member_final, (_, last) in zip(final, results, strict=True):
            member_final.extend(last)
        start = end
    return [(output, tuple(tensors)) for output, tensors in zip(outputs, final, strict=True)]


def _run_layer(
    first: StableRNN,
    cells: list[StableCell],
    weights: list[Weights],
    batch: Batch,
    substeps: int,
    *,
    every_output: bool,
) -> list[Result]:
    """Run the layer of each member by the engine for it.

    Args:
        first: The stack of the first member, whose settings are those of all.
        cells: The cell of each member.
        weights: Its matrices.
        batch: Its inputs and states.
        substeps: Equal parts of each irregular step.
        every_output: Whether all outputs are needed.

    Returns:
        The outputs and the last state of each member.
    """
    inputs, states, valid, dt = batch
    engine = select_engine(first.engine, cells[0], inputs[0], timed=dt is not None)
    runs_as_one = len(cells) > 1 and isinstance(engine, EnsembleEngine)
    if isinstance(engine, InputEngine) and not runs_as_one:
        return [
            engine.run_inputs(*member, valid, every_output=every_output)
            for member in zip(cells, weights, inputs, states, strict=True)
        ]
    # One product over all steps, outside of the recurrence. Time comes first in memory, so that each step reads one
    # block.
    drives = [cell.drive(x.transpose(0, 1).contiguous()).transpose(0, 1) for cell, x in zip(cells, inputs, strict=True)]
    # Under autocast the dtype of a drive is another one than that of the input.
    if drives[0].dtype != inputs[0].dtype:
        engine = select_engine(first.engine, cells[0], drives[0], timed=dt is not None)
    if len(cells) > 1 and isinstance(engine, EnsembleEngine):
        return engine.run_ensemble(cells, weights, drives, list(states), valid, dt, substeps, every_output=every_output)
    return [
        engine.run(*member, valid, dt, substeps, every_output=every_output)
        for member in zip(cells, weights, drives, states, strict=True)
    ]


def group_parameters(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return a module's parameters: those behind ``orthogonal`` and unitary matrices, and all ``other`` ones."""
    orthogonal = [
        getattr(cell, name) for cell in module.modules() if isinstance(cell, StableCell) for name in cell.orthogonal
    ]
    # By identity: comparing tensors would compare their values.
    orthogonal_ids = {id(parameter) for parameter in orthogonal}
    return {
        "other": [parameter for parameter in module.parameters() if id(parameter) not in orthogonal_ids],
        "orthogonal": orthogonal,
    }


def check_tensor(x: Any, parameter: Tensor) -> None:
    """Refuse an input that is no tensor, or has another dtype or device than the parameters.

    Args:
        x: The input.
        parameter: One of the parameters.

    Raises:
        ValueError: If it does.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"input must be a tensor with lengths= where sequences differ, got {type(x).__name__}.")
    if x.dtype != parameter.dtype:
        raise ValueError(f"input is {x.dtype}, the parameters are {parameter.dtype}; convert one of them with .to().")
    if x.device != parameter.device:
        raise ValueError(f"input is on {x.device}, the parameters are on {parameter.device}; move one with .to().")
