"""Certificates in the words of a user: numbers are those of the certificate, and nothing is said without a proof."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from model_helpers import mark_fitted
from stablernn import Classifier, StableRNN, create_cell
from stablernn.certificates.certificate import certify
from stablernn.certificates.certified_radius import certified_radii
from stablernn.certificates.plain_words import describe_guarantee
from stablernn.certificates.projection import project

DOCUMENT: dict[str, Any] = {
    "kind": "contracting",
    "norm": "l2",
    "contraction_rate": 0.9,
    "time": {"steps": "regular"},
    "forgetting": {"share": 1e-3, "steps": 1000, "steps_from_distance_1": 1234},
    "gaps": [{"steps": 1, "output_error": 0.2345}, {"steps": 10, "output_error": 2.0}],
    "gains": {"input_to_output": 156.4},
    "state_balls": [{"norm": "linf", "radius": 1.0}, {"norm": "linf", "radius": 7.77}],
}


@pytest.mark.parametrize(
    ("changes", "radius", "clauses"),
    [
        (
            {},
            0.0319,
            [
                "it forgets: a disturbance of its state by 1 moves no output by more than 0.001 after 1,234 steps",
                "an input that is wrong by 1 in one step moves no later output by more than 0.24, and in every step by "
                "no more than 157",
                "half of 80 validation sequences keep their answer under every perturbation smaller than 0.031",
            ],
        ),
        (
            {"time": {"steps": "irregular"}, "gaps": [{"steps": 1, "output_error": None}]},
            None,
            [
                "it forgets: a disturbance of its state by 1 moves no output by more than 0.001 after the time of "
                "1,234 regular steps",
                "an input that is wrong by 1 in every step moves no output by more than 157",
            ],
        ),
        (
            {"forgetting": {"share": 1e-3, "steps": 1000}, "gaps": [], "gains": {"input_to_output": 1e7}},
            1e-6,
            ["it forgets every disturbance of its state"],
        ),
        (
            {"kind": "non-expansive", "contraction_rate": 1.0, "gains": {"input_to_output": None}},
            None,
            [
                "it never enlarges a disturbance of its state",
                "an input that is wrong by 1 in one step moves no later output of the next 100,000 by more than 0.24",
            ],
        ),
        (
            {
                "kind": "non-expansive",
                "norm": "linf",
                "contraction_rate": 1.0000001,
                "gaps": [],
                "gains": {"input_to_output": None},
            },
            None,
            ["it enlarges a disturbance of its state in the norm 'linf' by no more than 1.1 % in 100,000 steps"],
        ),
        ({"kind": "bounded"}, None, ["it keeps every number of its state within 7.8"]),
        (
            {"kind": "bounded", "state_balls": [{"norm": "l2", "radius": 2.0}]},
            None,
            ["it keeps the norm of every layer's state within 2"],
        ),
        (
            {"kind": "bounded", "state_balls": [{"norm": "linf", "radius": 4.0}, {"norm": "l2", "radius": 8.0}]},
            None,
            ["it keeps every number of its state within 8"],
        ),
        ({"kind": "bounded", "state_balls": [{"norm": "linf", "radius": 1e19}]}, None, []),
        ({"kind": "none"}, None, []),
    ],
    ids=["contracting", "irregular", "older", "non-expansive", "rounded", "bounded", "l2", "mixed", "huge", "none"],
)
def test_each_kind_has_its_clauses(changes: dict[str, Any], radius: float | None, clauses: list[str]) -> None:
    assert describe_guarantee(DOCUMENT | changes, radius=radius, sequences=80, embedding_gain=1.0) == clauses


def test_errors_are_of_the_scaled_values_or_of_the_layers_inputs() -> None:
    behind = describe_guarantee(DOCUMENT)[1]
    assert behind.startswith("an input of the layers that is wrong by 1 in one step moves no later output by more than")
    before = describe_guarantee(DOCUMENT, embedding_gain=2.0)[1]
    assert before == (
        "an input that is wrong by 1 in one step moves no later output by more than 0.47, and in every step by no more "
        "than 313"
    )


@pytest.mark.parametrize("value", [1.249, 1.049, 9.96, 10.2, 99.7, 100.2, 12345.6, 0.00012345])
def test_a_bound_is_never_stated_smaller_than_it_is(value: float) -> None:
    [clause] = describe_guarantee({"kind": "bounded", "state_balls": [{"norm": "l2", "radius": value}]})
    stated = float(clause.rpartition(" ")[2].replace(",", ""))
    assert value <= stated <= 1.1 * value


@pytest.mark.parametrize("depth", [1, 2])
def test_a_disturbance_is_forgotten_in_the_steps_that_are_said(depth: int) -> None:
    # A shift of the coordinates: its effect stays for as many steps as there are units, in any norm that proves a rate.
    rnn = StableRNN("identity_rnn", 2, 4, num_layers=depth)
    with torch.no_grad():
        for cell in rnn.cells:
            cell.weight_hh.copy_(torch.diag(torch.ones(3), -1))
            project(cell, 1e-3)
    document = certify(rnn).document()
    steps = document["forgetting"]["steps_from_distance_1"]
    assert f"by 1 moves no output by more than 0.001 after {steps} steps" in describe_guarantee(document)[0]
    # One more step than is said, from a start whose first unit is passed on to the last.
    x, start = torch.zeros(1, steps + 1, 2), torch.zeros(depth, 1, 4)
    disturbed = start.clone()
    disturbed[0, 0, 0] = 1.0
    with torch.no_grad():
        distances = (rnn(x, start)[0] - rnn(x, disturbed)[0])[0].norm(dim=-1)
    assert float(distances.max()) > 0.5
    assert float(distances[steps:].max()) <= 1e-3


def test_a_wrong_input_moves_no_later_output_further_than_is_said() -> None:
    torch.manual_seed(0)
    cell = create_cell("antisymmetric", 2, 5, damping=1.0)
    project(cell, 0.01)
    document = certify(cell).document()
    limit = document["gaps"][0]["output_error"]
    x = torch.randn(1, 40, 2)
    wrong = x.clone()
    wrong[0, 3] += torch.tensor([0.6, 0.8])
    states = []
    for inputs in (x, wrong):
        state: torch.Tensor | None = None
        for step in range(40):
            state = cell(inputs[:, step], state)
        assert state is not None
        states.append(state)
    assert 0 < float((states[0] - states[1]).detach().norm()) <= limit


def test_radii_from_the_bounds_of_a_certificate_are_the_same() -> None:
    torch.manual_seed(0)
    model = Classifier("exprnn", 2, 3, 6).eval()
    mark_fitted(model)
    x = torch.randn(5, 12, 2)
    certificate = certify(model)
    radii = certified_radii(model, x, layers=certificate.stacks)
    assert np.allclose(radii, certified_radii(model, x), rtol=1e-6)


def test_a_resampled_sequence_is_no_stream() -> None:
    torch.manual_seed(0)
    model = Classifier("lipschitz", 1, 2, 4, resample_steps=100_000)
    model.fit_scaling([np.random.default_rng(0).normal(size=(length, 1)).astype(np.float32) for length in (5, 9)])
    project(model.rnn.cells[0], 0.01)
    document = certify(model).document()
    first, second, *_ = describe_guarantee(document)
    assert first.endswith("steps of the resampled sequence")
    assert second.startswith("an input of the layers that is wrong by 1 in one step")
    assert describe_guarantee(document, embedding_gain=1.0)[1].startswith("a resampled input that is wrong")
    # It ends before it has forgotten.
    short = {**document, "time": {"steps": "regular", "resample_steps": 3}}
    assert not any("forgets" in clause for clause in describe_guarantee(short))
