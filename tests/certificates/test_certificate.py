"""``certify``: kinds, names of states, balls and the document, of cells, layers and whole models."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bounds.test_soundness import drawn
from model_helpers import mark_fitted
from stablernn import Classifier, Forecaster, StableRNN, create_cell
from stablernn.certificates.certificate import certify
from stablernn.errors import CertificateError, ConfigError
from stablernn.export.step import state_names
from stablernn.nn.models import SequenceModel

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"num_layers": 2},
    "members": {"members": 2},
    "deep members": {"members": 2, "num_layers": 2},
    "patches": {"patch_size": 4},
    "overlapping patches": {"patch_size": 4, "patch_stride": 2, "patch_embedding": 5, "members": 2},
    "window": {"scaling": "window", "window": 8, "readout": "all"},
}


def model(key: str, options: str, std: float | None = 0.05) -> SequenceModel:
    torch.manual_seed(0)
    built = mark_fitted(Classifier(key, 1, 3, 6, **MODELS[options])).eval()
    if std is not None:
        scale(built, std)
    return built


def scale(module: nn.Module, std: float) -> None:
    for cell in module.modules():
        for name, parameter in cell.named_parameters(recurse=False):
            if name in ("weight_hh", "weight_velocity"):
                nn.init.normal_(parameter, std=std)


class TestKinds:
    def test_of_cells(self) -> None:
        kinds = {
            ("rnn", "small"): "contracting",
            ("rnn", "large"): "bounded",
            ("indrnn", "small"): "contracting",
            ("exprnn", "large"): "non-expansive",
            ("urnn", "fresh"): "non-expansive",
            ("identity_rnn", "large"): "none",
            ("cornn", "small"): "contracting",
            ("cornn", "large"): "bounded",
            ("unicornn", "fresh"): "none",
        }
        assert {case: certify(drawn(case[0], 16, case[1])).kind for case in kinds} == kinds

    def test_a_stack_of_layers_that_never_forget_is_not_non_expansive(self) -> None:
        assert certify(StableRNN("exprnn", 1, 6)).kind == "non-expansive"
        assert certify(StableRNN("exprnn", 1, 6, num_layers=2)).kind == "none"

    def test_a_stack_is_as_strong_as_its_weakest_layer(self) -> None:
        layers = StableRNN("rnn", 1, 6, num_layers=3)
        scale(layers, 0.05)
        assert certify(layers).kind == "contracting"
        nn.init.eye_(layers.cells[1].get_parameter("weight_hh"))
        with torch.no_grad():
            layers.cells[1].get_parameter("weight_hh").mul_(2)
        assert certify(layers).kind == "bounded"
        assert certify(layers).rate == pytest.approx(2, rel=1e-6)

    def test_an_ensemble_is_as_strong_as_its_weakest_member(self) -> None:
        built = model("rnn", "members")
        assert certify(built).kind == "contracting"
        with torch.no_grad():
            built.rnn.cells[1].get_parameter("weight_hh").copy_(3 * torch.eye(6))
        certificate = certify(built)
        assert certificate.kind == "bounded"
        assert certificate.rate == pytest.approx(3, rel=1e-6)
        assert certificate.total_gain() is None
        failing = [one.name for one in certificate.hypotheses() if not one.holds]
        assert failing == ["member 1 contraction rate"]


@pytest.mark.parametrize(
    ("key", "options", "tensors"),
    [
        ("rnn", "deep members", ("hidden",)),
        ("urnn", "window", ("hidden",)),
        ("eunn", "patches", ("hidden", "imaginary")),
        ("cornn", "overlapping patches", ("hidden", "velocity")),
    ],
)
class TestStates:
    def test_names_are_those_of_the_recurrent_tensors(self, key: str, options: str, tensors: tuple[str, ...]) -> None:
        built = model(key, options)
        certificate = certify(built)
        roles = dict(zip(state_names(built), built.state_roles(), strict=True))
        recurrent = [name for name, (role, _) in roles.items() if role.split()[-1] in tensors]
        assert list(certificate.states) == recurrent
        assert len(recurrent) == len(tensors) * len(built.rnn.cells)

    def test_the_document_is_json(self, key: str, options: str, tensors: tuple[str, ...]) -> None:
        for std in (0.05, 30.0):
            document = certify(model(key, options, std)).document()
            assert json.loads(json.dumps(document, allow_nan=False)) == document


def unpacked(matrix: dict[str, Any]) -> Tensor:
    content = np.frombuffer(base64.b64decode(matrix["float32_base64"]), "<f4")
    return torch.from_numpy(content.reshape(matrix["shape"]).astype(np.float64))


class TestDocument:
    def test_of_a_contracting_stack(self) -> None:
        layers = StableRNN("rnn", 2, 6, num_layers=2)
        scale(layers, 0.05)
        document = certify(layers).document()
        assert document["kind"] == "contracting"
        assert document["holds"] is True
        assert document["norm"] == "weighted-l2"
        assert document["cell"] == "rnn"
        assert document["states"] == ["state_0", "state_1"]
        assert 0 < document["contraction_rate"] < 1
        assert document["gains"]["input_to_output"] > 0
        assert len(document["gains"]["input_to_state"]) == 2
        # Both layers have balls, so that differences of starts have a size.
        assert document["forgetting"]["steps"] > 0
        assert [gap["steps"] for gap in document["gaps"]] == [1, 10, 100, 1000]
        assert document["gaps"][-1]["output_error"] == pytest.approx(document["gains"]["input_to_output"])
        assert document["time"] == {"steps": "regular"}
        assert set(document["stored_weights"]) == {"float16", "int8"}
        named = {one["name"]: one for one in document["hypotheses"]}
        assert set(named) == {"layer 0 contraction rate", "layer 1 contraction rate"}
        assert all(one["holds"] and one["bound"] == 1 - 2**-22 for one in named.values())
        assert document["state_ball"] == document["state_balls"][0]

    def test_anybody_can_check_the_rates_by_the_metrics(self) -> None:
        torch.manual_seed(0)
        layers = StableRNN("fastrnn", 2, 6, num_layers=2).double().eval()
        document = json.loads(json.dumps(certify(layers).document()))
        assert [one["states"] for one in document["metrics"]] == [["state_0"], ["state_1"]]
        assert [one["norm"] for one in document["metrics"]] == ["weighted-l2", "weighted-l2"]
        forms = [unpacked(one["matrix"]) if "matrix" in one else torch.eye(6).double() for one in document["metrics"]]
        scales = [one["divided_by"] for one in document["metrics"]]
        assert max(scales) == 1

        def size(one: list[Tensor], other: list[Tensor]) -> Tensor:
            parts = zip(one, other, forms, scales, strict=True)
            return torch.stack([((a - b) @ form.T).norm(dim=-1) / scale for a, b, form, scale in parts]).amax(dim=0)

        one, other = ([torch.randn(500, 6, dtype=torch.float64) for _ in range(2)] for _ in range(2))
        x, rate = torch.randn(500, 2, dtype=torch.float64), document["step_rate"]
        assert document["contraction_rate"] < rate < 1
        after: list[list[Tensor]] = [[], []]
        for place, states in enumerate((one, other)):
            given = x
            for cell, state in zip(layers.cells, states, strict=True):
                given = cell(given, state)
                after[place].append(given)
        assert bool((size(*after) <= rate * size(one, other)).all())

    def test_of_a_cell_of_which_nothing_is_proved(self) -> None:
        cell = create_cell("exprnn", 1, 4, nonlinearity="modrelu")
        nn.init.constant_(cell.get_parameter("bias"), 0.1)
        document = certify(cell).document()
        assert (document["kind"], document["holds"], document["norm"]) == ("none", False, None)
        assert document["contraction_rate"] is None
        assert document["gains"]["input_to_output"] is None
        assert document["forgetting"]["steps"] is None
        assert document["states"] == []
        assert [(one["name"], one["holds"]) for one in document["hypotheses"]] == [("largest bias of modReLU", False)]

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_weights_that_are_no_numbers_are_refused(self, value: float) -> None:
        cell = create_cell("exprnn", 1, 4, nonlinearity="modrelu")
        nn.init.constant_(cell.get_parameter("bias"), value)
        with pytest.raises(CertificateError) as caught:
            certify(cell)
        assert str(caught.value) == (
            "The weight 'bias' holds a number that is not finite; there is nothing to certify."
        )

    def test_conditions_and_figures_stand_beside(self) -> None:
        document = certify(StableRNN("urnn", 1, 4, nonlinearity="modrelu", num_layers=2)).document()
        assert [one["name"] for one in document["conditions"]] == [
            "layer 0 largest bias of modReLU",
            "layer 1 largest bias of modReLU",
        ]
        assert {one["of"] for one in document["conditions"]} == {"step"}
        assert set(document["figures"]) == {f"layer {depth} steepest slope of modReLU" for depth in range(2)}


class TestCertify:
    def test_a_model_has_the_certificate_of_its_layers(self) -> None:
        built = mark_fitted(Forecaster("rnn", 1, 4, 6, num_layers=2))
        of_model, of_layers = certify(built), certify(built.rnn.first)
        assert (of_model.kind, of_model.rate) == (of_layers.kind, of_layers.rate)
        prefix = len(built.patches.state_roles())
        assert of_model.states == tuple(f"state_{prefix + place}" for place in range(2))
        assert of_layers.states == ("state_0", "state_1")
        assert certify(built.rnn).states == of_layers.states

    def test_it_changes_nothing(self) -> None:
        built = model("urnn", "deep members").train()
        before = {name: tensor.clone() for name, tensor in built.state_dict().items()}
        certify(built)
        assert built.training
        assert all(torch.equal(tensor, before[name]) for name, tensor in built.state_dict().items())
        assert all(parameter.grad is None for parameter in built.parameters())

    def test_other_modules_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"^certify takes a cell, a StableRNN or a model, got Linear\.$"):
            certify(nn.Linear(2, 2))


class TestWhatIsNotCertified:
    def test_steps_of_any_length(self) -> None:
        # Steps of changing length pump energy into these oscillators, of which regular steps take it.
        layers = StableRNN("cornn", 1, 2, max_dt=2.0, step_size=0.5, stiffness=15.6, damping=0.05)
        scale(layers, 0.001)
        regular = certify(layers.cells[0]).document()
        assert (regular["kind"], len(regular["state_balls"])) == ("contracting", 2)
        timed = certify(layers).document()
        assert (timed["kind"], timed["norm"], timed["state_balls"], timed["states"]) == ("none", None, [], [])
        assert [(one["name"], one["value"], one["holds"]) for one in timed["hypotheses"]] == [
            ("regular steps: largest abs(dt - 1)", 1.0, False)
        ]

    def test_matrices_beyond_float64(self) -> None:
        # Its reflections are divided by their length.
        cell = create_cell("urnn", 1, 3)
        for parameter in cell.parameters():
            nn.init.zeros_(parameter)
        document = certify(cell).document()
        assert (document["kind"], [one["holds"] for one in document["hypotheses"]]) == ("none", [False])

    @pytest.mark.parametrize("key", ["rnn", "lru", "ren", "indrnn"])
    def test_without_any_effect_all_is_forgotten(self, key: str) -> None:
        cell = create_cell(key, 1, 3)
        for parameter in cell.parameters():
            nn.init.zeros_(parameter)
        document = certify(cell).document()
        assert (document["kind"], document["forgetting"]["steps"]) == ("contracting", 1)

    def test_the_weights_of_a_norm_are_in_its_name(self) -> None:
        torch.manual_seed(0)
        cell = create_cell("gru", 2, 3)
        for parameter in cell.parameters():
            nn.init.normal_(parameter, std=0.3)
        assert certify(cell).document()["norm"] == "weighted-linf"
