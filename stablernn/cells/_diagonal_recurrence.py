"""Cells whose step is linear in the state, unit by unit."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from stablernn.cells._base import StableCell, State, Weights


class DiagonalRecurrence(NamedTuple):
    """``h_t = decay_t .* h_{t-1} + increment_t``, whose steps an engine may run in any order.

    Attributes:
        decay: ``(parts, units)`` if it is the same in every step, else ``(..., 1, units)``. Real units have one part;
            complex ones have two, the real and the imaginary part.
        increment: ``(..., parts, units)``.
        skip: ``(..., d)``, what :meth:`DiagonalCell.state_after` needs of the drive besides; None if nothing.
    """

    decay: Tensor
    increment: Tensor
    skip: Tensor | None = None


class DiagonalCell(StableCell):
    """A cell whose regular steps are a :class:`DiagonalRecurrence`.

    The state of the recurrence is ``h``, ``(batch, parts, units)``. By default it is the cell's only state tensor.
    """

    def diagonal_recurrence(self, weights: Weights, drive: Tensor) -> DiagonalRecurrence:
        """Return the recurrence of steps with the drives ``(..., d)``.

        Args:
            weights: As :meth:`materialize` returned them.
            drive: As :meth:`drive` returned it.
        """
        raise NotImplementedError

    def recurrent_state(self, state: State) -> Tensor:
        """Return ``h`` of a state."""
        return state[0][:, None]

    def state_after(self, weights: Weights, h: Tensor, skip: Tensor | None) -> State:
        """Return the state of ``h``, ``(..., parts, units)``, and of what the step's drive adds to it."""
        return (h.squeeze(-2),)
