"""What every cell promises."""

from __future__ import annotations

import inspect
import math
from collections import namedtuple
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from stablernn.bounds.lure import Sector, sector_bound
from stablernn.bounds.step_bound import StepBound, irregular
from stablernn.errors import ConfigError

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
    state_names: tuple[str, ...] = ("hidden",)
    """What each tensor of the state is; the first is the cell's output. Zeros stand for the start of a sequence."""
    takes_dt: bool = False
    """Whether :meth:`step` takes the length of the step, for irregular time."""
    is_euler: bool = False
    """Whether a step of length ``dt`` up to 1 is ``h + dt (step(h) - h)``, a mean of the regular step and none."""
    takes_missing: bool = False
    """Whether NaN in the input says that a value is missing. Other cells are never given one."""
    plans_ahead: bool = False
    """Whether :meth:`after_step` depends on the length of the whole run."""
    orthogonal: tuple[str, ...] = ()
    """Names of the parameters behind orthogonal and unitary matrices, which train at a learning rate of their own."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if size < 1:
                raise ValueError(f"{name} must be 1 or more for {type(self).__name__}, got {size}.")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self._kept: dict[bool, tuple[Tensor, ...]] | None = None
        self._passes_since_schedule = 0

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Length of each tensor of the state, in the order of ``state_names``."""
        return (self.hidden_size,) * len(self.state_names)

    @property
    def output_size(self) -> int:
        """Length of the output, which is the state's first tensor."""
        return self.state_sizes[0]

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        raise NotImplementedError

    def materialize(self) -> tuple[Tensor, ...]:
        """The tensors that :meth:`step` uses, built from the free parameters."""
        raise NotImplementedError

    def materialize_timed(self) -> tuple[Tensor, ...]:
        """The tensors that :meth:`step` uses when it is given ``dt``.

        They are those of :meth:`materialize`, but where the matrix itself depends on the length of the step.
        """
        return self.materialize()

    def weights(self, *, timed: bool = False) -> tuple[Tensor, ...]:
        """:meth:`materialize` or :meth:`materialize_timed`; inside :func:`kept_weights` built once for all calls.

        Args:
            timed: Whether steps will be given ``dt``.
        """
        build = self.materialize_timed if timed else self.materialize
        if self._kept is None:
            built = build()
            self._count_backward(built)
            return built
        if timed not in self._kept:
            self._kept[timed] = build()
        return self._kept[timed]

    def drive(self, x: Tensor) -> Tensor:
        """Project inputs ``(..., input_size)`` to what a step adds to its recurrent products, ``(..., d)``."""
        raise NotImplementedError

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        """The next state.

        Args:
            weights: What :meth:`materialize` returned, with ``dt`` what :meth:`materialize_timed` did.
            state: One ``(batch, size)`` tensor for each of ``state_names``.
            drive: This step's projected input, ``(batch, d)``.
            dt: Length of this step, ``(batch, 1)``, in units of the regular one; None is 1. Only cells with
                ``takes_dt`` are given one.
        """
        raise NotImplementedError

    def substeps(self, longest: float) -> int:
        """In how many equal parts steps up to ``longest`` are taken, the input held over them.

        None of the parts is longer than a regular step. Of an Euler step that is non-expansive a shorter one is so too
        (it is a mean of itself and of the identity), so that what holds for the regular step holds over any gap.
        """
        return max(1, math.ceil(longest))

    def advance(
        self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None, substeps: int
    ) -> State:
        """:meth:`step` over a time ``dt`` in equal parts."""
        if dt is None:
            return self.step(weights, state, drive)
        part = dt / substeps
        for _ in range(substeps):
            state = self.step(weights, state, drive, part)
        return state

    def after_step(self, step: int, total_steps: int) -> None:
        """Update the parameters after optimizer step ``step`` (from 1) of ``total_steps``; called without gradients.

        A constraint that the cell promises must not rest on this call: :meth:`materialize` returns matrices that meet
        it, see :func:`pass_through`. Projecting the free parameters here as well keeps them from drifting away. What
        follows a schedule can only happen here: such a cell calls this method of the base class first, and tells by
        :meth:`missed_schedule` what was left out.
        """
        self._passes_since_schedule = 0

    def missed_schedule(self) -> str | None:
        """Return what :meth:`after_step` should have done since it was last called, as "have ..."; None if nothing."""
        return None

    def _count_backward(self, built: tuple[Tensor, ...]) -> None:
        """Count the backward passes of training, of which each is to be followed by :meth:`after_step`."""
        if type(self).missed_schedule is StableCell.missed_schedule or not self.training:
            return
        trained = next((tensor for tensor in built if tensor.requires_grad), None)
        if trained is not None:
            trained.register_hook(self._note_backward)  # type: ignore[no-untyped-call]

    def _note_backward(self, gradient: Tensor) -> None:
        self._passes_since_schedule += 1

    def recurrent_matrix(self) -> Tensor:
        """The matrix K of the recurrent product ``K @ h``, column convention."""
        raise NotImplementedError

    def sector(self) -> Sector | None:
        """The regular step as a linear one with nonlinearities of slopes within 0 to 1; None where it is no such."""
        return None

    def step_bound(self) -> StepBound:
        """What is proved of a regular step with the present weights, in float64 on the matrices that it uses.

        docs/stability.md says what each cell proves, and how.
        """
        step = self.sector()
        return StepBound() if step is None else sector_bound(step)

    @property
    def certifies_irregular(self) -> bool:
        """Whether anything can be proved of irregular steps."""
        return self.is_euler or type(self).irregular_bound is not StableCell.irregular_bound

    def irregular_bound(self) -> StepBound:
        """What is proved of steps of any length up to the regular one, of which :meth:`advance` makes longer ones.

        The rate is over the time of a regular step.
        """
        return irregular(self.step_bound()) if self.is_euler else StepBound()

    def penalty(self) -> Tensor | None:
        """What the cell adds to the training loss, or None."""
        return None

    def state_type(self) -> type[tuple[Any, ...]]:
        """The named tuple in which a state of several tensors is returned."""
        return _state_type(type(self).__name__, self.state_names)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, one ``(batch_size, size)`` tensor for each of ``state_names``."""
        like = next(self.parameters())
        return tuple(like.new_zeros(batch_size, size) for size in self.state_sizes)

    def forward(
        self, input: Tensor, state: Tensor | Sequence[Tensor] | None = None, dt: Tensor | float | None = None
    ) -> Any:
        """One step.

        Args:
            input: ``(batch, input_size)`` or ``(input_size,)``.
            state: The state before, ``(batch, size)`` or ``(size,)``; a sequence of them where the cell has several;
                zeros when omitted.
            dt: Length of the step in units of the regular one, a number or ``(batch,)``; 1 when omitted.

        Returns:
            The next state: a tensor, or a named tuple with the fields ``state_names`` where the cell has several.

        Raises:
            ValueError: If ``input`` or ``state`` has another shape, or the cell takes no ``dt``.
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
            self.check_state(states, (len(batched),))
        if dt is None:
            states = self.step(self.weights(), states, self.drive(batched))
        else:
            self.check_takes_dt()
            lengths = torch.as_tensor(dt, dtype=batched.dtype, device=batched.device)
            check_dt(lengths)
            column = lengths.expand(len(batched))[:, None]
            weights, substeps = self.weights(timed=True), self.substeps(longest_step(lengths))
            states = self.advance(weights, states, self.drive(batched), column, substeps)
        if input.dim() == 1:
            states = tuple(s[0] for s in states)
        return states[0] if len(states) == 1 else self.state_type()(*states)

    def check_state(self, state: State, batch: tuple[int, ...]) -> None:
        """Refuse a state that does not have one tensor of shape ``(*batch, size)`` for each of ``state_names``.

        Raises:
            ValueError: If it does not.
        """
        shapes = [(*batch, size) for size in self.state_sizes]
        if [tuple(tensor.shape) for tensor in state] != shapes:
            expected = " and ".join(f"{name} {shape}" for name, shape in zip(self.state_names, shapes, strict=True))
            raise ValueError(
                f"The state of the cell '{self.key}' is {expected} here, "
                f"got {' and '.join(str(tuple(tensor.shape)) for tensor in state)}."
            )

    def check_takes_dt(self) -> None:
        """Refuse time steps where the cell does not come from an equation in time.

        Raises:
            ConfigError: If it does not.
        """
        if not self.takes_dt:
            raise ConfigError(
                f"The cell '{self.key}' takes no dt: its step has no length. Leave dt out, or take a cell that comes "
                "from a differential equation, such as lipschitz, lem or gru_d."
            )

    def extra_repr(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if name not in ("input_size", "hidden_size")]
        sizes = f"{self.input_size}, {self.hidden_size}"
        return ", ".join([sizes, *(f"{name}={getattr(self, name)!r}" for name in names)])


