"""Free runs of a linear system in feedback with neurons, their exact sensitivities, and Levenberg-Marquardt on them.

A system is one matrix, of the rows of the neurons, of the next state and of the output::

    v = C1 x + D11 w + D12 u + bv        [C1 D11 D12 bv]
    x <- A x + B1 w + B2 u + bx          [A  B1  B2  bx] z,   z = (x, w, u, 1),  w = tanh(v)
    y = C2 x + D21 w + D22 u + by        [C2 D21 D22 by]

D11 is strictly lower triangular, so that neurons are computed one after the other; without any the system is linear.
Everything is float64. Arrays of signals are time-major; several models run side by side, as their steps cost little
more than those of one.

Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", SIAM Journal 1963.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stablernn.bounds.linalg import Indices, Matrix

_CHUNK_NUMBERS = 2**20
"""Numbers of a Jacobian that are held at once, 8 MB."""


@dataclass(frozen=True)
class Sizes:
    """Lengths of the signals of a system: of its state, neurons, inputs and outputs."""

    states: int
    neurons: int
    inputs: int
    outputs: int

    @property
    def rows(self) -> int:
        return self.neurons + self.states + self.outputs

    @property
    def columns(self) -> int:
        return self.states + self.neurons + self.inputs + 1


def simulate(sizes: Sizes, systems: Matrix, inputs: Matrix, starts: Matrix) -> tuple[Matrix, Matrix]:
    """Run systems from their first states.

    Args:
        sizes: Of every system.
        systems: ``(runs, rows, columns)``.
        inputs: ``(time, runs, inputs)``.
        starts: ``(runs, states)``.

    Returns:
        Outputs ``(time, runs, outputs)``, and signals z ``(time, runs, columns)``. Not finite where a run diverges.
    """
    n, q = sizes.states, sizes.neurons
    neuron_rows, state_rows, output_rows = np.split(systems, [q, q + n], axis=1)
    from_state, within = np.ascontiguousarray(neuron_rows[:, :, :n]), neuron_rows[:, :, n : n + q]
    signals = np.empty((*inputs.shape[:2], sizes.columns))
    signals[:, :, n + q : -1] = inputs
    signals[:, :, -1] = 1
    with np.errstate(over="ignore", invalid="ignore"):
        drive = np.einsum("trk,rqk->trq", signals[:, :, n + q :], neuron_rows[:, :, n + q :])
        x = starts
        for step in range(len(signals)):
            z, v = signals[step], drive[step]
            z[:, :n] = x
            if q:
                v += (from_state @ x[:, :, None])[:, :, 0]
            for index in range(q):
                w = z[:, n + index] = np.tanh(v[:, index])
                v[:, index + 1 :] += within[:, index + 1 :, index] * w[:, None]
            x = (state_rows @ z[:, :, None])[:, :, 0]
        return np.einsum("trk,rpk->trp", signals, output_rows), signals


def sensitivities(sizes: Sizes, systems: Matrix, signals: Matrix) -> Iterator[tuple[slice, Matrix]]:
    """Yield the derivatives of the outputs by the entries of the matrix and by the first state, stretch by stretch.

    Args:
        sizes: Of every system.
        systems: ``(runs, rows, columns)``.
        signals: As :func:`simulate` returns them.

    Yields:
        Steps, and ``(runs, steps, outputs, rows * columns + states)``. Entries of D11 that are 0 by definition have a
        derivative as well.
    """
    n, q, p, columns = sizes.states, sizes.neurons, sizes.outputs, sizes.columns
    runs, entries, inner = len(systems), sizes.rows * columns, (sizes.rows - p) * columns
    # The derivative of the state, by the rows of neurons and state, and by the first state.
    state, following = np.zeros((2, runs, n, inner + n))
    state[:, :, inner:] = np.eye(n)
    injected = np.empty((runs, n, q, columns))
    # The rows of the next state act on their own state, by z: [state, columns] of the entry (state, state).
    diagonal = np.arange(n)
    length = max(1, _CHUNK_NUMBERS // (runs * p * (entries + n)))
    for start in range(0, len(signals), length):
        z = signals[start : start + length]
        to_state, from_state, to_output, by_state = _linearize(sizes, systems, z)
        derivative = np.zeros((runs, len(z), p, entries + n))
        for step in range(len(z)):
            through_state = by_state[step] @ state
            derivative[:, step, :, :inner] = through_state[..., :inner]
            derivative[:, step, :, entries:] = through_state[..., inner:]
            # Into the same memory at each step: it stays in the cache.
            np.matmul(from_state[step], state, out=following)
            np.multiply(to_state[step][:, :, :, None], z[step][:, None, None, :], out=injected)
            by_neurons, by_states = np.split(following[:, :, :inner], [q * columns], axis=2)
            by_neurons += injected.reshape(runs, n, q * columns)
            by_states.reshape(runs, n, n, columns)[:, diagonal, diagonal] += z[step][:, None, :]
            state, following = following, state
        z = z.transpose(1, 0, 2)
        outputs = to_output.transpose(1, 0, 2, 3)[..., None] * z[:, :, None, None, :]
        derivative[..., : q * columns] += outputs.reshape(runs, z.shape[1], p, q * columns)
        for output in range(p):
            first = inner + output * columns
            derivative[:, :, output, first : first + columns] = z
        yield slice(start, start + z.shape[1]), derivative


def _linearize(sizes: Sizes, systems: Matrix, signals: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Return the derivatives of next state and output around signals.

    Returns:
        Of the next state by the rows of the neurons, ``(time, runs, states, neurons)``, and by the state; of the output
        by the rows of the neurons, ``(time, runs, outputs, neurons)``, and by the state.
    """
    n, q = sizes.states, sizes.neurons
    neuron_rows, state_rows, output_rows = np.split(systems, [q, q + n], axis=1)
    slopes = 1 - signals[:, :, n : n + q] ** 2
    # S (I - D11 S)^-1 with S the slopes, row by row: the change of all neurons by that of the sum in front of one.
    gain = np.zeros((*signals.shape[:2], q, q))
    for index in range(q):
        gain[:, :, index] = np.einsum("rj,trjk->trk", neuron_rows[:, index, n : n + index], gain[:, :, :index])
        gain[:, :, index, index] += 1
        gain[:, :, index] *= slopes[:, :, index, None]
    to_state, to_output = state_rows[:, :, n : n + q] @ gain, output_rows[:, :, n : n + q] @ gain
    return (
        to_state,
        state_rows[:, :, :n] + to_state @ neuron_rows[:, :, :n],
        to_output,
        output_rows[:, :, :n] + to_output @ neuron_rows[:, :, :n],
    )


