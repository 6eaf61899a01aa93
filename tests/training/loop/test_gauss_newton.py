"""Models of machines: exact sensitivities, the linear start, contraction at every step, and a system recovered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from stablernn import SequencePredictor
from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import given_norms
from stablernn.cells import State
from stablernn.cells.ren import RENCell
from stablernn.certificates.certificate import prove
from stablernn.data.step_data import StepData, StoredSteps
from stablernn.errors import ConfigError, TrainingError
from stablernn.training.loop import gauss_newton
from stablernn.training.loop.free_run import (
    FreeRunProblem,
    Penalty,
    Records,
    Sizes,
    minimize,
    sensitivities,
    simulate,
)
from stablernn.training.loop.gauss_newton import (
    RENParametrization,
    fit_simulation,
    linear_order,
    linear_simulator,
    recommend_size,
)
from stablernn.training.loop.subspace import StateSpace, identify

SIZES = Sizes(states=3, neurons=4, inputs=2, outputs=2)


def random_systems(count: int, sizes: Sizes = SIZES, seed: int = 0) -> Matrix:
    systems = 0.4 * np.random.default_rng(seed).normal(size=(count, sizes.rows, sizes.columns))
    n, q = sizes.states, sizes.neurons
    systems[:, :q, n : n + q] *= np.tril(np.ones((q, q)), -1)
    return systems


def reference(system: Tensor, inputs: Tensor, x: Tensor, sizes: Sizes = SIZES) -> Tensor:
    """Outputs ``(time, outputs)`` of one run, written from the equations."""
    n, q, m, p = sizes.states, sizes.neurons, sizes.inputs, sizes.outputs
    (c1, d11, d12, bv), (a, b1, b2, bx), (c2, d21, d22, by) = (
        torch.split(rows, [n, q, m, 1], dim=1) for rows in torch.split(system, [q, n, p])
    )
    outputs = []
    for u in inputs:
        w: list[Tensor] = []
        for i in range(q):
            v = c1[i] @ x + d12[i] @ u + bv[i, 0]
            w.append(torch.tanh(v + sum((d11[i, j] * w[j] for j in range(i)), torch.zeros((), dtype=v.dtype))))
        neurons = torch.stack(w)
        outputs.append(c2 @ x + d21 @ neurons + d22 @ u + by[:, 0])
        x = a @ x + b1 @ neurons + b2 @ u + bx[:, 0]
    return torch.stack(outputs)


def test_outputs_and_sensitivities_are_those_of_the_equations() -> None:
    random = np.random.default_rng(1)
    systems, inputs, starts = random_systems(2), random.normal(size=(9, 2, 2)), random.normal(size=(2, 3))
    outputs, signals = simulate(SIZES, systems, inputs, starts)
    derivatives = np.concatenate([part for _, part in sensitivities(SIZES, systems, signals)], axis=1)
    n, q, entries = SIZES.states, SIZES.neurons, SIZES.rows * SIZES.columns
    is_free = np.ones((SIZES.rows, SIZES.columns), dtype=bool)
    is_free[:q, n : n + q] = np.tril(np.ones((q, q), dtype=bool), -1)
    for run in range(2):
        arguments = (torch.from_numpy(systems[run]), torch.from_numpy(inputs[:, run]), torch.from_numpy(starts[run]))
        np.testing.assert_allclose(outputs[:, run], reference(*arguments).numpy(), rtol=1e-12, atol=1e-12)
        by_system, _, by_start = jacrev(reference, (0, 1, 2))(*arguments)
        computed = derivatives[run, :, :, :entries].reshape(9, 2, SIZES.rows, SIZES.columns)
        np.testing.assert_allclose(computed[..., is_free], by_system.numpy()[..., is_free], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(derivatives[run, :, :, entries:], by_start.numpy(), rtol=1e-10, atol=1e-12)


def problem(targets: Matrix, inputs: Matrix, **changes: Any) -> FreeRunProblem:
    unlimited = np.full(2, np.inf)
    records = Records(inputs, targets, lower=-unlimited, upper=unlimited)
    return FreeRunProblem(SIZES, records._replace(**changes), Penalty(random_systems(2, seed=5), 0.1, 0.2))


def test_the_gradient_is_that_of_the_objective_and_the_matrix_its_derivative_where_nothing_is_left() -> None:
    random = np.random.default_rng(2)
    systems, inputs, starts = random_systems(2), random.normal(size=(8, 3, 2)), random.normal(size=(2, 3, 3))
    outputs = simulate(SIZES, systems[[0] * 3], inputs, starts[0])[0]
    # An output beyond the limit keeps a derivative unless the target is there, too: where it is, the gradient is exact.
    limit = np.array([0.4, np.inf])
    beyond = outputs > limit
    targets = np.where(beyond, limit, np.minimum(outputs + 0.3 * random.normal(size=outputs.shape), limit - 0.01))
    assert beyond.any()
    targets[2, 1], targets[4:, 2, 0] = np.nan, np.nan
    models, entries = np.arange(2), SIZES.rows * SIZES.columns
    is_free = np.ones((SIZES.rows, SIZES.columns), dtype=bool)
    is_free[:4, 3:7] = np.tril(np.ones((4, 4), dtype=bool), -1)
    direction = random.normal(size=systems.shape) * is_free
    turn = random.normal(size=starts.shape)
    along = np.concatenate([direction.reshape(2, -1), turn.reshape(2, -1)], axis=1)
    step = 1e-6

    limited = problem(targets, inputs, upper=limit)
    systems[1], starts[1] = systems[0], starts[0]
    forward, backward = (
        limited.objective(systems + sign * step * direction, starts + sign * step * turn, models)[0] for sign in (1, -1)
    )
    _, gradient = limited.normal_equations(systems, starts, models)
    np.testing.assert_allclose((2 * gradient * along).sum(axis=1), (forward - backward) / (2 * step), rtol=1e-6)

    exact = problem(outputs, inputs)
    exact = FreeRunProblem(SIZES, exact.records, Penalty(systems, 0.1, 0.2))
    matrix, _ = exact.normal_equations(systems, starts, models)
    after, before = (
        exact.normal_equations(systems + sign * step * direction, starts + sign * step * turn, models)[1]
        for sign in (1, -1)
    )
    product = (matrix @ along[:, :, None])[:, :, 0].reshape(2, -1)
    is_scored = np.concatenate([is_free.ravel(), np.ones(9, dtype=bool)])
    np.testing.assert_allclose(
        product[:, is_scored], ((after - before) / (2 * step))[:, is_scored], rtol=1e-5, atol=1e-5
    )
    assert matrix.shape == (2, entries + 9, entries + 9)


def oscillator() -> StateSpace:
    angle = 0.5
    a = 0.9 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return StateSpace(
        a, np.array([[1.0], [0.3]]), np.array([[0.2, 0.6]]), np.array([[0.1]]), np.zeros(1), np.zeros((1, 2))
    )


def run_linear(system: StateSpace, inputs: Matrix, x: Matrix) -> Matrix:
    outputs = []
    for u in inputs:
        outputs.append(system.C @ x + system.D @ u + system.bias)
        x = system.A @ x + system.B @ u
    return np.array(outputs)


def test_identification_recovers_a_system_from_records_of_unknown_first_states() -> None:
    random, truth = np.random.default_rng(3), oscillator()
    records = []
    for length in (300, 15, 200):
        u = random.normal(size=(length, 1))
        records.append((u, run_linear(truth, u, random.normal(size=2))))
    found = identify(records, order=2, past=20)
    assert np.sort_complex(np.linalg.eigvals(found.A)) == pytest.approx(
        np.sort_complex(np.linalg.eigvals(truth.A)), abs=1e-3
    )
    impulse = np.eye(12)[:, :1]
    assert run_linear(found, impulse, np.zeros(2)) == pytest.approx(run_linear(truth, impulse, np.zeros(2)), abs=1e-3)


def started(rate: float = 1.0) -> tuple[RENCell, StateSpace]:
    cell = RENCell(1, 4, num_neurons=3, contraction_rate=rate).double()
    random, system = np.random.default_rng(4), oscillator().repeated(2)
    cell.start_at(system.A, system.B, random.normal(size=(3, 4)), random.normal(size=(3, 1)), random.normal(size=3))
    return cell, system


@pytest.mark.parametrize("rate", [1.0, 0.95])
def test_a_network_starts_at_the_linear_system(rate: float) -> None:
    cell, system = started(rate)
    sizes = Sizes(4, 3, 1, 1)
    parametrization = RENParametrization(cell, sizes)
    parameters = parametrization.parameters(cell, system)
    u, first = np.random.default_rng(5).normal(size=(200, 1)), np.array([0.4, -1.0, 0.2, 0.8])
    outputs, signals = simulate(sizes, parametrization.systems(parameters[None]), u[:, None], first[None])
    expected = run_linear(system, u, first)
    assert outputs[:, 0] == pytest.approx(expected, abs=1e-12)
    assert np.abs(signals[..., 4:7]).min() > 0
    # The cell that is written has its zero state at the first one, in float32 as well.
    written = RENCell(1, 4, num_neurons=3, contraction_rate=rate)
    parametrization.write(written, parameters, first)
    state: State = (torch.zeros(1, 4), torch.zeros(1, 4))
    weights = written.requires_grad_(False).materialize()
    stepped = []
    for value in torch.from_numpy(u).float():
        state = written.step(weights, state, written.drive(value[None]))
        stepped.append(float(state[0][0, 0]))
    assert stepped == pytest.approx(expected[:, 0].tolist(), abs=2e-5)
    with given_norms():
        assert written.step_bound().rate <= rate + 1e-6


def test_every_step_contracts_and_models_do_not_know_of_each_other() -> None:
    cell, system = started()
    sizes = Sizes(4, 3, 1, 1)
    parametrization = RENParametrization(cell, sizes)
    random = np.random.default_rng(6)
    parameters = np.stack([parametrization.parameters(cell, system)] * 2)
    parameters[1] += 0.01 * random.normal(size=parameters.shape[1])
    u = random.normal(size=(150, 1))
    y = np.tanh(2 * run_linear(oscillator(), u, np.zeros(2)))
    unlimited = np.full(1, np.inf)
    records = Records(u[:, None], y[:, None], lower=-unlimited, upper=unlimited)

    def fitted(models: slice, iterations: int) -> Any:
        start = parameters[models]
        center = parametrization.systems(start)
        runs = FreeRunProblem(sizes, records, Penalty(center, 1e-3, 1e-3))
        return minimize(runs, parametrization, start, np.zeros((len(start), 1, 4)), iterations)

    errors = []
    for iterations in (1, 4, 12):
        fit = fitted(slice(None), iterations)
        errors.append(fit.errors)
        written = RENCell(1, 4, num_neurons=3)
        for member in fit.parameters:
            parametrization.write(written, member, np.zeros(4))
            with given_norms():
                assert written.step_bound().rate < 1
    assert (np.diff(errors, axis=0) < 0).all()
    for number in range(2):
        alone = fitted(slice(number, number + 1), 4)
        assert alone.errors[0] == pytest.approx(errors[1][number], rel=1e-6)


def machine(length: int, seed: int) -> tuple[Matrix, Matrix]:
    """A first-order lag with a bent input behind another lag, whose sensor ends at 1.2."""
    random = np.random.default_rng(seed)
    u = np.repeat(random.normal(size=(-(-length // 8), 1)), 8, axis=0)[:length]
    x, outputs = np.array([0.8, 0.5]), []
    for value in u[:, 0]:
        outputs.append([min(2.0 * x[1], 1.2)])
        x = np.array([0.8 * x[0] + 0.4 * np.tanh(2 * value), 0.7 * x[1] + 0.3 * x[0] * abs(x[0])])
    return u.astype(np.float32), np.array(outputs, dtype=np.float32)


def experiments(*records: tuple[Matrix, Matrix]) -> StepData:
    split = StoredSteps([u for u, _ in records], [y for _, y in records])
    return StepData(
        name="machine", output="real", tokens=False, features=("u",), outputs=("y",), train=split, validation=split,
        test=split, continuous=False, headline="rmse", notes={}, fingerprint="sha256:0",
    )  # fmt: skip


def untrained(data: StepData, cell: str = "ren", **options: Any) -> SequencePredictor:
    neurons = {"cell_options": {"num_neurons": 4}} if cell == "ren" else {}
    model = SequencePredictor(cell, 1, 1, 4, output="real", **{"saturation": True, "members": 2, **neurons, **options})
    model.fit_scaling(data.training_values())
    model.fit_targets(y for _, y in data.training_sequences())
    return model.eval().requires_grad_(False)


def test_a_machine_is_recovered_with_its_limit_and_first_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauss_newton, "ITERATIONS", {"linear": 20, "whole": 30})
    u, y = machine(700, 0)
    y[300:310] = np.nan
    data = experiments((u[:400], y[:400]), (u[400:], y[400:]))
    model = untrained(data)
    assert model.upper.tolist() == pytest.approx([1.2])
    assert model.lower.tolist() == [-np.inf]
    loss = fit_simulation(model, data, seed=0)
    assert np.sqrt(loss) < 0.05
    new_u, new_y = machine(500, 1)
    error = model(torch.from_numpy(new_u)[None])[0].numpy() - new_y
    assert np.sqrt(np.square(error[20:]).mean()) < 0.1 * new_y.std()
    assert prove(model, stored=False, norms=[]).kind == "contracting"
    # One record alone begins at the zero state.
    alone = untrained(data)
    fit_simulation(alone, experiments((u[:300], y[:300])), seed=0)
    first = alone(torch.from_numpy(u[:300])[None])[0].numpy()[:5] - y[:5]
    assert np.abs(first).max() < 0.1 * y[:300].std()


def test_long_records_are_fitted_in_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MOST_WHOLE_STEPS", 1000), ("COARSE_STEPS", 300), ("SECTION_STEPS", 400)):
        monkeypatch.setattr(gauss_newton, name, value)
    monkeypatch.setattr(gauss_newton, "ITERATIONS", {"linear": 10, "coarse": 15, "whole": 10})
    u, y = machine(1500, 0)
    data = experiments((u, y), (u[:250], y[:250]))
    model = untrained(data, members=1)
    assert np.sqrt(fit_simulation(model, data, seed=0)) < 0.1


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"cell": "lstm"}, ConfigError, "gauss-newton .* cell 'ren'"),
        ({"num_layers": 2}, ConfigError, "one layer .* 2 layers"),
        ({"steps": 15}, TrainingError, "longer than the 21 steps"),
    ],
)
def test_what_cannot_be_fitted_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    u, y = machine(changes.get("steps", 60), 0)
    data = experiments((u, y))
    options = {key: value for key, value in changes.items() if key != "steps"}
    with pytest.raises(error, match=words):
        fit_simulation(untrained(data, **options), data, seed=0)


def test_the_order_of_the_linear_start_is_that_of_the_data() -> None:
    """Of two outputs of systems of orders 1 and 2 with no input in common, three states are worth their cost."""
    random = np.random.default_rng(7)
    u = random.normal(size=(900, 2))
    lag = StateSpace(
        np.array([[0.7]]), np.ones((1, 1)), np.ones((1, 1)), np.zeros((1, 1)), np.zeros(1), np.zeros((1, 1))
    )
    outputs = [run_linear(oscillator(), u[:, :1], np.zeros(2)), run_linear(lag, u[:, 1:], np.zeros(1))]
    both = np.hstack(outputs) + 0.02 * random.normal(size=(900, 2))
    assert linear_order([(u, both / both.std(axis=0))]) == 3
    assert linear_order([(u[:, :1], outputs[0] / outputs[0].std())]) == 2
    simulated = linear_simulator(experiments((3 * u[:, :1] - 1, 5 * outputs[0] + 2)))(3 * u[:, :1] - 1)
    assert simulated == pytest.approx(5 * outputs[0] + 2, abs=1e-3)
    assert recommend_size(experiments((u[:, :1], outputs[0]))) == (4, 4, 8)
