"""The table of engines, and the choice of one for a cell."""

from __future__ import annotations

from torch import Tensor

from stablernn.cells import StableCell
from stablernn.engines.base import Engine
from stablernn.engines.loop import LoopEngine
from stablernn.errors import ConfigError, unknown

_ENGINES: dict[str, Engine] = {}


def register_engine(engine: Engine) -> None:
    """Add an engine; ``auto`` prefers the one registered last among those that support the cell."""
    if engine.name in _ENGINES:
        raise ValueError(f"The engine '{engine.name}' is registered twice.")
    _ENGINES[engine.name] = engine


def list_engines() -> list[str]:
    """Return the names that ``engine=`` takes besides ``auto``, sorted."""
    return sorted(_ENGINES)


def check_engine(name: str) -> None:
    """Refuse a name that is neither ``auto`` nor an engine.

    Raises:
        UnknownNameError: If it is neither.
    """
    if name != "auto" and name not in _ENGINES:
        raise unknown("engine", name, [*_ENGINES, "auto"], f"It is auto or one of {', '.join(list_engines())}.")


def select_engine(name: str, cell: StableCell, drive: Tensor, *, timed: bool = False) -> Engine:
    """Return the engine called ``name``, or with ``auto`` the best that supports the cell.

    Raises:
        UnknownNameError: If there is no engine of that name.
        ConfigError: If it was named and cannot run this cell.
    """
    if name == "auto":
        # The loop is registered first and runs any cell, so that there always is one.
        return next(engine for engine in reversed(_ENGINES.values()) if engine.supports(cell, drive, timed=timed))
    check_engine(name)
    engine = _ENGINES[name]
    if not engine.supports(cell, drive, timed=timed):
        raise ConfigError(
            f"The engine '{name}' cannot run the cell '{cell.key}' on {drive.device.type} in {drive.dtype}; "
            "take engine='auto' or 'loop'."
        )
    return engine


register_engine(LoopEngine())
