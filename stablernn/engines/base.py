"""The interface of engines, the plain loop that is the reference for them, and the choice of one for a cell."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from stablernn.cells import StableCell, State, Weights
from stablernn.errors import ConfigError, unknown

Inputs = Sequence[Tensor | None]
Result = tuple[Tensor | None, State]
"""The outputs of all steps, None if they are not needed, and the state after the last one."""
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
        weights: Weights,
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> Result:
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
        weights: Weights,
        x: Tensor,
        state: State,
        valid: Tensor | None,
        *,
        every_output: bool = True,
    ) -> Result:
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
        weights: list[Weights],
        drives: list[Tensor],
        states: list[State],
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> list[Result]:
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


class LoopEngine:
    """Runs any cell, one step after the other."""

    name = "loop"

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        return True

    def run(
        self,
        cell: StableCell,
        weights: Weights,
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> Result:
        # Before the shortest length every step is valid, and no state is held.
        shortest = 0 if valid is None else int(valid.sum(dim=1).min())
        return run_steps(cell, weights, drive, state, valid, dt, substeps, every_output=every_output, shortest=shortest)


def run_steps(
    cell: StableCell,
    weights: Weights,
    drive: Tensor,
    state: State,
    valid: Tensor | None,
    dt: Tensor | None = None,
    substeps: int = 1,
    *,
    every_output: bool = True,
    shortest: int = 0,
) -> Result:
    """Run every step without a look at the values; arguments and results are those of :meth:`Engine.run`.

    Args:
        cell: As for :meth:`Engine.run`.
        weights: Likewise.
        drive: Likewise.
        state: Likewise.
        valid: Likewise.
        dt: Likewise.
        substeps: Likewise.
        every_output: Likewise.
        shortest: A number of steps that no sequence has fewer of.
    """
    outputs = []
    # unbind, not drive[:, t]: the backward of indexing writes a full-size gradient a step, 10 to 30 times slower.
    steps = drive.unbind(dim=1)
    valid_steps: list[Tensor | None] = [None] * len(steps)
    if valid is not None:
        # Each is (batch, 1), to broadcast over the state.
        valid_steps[shortest:] = valid[:, shortest:, None].unbind(dim=1)
    times: Sequence[Tensor | None] = [None] * len(steps) if dt is None else dt[..., None].unbind(dim=1)
    for step, is_valid, time in zip(steps, valid_steps, times, strict=True):
        next_state = cell.advance(weights, state, step, time, substeps)
        if is_valid is not None:
            next_state = tuple(torch.where(is_valid, new, old) for new, old in zip(next_state, state, strict=True))
        state = next_state
        if every_output:
            outputs.append(state[0])
    return torch.stack(outputs, dim=1) if every_output else None, state


def differentiate_again(
    compute: Callable[[list[Tensor | None]], list[Tensor]], inputs: Inputs, grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients by the inputs of a node, with a graph of their own, for ``create_graph=True``.

    Args:
        compute: The function of the node by operations of torch, from its inputs to its results.
        inputs: The inputs, as they were saved; None where there is none.
        grads: The gradients by the results.
    """
    # Views, since an input may depend on another one, as a state that an earlier run left depends on the weights: of
    # this dependence the node itself must know nothing.
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    pairs = [pair for pair in zip(compute(views), grads, strict=True) if pair[0].requires_grad]
    wanted = [view for view in views if view is not None and view.requires_grad]
    results, weights = [result for result, _ in pairs], [grad for _, grad in pairs]
    gradients = iter(torch.autograd.grad(results, wanted, weights, create_graph=True, allow_unused=True))
    return [next(gradients) if view is not None and view.requires_grad else None for view in views]


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
