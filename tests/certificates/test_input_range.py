"""Certificates for inputs of a bounded size: ranges in the units of the data, and what they mean for the layers."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from bounds.specimens import extreme
from stablernn import Classifier, SequencePredictor, create_cell
from stablernn.cells import cell_info, list_cells
from stablernn.certificates.certificate import KINDS, certify, first_layer_boxes
from stablernn.certificates.input_range import InputRange, training_range
from stablernn.certificates.stored_certificate import certificate_document
from stablernn.errors import ConfigError
from stablernn.nn.models import SequenceModel
from stablernn_registry.certificates import describe_certificate, format_upper

LEVEL = np.array([20.0, 1013.0])
SPREAD = np.array([5.0, 8.0])
RANGE = [(2.0, 38.0), (980.0, 1046.0)]


def series(count: int = 6, steps: int = 40) -> np.ndarray:
    """Return temperatures and pressures within ``RANGE``, ``(count, steps, 2)``."""
    generator = np.random.default_rng(0)
    values = LEVEL + SPREAD * generator.normal(size=(count, steps, 2))
    return np.clip(values, [low for low, _ in RANGE], [high for _, high in RANGE])


def fitted(cell: str = "gru", **options: Any) -> SequenceModel:
    torch.manual_seed(0)
    model = Classifier(cell, 2, 3, 6, **options)
    model.fit_scaling(list(series()))
    return model.eval()


class TestRange:
    def test_one_number_is_for_all_features(self) -> None:
        assert InputRange.of(2) == InputRange((-2.0,), (2.0,))
        assert InputRange.of(2).for_features(3).upper == (2.0, 2.0, 2.0)
        assert InputRange.of(np.float32(2)).upper == (2.0,)

    def test_text(self) -> None:
        assert InputRange.parse("3") == InputRange((-3.0,), (3.0,))
        assert InputRange.parse("-1:4, 2,980:1046") == InputRange((-1.0, -2.0, 980.0), (4.0, 2.0, 1046.0))

    def test_a_document_is_read_back(self) -> None:
        inputs = InputRange.of(RANGE)
        assert InputRange.from_document(inputs.document()) == inputs

    @pytest.mark.parametrize("document", [None, {}, [], {"lower": ["a"], "upper": [1]}, {"lower": [1], "upper": [0]},
                                          {"lower": [1], "upper": [2, 3]}, {"lower": 1, "upper": 2}])  # fmt: skip
    def test_a_damaged_document_is_no_range(self, document: Any) -> None:
        assert InputRange.from_document(document) is None

    @pytest.mark.parametrize(
        ("inputs", "given"),
        [
            *((radius, rf"got {radius:g}") for radius in (0, -1.0, math.inf, math.nan)),
            *((text, f"got {text}") for text in ("3:3", "4:3", "-inf:1", "nan:1")),
            *((text, f"got '{text.split(',')[-1]}'") for text in ("", "a", "1:b", "1;2", "1,", "1:2:3")),
            ([(1.0, 2.0, 3.0)], r"got \(1.0, 2.0, 3.0\)"),
            ([], "got none"),
        ],
    )
    def test_what_states_no_range_is_refused(self, inputs: Any, given: str) -> None:
        with pytest.raises(ConfigError, match=given):
            InputRange.parse(inputs) if isinstance(inputs, str) else InputRange.of(inputs)


class TestModels:
    @pytest.mark.parametrize(
        ("module", "inputs", "given"),
        [
            *((lambda: fitted(), inputs, "mean in training") for inputs in (3, [(-1.0, 1.0), (980.0, 1046.0)])),
            (lambda: fitted(), [1.0, 2.0, 3.0], "2 features, got ranges of inputs for 3"),
            (lambda: create_cell("gru", 1, 2), [1.0, 2.0], "1 feature, got ranges of inputs for 2"),
            (lambda: fitted(scaling="window", window=8), RANGE, "scaling 'window'.*standard or context"),
            (lambda: SequencePredictor("gru", 5, 5, 4, tokens=True), 3, "reads tokens"),
        ],
    )
    def test_a_range_that_does_not_fit_is_refused(self, module: Any, inputs: Any, given: str) -> None:
        with pytest.raises(ConfigError, match=given):
            certify(module(), inputs_within=inputs)

    def test_a_certificate_says_for_which_inputs_it_holds(self) -> None:
        certificate = certify(fitted(), inputs_within=RANGE)
        assert certificate.document()["inputs"] == {"lower": [2.0, 980.0], "upper": [38.0, 1046.0]}
        assert certify(fitted()).document()["inputs"] is None

    def test_an_lstm_is_bounded_for_bounded_inputs_only(self) -> None:
        model = fitted("lstm")
        assert certify(model).kind == "none"
        certificate = certify(model, inputs_within=RANGE)
        assert certificate.kind == "bounded"
        balls = {ball["state"]: ball for ball in certificate.document()["state_balls"]}
        assert len(balls) == 2
        assert all(len(ball["lower"]) == 6 for ball in balls.values())

    @pytest.mark.parametrize("key", [key for key in list_cells() if cell_info(key).cell.is_fixed])
    def test_of_a_cell_without_trained_weights_the_ball_of_the_output_is_printed(self, key: str) -> None:
        certificate = certify(create_cell(key, 1, 84), inputs_within=1.0).document()
        first, *others = [ball["radius"] for ball in certificate["state_balls"]]
        assert max(others) > 1e6
        printed = f"no input drives the output out of a ball of radius {format_upper(first, 4)} (linf)"
        assert printed in describe_certificate(certificate)

    @pytest.mark.parametrize("key", ["lstm", "mingru", "gru"])
    def test_small_weights_contract_for_bounded_inputs(self, key: str) -> None:
        cell = create_cell(key, 2, 6)
        torch.manual_seed(0)
        for parameter in cell.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
        assert KINDS.index(certify(cell).kind) > 0
        certificate = certify(cell, inputs_within=1.0)
        assert certificate.kind == "contracting"
        assert math.isfinite(certificate.document()["gains"]["input_to_output"])

    @pytest.mark.parametrize("radius", [1e-300, 1e300])
    @pytest.mark.parametrize("key", ["cfc", "fastgrnn", "lem", "slstm"])
    def test_ranges_of_any_size_leave_finite_numbers_in_the_document(self, key: str, radius: float) -> None:
        for kind in ("huge", "tiny"):
            document = certify(extreme(key, 4, kind), inputs_within=radius).document()
            # JSON has no infinity and no NaN.
            assert json.loads(json.dumps(document, allow_nan=False))["kind"] in KINDS

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"scaling": "none"},
            {"scaling": "log"},
            {"mask_channel": True},
            {"members": 2},
            {"patch_size": 4},
            {"patch_size": 4, "patch_stride": 2, "mask_channel": True},
            {"patch_size": 4, "patch_embedding": 5, "members": 2},
            {"patch_size": 7, "patch_stride": 3, "patch_embedding": 5, "conv_layers": 2, "conv_channels": 4},
            {"patch_size": 3, "patch_embedding": 5, "conv_layers": 1, "members": 2, "mask_channel": True},
            {"scaling": "context", "window": 8},
            {"scaling": "context", "window": 8, "patch_size": 4, "patch_embedding": 5, "conv_layers": 1},
            {"scaling": "context", "window": 8, "season": 3, "log": True, "patch_size": 2, "mask_channel": True},
        ],
        ids=str,
    )
    def test_what_the_first_layer_reads_stays_within_its_boxes(self, options: dict[str, Any]) -> None:
        model = fitted(**options)
        generator = np.random.default_rng(1)
        lower, upper = np.array(RANGE).T
        x = generator.uniform(lower, upper, size=(64, 30, 2))
        x[:16] = np.where(x[:16] < LEVEL, lower, upper)
        x[generator.uniform(size=x.shape) < 0.2] = np.nan
        channels, *_ = model.layer_inputs(torch.from_numpy(x).float(), torch.randint(1, 31, (64,)))
        boxes = first_layer_boxes(model, InputRange.of(RANGE))
        assert len(boxes) == len(model.rnn.stacks)
        for number, box in enumerate(boxes):
            with torch.no_grad():
                read = model.rnn._embedded(channels, number).double().numpy().reshape(-1, len(box.lower))
            assert (read >= box.lower).all()
            assert (read <= box.upper).all()


class TestRangeOfTraining:
    def test_it_is_half_as_wide_again_about_its_middle(self) -> None:
        data = {"input_range": {"lower": [0.0, 980.0, 5.0], "upper": [16.0, 1046.0, 5.0]}}
        assert training_range(data) == InputRange((-4.0, 963.5, 4.0), (20.0, 1062.5, 6.0))

    def test_runs_of_tokens_and_older_ones_have_none(self) -> None:
        assert training_range({"input_range": None}) is None
        assert training_range({}) is None

    @pytest.mark.parametrize(("key", "kinds"), [("lstm", ("none", "bounded")), ("lru", ("contracting", "contracting"))])
    def test_a_stored_certificate_has_one_for_all_inputs_and_one_within_the_range(
        self, key: str, kinds: tuple[str, str]
    ) -> None:
        document = certificate_document(fitted(key), inputs=InputRange.of(RANGE))
        bounded = document["bounded_inputs"]
        assert (document["kind"], bounded["kind"]) == kinds
        assert (document["schema"], document["inputs"]) == (2, None)
        assert bounded["inputs"] == InputRange.of(RANGE).document()
        assert all(ball.keys() == {"state", "norm", "centre", "radius"} for ball in bounded["state_balls"])
        if key == "lru":
            assert bounded["contraction_rate"] == document["contraction_rate"]

    def test_a_model_whose_inputs_have_no_range_has_no_second_certificate(self) -> None:
        document = certificate_document(fitted(scaling="window", window=8), inputs=InputRange.of(RANGE))
        assert document["bounded_inputs"] is None
