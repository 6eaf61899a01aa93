"""Exported graphs against the models they came from, for every cell of the catalog."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file

import stablernn as srn
from exports import scan_bodies
from model_helpers import mark_fitted
from stablernn.errors import ConfigError, ParityError
from stablernn.export.parity import (
    check_bounds,
    check_parity,
    draw_inputs,
    draw_lengths,
    measure_amplification,
)
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import export_parts
from stablernn.nn.models import SequenceModel, build_model


def frozen(model: SequenceModel) -> SequenceModel:
    return model.eval().requires_grad_(False)


def graphs(model: SequenceModel) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    exported = export_parts(model)
    return step_graph(exported), sequence_graph(exported)


QUICK = {"urnn", "lstm-mean-mask", "smoothing-log", "smoothing-week"}
MODELS: dict[str, Callable[[], SequenceModel]] = {
    **{cell: lambda cell=cell: srn.Classifier(cell, 2, 3, 33) for cell in srn.list_cells()},
    "lstm-mean-mask": lambda: srn.Classifier(
        "lstm", 3, 4, 17, num_layers=3, readout="mean", mask_channel=True, dropout=0.3
    ),
    "two-layers-max": lambda: srn.Classifier("gru", 1, 2, 64, num_layers=2, readout="max"),
    "forecast": lambda: srn.Forecaster("lstm", 2, 5, 33, target_indices=[1]),
    "window-scaling": lambda: srn.Forecaster("lipschitz", 2, 7, 20, scaling="window", window=12),
    "smoothing-week": lambda: srn.Forecaster("smoothing", 1, 7, 7, scaling="standard", cell_options={"season": 7}),
    "smoothing-log": lambda: srn.Forecaster("smoothing", 2, 3, 3, scaling="log", anchor="mean"),
    "no-quantiles-all-targets": lambda: srn.Forecaster("lvf_mid", 3, 4, 20, target_indices=[0, 1, 2], quantiles=()),
    "many-features": lambda: srn.Classifier("lipschitz", 300, 2, 128),
    "hidden-1": lambda: srn.Classifier("antisymmetric", 1, 2, 1),
}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_a_model_exports_to_both_formats_with_parity(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    model.fit_scaling([np.abs(np.random.default_rng(0).normal(3.0, 2.0, (50, model.input_size)))])
    report = srn.export(model, tmp_path, formats=("onnx", "torchscript"))

    assert report.parity["stream_equals_sequence"] is True
    assert report.parity["batch_equals_single"] is True
    assert report.parity["step_rel_error"] <= 1e-5
    assert {(row["time"], row["batch"]) for row in report.parity["compared"]} == {
        (time, batch) for time in (1, 7, 40) for batch in (1, 5)
    }
    assert all(row["torchscript_rel_error"] <= row["allowed_rel_error"] <= 1e-3 for row in report.parity["compared"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(report.files)


def test_graphs_are_self_contained_and_of_the_standard_domain() -> None:
    for graph in graphs(frozen(srn.Classifier("lipschitz_rk2", 2, 3, 8))):
        assert [opset.domain for opset in graph.opset_import] == [""]
        # ONNX Runtime 1.17, the first with opset 20, refuses newer IR versions than 9.
        assert (graph.opset_import[0].version, graph.ir_version) == (20, 9)
        assert not graph.functions
        tensors = [*graph.graph.initializer]
        tensors += [tensor for node in graph.graph.node for item in node.attribute for tensor in item.g.initializer]
        assert tensors
        assert all(tensor.data_location == onnx.TensorProto.DEFAULT for tensor in tensors)
        # A published file tells nobody where it was made.
        assert str(Path(srn.__file__).parent).encode() not in graph.SerializeToString()


def test_exported_files_build_the_same_model_again_at_the_length_it_is_for(tmp_path: Path) -> None:
    model = srn.Forecaster("lipschitz", 2, 5, 8, scaling="window", window=10, num_layers=2).double().train()
    report = srn.export(mark_fitted(model), tmp_path, steps=130)
    assert report.parity["longest"] == 130
    assert {row["time"] for row in report.parity["compared"]} == {1, 7, 40, 130}
    assert model.training
    assert all(parameter.requires_grad and parameter.dtype == torch.float64 for parameter in model.parameters())
    rebuilt = build_model(json.loads((tmp_path / "config.json").read_text())["model"])
    rebuilt.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    x = torch.randn(3, 20, 2)
    assert torch.equal(rebuilt.eval()(x), model.float().eval()(x))


@pytest.mark.parametrize("graph", ["sequence", pytest.param("step", marks=pytest.mark.slow)])
def test_a_graph_with_one_wrong_weight_fails_parity(graph: str) -> None:
    model = frozen(srn.Classifier("lipschitz", 1, 2, 4))
    step, sequence = graphs(model)
    for part in [step.graph] if graph == "step" else scan_bodies(sequence).values():
        weight = next(tensor for tensor in part.initializer if "weight_0_0" in tensor.name)
        values = numpy_helper.to_array(weight).copy()
        values[0, 0] += 0.5
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    with pytest.raises(ParityError, match="nothing was exported"):
        check_parity(model, step.SerializeToString(), sequence.SerializeToString())


def test_outputs_that_rounding_leaves_few_digits_of_are_judged_by_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mark_fitted(srn.Classifier("lru", 1, 2, 8)).eval()
    with torch.no_grad():
        # A positive input puts all outputs into the tail of GELU, the small difference of 1 and almost 1.
        cell = model.rnn.cells[0]
        cell.weight_output.zero_()
        cell.weight_skip.copy_(torch.linspace(-5.0, -4.0, 8)[:, None])
    rows = srn.export(model, tmp_path).parity["compared"]
    judged = [row for row in rows if "allowed_step_rel_error" in row]
    assert judged
    assert all(1e-5 < row["step_rel_error"] <= row["allowed_step_rel_error"] <= 1e-3 for row in judged)


GOOD_ROW = {
    "time": 7,
    "step_rel_error": 9e-6,
    "allowed_rel_error": 1e-5,
    "max_rel_error": 9e-6,
    "torchscript_rel_error": 9e-6,
}
GOOD = {"step_rel_error": 9e-6, "stream_equals_sequence": True, "batch_equals_single": True, "compared": [GOOD_ROW]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compared": [GOOD_ROW, GOOD_ROW | {"step_rel_error": 2e-5}]}, "One step .* by 2e-05 .* allowed is 1e-05"),
        (
            {"compared": [GOOD_ROW | {"step_rel_error": 2e-4, "allowed_step_rel_error": 1e-4}]},
            "One step .* by 0.0002 .* allowed is 1e-04",
        ),
        ({"compared": [GOOD_ROW | {"max_rel_error": 3e-5}]}, "ONNX .* by 3e-05 .* over 7 steps, allowed is 1e-05"),
        ({"compared": [GOOD_ROW | {"torchscript_rel_error": 3e-5}]}, "TorchScript .* by 3e-05 .* allowed is 1e-05"),
        ({"stream_equals_sequence": False}, "sample by sample .* not bitwise equal"),
        ({"batch_equals_single": False}, "padded batch .* not bitwise equal"),
    ],
    ids=["step", "rounded step", "sequence", "torchscript", "stream", "batch"],
)
def test_each_kind_of_difference_fails_parity(change: dict[str, object], message: str) -> None:
    check_bounds(GOOD)
    with pytest.raises(ParityError, match=message):
        check_bounds(GOOD | change)


@pytest.mark.parametrize("key", ["step_rel_error", "max_rel_error", "torchscript_rel_error"])
def test_a_difference_that_is_no_number_fails_parity(key: str) -> None:
    with pytest.raises(ParityError, match="differs from torch by nan"):
        check_bounds(GOOD | {"compared": [GOOD_ROW | {key: float("nan")}]})


def test_amplification_does_not_depend_on_the_offset_of_the_data() -> None:
    factors = []
    for offset in (0.0, 101_325.0):
        torch.manual_seed(0)
        model, generator = frozen(srn.Classifier("lipschitz", 1, 2, 8)), np.random.default_rng(0)
        model.fit_scaling([generator.normal(size=(80, 1)) + offset])
        inputs, lengths = draw_inputs(model, generator, 5, 40), draw_lengths(generator, 5, 40)
        factors.append(measure_amplification(model, inputs, lengths, {}, generator))
    assert factors[1] < 10 * factors[0]


def test_a_failed_export_leaves_no_file(tmp_path: Path) -> None:
    model = mark_fitted(srn.Classifier("lipschitz", 1, 2, 4))
    with torch.no_grad():
        next(model.head.parameters())[0] = torch.nan
    with pytest.raises(ParityError):
        srn.export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "formats", "message"),
    [
        (lambda: srn.StableRNN("rnn", 1, 2), ("onnx",), "got StableRNN"),
        (lambda: srn.Classifier("lipschitz", 1, 2, 4), ("onxx",), "'onxx'. Did you mean 'onnx'"),
    ],
    ids=["a layer", "a format"],
)
def test_it_is_refused(make: Callable[[], Any], formats: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        srn.export(make(), tmp_path, formats=formats)
