"""Norms and multipliers that a search finds: what they prove is checked apart from the package."""

from __future__ import annotations

import base64
import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bounds.constant_slopes import largest_constant_slope_radius
from bounds.specimens import EXTREMES, drawn, extreme, sampled, trained
from bounds.step_search import checked, violations
from bounds.step_search import exact as in_float64
from stablernn import create_cell, list_cells
from stablernn.bounds.lure import LureSystem, given_norms, lure_bound, lure_rate
from stablernn.bounds.norm_search import MatrixInequality
from stablernn.cells import StableCell
from stablernn.certificates.certificate import certify, prove

Matrix = npt.NDArray[np.float64]

TRAINED = ("rnn", "rnn_orth", "soft_orth", "identity_rnn", "lipschitz", "neural_ode_rnn")
"""Cells that training takes far from where their rate is exact."""
GROUPED = ("eunn", "fc_urnn", "kru", "urnn")
"""Cells with complex units."""


def lure_cells() -> list[str]:
    """Keys of the cells whose step is a Lur'e system, of all with their default options."""
    return [key for key in list_cells() if drawn(key, 3).lure_system() is not None]


def system(cell: StableCell) -> LureSystem:
    step = cell.lure_system()
    assert step is not None
    return step


def triangular(key: str, factor: float, seed: int) -> StableCell:
    """A cell of two units, the first of which the second does not read."""
    cell = drawn(key, 2, "large", seed=seed)
    with torch.no_grad():
        cell.get_parameter("weight_hh").mul_(factor).triu_()
    return cell


class TestSearch:
    @pytest.mark.parametrize("key", sampled(TRAINED, "rnn", "lipschitz"))
    def test_half_of_the_gap_is_closed_and_no_rate_is_larger(self, key: str) -> None:
        (cell,) = trained(key, 12).rnn.cells
        with given_norms():
            before = cell.step_bound().rate
        lowest, now = largest_constant_slope_radius(system(cell)), cell.step_bound().rate
        assert lowest * (1 - 1e-9) <= now
        assert before - now >= 0.4 * (before - lowest)

    @pytest.mark.parametrize(
        ("key", "kind"),
        sampled(
            itertools.product(["rnn", "lipschitz_rk2", "ren", "eunn", "cornn"], EXTREMES),
            ("rnn", "huge"), ("lipschitz_rk2", "nilpotent"), ("eunn", "uneven"),
        ),
    )  # fmt: skip
    def test_rates_of_rare_matrices_are_no_larger(self, key: str, kind: str) -> None:
        cell = extreme(key, 5, kind)
        with given_norms():
            before = cell.step_bound().rate
        assert cell.step_bound().rate <= before

    @pytest.mark.parametrize("seed", sampled([5, 87, 129], 87))
    def test_a_rate_in_the_infinity_norm_stays_if_the_search_finds_none_that_is_smaller(self, seed: int) -> None:
        cell = triangular("fastrnn", 3.0, seed)
        with given_norms():
            before = cell.step_bound()
        after = cell.step_bound()
        assert (before.norm, after.norm) == ("linf", "linf")
        assert after.rate <= before.rate
        # The search found a rate below 1, but a larger one.
        assert after.rate < after.other_norms[0].rate < 1

    def test_a_system_with_two_stages_has_a_multiplier_for_each_neuron(self) -> None:
        (cell,) = trained("lipschitz_rk2", 6).rnn.cells
        bound, step = cell.step_bound(), system(cell)
        assert bound.multipliers is not None
        assert bound.multipliers.shape == (12,)
        assert len(np.unique(bound.multipliers)) == 12
        inequality = MatrixInequality(step.map, bound.metric, bound.metric)
        assert inequality.factor(bound.multipliers) == bound.rate

    @pytest.mark.parametrize("key", sampled([*lure_cells(), "antisymmetric_g", "antisym_ablation"], "fastrnn", "cornn"))
    def test_no_step_exceeds_the_bounds_in_other_norms(self, key: str) -> None:
        for cell in (drawn(key, 5, "large"), drawn(key, 5), trained(key).rnn.cells[0]):
            for other in cell.step_bound().other_norms:
                assert not violations(checked(cell, other))

    def test_another_norm_that_forgets_its_input_is_found(self) -> None:
        (cell,) = trained("rnn").rnn.cells
        (other, *_) = cell.step_bound().other_norms
        assert violations(checked(cell, replace(other, gain=0.8 * other.gain)))


