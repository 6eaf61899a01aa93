"""A base class of cells with a matrix exp(A) B, or a Cayley transform in place of exp, whose base B moves."""

from __future__ import annotations

from stablernn.cells._base import StableCell


class RebasingCell(StableCell):
    """A cell whose base becomes its recurrent matrix every ``rebase`` optimizer steps; with 0 it never changes."""

    rebase: int

    def move_base(self) -> None:
        """Set B to the recurrent matrix and A to 0, which does not change the recurrent matrix."""
        raise NotImplementedError

    def missed_schedule(self) -> str | None:
        if not self.rebase or self._passes_since_schedule < self.rebase:
            return None
        return f"have moved the base of the recurrent matrix every {self.rebase} steps"

    def after_step(self, step: int, total_steps: int) -> None:
        super().after_step(step, total_steps)
        # Steps count from 1: the first change follows step number rebase.
        if self.rebase and step % self.rebase == 0:
            self.move_base()