class Records(NamedTuple):
    """Recorded experiments, or sections of them, in units of the model's scaling; all are as long as the longest."""

    inputs: Matrix
    """``(time, records, inputs)``."""
    targets: Matrix
    """``(time, records, outputs)``; NaN where missing, and in padding."""
    lower: Matrix
    """``(outputs,)``, below which no output goes; minus infinity for none."""
    upper: Matrix

    @property
    def scored(self) -> int:
        """Number of targets that are scored."""
        return int((~np.isnan(self.targets)).sum())

    def errors(self, outputs: Matrix) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        """Return errors, and where they have a derivative, of outputs ``(time, models, records, outputs)``.

        An output beyond a limit has the error of the limit. It has a derivative unless the target is at the limit, too:
        there the machine says no more than that the output is beyond.
        """
        targets = self.targets[:, None]
        is_scored = ~np.isnan(targets)
        error = np.where(is_scored, np.clip(outputs, self.lower, self.upper) - targets, 0.0)
        is_free = ((outputs < self.upper) | (targets < self.upper - _AT_LIMIT)) & (
            (outputs > self.lower) | (targets > self.lower + _AT_LIMIT)
        )
        return error, is_scored & is_free


_AT_LIMIT = 1e-6
"""Distance to a limit, in deviations, that rounding to float32 explains."""


class Parametrization(Protocol):
    """A map from free parameters to systems, of several models at once."""

    def systems(self, parameters: Matrix) -> Matrix:
        """Return ``(models, rows, columns)`` of parameters ``(models, count)``."""
        ...

    def jacobian(self, parameters: Matrix) -> Matrix:
        """Return the derivatives of the systems, ``(models, rows * columns, count)``."""
        ...


