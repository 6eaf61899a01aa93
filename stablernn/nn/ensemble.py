"""Several networks of one kind side by side, which differ by their first weights alone, and their heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stablernn.cells import StableCell, State
from stablernn.nn.layers import StableRNN


class Ensemble(nn.Module):
    """Independent stacks of recurrent layers over one input; their outputs stand side by side.

    Nothing is shared, so that training them at once is training each of them alone, in the same order of samples.

    Args:
        count: How many, 1 or more.
        cell: A key of the catalog.
        input_size: Channels of the input.
        hidden_size: Length of each layer's state.
        num_layers: Layers of each.
        embedding: Length of the vector that a step's channels are turned into first, by a linear map of each member's
            own and a GELU; 0 for none.
        options: Further ones of :class:`stablernn.StableRNN`.

    Raises:
        ValueError: If ``count`` is not 1 or more, or ``embedding`` less than 0.
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
        **options: Any,
    ) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"members must be 1 or more, got {count}.")
        if embedding < 0:
            raise ValueError(f"patch_embedding must be 0 or more, got {embedding}.")
        self.embedding = embedding
        self.embeddings = nn.ModuleList([nn.Linear(input_size, embedding) for _ in range(count if embedding else 0)])
        self.stacks = nn.ModuleList(
            [StableRNN(cell, embedding or input_size, hidden_size, num_layers, **options) for _ in range(count)]
        )

    def __len__(self) -> int:
        return len(self.stacks)

    @property
    def first(self) -> StableRNN:
        """The first of them, for what all have in common."""
        return self._all()[0]

    @property
    def cells(self) -> list[StableCell]:
        """The layers' cells, member after member."""
        return [cell for stack in self._all() for cell in stack.cells]

    @property
    def output_size(self) -> int:
        """Length of the outputs of one step side by side."""
        return len(self) * self.first.output_size

    def run(
        self, x: Tensor, state: State, lengths: Tensor | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Outputs ``(batch, time, output_size)`` and the flat state after the last valid step, member after member."""
        results = [
            stack.run(self._embedded(x, number), part, lengths, dt)
            for number, (stack, part) in enumerate(zip(self._all(), self._parts(state), strict=True))
        ]
        outputs = [output for output, _ in results]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return joined, tuple(tensor for _, part in results for tensor in part)

    def advance(
        self, weights: Sequence[tuple[Tensor, ...]], x: Tensor, state: State, dt: Tensor | None = None
    ) -> State:
        """The flat state after one step; arguments as for :meth:`stablernn.StableRNN.advance`."""
        depth = self.first.num_layers
        following: list[Tensor] = []
        for number, (stack, part) in enumerate(zip(self._all(), self._parts(state), strict=True)):
            used = weights[number * depth : (number + 1) * depth]
            following.extend(stack.advance(used, self._embedded(x, number), part, dt))
        return tuple(following)

    def output(self, state: State) -> Tensor:
        """The outputs that a flat state stands for, ``(batch, output_size)``."""
        top = -len(self.first.cells[-1].state_names)
        tops = [part[top] for part in self._parts(state)]
        return tops[0] if len(tops) == 1 else torch.cat(tops, dim=-1)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, as one flat tuple."""
        return tuple(tensor for stack in self._all() for tensor in stack.initial_state(batch_size))

    def state_roles(self) -> list[tuple[str, int]]:
        """What each tensor of the flat state is, and its length."""
        if len(self) == 1:
            return self.first.state_roles()
        return [
            (f"member {number} {role}", size)
            for number, stack in enumerate(self._all())
            for role, size in stack.state_roles()
        ]

    def after_step(self, step: int, total_steps: int) -> None:
        """Let the cells project their parameters after optimizer step ``step`` (from 1) of ``total_steps``."""
        for stack in self._all():
            stack.after_step(step, total_steps)

    def penalty(self) -> Tensor | None:
        """Sum of what the cells add to the training loss, or None."""
        penalties = [penalty for stack in self._all() if (penalty := stack.penalty()) is not None]
        return torch.stack(penalties).sum() if penalties else None

    def parameters_of(self, number: int) -> list[nn.Parameter]:
        """What belongs to one member."""
        own = list(self.embeddings[number].parameters()) if self.embedding else []
        return [*own, *self.stacks[number].parameters()]

    def _embedded(self, x: Tensor, number: int) -> Tensor:
        return nn.functional.gelu(self.embeddings[number](x)) if self.embedding else x

    def _all(self) -> list[StableRNN]:
        return [stack for stack in self.stacks if isinstance(stack, StableRNN)]

    def _parts(self, state: State) -> list[State]:
        size = len(self.first.state_roles())
        return [state[start : start + size] for start in range(0, len(state), size)]


class Heads(nn.Module):
    """A linear map for each member, of that member's features alone.

    Args:
        members: How many there are.
        features: What each reads.
        outputs: What each says.
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
            features = nn.functional.dropout(features, self.dropout, self.training)
        parts = features.chunk(len(self.maps), dim=-1)
        return torch.stack([linear(part) for linear, part in zip(self.maps, parts, strict=True)], dim=1)
