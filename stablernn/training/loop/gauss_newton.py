"""Training of models of machines: the error of their free run, by a Gauss-Newton method with exact sensitivities.

A model is the mean of small contracting recurrent equilibrium networks (Revay, Wang, Manchester, "Recurrent equilibrium
networks", IEEE TAC 2023). Each begins as copies of one linear state space, side by side under the same input, of which
the last is the output: it predicts as well as the linear system does before its first step, and has states of its own
to bend. What is fitted are the free parameters, of which every value contracts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix
from stablernn.cells.ren import RENCell, RENWeights
from stablernn.data.step_data import StepData
from stablernn.errors import ConfigError, TrainingError
from stablernn.nn.models import SequencePredictor
from stablernn.training.loop.free_run import (
    FreeMatrices,
    FreeRunProblem,
    Penalty,
    Records,
    Sizes,
    minimize,
    simulate,
)
from stablernn.training.loop.subspace import StateSpace, identify, stabilized

PAST = 20
"""Steps of the past by which states are identified."""
MOST_WHOLE_STEPS = 8192
"""Steps of all records together up to which each is run as a whole, from a first state that is fitted."""
COARSE_SECTIONS, COARSE_STEPS = 8, 1000
"""Sections of longer records that the model is fitted to before it is fitted to all of them."""
SECTION_STEPS = 2000
"""Steps of a section of longer records."""
ITERATIONS = {"linear": 30, "coarse": 30, "whole": 60}
_RIDGE_STEPS = 10.0
"""Steps whose square, over that of the steps of the records, is the penalty of a move away from the linear system: few
steps tell little of a model."""
_START_VARIANCE = 0.01
"""Variance of the error, in that of the targets, over that of a first state: the penalty of one, as of its prior."""
_THRESHOLDS = 1.5
"""Deviation of the neurons' biases, in deviations of their inputs: they bend at places all over the range."""