class TestGroups:
    STEP = LureSystem(
        F=np.zeros((2, 2)), G=np.eye(2), V=np.array([[0.0, 2.0], [0.0, 0.0]]), U=np.zeros((2, 1)),
        groups=np.array([0, 0]),
    )  # fmt: skip
    """A nilpotent step whose nonlinearity may project onto any direction: onto the diagonal, it keeps a difference."""

    def test_coordinates_of_a_group_have_one_multiplier(self) -> None:
        projection = np.full((2, 2), 0.5)
        assert np.abs(np.linalg.eigvals(projection @ self.STEP.V)).max() == pytest.approx(1.0)
        assert 1.0 <= lure_bound(self.STEP).rate < 1.01

    def test_multipliers_that_differ_within_a_group_prove_nothing(self) -> None:
        apart = lure_bound(replace(self.STEP, groups=None))
        assert apart.multipliers is not None
        assert lure_rate(replace(self.STEP, groups=None), apart.metric, apart.multipliers) < 0.5
        assert lure_rate(self.STEP, apart.metric, apart.multipliers) >= 1.0

    @pytest.mark.parametrize("key", sampled(GROUPED, "eunn"))
    def test_parts_of_a_complex_unit_are_a_group(self, key: str) -> None:
        cell = trained(key, 4).rnn.cells[0]
        groups = system(cell).groups
        assert groups is not None
        assert groups.tolist() == [*range(4), *range(4)]
        multipliers = cell.step_bound().multipliers
        assert multipliers is not None
        assert np.array_equal(multipliers[:4], multipliers[4:])

    @pytest.mark.parametrize("key", lure_cells())
    def test_neurons_without_groups_depend_on_their_own_argument_alone(self, key: str) -> None:
        """The next state depends on the drive, the neurons' argument, through G times a diagonal matrix."""
        cell = in_float64(drawn(key, 4, "large"))
        step = system(cell)
        torch.manual_seed(0)
        state = tuple(torch.randn(1, size, dtype=torch.float64) for size in cell.state_sizes)
        drive = cell.drive(torch.randn(1, cell.input_size, dtype=torch.float64))
        if step.D is not None or drive.shape[1] != len(step.V):
            # Stages, and matrices of the input that act within the step: their neurons are tanh or ReLU of one sum.
            assert key in ("fastrnn", "incremental", "lipschitz_rk2", "ren")
            return

        def next_state(drive: torch.Tensor) -> torch.Tensor:
            parts = cell.step(cell.weights(), state, drive)
            names = cell.step_bound().covers
            return torch.cat([parts[cell.state_names.index(name)] for name in names], dim=-1)[0]

        jacobian: Any = torch.autograd.functional.jacobian(next_state, drive)
        slopes = np.linalg.lstsq(step.G, jacobian[:, 0].numpy(), rcond=None)[0]
        off_diagonal = np.abs(slopes - np.diag(np.diagonal(slopes))).max()
        assert (off_diagonal < 1e-9) == (key not in GROUPED)


class TestGivenNorms:
    def test_those_of_a_document_prove_the_same_without_a_search(self) -> None:
        model = trained("lipschitz", num_layers=2)
        document = json.loads(json.dumps(certify(model, stored=False).document()))
        again = prove(model, stored=False, norms=document["metrics"]).document()
        for key in ("kind", "norm", "contraction_rate", "state_balls", "metrics"):
            assert again[key] == document[key]
        without = prove(model, stored=False, norms=()).document()
        assert without["contraction_rate"] > document["contraction_rate"]

    @pytest.mark.parametrize("seed", sampled([83, 112], 83))
    def test_the_ball_of_a_rate_in_the_infinity_norm_is_verified_too(self, seed: int) -> None:
        torch.manual_seed(seed)
        cell = create_cell("noisy_rnn", 2, 4, skew_weight=0.5, linear_damping=1.0).eval()
        with torch.no_grad():
            for name in ("weight_linear", "weight_hh"):
                matrix = cell.get_parameter(name)
                matrix.copy_([0.3, 1.0, 2.0][seed % 3] * torch.randn(4, 4).triu())
        document = json.loads(json.dumps(certify(cell, stored=False).document()))
        assert document["norm"] == "weighted-linf"
        assert [norm["norm"] for norm in document["metrics"]] == ["weighted-linf", "weighted-l2"]
        again = prove(cell, stored=False, norms=document["metrics"]).document()
        for key in ("kind", "norm", "contraction_rate", "state_balls", "metrics"):
            assert again[key] == document[key]
        # None of the norms that are tried without a search has a ball.
        assert not prove(cell, stored=False, norms=()).document()["state_balls"]

    @pytest.mark.parametrize(
        "norm",
        [
            {},
            "text",
            None,
            {"multipliers": "many"},
            {"multipliers": [1.0]},
            {"multipliers": [-1.0] * 6},
            {"multipliers": [float("nan")] * 6},
            {"multipliers": [1e308] * 6},
            {"multipliers": [1e300, *[1e-300] * 5]},
            {"multipliers": [10**400] * 6},
            {"multipliers": [1.0] * 6, "matrix": {"shape": [6, 6], "float32_base64": "AAAA"}},
            {"multipliers": [1.0] * 6, "matrix": {"shape": [1, 1], "float32_base64": "AACAPw=="}},
            {"multipliers": [1.0] * 6, "matrix": {"shape": [6, 6], "float32_base64": base64.b64encode(bytes(144))}},
            {"multipliers": [1.0] * 6, "matrix": []},
        ],
    )
    def test_damaged_ones_prove_nothing(self, norm: Any) -> None:
        model = trained("rnn")
        quick = prove(model, stored=False, norms=()).document()
        # Of the right layer, which is not what is damaged.
        entry = {"states": quick["states"], **norm} if isinstance(norm, dict) else norm
        assert prove(model, stored=False, norms=[entry]).document() == quick

    def test_that_of_another_layer_is_not_taken(self) -> None:
        model = trained("lipschitz", num_layers=2)
        with torch.no_grad():
            for of_one, of_other in zip(*(cell.parameters() for cell in model.rnn.cells), strict=True):
                if of_one.shape == of_other.shape:
                    of_other.copy_(of_one)
        certificate = certify(model, stored=False)
        quick = prove(model, stored=False, norms=())
        half = prove(model, stored=False, norms=certificate.document()["metrics"][1:])
        rates = [[bound.rate for bound in proved.stacks[0].bounds] for proved in (quick, half, certificate)]
        # The other layer's norm would prove a rate of this one, too, which was not found when it was certified.
        assert rates[2][0] < rates[0][0]
        assert rates[1] == [rates[0][0], rates[2][1]]