@contextmanager
def kept_weights(module: nn.Module) -> Iterator[None]:
    """Build the matrices of a module's cells once for all calls inside, which need no gradient.

    Parameters must not change meanwhile.
    """
    cells = [cell for cell in module.modules() if isinstance(cell, StableCell)]
    for cell in cells:
        cell._kept = {}
    try:
        with torch.no_grad():
            yield
    finally:
        for cell in cells:
            cell._kept = None


def pass_through(free: Tensor, used: Tensor) -> Tensor:
    """Return the values of ``used`` with the gradients of ``free`` (a straight-through estimator).

    For a constraint that an optimizer step may leave: the step of the network uses the projected values, and the free
    parameter is trained as if it were inside, where both are the same to the last bit.

    Args:
        free: The parameter.
        used: Its projection, of the same shape.
    """
    return used.detach() + (free - free.detach())


def longest_step(dt: Tensor) -> float:
    """The largest of the times between steps, 0 where there is none."""
    return float(dt.detach().max()) if dt.numel() else 0.0


def check_dt(dt: Tensor) -> None:
    """Refuse times between steps that are not finite numbers of 0 or more.

    Raises:
        ValueError: If one is not.
    """
    if not bool((dt >= 0).all()) or not bool(torch.isfinite(dt).all()):
        raise ValueError("dt must be finite numbers of 0 or more, the time since the step before.")


@cache
def _state_type(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    return namedtuple(f"{name}State", fields)


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


def check_word(cell: StableCell, name: str, word: str, allowed: Sequence[str]) -> None:
    """Refuse an option that is none of the words allowed.

    Raises:
        ValueError: If it is not.
    """
    if word not in allowed:
        *first, last = [repr(one) for one in allowed]
        raise ValueError(f"{name} of {type(cell).__name__} is {', '.join(first)} or {last}, got {word!r}.")


def step_length(step_size: float, dt: Tensor | None) -> float | Tensor:
    """The Euler step of a cell that takes ``dt``: ``step_size``, or ``step_size * dt`` for each sample."""
    return step_size if dt is None else step_size * dt


def uniform_(tensor: Tensor, fan_in: int) -> None:
    """Fill with the field's usual default for a linear map: uniform within ``1 / sqrt(fan_in)``."""
    bound = fan_in**-0.5
    with torch.no_grad():
        tensor.uniform_(-bound, bound)
