"""Bounds of steps for inputs within a box: nothing within the boxes exceeds them, and wrong bounds are found."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bounds.box_search import drawn_box, largest_escape, state_limits, worst_output_gain, worst_step
from bounds.specimens import DRAWS, EXTREMES, OPTIONS, drawn, extreme, sampled, trained
from stablernn import create_cell, list_cells
from stablernn.bounds.gated import largest_bend, largest_convex_step, largest_gated, largest_gated_tanh, largest_mix
from stablernn.bounds.intervals import (
    Box,
    accumulated_range,
    accumulated_rounding,
    grow_invariant,
    shrink_invariant,
    sigmoid,
)
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell, cell_info
from stablernn.certificates.cascade import cascade

BOUNDED = [key for key in list_cells() if cell_info(key).cell.step_bound_within is not StableCell.step_bound_within]
"""Cells of which more is proved for bounded inputs."""
RATED = ("cfc", "fastgrnn", "fastgrnn_lsq", "gru", "lem", "lstm", "mingru", "minlstm")
RESTORING = ("antisymmetric", "antisymmetric_g", "antisym_ablation")
"""Cells that have a box if their diagonal dominates, and the rate of all inputs."""
BOUNDED_OPTIONS = [(key, options) for key, options in OPTIONS if key in BOUNDED]
every_bounded_cell = pytest.mark.parametrize("key", BOUNDED)


def check(cell: StableCell, inputs: Box, **search: int) -> StepBound:
    bound = cell.step_bound_within(inputs)
    assert largest_escape(cell, bound, inputs) <= 0
    if bound.norm is not None and len(bound.balls) == len(cell.state_names):
        assert not worst_step(cell, bound, inputs, **search).is_violation
    return bound


class TestSoundness:
    def test_these_cells_have_bounds_for_bounded_inputs(self) -> None:
        assert set(BOUNDED) >= {*RATED, *RESTORING, "gru_d", "momentum_lstm", "ode_lstm", "slstm", "sr_lstm"}

    @pytest.mark.parametrize(
        ("key", "draw", "radius"),
        sampled(
            itertools.product(BOUNDED, DRAWS, (0.3, 2.0)),
            *((key, "small", 2.0) for key in BOUNDED),
            ("lem", "large", 2.0),
        ),
    )
    def test_no_step_exceeds_what_is_proved(self, key: str, draw: str, radius: float) -> None:
        check(drawn(key, 5, draw, features=3), drawn_box(3, radius))

    @pytest.mark.slow
    @pytest.mark.parametrize(("key", "options"), BOUNDED_OPTIONS)
    def test_of_options(self, key: str, options: dict[str, Any]) -> None:
        check(drawn(key, 4, "large", features=3, **options), drawn_box(3, 1.0))

    @pytest.mark.parametrize("key", sampled(BOUNDED, "gru_d"))
    def test_after_training(self, key: str) -> None:
        check(trained(key, 6).rnn.cells[0], Box.around_zero(2, 1.0), searches=25)

    @pytest.mark.parametrize("key", sampled(BOUNDED, "antisymmetric", "cfc", "gru"))
    def test_rates_are_no_larger_than_for_all_inputs(self, key: str) -> None:
        for draw in DRAWS:
            cell = drawn(key, 5, draw)
            within, free = cell.step_bound_within(Box.around_zero(2, 1.0)), cell.step_bound()
            # The weights of the coordinates are the result of a search.
            assert within.rate <= free.rate * (1 + 1e-5)
            for ball in free.balls:
                assert next(other for other in within.balls if other.state == ball.state).radius <= ball.radius

    @pytest.mark.slow
    @pytest.mark.parametrize("hidden", [1, 2, 16, 33])
    @every_bounded_cell
    def test_of_other_sizes(self, key: str, hidden: int) -> None:
        for draw in DRAWS:
            for radius in (0.01, 1.0, 30.0):
                check(drawn(key, hidden, draw, features=4), drawn_box(4, radius), points=24, searches=25)

    @pytest.mark.parametrize(
        ("key", "kind"), sampled(itertools.product(BOUNDED, EXTREMES), ("gru", "zero"), ("lstm", "uneven"))
    )
    def test_of_rare_matrices(self, key: str, kind: str) -> None:
        for hidden in (1, 6):
            check(extreme(key, hidden, kind), drawn_box(2, 1.0), points=24)


class TestStacks:
    @pytest.mark.parametrize("key", sampled(["gru", "lem", "lstm", "mingru", "cfc", "fastgrnn"], "gru", "lstm"))
    def test_layers_read_the_range_of_the_layer_below(self, key: str) -> None:
        torch.manual_seed(0)
        cells = [drawn(key, 4, "small", features=size, seed=size) for size in (2, 4, 4)]
        inputs = drawn_box(2, 1.0)
        proved = cascade(cells, inputs=inputs)
        assert proved.is_contracting
        gain = proved.total_gain()
        assert 0 < worst_output_gain(cells, inputs) <= gain
        # The states of every layer stay in its box.
        states, generator = [cell.initial_state(32) for cell in cells], torch.Generator().manual_seed(0)
        lower, upper = (torch.from_numpy(end).float() for end in (inputs.lower, inputs.upper))
        with torch.no_grad():
            for _ in range(200):
                value = lower + (upper - lower) * torch.rand(32, 2, generator=generator)
                for layer, (cell, bound) in enumerate(zip(cells, proved.bounds, strict=True)):
                    states[layer] = cell.step(cell.weights(), states[layer], cell.drive(value))
                    value = states[layer][0]
                    for name, (low, high) in state_limits(cell, bound).items():
                        part = states[layer][cell.state_names.index(name)]
                        assert bool(((part >= low) & (part <= high)).all())

    def test_a_layer_without_a_ball_leaves_those_above_without_a_range(self) -> None:
        # The hidden state of an identity_rnn has no ball, so that nothing bounds what the LSTM reads.
        cells = [create_cell("identity_rnn", 2, 4), create_cell("lstm", 4, 4)]
        proved = cascade(cells, inputs=Box.around_zero(2, 1.0))
        assert [ball.state for ball in proved.bounds[1].balls] == ["hidden"]


class TestPublishedConditions:
    """Published conditions, in infinity norms of whole matrices, imply that the bounds by rows contract."""

    def cell(self, key: str, seed: int, gates: int, **options: Any) -> tuple[StableCell, Any, list[float]]:
        """A cell, the largest argument of each gate for inputs and states within 1, and norms of the rows of U."""
        cell: Any = drawn(key, 4, "small", seed=seed, **options)
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.mul_(1 + seed / 10)
        w, u, b = (p.detach().double().abs() for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih))
        largest = (w.sum(dim=1) + u.sum(dim=1) + b).reshape(gates, -1).amax(dim=1)
        return cell, largest, u.sum(dim=1).reshape(gates, -1).amax(dim=1).tolist()

    def test_of_the_lstm(self) -> None:
        # Of the form of Terzi, Bonassi, Farina and Scattolini (2021): the spectral radius of a matrix of two rows, for
        # differences of the cell state and of the hidden state.
        contracts = []
        for seed in range(40):
            cell, largest, (norm_i, norm_f, norm_g, norm_o) = self.cell("lstm", seed, 4)
            i, f, o = (float(torch.sigmoid(largest[gate])) for gate in (0, 1, 3))
            g = math.tanh(float(largest[2]))
            c = i * g / (1 - f)
            on_cell = norm_f * c / 4 + i * norm_g + norm_i * g / 4
            matrix = [[f, on_cell], [o * f, o * on_cell + norm_o * math.tanh(c) / 4]]
            if max(abs(np.linalg.eigvals(matrix))) < 1:
                contracts.append(cell.step_bound_within(Box.around_zero(2, 1.0)).rate < 1)
        assert all(contracts)
        assert 5 < len(contracts) < 40

    def test_of_the_gru(self) -> None:
        # Bonassi, Farina and Scattolini (2021), whose reset gate multiplies the state before the product: the step of
        # a gru_d without decay.
        contracts = []
        for seed in range(40):
            cell, largest, (norm_z, norm_f, norm_r) = self.cell("gru_d", seed, 3, imputation="none")
            for name in ("state_decay", "state_decay_bias"):
                torch.nn.init.zeros_(cell.get_parameter(name))
            # The paper's z retains the state, the gate of this cell replaces it.
            z, f = (float(torch.sigmoid(largest[gate])) for gate in (0, 1))
            if norm_r * (norm_f / 4 + f) < 1 - (1 + math.tanh(float(largest[2]))) / (4 * (1 - z)) * norm_z:
                contracts.append(cell.step_bound_within(Box.around_zero(2, 1.0)).rate < 1)
        assert all(contracts)
        assert 5 < len(contracts) < 40


class TestWrongBounds:
    def test_rates_that_are_three_percent_too_small_are_found_in_most_models(self) -> None:
        found = []
        for key in ("lem", "lstm", "minlstm"):
            for seed in range(3):
                cell, inputs = drawn(key, 3, "small", seed=seed), Box.around_zero(2, 1.0)
                bound = cell.step_bound_within(inputs)
                assert not worst_step(cell, bound, inputs).is_violation
                found.append(worst_step(cell, replace(bound, rate=0.97 * bound.rate), inputs).is_violation)
        assert sum(found) >= 0.6 * len(found)

    @pytest.mark.parametrize("key", ["lstm", "gru"])
    def test_a_ball_for_smaller_inputs_is_found(self, key: str) -> None:
        cell, inputs = drawn(key, 3, "large"), Box.around_zero(2, 1.0)
        wrong = replace(cell.step_bound_within(inputs), balls=cell.step_bound_within(Box.around_zero(2, 0.3)).balls)
        assert largest_escape(cell, wrong, inputs) > 0

    def test_a_forget_gate_that_rounds_to_one_adds_up_to_what_float32_can_hold(self) -> None:
        cell = create_cell("lstm", 1, 2, forget_bias=30.0)
        with torch.no_grad():
            cell.bias_ih[0:2] = cell.bias_ih[4:6] = 30.0
        bound = cell.step_bound_within(Box.around_zero(1, 1.0))
        radius = next(ball.radius for ball in bound.balls if ball.state == "cell")
        assert radius >= 2.0**26
        # Every gate rounds to 1: each step adds 1 for as long as float32 can tell.
        memory = torch.full((1, 2), 2.0**24 - 3)
        with torch.no_grad():
            for _ in range(10):
                _, memory = cell.step(cell.weights(), (torch.zeros(1, 2), memory), cell.drive(torch.ones(1, 1)))
        assert memory.unique().tolist() == [2.0**24]


class TestIntervals:
    def test_images_hold_the_values(self) -> None:
        generator = np.random.default_rng(0)
        box = Box(generator.normal(size=5) - 1, generator.normal(size=5) + 1.5)
        points = generator.uniform(box.lower, box.upper, size=(2000, 5))
        matrix, bias = generator.normal(size=(3, 5)), generator.normal(size=3)
        torch_points = torch.from_numpy(points)
        images = [
            (box.affine(matrix, bias), points @ matrix.T + bias),
            (box.tanh(), np.tanh(points)),
            (box.sigmoid(), sigmoid(points)),
            (box.relu(), np.maximum(points, 0)),
            (box.silu(), torch.nn.functional.silu(torch_points).numpy()),
            (box.gelu(), torch.nn.functional.gelu(torch_points).numpy()),
            (box.scaled(2.5), 2.5 * points),
            (box.negated(), -points),
            (box.plus(box), points + points[::-1]),
            (box.times(box), points * points[::-1]),
        ]
        for image, values in images:
            assert (image.lower <= values.min(axis=0)).all()
            assert (image.upper >= values.max(axis=0)).all()
            # Most are nearly reached.
            assert (np.ptp(values, axis=0) > 0.5 * (image.upper - image.lower)).all()
        assert (box.distance(box) >= np.ptp(points, axis=0)).all()

    @pytest.mark.parametrize("function", ["silu", "gelu"])
    def test_functions_with_a_minimum(self, function: str) -> None:
        for low, high in [(-5.0, 3.0), (-5.0, -2.0), (-1.0, -0.5), (0.5, 2.0), (-1.2, -0.7), (-math.inf, 1.0)]:
            image = getattr(Box(np.array([low]), np.array([high])), function)()
            points = torch.linspace(max(low, -50.0), high, 10_001, dtype=torch.float64)
            values = getattr(torch.nn.functional, function)(points)
            assert image.lower[0] <= float(values.min())
            assert float(values.max()) <= image.upper[0]
            assert image.upper[0] - image.lower[0] < 1.01 * float(values.max() - values.min()) + 1e-3

    def test_an_affine_range_holds_what_float32_computes(self) -> None:
        generator = np.random.default_rng(0)
        weight, x, bias = (generator.normal(size=shape).astype(np.float32) for shape in ((64, 2000), (1, 2000), (64,)))
        point = Box(x[0].astype(np.float64), x[0].astype(np.float64))
        image = point.affine(weight.astype(np.float64), bias.astype(np.float64))
        computed = torch.nn.functional.linear(*map(torch.from_numpy, (x, weight, bias)))[0].numpy()
        assert (image.lower <= computed).all()
        assert (computed <= image.upper).all()

    def test_an_unbounded_box_times_zero_is_unbounded_and_no_nan(self) -> None:
        image = Box.around_zero(2, math.inf).affine(np.array([[0.0, 1.0], [0.0, 0.0]]))
        assert np.isinf(image.upper).all()
        zero = Box(np.array([0.0]), np.array([1.0])).scaled(math.inf)
        assert (zero.lower[0], zero.upper[0]) == (0.0, math.inf)

    def test_an_invariant_box_shrinks_to_its_image(self) -> None:
        # x <- x / 2 + u with u within 1/4 does not leave 1/2; from above an invariant box comes down to it.
        def image(states: Box) -> Box:
            return states.scaled(0.5).plus(Box.around_zero(1, 0.25))

        shrunk = shrink_invariant(Box.around_zero(1, 8.0), image)
        assert 0.5 <= shrunk.upper[0] < 0.50001
        grown = grow_invariant(1, lambda states: image(states).with_zero())
        assert grown is not None
        assert 0.5 <= grown.upper[0] < 0.55

    def test_no_invariant_box_of_what_grows(self) -> None:
        assert grow_invariant(1, lambda states: states.scaled(1.1).plus(Box.around_zero(1, 1.0))) is None

    def test_rounding_accumulates_where_little_is_forgotten(self) -> None:
        factors = accumulated_rounding(np.array([1.0, 1e-3, 1e-5, 1e-7, 0.0]))
        assert factors[0] == pytest.approx(1, abs=1e-5)
        assert (np.diff(factors[:3]) > 0).all()
        assert np.isinf(factors[3:]).all()
        # Of what is hardly forgotten at all, a sum of float32 numbers ends where it no longer grows.
        ends = accumulated_range(Box.around_zero(3, 1.0), np.array([1e-5, 1e-8, 0.0])).upper
        assert (ends >= [1e5 * factors[2], 1e8, np.inf]).all()


class TestLargestValues:
    """The maxima over ranges of gates, beside those of a fine grid."""

    @pytest.mark.parametrize("seed", range(5))
    def test_each_is_at_least_the_maximum_of_a_grid_and_not_much_more(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        value, change, old = generator.uniform(0, 2, size=(3, 6))
        low, high = np.sort(generator.uniform(0, 1, size=(2, 6)), axis=0)
        first, second = np.sort(generator.uniform(-1, 1, size=(2, 6)), axis=0)
        gate, bent = Box(low, high), Box(first, second)
        r = np.linspace(low, high, 401)
        t = np.linspace(bent.smallest_modulus, bent.modulus, 401)[:, None]
        grids = [
            (largest_gated(value, change, low, high), r * value + r * (1 - r) * change),
            (largest_bend(value, change, bent.smallest_modulus, bent.modulus), ((1 - t**2) * value + t * change)[:, 0]),
            (
                largest_gated_tanh(value, change, gate, bent),
                (r * (1 - t**2) * value + r * (1 - r) * t * change).reshape(-1, 6),
            ),
            (largest_mix(old, lambda s: value + s * change, low, high), r * old + (1 - r) * (value + r * change)),
        ]
        for bound, grid in grids:
            assert (bound >= grid.max(axis=0)).all()
            assert (bound <= 1.05 * grid.max(axis=0) + 1e-12).all()

    @pytest.mark.parametrize("seed", range(5))
    def test_a_convex_step(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        old, gate, candidate = generator.uniform(0, 2, size=(3, 4))
        ends = np.sort(generator.uniform(-1, 1, size=(2, 2, 4)), axis=0)
        states, candidates = Box(*ends[:, 0]), Box(*ends[:, 1])
        low, high = np.sort(generator.uniform(0, 1, size=(2, 4)), axis=0)
        bound = largest_convex_step(old, gate, candidate, states=states, candidates=candidates, shares=Box(low, high))
        s = generator.uniform(low, high, size=(20_000, 4))
        h = generator.uniform(states.lower, states.upper, size=s.shape)
        n = generator.uniform(candidates.lower, candidates.upper, size=s.shape)
        values = s * old + s * (1 - s) * np.abs(h - n) * gate + (1 - s) * (1 - n**2) * candidate
        assert (values.max(axis=0) <= bound).all()
        assert (values.max(axis=0) > 0.6 * bound).all()
