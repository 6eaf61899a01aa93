"""The base class of all cells: one step of a recurrent network, with what is proved of it, and checks of options."""

from __future__ import annotations

import inspect
import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import Box
from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import LureSystem, lure_bound
from stablernn.bounds.step_bound import StepBound, irregular_step_bound
from stablernn.cells._step_form import StepForm
from stablernn.errors import ConfigError

State = tuple[Tensor, ...]
Weights = tuple[Tensor, ...]
"""The matrices that a step uses, as :meth:`StableCell.materialize` builds them."""


class WeightCache:
    """The matrices of one cell, for steps with and without ``dt``.

    Attributes:
        is_enabled: True while matrices are cached.
    """

    def __init__(self) -> None:
        self.is_enabled = False
        self._weights: dict[bool, Weights] = {}

    def enable(self, weights: Mapping[bool, Weights] | None = None) -> None:
        """Cache from now on; the parameters must not change until :meth:`disable` is called.

        Args:
            weights: Initial content, by whether steps take ``dt``; empty by default.
        """
        self.is_enabled = True
        self._weights = dict(weights or {})

    def disable(self) -> None:
        """Drop the content and cache nothing more."""
        self.is_enabled = False
        self._weights = {}

    def get(self, timed: bool, build: Callable[[], Weights]) -> Weights:
        """Return the matrices, built on the first call.

        Args:
            timed: True for steps that take ``dt``.
            build: Function that builds them.
        """
        if not self.is_enabled:
            return build()
        # Some cells build other matrices for steps with dt: one entry for each kind of step.
        if timed not in self._weights:
            self._weights[timed] = build()
        return self._weights[timed]


