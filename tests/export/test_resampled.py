"""Exports of models that resample complete sequences: no step, no states, and the numbers of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import stablernn as srn
from stablernn.errors import ConfigError, ParityError
from stablernn.export import ExportReport, export
from stablernn.export.load_exported import recompute, reload
from stablernn.export.parity import check_parity, open_session
from stablernn.server_engine import torch_engine

FILES = ["certificate.json", "config.json", "parity.json", "sequence.onnx", "weights.safetensors"]


def build(cell: str = "lru", **options: Any) -> srn.Classifier:
    torch.manual_seed(0)
    model = srn.Classifier(cell, 2, 3, 8, resample_steps=20, **options)
    random = np.random.default_rng(0)
    model.fit_scaling([random.normal(3, 2, (length, 2)).astype(np.float32) for length in (5, 20, 33, 61)])
    return model.eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[srn.Classifier, ExportReport]:
    # Overlapping patches are made in the body of the Scan.
    model = build(patch_size=8, patch_stride=2, patch_embedding=8, readout="all", members=2)
    return model, export(model, tmp_path_factory.mktemp("export"), steps=90, inputs_within=10.0)


def test_the_step_and_the_states_are_left_out(exported: tuple[srn.Classifier, ExportReport]) -> None:
    _, report = exported
    assert sorted(report.files) == FILES
    assert (report.signature["step"], report.signature["states"], report.signature["resample_steps"]) == (None, [], 20)
    graph = onnx.load(report.files["sequence.onnx"]).graph
    for side, tensors in (("inputs", graph.input), ("outputs", graph.output)):
        assert [value.name for value in tensors] == [spec["name"] for spec in report.signature["sequence"][side]]


def test_parity_has_whole_sequences_alone(exported: tuple[srn.Classifier, ExportReport]) -> None:
    _, report = exported
    assert report.parity["batch_equals_single"] is True
    assert report.parity["max_rel_error"] <= 1e-5
    assert "stream_equals_sequence" not in report.parity
    assert "step_rel_error" not in report.parity
    assert report.parity["longest"] == 90


def test_steps_of_the_certificate_are_those_of_the_resampled_sequence(
    exported: tuple[srn.Classifier, ExportReport],
) -> None:
    assert exported[1].certificate["time"] == {"steps": "regular", "resample_steps": 20}


def test_lengths_outside_those_of_training_and_gaps_agree_with_torch(
    exported: tuple[srn.Classifier, ExportReport],
) -> None:
    model, report = exported
    random = np.random.default_rng(3)
    x = random.normal(3, 2, (6, 200, 2)).astype(np.float32)
    x[random.random(x.shape) < 0.3] = np.nan
    lengths = np.array([1, 2, 4, 20, 100, 200])
    session = open_session(report.files["sequence.onnx"].read_bytes())
    (logits,) = session.run(["logits"], {"x": x, "lengths": lengths})
    with torch.no_grad():
        expected = model(torch.from_numpy(x), torch.from_numpy(lengths)).numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    for row, length in enumerate(lengths):
        (alone,) = session.run(["logits"], {"x": x[row : row + 1, :length], "lengths": lengths[row : row + 1]})
        np.testing.assert_array_equal(alone[0], logits[row])


def test_the_files_are_recomputed_and_reloaded(exported: tuple[srn.Classifier, ExportReport]) -> None:
    model, report = exported
    files = {name: path.read_bytes() for name, path in report.files.items()}
    certificate, parity = recompute(files, 90)
    assert certificate["contraction_rate"] == pytest.approx(report.certificate["contraction_rate"])
    assert parity["max_rel_error"] == report.parity["max_rel_error"]
    reloaded = reload(files["config.json"], files["weights.safetensors"])
    assert reloaded.state_dict().keys() == model.state_dict().keys()
    assert json.loads(files["config.json"])["model"]["resample_steps"] == 20


def test_another_resampling_is_found_out(exported: tuple[srn.Classifier, ExportReport]) -> None:
    model, report = exported
    other = build(patch_size=8, patch_stride=2, patch_embedding=8, readout="all", members=2)
    other.load_state_dict(model.state_dict())
    assert other.resampling is not None
    other.resampling.length_mean += 0.5
    with pytest.raises(ParityError, match="differs from torch"):
        check_parity(other, None, report.files["sequence.onnx"].read_bytes(), lengths=(1, 7, 40))


def test_the_engine_torch_runs_the_same_graph(exported: tuple[srn.Classifier, ExportReport]) -> None:
    _, report = exported
    engine = torch_engine(report.files["config.json"].parent, "cpu")
    assert engine.step is None
    assert engine.signature == report.signature
    x, lengths = np.random.default_rng(1).normal(3, 2, (3, 40, 2)).astype(np.float32), np.array([40, 7, 1])
    feeds = {"x": x, "lengths": lengths}
    (expected,) = open_session(report.files["sequence.onnx"].read_bytes()).run(["logits"], feeds)
    np.testing.assert_allclose(engine.sequence.run(["logits"], feeds)[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("lipschitz", {}),
        pytest.param("gru_d", {}, marks=pytest.mark.slow),
        pytest.param("gru", {"patch_size": 3, "mask_channel": True, "readout": "mean"}, marks=pytest.mark.slow),
    ],
    ids=["input stage", "missing values", "patches"],
)
def test_other_forms_are_exported(cell: str, options: dict[str, Any], tmp_path: Path) -> None:
    report = export(build(cell, **options), tmp_path)
    assert report.parity["batch_equals_single"] is True


def test_torchscript_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TorchScript is not written of a model with resample_steps"):
        export(build(), tmp_path, formats=("torchscript",))