class FreeMatrices:
    """The entries of the matrix as parameters."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def systems(self, parameters: Matrix) -> Matrix:
        return parameters.reshape(-1, self._sizes.rows, self._sizes.columns)

    def jacobian(self, parameters: Matrix) -> Matrix:
        size = parameters.shape[1]
        return np.broadcast_to(np.eye(size), (len(parameters), size, size))


@dataclass(frozen=True)
class Penalty:
    """A penalty of systems and first states, as a share of the mean square error.

    Attributes:
        center: Systems that have none, ``(models, rows, columns)``.
        of_systems: Factor of the squared distance from them.
        of_starts: Factor of the squared norm of the first states.
    """

    center: Matrix
    of_systems: float
    of_starts: float


class FreeRunProblem:
    """The squared error of the free runs of several models on the same records, with a penalty.

    Args:
        sizes: Of every system.
        records: The records.
        penalty: The penalty.
    """

    def __init__(self, sizes: Sizes, records: Records, penalty: Penalty) -> None:
        self._sizes = sizes
        self.records = records
        self._penalty = penalty

    def objective(self, systems: Matrix, starts: Matrix, models: Indices) -> tuple[Matrix, Matrix]:
        """Return the objective and the mean squared error of some models; infinite of one that diverges.

        Args:
            systems: ``(models, rows, columns)``.
            starts: ``(models, records, states)``.
            models: Their numbers among those of the penalty.
        """
        outputs, _ = self._run(systems, starts)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.square(self.records.errors(outputs)[0]).sum(axis=(0, 2, 3))
        sums = np.where(np.isfinite(sums), sums, np.inf)
        distance = np.square(systems - self._penalty.center[models]).sum(axis=(1, 2))
        penalty = self._penalty.of_systems * distance + self._penalty.of_starts * np.square(starts).sum(axis=(1, 2))
        return sums + self.records.scored * penalty, sums / self.records.scored

    def normal_equations(self, systems: Matrix, starts: Matrix, models: Indices) -> tuple[Matrix, Matrix]:
        """Return Gauss-Newton matrices and half gradients by the entries of the systems, then by the first states.

        Args:
            systems: As :meth:`objective` takes them.
            starts: Likewise.
            models: Likewise.

        Returns:
            ``(models, parameters, parameters)`` and ``(models, parameters)``.
        """
        sizes, (count, records, n) = self._sizes, starts.shape
        entries, free = sizes.rows * sizes.columns, n * records
        outputs, signals = self._run(systems, starts)
        # (models * records, time, outputs)
        errors, has_derivative = (
            part.reshape(len(part), count * records, -1).swapaxes(0, 1) for part in self.records.errors(outputs)
        )
        matrix, gradient = np.zeros((count, entries + free, entries + free)), np.zeros((count, entries + free))
        # By the first states alone, which act on their own record each.
        by_starts = np.zeros((count * records, n, entries + n))
        for steps, derivative in sensitivities(sizes, np.repeat(systems, records, axis=0), signals):
            derivative *= has_derivative[:, steps, :, None]
            rows = derivative.reshape(count * records, -1, entries + n)
            residuals = errors[:, steps].reshape(count * records, -1, 1)
            of_starts = rows[:, :, entries:].swapaxes(1, 2)
            by_starts += of_starts @ rows
            gradient[:, entries:] += (of_starts @ residuals).reshape(count, free)
            rows = derivative.reshape(count, -1, entries + n)[:, :, :entries]
            of_systems = rows.swapaxes(1, 2)
            matrix[:, :entries, :entries] += of_systems @ rows
            gradient[:, :entries] += (of_systems @ residuals.reshape(count, -1, 1))[:, :, 0]
        mixed = by_starts[:, :, :entries].reshape(count, free, entries)
        matrix[:, entries:, :entries], matrix[:, :entries, entries:] = mixed, mixed.swapaxes(1, 2)
        for record in range(records):
            place = slice(entries + n * record, entries + n * (record + 1))
            matrix[:, place, place] = by_starts[record::records, :, entries:]
        factors = np.repeat([self._penalty.of_systems, self._penalty.of_starts], [entries, free]) * self.records.scored
        deviations = (systems - self._penalty.center[models]).reshape(count, entries)
        values = np.concatenate([deviations, starts.reshape(count, free)], axis=1)
        diagonal = np.arange(entries + free)
        matrix[:, diagonal, diagonal] += factors
        return matrix, gradient + factors * values

    def _run(self, systems: Matrix, starts: Matrix) -> tuple[Matrix, Matrix]:
        """Return outputs ``(time, models, records, outputs)``, and signals ``(time, models * records, columns)``."""
        count, records, n = starts.shape
        outputs, signals = simulate(
            self._sizes,
            np.repeat(systems, records, axis=0),
            np.tile(self.records.inputs, (1, count, 1)),
            starts.reshape(count * records, n),
        )
        return outputs.reshape(len(outputs), count, records, -1), signals


class Fit(NamedTuple):
    """The result of :func:`minimize`."""

    parameters: Matrix
    """``(models, count)``."""
    starts: Matrix
    """``(models, records, states)``."""
    errors: Matrix
    """Mean squared error, ``(models,)``."""


def minimize(
    problem: FreeRunProblem,
    parametrization: Parametrization,
    parameters: Matrix,
    starts: Matrix,
    iterations: int,
    *,
    tolerance: float = 1e-5,
) -> Fit:
    """Minimize the error of free runs by the method of Levenberg and Marquardt, of each model by itself.

    A model ends once four iterations in a row gain less than ``tolerance`` of its objective, or no step gains anything.

    Args:
        problem: The error.
        parametrization: Of the systems.
        parameters: Where to begin, ``(models, count)``.
        starts: First states to begin with, ``(models, records, states)``.
        iterations: Iterations at most.
        tolerance: As described.
    """
    parameters, starts = parameters.copy(), starts.copy()
    active = np.arange(len(parameters))
    damping, small_gains = np.full(len(parameters), 0.01), np.zeros(len(parameters), dtype=int)
    objective, errors = problem.objective(parametrization.systems(parameters), starts, active)
    for _ in range(iterations):
        if not len(active):
            break
        matrix, gradient = _reduced(problem, parametrization, parameters[active], starts[active], active)
        before, pending = objective.copy(), np.arange(len(active))
        for _ in range(_TRIALS):
            models = active[pending]
            step = _damped_step(matrix[pending], gradient[pending], damping[models])
            new_parameters, new_starts = _moved(parameters[models], starts[models], step)
            systems = parametrization.systems(new_parameters)
            new_objective, new_errors = problem.objective(systems, new_starts, models)
            is_better = new_objective < objective[models]
            accepted = models[is_better]
            parameters[accepted], starts[accepted] = new_parameters[is_better], new_starts[is_better]
            objective[accepted], errors[accepted] = new_objective[is_better], new_errors[is_better]
            damping[accepted] = np.maximum(damping[accepted] / 5, 1e-9)
            damping[models[~is_better]] *= 4
            pending = pending[~is_better]
            if not len(pending):
                break
        gain = before[active] - objective[active]
        small_gains[active] = np.where(gain < tolerance * before[active], small_gains[active] + 1, 0)
        has_moved = np.ones(len(active), dtype=bool)
        has_moved[pending] = False
        active = active[has_moved & (small_gains[active] < 4)]
    return Fit(parameters, starts, errors)


_TRIALS = 12
"""Steps that are tried in an iteration, each with four times the damping of the one before."""


def _reduced(
    problem: FreeRunProblem, parametrization: Parametrization, parameters: Matrix, starts: Matrix, models: Indices
) -> tuple[Matrix, Matrix]:
    """Return the normal equations of models by their parameters, then by their first states."""
    systems = parametrization.systems(parameters)
    matrix, gradient = problem.normal_equations(systems, starts, models)
    jacobian = parametrization.jacobian(parameters)
    entries, count, free = jacobian.shape[1], parameters.shape[1], matrix.shape[1] - jacobian.shape[1]
    # The chain rule; first states are parameters already.
    chain = np.zeros((len(models), entries + free, count + free))
    chain[:, :entries, :count] = jacobian
    chain[:, np.arange(entries, entries + free), np.arange(count, count + free)] = 1
    transposed = chain.transpose(0, 2, 1)
    return transposed @ matrix @ chain, (transposed @ gradient[:, :, None])[:, :, 0]


def _damped_step(matrix: Matrix, gradient: Matrix, damping: Matrix) -> Matrix:
    """Return the steps of models; damping is relative to the diagonal, as Marquardt has it."""
    diagonal = np.diagonal(matrix, axis1=1, axis2=2)
    # Parameters without an effect, as a parametrization with more of them than it needs has, would make it singular.
    diagonal = np.maximum(diagonal, 1e-8 * diagonal.max(axis=1, keepdims=True))
    damped = matrix + (damping[:, None] * diagonal)[:, :, None] * np.eye(diagonal.shape[1])
    return np.asarray(-np.linalg.solve(damped, gradient[:, :, None])[:, :, 0], dtype=np.float64)


def _moved(parameters: Matrix, starts: Matrix, step: Matrix) -> tuple[Matrix, Matrix]:
    count = parameters.shape[1]
    return parameters + step[:, :count], starts + step[:, count:].reshape(starts.shape)
