"""The interface of an engine."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from stablernn.cells import StableCell, State


class Engine(Protocol):
    """Runs a cell's step over a whole sequence."""

    name: str

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        """Return whether this engine can run this cell.

        Args:
            cell: The cell.
            drive: Its device and dtype count; it may be the input of the layer, or empty.
            timed: Whether the steps take ``dt``.
        """
        ...

    def run(
        self,
        cell: StableCell,
        weights: tuple[Tensor, ...],
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        """Run every step, and return all outputs and the last state.

        Args:
            cell: The cell whose step to run.
            weights: As ``cell.materialize()`` returned them, with a ``dt`` as ``cell.materialize_timed()`` did.
            drive: ``(batch, time, d)``, as ``cell.drive`` returned it; time is 1 or more. In memory it is time first.
            state: The state before the first step.
            valid: ``(batch, time)`` booleans, true up to the length of each sequence; from there on the state is held.
                None if every step counts.
            dt: ``(batch, time)``, the length of each step in units of the regular one; None if all are regular.
            substeps: In how many equal parts ``cell.advance`` takes each step when there is a ``dt``.
            every_output: Whether the outputs of all steps are needed; an engine may return them in any case.

        Returns:
            The first state tensor after every step, ``(batch, time, hidden)``, None if they are not needed; and the
            state after the last.
        """
        ...


@runtime_checkable
class InputEngine(Engine, Protocol):
    """An engine whose kernels contain the product with the inputs, so that no drive is computed for it.

    Attributes:
        takes_drive: Whether :meth:`run` works as well.
    """

    takes_drive: bool

    def run_inputs(
        self,
        cell: StableCell,
        weights: tuple[Tensor, ...],
        x: Tensor,
        state: State,
        valid: Tensor | None,
        *,
        every_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        """Return what :meth:`run` returns for regular steps.

        Args:
            cell: As for :meth:`run`.
            weights: Likewise.
            x: The input of the layer, ``(batch, time, input_size)``.
            state: As for :meth:`run`.
            valid: Likewise.
            every_output: Likewise.
        """
        ...


@runtime_checkable
class EnsembleEngine(Engine, Protocol):
    """An engine that can run the members of an ensemble at once."""

    def run_ensemble(
        self,
        cells: list[StableCell],
        weights: list[tuple[Tensor, ...]],
        drives: list[Tensor],
        states: list[State],
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> list[tuple[Tensor | None, State]]:
        """Return what :meth:`run` returns for each member.

        Args:
            cells: The members' cells of one layer, which differ in their parameters only.
            weights: As for :meth:`run`, of each member.
            drives: Likewise.
            states: Likewise.
            valid: As for :meth:`run`; the same for all members, as ``dt`` and ``substeps`` are.
            dt: Likewise.
            substeps: Likewise.
            every_output: Likewise.
        """
        ...
