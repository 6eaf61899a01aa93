"""Which engines there are, and which one runs."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from stablernn.cells import StableCell, State
from stablernn.engines.loop import LoopEngine
from stablernn.errors import ConfigError, unknown


class Engine(Protocol):
    """Runs a cell's step over a whole sequence."""

    name: str

    def supports(self, cell: StableCell, drive: Tensor) -> bool:
        """Whether this engine can run this cell on this drive (its device, dtype and shape)."""
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
    ) -> tuple[Tensor, State]:
        """Every state and the last one.

        Args:
            cell: Whose step to run.
            weights: What ``cell.materialize()`` returned, with a ``dt`` what ``cell.materialize_timed()`` did.
            drive: ``(batch, time, d)``, what ``cell.drive`` returned; time is 1 or more.
            state: The state before the first step.
            valid: ``(batch, time)`` booleans; where false the state is held. None when every step counts.
            dt: ``(batch, time)``, the length of each step in units of the regular one; None when all are regular.
            substeps: In how many equal parts ``cell.advance`` takes each step when there is a ``dt``.

        Returns:
            The first state tensor after every step, ``(batch, time, hidden)``, and the state after the last.
        """
        ...


_ENGINES: dict[str, Engine] = {}


def register_engine(engine: Engine) -> None:
    """Add an engine; ``auto`` prefers the one registered last among those that support the cell."""
    if engine.name in _ENGINES:
        raise ValueError(f"The engine '{engine.name}' is registered twice.")
    _ENGINES[engine.name] = engine


def list_engines() -> list[str]:
    """Names that ``engine=`` takes besides ``auto``, sorted."""
    return sorted(_ENGINES)


def check_engine(name: str) -> None:
    """Refuse a name that is neither ``auto`` nor an engine.

    Raises:
        UnknownNameError: If it is not.
    """
    if name != "auto" and name not in _ENGINES:
        raise unknown("engine", name, [*_ENGINES, "auto"], f"It is auto or one of {', '.join(list_engines())}.")


def select_engine(name: str, cell: StableCell, drive: Tensor) -> Engine:
    """The engine called ``name``, or with ``auto`` the best that supports the cell.

    Raises:
        UnknownNameError: If there is no engine of that name.
        ConfigError: If it was named and cannot run this cell.
    """
    if name == "auto":
        return next(engine for engine in reversed(_ENGINES.values()) if engine.supports(cell, drive))
    check_engine(name)
    engine = _ENGINES[name]
    if not engine.supports(cell, drive):
        raise ConfigError(
            f"The engine '{name}' cannot run the cell '{cell.key}' on {drive.device.type} in {drive.dtype}; "
            "take engine='auto' or 'loop'."
        )
    return engine


register_engine(LoopEngine())
