"""The table of engines, and the choice of one for a cell."""

from __future__ import annotations

import threading
import warnings
from importlib.metadata import EntryPoint, entry_points

from torch import Tensor

from stablernn.cells import StableCell
from stablernn.engines.base import Engine
from stablernn.engines.loop import LoopEngine
from stablernn.errors import ConfigError, unknown

GROUP = "stablernn.training_engines"
"""Entry points of other distributions: callables without arguments that return an :class:`Engine` of their name."""

_ENGINES: dict[str, Engine] = {}
_BROKEN: dict[str, str] = {}
"""Engines of other distributions that could not be loaded, and why."""
_MISSING: dict[str, str] = {}
"""Engines whose packages are not installed, and the sentence that says so."""
_AUTO_DEVICES: dict[str, tuple[str, ...]] = {}
"""The types of device on which ``auto`` considers an engine; any for an engine that is not in it."""
_lock = threading.RLock()
_is_loaded = False


def register_engine(engine: Engine, *, auto_devices: tuple[str, ...] | None = None) -> None:
    """Add an engine; ``auto`` prefers the one registered last among those that support the cell.

    Args:
        engine: The engine.
        auto_devices: The types of device, such as ``cuda``, on which ``auto`` considers it; elsewhere it runs only when
            it is named. None for all.
    """
    if engine.name in _ENGINES:
        raise ValueError(f"The engine '{engine.name}' is registered twice.")
    _ENGINES[engine.name] = engine
    if auto_devices is not None:
        _AUTO_DEVICES[engine.name] = auto_devices


def register_missing(name: str, reason: str) -> None:
    """Let an error say why an engine is not there.

    Args:
        name: The name of the engine.
        reason: A sentence that says which package is missing and how to install it.
    """
    _MISSING[name] = reason


def load_plugins() -> None:
    """Register the engines of other distributions, once; selecting and listing engines does this.

    An engine that cannot be loaded gives a warning, and an error when it is asked for by name.
    """
    global _is_loaded
    with _lock:
        if _is_loaded:
            return
        # Set first, since a plugin may list the engines while it is imported.
        _is_loaded = True
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
            _load(point)


def _load(point: EntryPoint) -> None:
    try:
        engine = point.load()()
        if engine.name != point.name:
            raise ValueError(f"it calls itself '{engine.name}'")
        register_engine(engine)
    # Code of another distribution, which may raise anything.
    except Exception as error:
        source = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
        reason = str(error).removesuffix(".") or type(error).__name__
        _BROKEN[point.name] = f"The engine '{point.name}'{source} could not be loaded: {reason}."
        warnings.warn(f"{_BROKEN[point.name]} It is left out.", stacklevel=4)


def list_engines() -> list[str]:
    """Return the names that ``engine=`` takes besides ``auto``, sorted."""
    load_plugins()
    return sorted(_ENGINES)


def check_engine(name: str) -> None:
    """Refuse a name that is neither ``auto`` nor an engine.

    Raises:
        UnknownNameError: If it is neither.
        ConfigError: If it is an engine of another distribution that could not be loaded, or one whose packages are not
            installed.
    """
    if name == "auto" or name in _ENGINES:
        return
    load_plugins()
    if name in _BROKEN:
        raise ConfigError(f"{_BROKEN[name]} Repair or remove that distribution, or take engine='auto'.")
    if name in _MISSING:
        raise ConfigError(f"{_MISSING[name]} Or take engine='auto'.")
    if name not in _ENGINES:
        raise unknown("engine", name, [*_ENGINES, "auto"], f"It is auto or one of {', '.join(list_engines())}.")


def select_engine(name: str, cell: StableCell, drive: Tensor, *, timed: bool = False) -> Engine:
    """Return the engine called ``name``, or with ``auto`` the best that supports the cell.

    Raises:
        UnknownNameError: If there is no engine of that name.
        ConfigError: If it was named, and could not be loaded or cannot run this cell.
    """
    if name == "auto":
        load_plugins()
        device = drive.device.type
        # The loop is registered first and runs any cell, so that there always is one.
        return next(
            engine
            for engine in reversed(_ENGINES.values())
            if device in _AUTO_DEVICES.get(engine.name, (device,)) and engine.supports(cell, drive, timed=timed)
        )
    check_engine(name)
    engine = _ENGINES[name]
    if not engine.supports(cell, drive, timed=timed):
        raise ConfigError(
            f"The engine '{name}' cannot run the cell '{cell.key}' on {drive.device.type} in {drive.dtype}; "
            "take engine='auto' or 'loop'."
        )
    return engine


register_engine(LoopEngine())
