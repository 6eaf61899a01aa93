"""Ensembles of forecasters and classifiers, and dropout before the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stablernn as srn
from models.forecaster.forecasters import CONTEXT, random_values, shake_weights, with_scaling

# Members


def test_a_forecast_is_the_mean_of_its_members() -> None:
    model = srn.Forecaster("gru", 2, 3, 4, members=3, readout="all", static_size=1, patch_size=2)
    with_scaling(model)
    shake_weights(model)
    x, static = random_values(5, 9, 2), random_values(5, 1)
    outputs, state = model.run(x, static=static)
    change, location, scale = model.changes(state, static=static)
    assert change.shape == (5, 3, 3, 1, 4)
    assert (change.std(dim=1) > 0).all()
    expected = location + scale * change[..., 0].mean(dim=1)
    torch.testing.assert_close(outputs["mean"], expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("readout", ["last", "max", "all"])
def test_each_member_is_the_model_of_its_own_weights(readout: str) -> None:
    options: dict[str, Any] = {"num_layers": 2, "readout": readout, "patch_size": 2, "patch_embedding": 3}
    model = srn.Classifier("lstm", 2, 3, 4, members=2, **options).eval()
    x, lengths = torch.randn(4, 7, 2), torch.tensor([7, 1, 4, 6])
    logits = model.member_logits(model.final_state(x, lengths))
    weights = model.state_dict()
    for number in range(2):
        alone = srn.Classifier("lstm", 2, 3, 4, **options).eval()
        part = {
            key: weights[
                key.replace("stacks.0", f"stacks.{number}")
                .replace("embeddings.0", f"embeddings.{number}")
                .replace("maps.0", f"maps.{number}")
            ]
            for key in alone.state_dict()
        }
        alone.load_state_dict(part)
        torch.testing.assert_close(alone(x, lengths), logits[:, number])


def test_parameters_are_of_one_member_or_shared() -> None:
    model = srn.Forecaster(
        "gru", 2, 3, 4, **CONTEXT, members=2, skip="linear", future_indices=[1], patch_embedding=3, patch_size=2
    )
    parts = model.member_parameters()
    assert len(parts) == 3
    assert [len(part) for part in parts[:2]] == [len(parts[0])] * 2
    every = [id(parameter) for part in parts for parameter in part]
    assert sorted(every) == sorted(id(parameter) for parameter in model.parameters())
    assert model.skip is not None
    assert id(model.skip.weight) in {id(parameter) for parameter in parts[2]}


@pytest.mark.parametrize("members", [1, 3])
def test_temperature_divides_the_logits_of_the_mean_probability(members: int) -> None:
    model = srn.Classifier("gru", 1, 4, 5, members=members).double().eval()
    shake_weights(model)
    state = model.final_state(torch.randn(6, 7, 1, dtype=torch.float64))
    shares = model.member_logits(state).softmax(dim=-1).mean(dim=1)
    torch.testing.assert_close(model.emit(state)[1], shares)
    model.temperature.fill_(2.5)
    logits, probabilities = model.emit(state)
    raised = shares ** (1 / 2.5)
    torch.testing.assert_close(probabilities, raised / raised.sum(dim=-1, keepdim=True))
    torch.testing.assert_close(logits.softmax(dim=-1), probabilities)


def test_members_that_are_sure_and_disagree_leave_finite_logits() -> None:
    model = srn.Classifier("gru", 1, 2, 3, members=2)
    with torch.no_grad():
        for layer, sign in zip(
            (layer for layer in model.head.modules() if isinstance(layer, torch.nn.Linear)), (1, -1), strict=True
        ):
            layer.bias.copy_(sign * torch.tensor([1e4, -1e4]))
    outputs, _ = model.run(torch.zeros(1, 3, 1))
    torch.testing.assert_close(outputs["probabilities"], torch.full((1, 2), 0.5))


def test_dropout_before_the_head_is_for_training_alone() -> None:
    model = srn.Forecaster("gru", 1, 3, 16, head_dropout=0.5)
    x = torch.randn(2, 6, 1)
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))
