"""Ensembles: networks of one kind that differ only in their initial weights, and their heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn

from stablernn.cells import StableCell, State, Weights
from stablernn.cells._base import check_at_least
from stablernn.engines import check_engine
from stablernn.engines.base import Result
from stablernn.errors import ConfigError
from stablernn.nn.convolutions import ConvolutionShape, DilatedConvolutions
from stablernn.nn.layers import StableRNN, run_stacks


class SharedDraws:
    """Random numbers for a whole batch, of which a process uses those of its rows.

    Args:
        rows: Rows of this process.
        total: Rows of the whole batch.
        device: Device of the model.
    """

    def __init__(self, rows: slice, total: int, device: torch.device) -> None:
        self._rows = rows
        self._total = total
        self._device = device
        # Of the generators that all processes draw from alike.
        self._states = self._get_states()

    def dropout(self, features: Tensor, probability: float) -> Tensor:
        """Return features, ``(batch, ...)``, with some set to 0 and the others scaled."""
        before = self._get_states()
        self._set_states(self._states)
        mask = nn.functional.dropout(features.new_ones(self._total, *features.shape[1:]), probability)
        self._states = self._get_states()
        self._set_states(before)
        return features * mask[self._rows]

    def restore(self) -> None:
        """Give the generators the state that all processes have alike."""
        self._set_states(self._states)

    def _get_states(self) -> list[Tensor]:
        on_gpu = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        return [torch.get_rng_state(), *on_gpu]

    def _set_states(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self._device)


_DRAWS: ContextVar[SharedDraws | None] = ContextVar("shared_draws", default=None)


@contextmanager
def shared_draws(draws: SharedDraws) -> Iterator[None]:
    """Use draws for the whole batch in :func:`shared_dropout` inside the ``with`` block, and restore the generators."""
    token = _DRAWS.set(draws)
    try:
        yield
    finally:
        _DRAWS.reset(token)
        draws.restore()


def shared_dropout(features: Tensor, probability: float, is_training: bool) -> Tensor:
    """Return features, ``(batch, ...)``, after dropout as a single process with the whole batch would do it."""
    draws = _DRAWS.get()
    if draws is None or not is_training:
        return nn.functional.dropout(features, probability, is_training)
    return draws.dropout(features, probability)


class Ensemble(nn.Module):
    """Independent stacks of recurrent layers over one input; their outputs are concatenated.

    Nothing is shared, so that training them at once is training each of them alone, in the same order of samples.

    Args:
        count: Number of members, 1 or more.
        cell: A key of the catalog.
        input_size: Channels of the input.
        hidden_size: Length of each layer's state.
        num_layers: Layers of each.
        embedding: Length of the vector into which each member first maps a step's channels, by a linear map and a GELU;
            0 for none.
        convolutions: Sizes of each member's convolutions in front of its embedding; None for none.
        options: Further options of :class:`stablernn.StableRNN`.

    Raises:
        ValueError: If ``count`` is not 1 or more, or ``embedding`` less than 0.
        ConfigError: If there are convolutions and no embedding.
    """

    def __init__(
        self,
        count: int,
        cell: str,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        embedding: int = 0,
        convolutions: ConvolutionShape | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"members must be 1 or more, got {count}.")
        if embedding < 0:
            raise ValueError(f"patch_embedding must be 0 or more, got {embedding}.")
        if convolutions is not None and not embedding:
            raise ConfigError(
                f"conv_layers={convolutions.layers} needs an embedding of what the convolutions make of a patch, got "
                "patch_embedding=0; set it to 1 or more."
            )
        self.input_size = input_size
        self.embedding = embedding
        self.convolutions = nn.ModuleList(
            [] if convolutions is None else [DilatedConvolutions(convolutions) for _ in range(count)]
        )
        embedded_size = input_size if convolutions is None else convolutions.output_size
        self.embeddings = nn.ModuleList([nn.Linear(embedded_size, embedding) for _ in range(count if embedding else 0)])
        self.stacks = nn.ModuleList(
            [StableRNN(cell, embedding or input_size, hidden_size, num_layers, **options) for _ in range(count)]
        )

    def __len__(self) -> int:
        return len(self.stacks)

    @property
    def first(self) -> StableRNN:
        """The first member, for properties that all share."""
        return cast("StableRNN", self.stacks[0])

    @property
    def cells(self) -> list[StableCell]:
        """The layers' cells, member after member."""
        return [cell for stack in self._members() for cell in stack.cells]

    def use_engine(self, name: str) -> None:
        """Let the steps run by an engine, see :class:`stablernn.StableRNN`.

        Raises:
            UnknownNameError: If there is no engine of that name.
        """
        check_engine(name)
        for stack in self._members():
            stack.engine = name

    def recompute_every(self, steps: int | None) -> None:
        """Let the backward pass compute states again, see :class:`stablernn.StableRNN`.

        Raises:
            ValueError: If ``steps`` is less than 1.
        """
        if steps is not None:
            check_at_least(self, 1, recompute_every=steps)
        for stack in self._members():
            stack.recompute_every = steps

    @property
    def output_size(self) -> int:
        """Length of the concatenated outputs of one step."""
        return len(self) * self.first.output_size

    def run(
        self,
        x: Tensor,
        state: State,
        lengths: Tensor | None = None,
        dt: Tensor | None = None,
        *,
        every_output: bool = True,
    ) -> Result:
        """Return outputs ``(batch, time, output_size)`` and the flat state after the last valid step, by member.

        Without ``every_output`` the outputs are None.
        """
        inputs = [self._embedded(x, number) for number in range(len(self))]
        results = run_stacks(
            self._members(), inputs, self._member_states(state), lengths, dt, every_output=every_output
        )
        outputs = [output for output, _ in results if output is not None]
        concatenated = None
        if every_output:
            # The outputs of a single member need no copy.
            concatenated = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return concatenated, tuple(tensor for _, member_state in results for tensor in member_state)

    def fit_inputs(self, x: Tensor, lengths: Tensor) -> None:
        """Fit the first layers to their inputs, see :meth:`stablernn.cells.StableCell.fit_inputs`."""
        for number, stack in enumerate(self._members()):
            stack.cells[0].fit_inputs(self._embedded(x, number), lengths)

    def advance(self, weights: Sequence[Weights], x: Tensor, state: State, dt: Tensor | None = None) -> State:
        """Return the flat state after one step; arguments as for :meth:`stablernn.StableRNN.advance`."""
        depth = self.first.num_layers
        next_state: list[Tensor] = []
        for number, (stack, member_state) in enumerate(zip(self._members(), self._member_states(state), strict=True)):
            # The weights of all layers, member after member.
            member_weights = weights[number * depth : (number + 1) * depth]
            next_state.extend(stack.advance(member_weights, self._embedded(x, number), member_state, dt))
        return tuple(next_state)

    def output(self, state: State) -> Tensor:
        """Return the outputs of a flat state, ``(batch, output_size)``."""
        # The output is the first state tensor of the last layer.
        index = -len(self.first.cells[-1].state_names)
        outputs = [member_state[index] for member_state in self._member_states(state)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros, as one flat tuple."""
        return tuple(tensor for stack in self._members() for tensor in stack.initial_state(batch_size))

    def state_roles(self) -> list[tuple[str, int]]:
        """Return the role and the length of each tensor of the flat state."""
        if len(self) == 1:
            return self.first.state_roles()
        return [
            (f"member {number} {role}", size)
            for number, stack in enumerate(self._members())
            for role, size in stack.state_roles()
        ]

    def after_step(self, step: int, total_steps: int) -> None:
        """Let the cells project their parameters after optimizer step ``step`` (from 1) of ``total_steps``."""
        for stack in self._members():
            stack.after_step(step, total_steps)

    def penalty(self) -> Tensor | None:
        """Return the sum of the cells' penalties for the training loss, or None."""
        penalties = [penalty for stack in self._members() if (penalty := stack.penalty()) is not None]
        return torch.stack(penalties).sum() if penalties else None

    def parameters_of(self, number: int) -> list[nn.Parameter]:
        """Return the parameters of one member."""
        front = [stage[number] for stage in (self.convolutions, self.embeddings) if len(stage)]
        return [parameter for part in (*front, self.stacks[number]) for parameter in part.parameters()]

    def _embedded(self, x: Tensor, number: int) -> Tensor:
        """Return the input of a member's layers."""
        if self.convolutions:
            x = self.convolutions[number](x)
        return nn.functional.gelu(self.embeddings[number](x)) if self.embedding else x

    def _members(self) -> list[StableRNN]:
        return cast("list[StableRNN]", list(self.stacks))

    def _member_states(self, state: State) -> list[State]:
        """Split a flat state into those of the members."""
        size = len(self.first.state_roles())
        return [state[start : start + size] for start in range(0, len(state), size)]


class Heads(nn.Module):
    """A linear map for each member, of that member's features alone.

    Args:
        members: Number of members.
        features: Input features of each.
        outputs: Outputs of each.
        dropout: Share of the features zeroed in training, 0 to 1.

    Shape:
        - input: ``(batch, members * features)``
        - output: ``(batch, members, outputs)``

    Raises:
        ValueError: If ``dropout`` is out of range.
    """

    def __init__(self, members: int, features: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout <= 1:
            raise ValueError(f"head_dropout must be from 0 to 1, got {dropout}.")
        self.maps = nn.ModuleList([nn.Linear(features, outputs) for _ in range(members)])
        self.dropout = dropout

    def forward(self, features: Tensor) -> Tensor:
        if self.dropout:
            features = shared_dropout(features, self.dropout, self.training)
        parts = features.chunk(len(self.maps), dim=-1)
        # (batch, members, outputs)
        return torch.stack([linear(part) for linear, part in zip(self.maps, parts, strict=True)], dim=1)