def fit_simulation(model: SequencePredictor, data: StepData, seed: int) -> float:
    """Fit a model of a machine to the error of its free run on the training split.

    The zero state of the fitted model is the mean of the first states of the records, or of the sections in which long
    ones are run.

    Args:
        model: Of the cell ``ren`` with one layer, real outputs and no change predicted, its scaling and limits fitted.
            Its members are fitted one beside the other, and its head becomes their mean.
        data: Inputs and real outputs, NaN where a target is missing.
        seed: Of the neurons' first weights.

    Returns:
        The mean square error of the members, of each by itself, in units of the targets' scaling.

    Raises:
        ConfigError: If the model is of another kind, or smaller than its outputs.
        TrainingError: If the data have no record that is long enough, or no fit is finite.
    """
    cells = _checked_cells(model)
    records = _scaled_records(model, data)
    sizes = Sizes(cells[0].hidden_size, cells[0].num_neurons, model.patches.output_size, model.num_outputs)
    stages = _stages(model, records)
    # The largest order up to that of the data that goes into the state in whole copies.
    order = next(order for order in range(linear_order(records), 0, -1) if sizes.states % order == 0)
    start = linear_start(records, stages[0].records, order).repeated(sizes.states // order)
    twins = [_started_cell(cell, start, np.random.default_rng([seed, number])) for number, cell in enumerate(cells)]
    parametrization = RENParametrization(twins[0], sizes)
    parameters = np.stack([parametrization.parameters(cell, start) for cell in twins])
    center = parametrization.systems(parameters)
    starts = np.repeat(start.starts[None], len(cells), axis=0)
    errors = np.full(len(cells), math.inf)
    for stage in stages:
        if stage is not stages[0]:
            starts = np.zeros((len(cells), stage.records.targets.shape[1], sizes.states))
        penalty = Penalty(center, (_RIDGE_STEPS / stage.records.scored) ** 2, _START_VARIANCE / stage.records.scored)
        problem = FreeRunProblem(sizes, stage.records, penalty)
        parameters, starts, errors = minimize(problem, parametrization, parameters, starts, stage.iterations)
    if not np.isfinite(errors).all():
        raise TrainingError(
            "The free run of the model is not finite on the training data. Look for jumps in inputs and outputs by "
            "'stablernn data check', or scale them."
        )
    for cell, member, first in zip(cells, parameters, starts.mean(axis=1), strict=True):
        parametrization.write(cell, member, first)
    _average(model)
    return float(errors.mean())


class RENParametrization:
    """The free parameters of contracting networks, then the rows of the outputs, as parameters of systems.

    Args:
        cell: A cell of the networks' sizes and settings, in double precision.
        sizes: Of every system; its outputs are the first ones of the cell.
    """

    _NAMES = ("weight_hh", "weight_skew", "weight_ih", "bias_ih")

    def __init__(self, cell: RENCell, sizes: Sizes) -> None:
        self._sizes = sizes
        self._module = _Materialized(cell)
        self._shapes = [getattr(cell, name).shape for name in self._NAMES]
        self._counts = [shape.numel() for shape in self._shapes]
        self._rows = torch.func.vmap(self._inner_rows)
        # One model after the other: with vmap around it, torch 2.13 returned numbers that it had never computed.
        self._derivative = torch.func.jacrev(self._inner_rows)

    def parameters(self, cell: RENCell, system: StateSpace) -> Matrix:
        """Return the parameters of a cell whose outputs are those of a linear system."""
        sizes = self._sizes
        rows = np.zeros((sizes.outputs, sizes.columns))
        rows[:, : sizes.states], rows[:, sizes.states + sizes.neurons : -1] = system.C, system.D
        rows[:, -1] = system.bias
        free = [getattr(cell, name).detach().double().numpy().ravel() for name in self._NAMES]
        return np.concatenate([*free, rows.ravel()])

    def systems(self, parameters: Matrix) -> Matrix:
        free, outputs = self._split(parameters)
        with torch.no_grad():
            rows = self._rows(free).numpy()
        return np.concatenate([rows, outputs.reshape(len(rows), self._sizes.outputs, -1)], axis=1)

    def jacobian(self, parameters: Matrix) -> Matrix:
        free, outputs = self._split(parameters)
        with torch.no_grad():
            derivative = torch.stack([self._derivative(model) for model in free]).flatten(1, 2).numpy()
        models, inner, count = derivative.shape
        width = outputs.shape[1]
        jacobian = np.zeros((models, inner + width, count + width))
        jacobian[:, :inner, :count] = derivative
        jacobian[:, np.arange(inner, inner + width), np.arange(count, count + width)] = 1
        return jacobian

    def write(self, cell: RENCell, parameters: Matrix, first_state: Matrix) -> None:
        """Set a cell to the parameters of one model, with its zero state at ``first_state``."""
        n, q, p = self._sizes.states, self._sizes.neurons, self._sizes.outputs
        free, outputs = self._split(parameters[None])
        rows = torch.from_numpy(outputs.reshape(p, -1))
        double = _double_twin(cell)
        with torch.no_grad():
            for name, value in self._named(free[0]).items():
                getattr(double, name).copy_(value)
            double.weight_output.zero_()
            double.weight_output[:p] = rows[:, : n + q]
            # D22 and b_y; outputs from there on are 0.
            double.weight_ih[q + n :], double.bias_ih[q + n :] = 0, 0
            double.weight_ih[q + n : q + n + p], double.bias_ih[q + n : q + n + p] = rows[:, n + q : -1], rows[:, -1]
            double.shift_state(torch.from_numpy(first_state))
            cell.load_state_dict(double.state_dict())

    def _split(self, parameters: Matrix) -> tuple[Tensor, Matrix]:
        """Return the free parameters of the cells, and the rows of the outputs."""
        count = sum(self._counts)
        return torch.from_numpy(np.ascontiguousarray(parameters[:, :count])), parameters[:, count:]

    def _named(self, free: Tensor) -> dict[str, Tensor]:
        parts = torch.split(free, self._counts)
        return {name: part.view(shape) for name, part, shape in zip(self._NAMES, parts, self._shapes, strict=True)}

    def _inner_rows(self, free: Tensor) -> Tensor:
        """Return the rows of neurons and next state, ``(neurons + states, columns)``."""
        tensors = {f"cell.{name}": value for name, value in self._named(free).items()}
        weights: RENWeights = torch.func.functional_call(self._module, tensors, ())
        n, q = self._sizes.states, self._sizes.neurons
        from_neurons = torch.cat([weights.within, weights.neurons[:n]])
        rows = slice(0, q + n)
        return torch.cat([weights.state[rows], from_neurons, weights.input[rows], weights.bias[rows, None]], dim=1)


class _Materialized(nn.Module):
    """A module whose call returns the matrices of a cell."""

    def __init__(self, cell: RENCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self) -> RENWeights:
        return self.cell.materialize()


class _Stage(NamedTuple):
    records: Records
    iterations: int


class NetworkSize(NamedTuple):
    """Sizes of the networks that simulate a machine."""

    hidden_size: int
    num_neurons: int
    members: int


def recommend_size(data: StepData) -> NetworkSize:
    """Return the sizes for data: two copies of a linear state space, of longer records as many as eight states hold.

    Short records leave room for chance, which the mean of eight networks averages out; a long one is fitted once.
    """
    records, _, _ = _standardized_records(data)
    order, is_long = linear_order(records), _are_long(records)
    copies = max(1, _STATES // order if is_long else min(2, _STATES // order))
    hidden = order * copies
    return NetworkSize(hidden, hidden, 1 if is_long else 8)


_STATES = 8
"""States of a network at most, unless a single linear system has more."""
_ORDERS = range(2, 7)
_WORTHWHILE = 1.1
"""Ratio of errors from which on further states of a linear system are worth their cost."""


def linear_simulator(data: StepData) -> Callable[[Matrix], Matrix]:
    """Return the best linear state space of data, as a baseline: a function that simulates outputs.

    It takes inputs ``(time, inputs)`` and returns outputs ``(time, outputs)``, in the units of the data, from the mean
    first state of the training records.

    Raises:
        TrainingError: If no record is long enough.
    """
    records, inputs, targets = _standardized_records(data)
    unlimited = np.full(len(targets.mean), np.inf)
    cut = _sections(records, SECTION_STEPS) if _are_long(records) else records
    system = fit_linear(records, _stacked(cut, -unlimited, unlimited), linear_order(records))
    start = system._replace(starts=system.starts.mean(axis=0, keepdims=True))

    def simulate_outputs(values: Matrix) -> Matrix:
        scaled = np.nan_to_num((values - inputs.mean) / inputs.scale)
        runs = _stacked([(scaled, np.full((len(values), len(unlimited)), np.nan))], -unlimited, unlimited)
        return targets.mean + targets.scale * _run_linear(start, runs)[0][:, 0]

    return simulate_outputs


class _Units(NamedTuple):
    mean: Matrix
    scale: Matrix


def _standardized_records(data: StepData) -> tuple[list[tuple[Matrix, Matrix]], _Units, _Units]:
    """Return training records in units of their deviations, and these of inputs and targets.

    An input that is missing counts as the mean.
    """
    records = [(np.asarray(u, np.float64), np.asarray(y, np.float64)) for u, y in data.training_sequences()]
    units = []
    for parts in zip(*records, strict=True):
        values = np.concatenate(parts)
        scale = np.nanstd(values, axis=0)
        units.append(_Units(np.nanmean(values, axis=0), np.where(scale > 0, scale, 1)))
    inputs, targets = units
    scaled = [(np.nan_to_num((u - inputs.mean) / inputs.scale), (y - targets.mean) / targets.scale) for u, y in records]
    return scaled, inputs, targets


def linear_order(records: Sequence[tuple[Matrix, Matrix]]) -> int:
    """Return the smallest order of a linear state space whose free run is nearly as good as the best one's.

    Each order is fitted twice, and judged by the steps that were left out: two quarters of each record, or of sections
    of long ones, one at a time.

    Args:
        records: Inputs and targets of each, in units of their deviations; targets NaN where missing.

    Returns:
        The order; the smallest where records are too short to leave a part out.
    """
    try:
        errors = [_left_out_error(records, order) for order in _ORDERS]
    except TrainingError:
        return _ORDERS[0]
    return next(
        order for order, error in zip(_ORDERS, errors, strict=True) if error <= _WORTHWHILE**2 * np.nanmin(errors)
    )


def _left_out_error(records: Sequence[tuple[Matrix, Matrix]], order: int) -> float:
    """Return the mean square error of the steps that were left out."""
    if _are_long(records):
        records = _spread(_sections(records, COARSE_STEPS), 2 * COARSE_SECTIONS)
    unlimited = np.full(records[0][1].shape[1], np.inf)
    errors = []
    for first in (1, 3):
        whole, fitted, judged = [], [], []
        for u, y in records:
            start, end = (len(u) * quarter // 4 for quarter in (first, first + 1))
            is_left_out = (np.arange(len(u)) >= start) & (np.arange(len(u)) < end)
            # What is left out is no part of what states are identified from.
            whole += [(u[:start], y[:start]), (u[end:], y[end:])]
            fitted.append((u, np.where(is_left_out[:, None], np.nan, y)))
            judged.append((u, np.where(is_left_out[:, None], y, np.nan)))
        system = fit_linear(whole, _stacked(fitted, -unlimited, unlimited), order, iterations=10)
        runs = _stacked(judged, -unlimited, unlimited)
        errors.append(np.nanmean(np.square(_run_linear(system, runs)[0] - runs.targets)))
    return float(np.mean(errors))


def linear_start(whole: Sequence[tuple[Matrix, Matrix]], records: Records, order: int) -> StateSpace:
    """Return the linear system that a network starts at, in coordinates in which its states have unit covariance.

    Args:
        whole: As of :func:`fit_linear`.
        records: Likewise.
        order: Likewise.
    """
    system = fit_linear(whole, records, order)
    _, signals = _run_linear(system, records)
    states = signals[..., :order].reshape(-1, order)
    covariance = np.cov(states.T).reshape(order, order)
    return system.in_coordinates(np.linalg.cholesky(covariance + 1e-9 * np.trace(covariance) * np.eye(order)))


def fit_linear(
    whole: Sequence[tuple[Matrix, Matrix]], records: Records, order: int, iterations: int = ITERATIONS["linear"]
) -> StateSpace:
    """Return the stable linear system of an order with the least error of its free run, begun at an identified one.

    Args:
        whole: Inputs and targets of each record that it is identified from.
        records: The records that are run.
        order: Number of states.
        iterations: Iterations at most.

    Raises:
        TrainingError: If no record is long enough.
    """
    try:
        system = identify([(u, _filled(y)) for u, y in whole], order, PAST)
    except ValueError as error:
        raise TrainingError(f"{error} Record longer experiments.") from None
    width, count = whole[0][0].shape[1], whole[0][1].shape[1]
    sizes, matrix = Sizes(order, 0, width, count), _linear_matrix(system)[None]
    # Nothing is penalized: a linear system has few parameters. Limits are those of the network.
    unlimited = records._replace(lower=np.full(count, -np.inf), upper=np.full(count, np.inf))
    problem = FreeRunProblem(sizes, unlimited, Penalty(matrix, 0.0, _START_VARIANCE / records.scored))
    starts = np.zeros((1, records.targets.shape[1], order))
    fit = minimize(problem, FreeMatrices(sizes), matrix.reshape(1, -1), starts, iterations)
    rows = fit.parameters.reshape(sizes.rows, sizes.columns)
    a, b, offset = stabilized(rows[:order, :order]), rows[:order, order:-1], rows[:order, -1]
    c, d = rows[order:, :order], rows[order:, order:-1]
    # The bias of the state moves the origin: x = z + equilibrium with equilibrium = A equilibrium + offset.
    equilibrium = np.linalg.solve(np.eye(order) - a, offset)
    return StateSpace(a, b, c, d, rows[order:, -1] + c @ equilibrium, fit.starts[0] - equilibrium)


def _linear_matrix(system: StateSpace) -> Matrix:
    states = np.hstack([system.A, system.B, np.zeros((len(system.A), 1))])
    return np.vstack([states, np.hstack([system.C, system.D, system.bias[:, None]])])


def _run_linear(system: StateSpace, records: Records) -> tuple[Matrix, Matrix]:
    """Return outputs and signals of a linear system on the records that it was fitted to, as :func:`simulate` does."""
    sizes = Sizes(len(system.A), 0, system.B.shape[1], len(system.C))
    systems = np.repeat(_linear_matrix(system)[None], records.inputs.shape[1], axis=0)
    return simulate(sizes, systems, records.inputs, system.starts)


def _checked_cells(model: SequencePredictor) -> list[RENCell]:
    """Return the cells of a model that can be fitted."""
    cells = [cell for cell in model.rnn.cells if isinstance(cell, RENCell)]
    if not cells or len(cells) != len(model.rnn) or model.output != "real" or model.predict_change or model.head_layers:
        raise ConfigError(
            "training.method=gauss-newton fits models of the cell 'ren' with one layer and real outputs, got the cell "
            f"'{model.rnn.first.cell}' with {model.rnn.first.num_layers} layers and {model.output} outputs. Take "
            "training.method=gradient."
        )
    if model.num_outputs > cells[0].hidden_size:
        raise ConfigError(
            f"training.method=gauss-newton needs a state as long as the outputs or longer, got "
            f"model.hidden_size={cells[0].hidden_size} for {model.num_outputs} outputs. Raise it."
        )
    return cells


def _scaled_records(model: SequencePredictor, data: StepData) -> list[tuple[Matrix, Matrix]]:
    """Return the channels of the layers and the scaled targets of each training record, in double precision."""
    mean, scale = (tensor.double().numpy() for tensor in (model.targets.mean, model.targets.scale))
    records = []
    for index in range(len(data.train)):
        sample = data.train.gather([index])
        with torch.no_grad():
            features, *_ = model.layer_inputs(torch.from_numpy(np.asarray(sample.x)))
        targets = (np.asarray(sample.y[0], dtype=np.float64) - mean) / scale
        records.append((features[0].double().numpy(), targets))
    return records


def _stages(model: SequencePredictor, records: Sequence[tuple[Matrix, Matrix]]) -> list[_Stage]:
    """Return what the model is fitted to: short records as they are, of long ones first some sections, then all."""
    mean, scale = (tensor.double().numpy() for tensor in (model.targets.mean, model.targets.scale))
    lower, upper = np.full(len(mean), -np.inf), np.full(len(mean), np.inf)
    if model.saturation:
        lower, upper = ((limit.double().numpy() - mean) / scale for limit in (model.lower, model.upper))
    if not _are_long(records):
        return [_Stage(_stacked(records, lower, upper), ITERATIONS["whole"])]
    sections = _sections(records, SECTION_STEPS)
    coarse = _spread(_sections(records, COARSE_STEPS), COARSE_SECTIONS)
    return [
        _Stage(_stacked(coarse, lower, upper), ITERATIONS["coarse"]),
        _Stage(_stacked(sections, lower, upper), ITERATIONS["whole"]),
    ]


def _are_long(records: Sequence[tuple[Matrix, Matrix]]) -> bool:
    return sum(len(u) for u, _ in records) > MOST_WHOLE_STEPS


def _spread(sections: list[tuple[Matrix, Matrix]], count: int) -> list[tuple[Matrix, Matrix]]:
    """Return so many sections, evenly spread."""
    numbers = np.linspace(0, len(sections) - 1, min(count, len(sections))).astype(int)
    return [sections[number] for number in numbers]


def _sections(records: Sequence[tuple[Matrix, Matrix]], steps: int) -> list[tuple[Matrix, Matrix]]:
    """Cut records into sections of equal lengths of so many steps or fewer."""
    sections: list[tuple[Matrix, Matrix]] = []
    for inputs, targets in records:
        count = -(-len(inputs) // steps)
        sections += zip(np.array_split(inputs, count), np.array_split(targets, count), strict=True)
    return sections


def _stacked(parts: Sequence[tuple[Matrix, Matrix]], lower: Matrix, upper: Matrix) -> Records:
    """Return records side by side, padded to the longest."""
    longest = max(len(u) for u, _ in parts)
    inputs = np.zeros((longest, len(parts), parts[0][0].shape[1]))
    targets = np.full((longest, len(parts), parts[0][1].shape[1]), np.nan)
    for number, (u, y) in enumerate(parts):
        inputs[: len(u), number] = u
        targets[: len(y), number] = y
    return Records(inputs, targets, lower, upper)


def _started_cell(cell: RENCell, system: StateSpace, random: np.random.Generator) -> RENCell:
    """Return a cell in double precision that is a linear system, with random neurons that see it."""
    twin = _double_twin(cell)
    n, q, m = cell.hidden_size, cell.num_neurons, cell.input_size
    # States and inputs have unit variance, and so have then the sums in front of the neurons.
    deviation = (n + m) ** -0.5
    twin.start_at(
        system.A,
        system.B,
        random.normal(scale=deviation, size=(q, n)),
        random.normal(scale=deviation, size=(q, m)),
        random.normal(scale=_THRESHOLDS, size=q),
    )
    return twin


def _double_twin(cell: RENCell) -> RENCell:
    twin = RENCell(
        cell.input_size,
        cell.hidden_size,
        num_neurons=cell.num_neurons,
        contraction_rate=cell.contraction_rate,
        margin=cell.margin,
    )
    return twin.double()


def _average(model: SequencePredictor) -> None:
    """Let the head return the mean of the members' first outputs."""
    members, outputs = len(model.rnn), model.num_outputs
    assert isinstance(model.head, nn.Linear)
    with torch.no_grad():
        selection = torch.eye(outputs, model.feature_size) / members
        model.head.weight.copy_(selection.repeat(1, members))
        model.head.bias.zero_()


def _filled(targets: Matrix) -> Matrix:
    """Return targets with the last observed value in place of missing ones; before the first one 0, the mean."""
    positions = np.where(np.isnan(targets), 0, np.arange(1, len(targets) + 1)[:, None])
    latest = np.maximum.accumulate(positions, axis=0)
    padded = np.vstack([np.zeros(targets.shape[1]), targets])
    return np.take_along_axis(padded, latest, axis=0)
