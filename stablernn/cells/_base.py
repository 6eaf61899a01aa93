"""What every cell promises."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]


class StableCell(nn.Module):
    """One step of a recurrent network, pure and without a loop.

    A cell keeps *free* parameters. :meth:`materialize` turns them into the matrices that a step uses, once per
    sequence; :meth:`drive` projects all inputs in one product over time; :meth:`step` is then a function of matrices,
    state and drive alone. Engines (:mod:`stablernn.engines`) run the step over time.

    Args:
        input_size: Features per time step, 1 or more.
        hidden_size: Length of the state, 1 or more.

    Raises:
        ValueError: If a size is below 1.
    """

    key: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]] = ("hidden",)
    """What each tensor of the state is; the first is the cell's output."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if size < 1:
                raise ValueError(f"{name} must be 1 or more for {type(self).__name__}, got {size}.")
        self.input_size = input_size
        self.hidden_size = hidden_size

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        raise NotImplementedError

    def materialize(self) -> tuple[Tensor, ...]:
        """The tensors that :meth:`step` uses, built from the free parameters."""
        raise NotImplementedError

    def drive(self, x: Tensor) -> Tensor:
        """Project inputs ``(..., input_size)`` to what a step adds to its recurrent products, ``(..., d)``."""
        raise NotImplementedError

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor) -> State:
        """The next state.

        Args:
            weights: What :meth:`materialize` returned.
            state: One ``(batch, hidden_size)`` tensor for each of ``state_names``.
            drive: This step's projected input, ``(batch, d)``.
        """
        raise NotImplementedError

    def recurrent_matrix(self) -> Tensor:
        """The matrix K of the recurrent product ``K @ h``, column convention."""
        raise NotImplementedError

    def penalty(self) -> Tensor | None:
        """What the cell adds to the training loss, or None."""
        return None

    @classmethod
    @cache
    def state_type(cls) -> type[tuple[Any, ...]]:
        """The named tuple in which a state of several tensors is returned."""
        return namedtuple(f"{cls.__name__}State", cls.state_names)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, one ``(batch_size, hidden_size)`` tensor for each of ``state_names``."""
        like = next(self.parameters())
        return tuple(like.new_zeros(batch_size, self.hidden_size) for _ in self.state_names)

    def forward(self, input: Tensor, state: Tensor | Sequence[Tensor] | None = None) -> Any:
        """One step.

        Args:
            input: ``(batch, input_size)`` or ``(input_size,)``.
            state: The state before, ``(batch, hidden_size)`` or ``(hidden_size,)``; a sequence of them where the cell
                has several; zeros when omitted.

        Returns:
            The next state: a tensor, or a named tuple with the fields ``state_names`` where the cell has several.

        Raises:
            ValueError: If ``input`` or ``state`` has another shape.
        """
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__} expects input of shape (batch, {self.input_size}) or ({self.input_size},), "
                f"got {tuple(input.shape)}."
            )
        batched = input if input.dim() == 2 else input[None]
        if state is None:
            states = self.initial_state(len(batched))
        else:
            given = (state,) if isinstance(state, Tensor) else tuple(state)
            states = tuple(s if input.dim() == 2 else s[None] for s in given)
            self.check_state(states, (len(batched), self.hidden_size))
        states = self.step(self.materialize(), states, self.drive(batched))
        if input.dim() == 1:
            states = tuple(s[0] for s in states)
        return states[0] if len(states) == 1 else self.state_type()(*states)

    def check_state(self, state: State, shape: tuple[int, ...]) -> None:
        """Refuse a state that does not have one tensor of ``shape`` for each of ``state_names``.

        Raises:
            ValueError: If it does not.
        """
        if len(state) != len(self.state_names) or any(tensor.shape != shape for tensor in state):
            raise ValueError(
                f"The state of the cell '{self.key}' is {' and '.join(self.state_names)}, each of shape {shape} here, "
                f"got {' and '.join(str(tuple(tensor.shape)) for tensor in state)}."
            )

    def extra_repr(self) -> str:
        options = {
            name: value for name, value in vars(self).items() if isinstance(value, (int, float, str)) and name[0] != "_"
        }
        sizes = f"{options.pop('input_size')}, {options.pop('hidden_size')}"
        options.pop("training", None)
        return ", ".join([sizes, *(f"{name}={value!r}" for name, value in options.items())])


def check_positive(cell: StableCell, **options: float) -> None:
    """Refuse options that are not finite numbers greater than 0.

    Raises:
        ValueError: If one is not.
    """
    for name, value in options.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number greater than 0 for {type(cell).__name__}, got {value}.")


def check_finite(cell: StableCell, **options: float) -> None:
    """Refuse options that are not finite numbers.

    Raises:
        ValueError: If one is not.
    """
    for name, value in options.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number for {type(cell).__name__}, got {value}.")


def check_not_negative(cell: StableCell, **options: float) -> None:
    """Refuse options that are not finite numbers of 0 or more.

    Raises:
        ValueError: If one is not.
    """
    for name, value in options.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number, 0 or more, for {type(cell).__name__}, got {value}.")


def uniform_(tensor: Tensor, fan_in: int) -> None:
    """Fill with the field's usual default for a linear map: uniform within ``1 / sqrt(fan_in)``."""
    bound = fan_in**-0.5
    with torch.no_grad():
        tensor.uniform_(-bound, bound)
