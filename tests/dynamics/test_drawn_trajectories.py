"""Drawn trajectories stay within every bound of the certificate, and leave bounds that are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bounds.specimens import sampled
from model_helpers import mark_fitted
from stablernn import Classifier, list_cells
from stablernn.certificates.certificate import Certificate, prove
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.stored_certificate import prove_both
from stablernn.dynamics import drawn_trajectories
from stablernn.dynamics.drawn_trajectories import (
    DrawnTrajectories,
    ball_figure,
    draw_trajectories,
    forgetting_figure,
    is_drawn_to_scale,
)
from stablernn.nn.models import SequenceModel, SequencePredictor
from stablernn.plotting import svg_bytes

RANGE = InputRange.of(3.0)
EXACT = 1 + 1e-9
"""Tolerance for the rounding of float64."""


def classifier(key: str, hidden_size: int = 6, **options: Any) -> SequenceModel:
    torch.manual_seed(0)
    return mark_fitted(Classifier(key, 2, 3, hidden_size, **options)).eval()


def exceeded(drawn: DrawnTrajectories, certificate: Certificate) -> list[str]:
    """The bounds that trajectories exceed."""
    radii = {ball["state"]: ball["radius"] for ball in certificate.balls}
    names = [name for name, norms in drawn.norms.items() if norms.max() > radii[name] * EXACT]
    if drawn.bound is not None and (drawn.distances > drawn.bound * EXACT + 1e-12).any():
        names.append("distance")
    if drawn.step_rate is not None and drawn.largest_factor > drawn.step_rate * (1 + 1e-6):
        names.append("factor")
    if drawn.radius is not None and drawn.spectra is not None and drawn.spectra.radii.max() > drawn.radius * EXACT:
        names.append("eigenvalue")
    return names


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_trajectories, "STEPS", 40)
    monkeypatch.setattr(drawn_trajectories, "MAX_JACOBIANS", 16)


@pytest.mark.parametrize("key", sampled(list_cells(), "gru", "cornn", "lstm", "lru", "rnn", "urnn"))
def test_no_bound_of_any_cell_is_exceeded(key: str) -> None:
    model = classifier(key)
    for certificate in prove_both(model, inputs=RANGE):
        assert certificate is not None
        drawn = draw_trajectories(model, certificate, RANGE)
        assert exceeded(drawn, certificate) == []
        assert drawn.distances.shape == (12, 41)
        assert set(drawn.norms) == {ball["state"] for ball in certificate.balls}


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("lru", {"num_layers": 2, "members": 2}),
        ("ren", {"num_layers": 3}),
        ("lstm", {"num_layers": 2, "members": 2}),
        ("gru", {"patch_size": 3, "patch_stride": 2, "patch_embedding": 5}),
        ("lipschitz", {"max_dt": 4.0}),
        ("lem", {"max_dt": 2.0, "num_layers": 2}),
        ("rnn", {"scaling": "window", "window": 5}),
    ],
)
def test_no_bound_of_a_larger_model_is_exceeded(key: str, options: dict[str, Any]) -> None:
    model = classifier(key, **options)
    inputs = RANGE if model.scaling.has_channel_range else None
    certificate, bounded = prove_both(model, inputs=inputs)
    drawn = draw_trajectories(model, bounded or certificate, inputs)
    assert exceeded(drawn, bounded or certificate) == []


def test_models_of_tokens_read_tokens() -> None:
    torch.manual_seed(0)
    model = mark_fitted(SequencePredictor("gru", 5, 5, 6, output="categorical", tokens=True)).eval()
    certificate = prove(model)
    drawn = draw_trajectories(model, certificate, None)
    assert drawn.inputs == "tokens drawn uniformly from the vocabulary"
    assert exceeded(drawn, certificate) == []


def test_inputs_lie_within_the_range_and_reach_its_ends() -> None:
    narrow = InputRange((0.1, -7.0), (0.3, 1000.1))
    samples, description = drawn_trajectories._draw_inputs(classifier("rnn"), narrow, np.random.default_rng(0))
    assert "within the certified range" in description
    for feature, (low, high) in enumerate(zip(narrow.lower, narrow.upper, strict=True)):
        values = samples.x[..., feature].astype(np.float64)
        assert low <= values.min() <= low + 1e-3 * (high - low)
        assert high - 1e-3 * (high - low) <= values.max() <= high


def test_a_certificate_that_is_wrong_is_exceeded() -> None:
    model = classifier("lipschitz", cell_options={"linear_damping": 0.5})
    certificate = prove(model)
    assert certificate.kind == "contracting"
    [stack] = certificate.stacks
    [bound] = stack.bounds
    small = replace(bound, rate=0.8 * bound.rate)
    wrong = replace(certificate, stacks=(replace(stack, bounds=(small,)),))
    assert {"distance", "factor", "eigenvalue"} <= set(exceeded(draw_trajectories(model, wrong, RANGE), wrong))
    [ball] = certificate.balls
    tiny = replace(certificate, balls=({**ball, "radius": 1e-3},))
    assert exceeded(draw_trajectories(model, tiny, RANGE), tiny) == [ball["state"]]


def test_document_and_figures_are_those_of_the_trajectories() -> None:
    model = classifier("lipschitz", cell_options={"linear_damping": 0.5})
    certificate = prove(model)
    drawn = draw_trajectories(model, certificate, RANGE)
    document = drawn.document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["largest_distances"][0] == document["distance_bounds"][0] == 1.0
    assert document["largest_step_factor"] <= certificate.rate  # type: ignore[operator]
    assert draw_trajectories(model, certificate, RANGE).document() == document
    [ball] = certificate.balls
    for draw in (lambda: ball_figure(drawn, ball), lambda: ball_figure(drawn, None), lambda: forgetting_figure(drawn)):
        first = svg_bytes(draw())
        assert first.startswith(b"<?xml")
        assert first == svg_bytes(draw())
    assert not is_drawn_to_scale(drawn, {**ball, "radius": 1e6})