@contextmanager
def cached_weights(module: nn.Module) -> Iterator[None]:
    """Disable gradients, and build the matrices of a module's cells once for all calls in the block.

    The parameters must not change within the block.
    """
    weight_caches = [cell.weight_cache for cell in module.modules() if isinstance(cell, StableCell)]
    for weight_cache in weight_caches:
        weight_cache.enable()
    try:
        with torch.no_grad():
            yield
    finally:
        for weight_cache in weight_caches:
            weight_cache.disable()


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
    weight_ih: Tensor
    bias_ih: Tensor
    state_names: tuple[str, ...] = ("hidden",)
    """Names of the state tensors; the first is the cell's output. A sequence starts from zeros."""
    takes_dt: bool = False
    """True if :meth:`step` takes the length of the step, for irregular time."""
    is_euler: bool = False
    """True if a step of length ``dt`` up to 1 is ``h + dt (step(h) - h)``, a convex combination of the regular step and
    the identity."""
    takes_missing: bool = False
    """True if NaN in the input means that a value is missing. Other cells never get a NaN."""
    is_fixed: bool = False
    """True if no gradient reaches the parameters, which are fitted to inputs (:meth:`fit_inputs`): the head alone is
    solved for. Such a cell pools over time by itself and reads single samples."""
    is_forecast: bool = False
    """True if the output is a forecast of the next ``hidden_size`` values of each channel, in units of the input."""
    plans_ahead: bool = False
    """True if :meth:`after_step` depends on the length of the whole run."""
    orthogonal: tuple[str, ...] = ()
    """Names of the parameters of orthogonal and unitary matrices, which train at a separate learning rate."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        check_at_least(self, 1, input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_cache = WeightCache()
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
        """Draw new initial parameters."""
        raise NotImplementedError

    def materialize(self) -> Weights:
        """Build the tensors that :meth:`step` uses from the free parameters."""
        raise NotImplementedError

    def materialize_timed(self) -> Weights:
        """Build the tensors that :meth:`step` uses with ``dt``.

        They are those of :meth:`materialize`, unless the matrix itself depends on the length of the step.
        """
        return self.materialize()

    def weights(self, *, timed: bool = False) -> Weights:
        """Return the result of :meth:`materialize` or :meth:`materialize_timed`, from the cache if it is enabled.

        :func:`cached_weights` enables the cache.

        Args:
            timed: True if the steps will take ``dt``.
        """
        build = self.materialize_timed if timed else self.materialize
        if self.weight_cache.is_enabled:
            return self.weight_cache.get(timed, build)
        weights = build()
        self._count_backward(weights)
        return weights

    def recommended_options(self, steps: int, channels: int) -> dict[str, Any]:
        """Return the options that go with the data, by default none.

        Args:
            steps: Steps of the longest training sequence.
            channels: Channels of a step.
        """
        return {}

    def fit_inputs(self, x: Tensor, lengths: Tensor) -> None:
        """Fit what a cell takes from its inputs before training, in place; by default nothing.

        Args:
            x: ``(batch, time, input_size)`` of training sequences.
            lengths: ``(batch,)``; steps from there on are padding.
        """

    def drive(self, x: Tensor) -> Tensor:
        """Project inputs ``(..., input_size)`` to what a step adds to its recurrent products, ``(..., d)``.

        In a dynamical system driven from outside, this projection is the drive. By default it is the linear map of the
        parameters ``weight_ih`` and ``bias_ih``.
        """
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        """Return the next state.

        Args:
            weights: Result of :meth:`materialize`, with ``dt`` that of :meth:`materialize_timed`.
            state: One ``(batch, size)`` tensor for each of ``state_names``.
            drive: This step's projected input, ``(batch, d)``.
            dt: Length of this step, ``(batch, 1)``, in units of the regular one; None is 1. Only cells with
                ``takes_dt`` get it.
        """
        raise NotImplementedError

    def substeps(self, longest: float) -> int:
        """Return the number of equal substeps that replace a step of length up to ``longest``, at constant input.

        No substep is longer than a regular step. If a regular Euler step is non-expansive, so is a shorter one (a
        convex combination of it and the identity): what holds for the regular step then holds over any gap.
        """
        return max(1, math.ceil(longest))

    def advance(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None, substeps: int) -> State:
        """Run :meth:`step` over a time ``dt``, in equal substeps."""
        if dt is None:
            return self.step(weights, state, drive)
        substep_length = dt / substeps
        for _ in range(substeps):
            state = self.step(weights, state, drive, substep_length)
        return state

    def after_step(self, step: int, total_steps: int) -> None:
        """Update the parameters after optimizer step ``step`` (from 1) of ``total_steps``; called without gradients.

        A constraint that the cell promises must not depend on this call: :meth:`materialize` returns matrices that meet
        it, see :func:`pass_through`. Projecting the free parameters here as well keeps them from drifting away. What
        follows a schedule can only happen here: such a cell calls this method of the base class first, and implements
        :meth:`missed_schedule`.
        """
        self._passes_since_schedule = 0

    def missed_schedule(self) -> str | None:
        """Return what :meth:`after_step` should have done since it was last called, as "have ..."; None if nothing."""
        return None

    def _count_backward(self, weights: Weights) -> None:
        """Count the backward passes of training, of which each should be followed by :meth:`after_step`."""
        # A cell without a schedule can miss nothing.
        if type(self).missed_schedule is StableCell.missed_schedule or not self.training:
            return
        # Every backward pass through the cell reaches each trainable matrix: one hook counts them all.
        trainable = next((tensor for tensor in weights if tensor.requires_grad), None)
        if trainable is not None:
            trainable.register_hook(self._note_backward)  # type: ignore[no-untyped-call]

    def _note_backward(self, gradient: Tensor) -> None:
        self._passes_since_schedule += 1

    @property
    def has_step_form(self) -> bool:
        """True if :meth:`step_form` describes the regular step."""
        return type(self).step_form is not StableCell.step_form

    @property
    def has_timed_step_form(self) -> bool:
        """True if :meth:`step_form` describes steps with ``dt``, too, which :meth:`advance` takes in equal substeps."""
        return self.has_step_form and self.takes_dt and type(self).advance is StableCell.advance

    def step_form(self, weights: Weights) -> StepForm | None:
        """Return the step as data, with the matrices of ``weights``; None for a cell of no family."""
        return None

    def recurrent_matrix(self) -> Tensor:
        """Return the matrix K of the recurrent product ``K @ h``, column convention."""
        raise NotImplementedError

    def lure_system(self) -> LureSystem | None:
        """Return the regular step as a Lur'e system; None if it cannot be written as one."""
        return None

    def step_bound(self) -> StepBound:
        """Prove bounds of a regular step with the current weights, in float64 on the matrices that it uses.

        docs/background/stability.md says what is proved of each cell, and how.
        """
        step = self.lure_system()
        return StepBound() if step is None else lure_bound(step)

    def step_bound_within(self, inputs: Box) -> StepBound:
        """Prove bounds of a regular step for inputs within a box, and states within the boxes of the bound's balls.

        Gates are then bounded away from 0 and 1.

        Args:
            inputs: ``(input_size,)`` intervals, finite.
        """
        return self.step_bound()

    @property
    def certifies_irregular(self) -> bool:
        """True if bounds of irregular steps can be proved."""
        return self.is_euler or type(self).irregular_bound is not StableCell.irregular_bound

    def irregular_bound(self) -> StepBound:
        """Prove bounds of steps of any length up to the regular one, from which :meth:`advance` composes longer ones.

        The rate is over the time of a regular step.
        """
        return irregular_step_bound(self.step_bound()) if self.is_euler else StepBound()

    def penalty(self) -> Tensor | None:
        """Return the cell's term of the training loss, or None."""
        return None

    def state_type(self) -> type[tuple[Any, ...]]:
        """Return the named tuple class of a state of several tensors."""
        return _state_type(type(self).__name__, self.state_names)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros, one ``(batch_size, size)`` tensor for each of ``state_names``."""
        # Of the dtype and on the device of the parameters.
        like = next(self.parameters())
        return tuple(like.new_zeros(batch_size, size) for size in self.state_sizes)

    def forward(
        self, input: Tensor, state: Tensor | Sequence[Tensor] | None = None, dt: Tensor | float | None = None
    ) -> Any:
        """Run one step.

        Args:
            input: ``(batch, input_size)`` or ``(input_size,)``.
            state: The previous state, ``(batch, size)`` or ``(size,)``; a sequence of them if the cell has several;
                zeros when omitted.
            dt: Length of the step in units of the regular one, a number or ``(batch,)``; 1 when omitted.

        Returns:
            The next state: a tensor, or a named tuple with the fields ``state_names`` if the cell has several.

        Raises:
            ValueError: If ``input`` or ``state`` has another shape, or the cell takes no ``dt``.
        """
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__} expects input of shape (batch, {self.input_size}) or ({self.input_size},), "
                f"got {tuple(input.shape)}."
            )
        # step() takes batches only: an unbatched input is a batch of 1.
        batched = input if input.dim() == 2 else input[None]
        if state is None:
            states = self.initial_state(len(batched))
        else:
            state_tensors = (state,) if isinstance(state, Tensor) else tuple(state)
            states = tuple(s if input.dim() == 2 else s[None] for s in state_tensors)
            self.check_state(states, (len(batched),))
        if dt is None:
            states = self.step(self.weights(), states, self.drive(batched))
        else:
            self.check_takes_dt()
            lengths = torch.as_tensor(dt, dtype=batched.dtype, device=batched.device)
            check_dt(lengths)
            column = lengths.expand(len(batched))[:, None]  # (batch, 1)
            weights, substeps = self.weights(timed=True), self.substeps(longest_step(lengths))
            states = self.advance(weights, states, self.drive(batched), column, substeps)
        if input.dim() == 1:
            states = tuple(s[0] for s in states)
        return states[0] if len(states) == 1 else self.state_type()(*states)

    def check_state(self, state: State, batch: tuple[int, ...]) -> None:
        """Check that a state has one tensor of shape ``(*batch, size)`` for each of ``state_names``.

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
        """Check that the cell comes from an equation in time, so that its steps have a length.

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


def empty_parameter(*shape: int) -> nn.Parameter:
    """Return a parameter whose values ``reset_parameters`` is still to draw."""
    return nn.Parameter(torch.empty(shape))


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
    """Return the largest of the times between steps, 0 if there are none."""
    return float(dt.detach().max()) if dt.numel() else 0.0


def check_dt(dt: Tensor) -> None:
    """Check that all times between steps are finite numbers, 0 or more.

    Raises:
        ValueError: If one is not.
    """
    # NaN fails the comparison; infinity passes it.
    if not bool((dt >= 0).all()) or not bool(torch.isfinite(dt).all()):
        raise ValueError("dt must be finite numbers of 0 or more, the time since the step before.")


# Cached, so that all states of a cell have the same type.
@cache
def _state_type(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    return namedtuple(f"{name}State", fields)


def check_at_least(module: nn.Module, minimum: int, **counts: int) -> None:
    """Check that options are ``minimum`` or more.

    Raises:
        ValueError: If one is not.
    """
    for name, count in counts.items():
        if count < minimum:
            raise ValueError(f"{name} must be {minimum} or more for {type(module).__name__}, got {count}.")


def check_whole_number(cell: StableCell, name: str, value: float | None) -> None:
    """Check that an option is a whole number, 1 or more, or None.

    Raises:
        ValueError: If it is not.
    """
    # The catalog lets any number through for an option whose default is None.
    if value is not None and not (value >= 1 and value % 1 == 0):
        raise ValueError(f"{name} must be a whole number, 1 or more, for {type(cell).__name__}, got {value}.")


def check_positive(cell: StableCell, **options: float) -> None:
    """Check that options are finite numbers greater than 0.

    Raises:
        ValueError: If one is not.
    """
    _check_numbers(cell, options, " greater than 0", lambda value: value > 0)


def check_finite(cell: StableCell, **options: float) -> None:
    """Check that options are finite numbers.

    Raises:
        ValueError: If one is not.
    """
    _check_numbers(cell, options, "", lambda value: True)


def check_not_negative(cell: StableCell, **options: float) -> None:
    """Check that options are finite numbers, 0 or more.

    Raises:
        ValueError: If one is not.
    """
    _check_numbers(cell, options, ", 0 or more,", lambda value: value >= 0)


def _check_numbers(
    cell: StableCell, options: Mapping[str, float], condition: str, holds: Callable[[float], bool]
) -> None:
    for name, value in options.items():
        if not (math.isfinite(value) and holds(value)):
            raise ValueError(f"{name} must be a finite number{condition} for {type(cell).__name__}, got {value}.")


def check_choice(cell: StableCell, name: str, value: str, choices: Sequence[str]) -> None:
    """Check that an option is one of its choices.

    Raises:
        ValueError: If it is not.
    """
    if value not in choices:
        *first, last = [repr(choice) for choice in choices]
        raise ValueError(f"{name} of {type(cell).__name__} must be {', '.join(first)} or {last}, got {value!r}.")


def step_length(step_size: float, dt: Tensor | None) -> float | Tensor:
    """Return the Euler step of a cell that takes ``dt``: ``step_size``, or ``step_size * dt`` for each sample."""
    return step_size if dt is None else step_size * dt


def uniform_(tensor: Tensor, fan_in: int) -> None:
    """Fill a tensor with the field's usual default for a linear map: uniform within ``1 / sqrt(fan_in)``."""
    bound = fan_in**-0.5
    with torch.no_grad():
        tensor.uniform_(-bound, bound)


def as_float32(number: float) -> float:
    """Return the float32 number nearest to an option, which is the one that a step computes with."""
    return float(np.float32(number))


def float64(tensor: Tensor) -> Matrix:
    """Return the values of a tensor exactly, as a float64 array on the CPU."""
    return tensor.detach().cpu().double().numpy()
