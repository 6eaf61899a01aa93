"""Exported graphs against the models they came from, for every cell of the catalog."""

from __future__ import annotations

import json
from pathlib import Path

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
from stablernn.export import model_signature
from stablernn.export.parity import check_bounds, check_parity, open_session
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import export_parts
from stablernn.nn.models import SequenceModel, build_model


def frozen(model: SequenceModel) -> SequenceModel:
    return model.eval().requires_grad_(False)


def graphs(model: SequenceModel) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    exported = export_parts(model)
    return step_graph(exported), sequence_graph(exported)


# A forecast differs in its head alone, which VARIANTS covers.
# One of each way to make a step; the other cells are slow tests, as all of them are with the other task.
QUICK = {
    "antisymmetric_g",
    "lipschitz_rk2",
    "lvf_mid",
    "lstm",
    "urnn",
    "cornn",
    "lru",
    "gru_d",
    "ode_rnn",
    "ren",
    "unicornn",
}
CELLS = [cell if cell in QUICK else pytest.param(cell, marks=pytest.mark.slow) for cell in srn.list_cells()]


@pytest.mark.parametrize("task", ["classify", pytest.param("forecast", marks=pytest.mark.slow)])
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_exports_to_both_formats_with_parity(cell: str, task: str, tmp_path: Path) -> None:
    if task == "classify":
        model: SequenceModel = srn.Classifier(cell, 2, 3, 33)
    else:
        model = srn.Forecaster(cell, 2, 5, 33, target_indices=[1])
    model.fit_scaling([np.random.default_rng(0).normal(3.0, 2.0, (50, 2))])
    report = srn.export(model, tmp_path, formats=("onnx", "torchscript"))

    assert report.parity["stream_equals_sequence"] is True
    assert report.parity["batch_equals_single"] is True
    assert report.parity["step_rel_error"] <= 1e-5
    assert {(row["time"], row["batch"]) for row in report.parity["compared"]} == {
        (time, batch) for time in (1, 7, 40) for batch in (1, 5)
    }
    assert all(row["torchscript_rel_error"] <= row["allowed_rel_error"] <= 1e-3 for row in report.parity["compared"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(report.files)


VARIANTS = {
    "three-layers-mean-mask": lambda: srn.Classifier(
        "lstm", 3, 4, 17, num_layers=3, readout="mean", mask_channel=True, dropout=0.3
    ),
    "two-layers-max": lambda: srn.Classifier("gru", 1, 2, 64, num_layers=2, readout="max"),
    "window-scaling": lambda: srn.Forecaster("lipschitz", 2, 7, 20, scaling="window", window=12),
    "no-quantiles-all-targets": lambda: srn.Forecaster("lvf_mid", 3, 4, 20, target_indices=[0, 1, 2], quantiles=()),
    "many-features": lambda: srn.Classifier("lipschitz", 300, 2, 16),
    "many-features-and-units": lambda: srn.Classifier("lipschitz", 300, 2, 128),
    "hidden-1": lambda: srn.Classifier("antisymmetric", 1, 2, 1),
}


SLOW_VARIANTS = {"many-features-and-units"}


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=pytest.mark.slow if name in SLOW_VARIANTS else []) for name in VARIANTS]
)
def test_every_part_of_a_model_exports_with_parity(variant: str, tmp_path: Path) -> None:
    report = srn.export(mark_fitted(VARIANTS[variant]()), tmp_path, formats=("onnx", "torchscript"))
    assert report.parity["stream_equals_sequence"] is True
    assert report.parity["batch_equals_single"] is True


def test_axes_of_the_graphs_are_symbolic_and_as_the_signature_says() -> None:
    model = frozen(srn.Forecaster("lstm", 2, 5, 8))
    signature = model_signature(model)
    for graph, name in zip(graphs(model), ("step", "sequence"), strict=True):
        for side in ("inputs", "outputs"):
            values = graph.graph.input if side == "inputs" else graph.graph.output
            shapes = {
                value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
                for value in values
            }
            assert shapes == {tensor["name"]: tensor["shape"] for tensor in signature[name][side]}


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


def test_a_sequence_continues_where_another_ended() -> None:
    model = frozen(srn.Classifier("lstm", 2, 3, 8, readout="mean", mask_channel=True))
    runtime = open_session(graphs(model)[1].SerializeToString())
    x = np.random.default_rng(0).normal(size=(2, 30, 2)).astype(np.float32)
    names = [output.name for output in runtime.get_outputs()]
    state = {name: value.numpy() for name, value in zip(_inputs(model), model.initial_state(2), strict=True)}
    whole = runtime.run(names, {"x": x, "lengths": np.array([30, 30]), **state})
    first = dict(zip(names, runtime.run(names, {"x": x[:, :11], "lengths": np.array([11, 11]), **state}), strict=True))
    carried = {name: first[f"{name}_out"] for name in state}
    second = runtime.run(names, {"x": x[:, 11:], "lengths": np.array([19, 19]), **carried})
    assert all(np.array_equal(one, other) for one, other in zip(whole, second, strict=True))


def test_padding_and_what_stands_in_it_change_nothing() -> None:
    model = frozen(srn.Classifier("gru", 1, 3, 8))
    runtime = open_session(graphs(model)[1].SerializeToString())
    x = np.random.default_rng(0).normal(size=(1, 9, 1)).astype(np.float32)
    state = {name: value.numpy() for name, value in zip(_inputs(model), model.initial_state(1), strict=True)}
    short = runtime.run(None, {"x": x, "lengths": np.array([9]), **state})
    for filling in (0.0, 1e30, np.nan, np.inf):
        padded = np.concatenate([x, np.full((1, 5, 1), filling, np.float32)], axis=1)
        long = runtime.run(None, {"x": padded, "lengths": np.array([9]), **state})
        assert all(np.array_equal(one, other) for one, other in zip(short, long, strict=True)), filling


def _inputs(model: SequenceModel) -> list[str]:
    return [f"state_{index}" for index in range(len(model.state_roles()))]


def test_exported_files_build_the_same_model_again(tmp_path: Path) -> None:
    model = srn.Forecaster("lipschitz", 2, 5, 8, scaling="window", window=10, num_layers=2)
    srn.export(mark_fitted(model), tmp_path)
    rebuilt = build_model(json.loads((tmp_path / "config.json").read_text())["model"])
    rebuilt.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    x = torch.randn(3, 20, 2)
    assert torch.equal(rebuilt.eval()(x), model.eval()(x))


def test_export_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = srn.Classifier("lipschitz", 1, 2, 4).double().train()
    srn.export(mark_fitted(model), tmp_path)
    assert model.training
    assert all(parameter.requires_grad and parameter.dtype == torch.float64 for parameter in model.parameters())


@pytest.mark.parametrize("graph", ["step", "sequence"])
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
    ("change", "sentence"),
    [
        (
            {"compared": [GOOD_ROW, GOOD_ROW | {"step_rel_error": 2e-5}]},
            "One step of the exported graph differs from torch by 2e-05 of the largest output, allowed is 1e-05; "
            "nothing was exported.",
        ),
        (
            {"compared": [GOOD_ROW | {"step_rel_error": 2e-4, "allowed_step_rel_error": 1e-4}]},
            "One step of the exported graph differs from torch by 0.0002 of the largest output, allowed is 1e-04; "
            "nothing was exported.",
        ),
        (
            {"compared": [GOOD_ROW, GOOD_ROW | {"max_rel_error": float("nan")}]},
            "The ONNX graph differs from torch by nan of the largest output over 7 steps, allowed is 1e-05; "
            "nothing was exported.",
        ),
        (
            {"compared": [GOOD_ROW | {"torchscript_rel_error": 3e-5}]},
            "The TorchScript graph differs from torch by 3e-05 of the largest output over 7 steps, allowed is 1e-05; "
            "nothing was exported.",
        ),
        (
            {"stream_equals_sequence": False},
            "The step graph called sample by sample and the sequence graph are not bitwise equal; "
            "nothing was exported.",
        ),
        (
            {"batch_equals_single": False},
            "A sequence alone and in a padded batch are not bitwise equal in the sequence graph; nothing was exported.",
        ),
    ],
    ids=["step", "rounded step", "sequence", "torchscript", "stream", "batch"],
)
def test_each_kind_of_difference_fails_parity(change: dict[str, object], sentence: str) -> None:
    check_bounds(GOOD)
    with pytest.raises(ParityError) as error:
        check_bounds(GOOD | change)
    assert str(error.value) == sentence


@pytest.mark.parametrize("key", ["step_rel_error", "max_rel_error", "torchscript_rel_error"])
def test_a_difference_that_is_no_number_fails_parity(key: str) -> None:
    with pytest.raises(ParityError, match="differs from torch by nan"):
        check_bounds(GOOD | {"compared": [GOOD_ROW | {key: float("nan")}]})


def test_parity_is_checked_at_the_length_the_model_is_for(tmp_path: Path) -> None:
    report = srn.export(mark_fitted(srn.Classifier("rnn", 1, 2, 4)), tmp_path, steps=130)
    assert report.parity["longest"] == 130
    assert {row["time"] for row in report.parity["compared"]} == {1, 7, 40, 130}


def test_amplification_does_not_depend_on_the_offset_of_the_data(tmp_path: Path) -> None:
    factors = []
    for offset in (0.0, 101_325.0):
        torch.manual_seed(0)
        model = srn.Classifier("lipschitz", 1, 2, 8)
        model.fit_scaling([np.random.default_rng(0).normal(size=(80, 1)) + offset])
        factors.append(srn.export(model, tmp_path / str(offset)).parity["amplification"])
    assert factors[1] < 10 * factors[0]


def test_a_layer_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        srn.export(srn.StableRNN("rnn", 1, 2), tmp_path)  # type: ignore[arg-type]
    assert str(error.value) == (
        "export takes a Classifier, a Forecaster or a SequencePredictor, got StableRNN; put the layer into one of them."
    )


def test_a_failed_export_leaves_no_file(tmp_path: Path) -> None:
    model = mark_fitted(srn.Classifier("lipschitz", 1, 2, 4))
    with torch.no_grad():
        next(model.head.parameters())[0] = torch.nan
    with pytest.raises(ParityError):
        srn.export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        srn.export(srn.Classifier("lipschitz", 1, 2, 4), tmp_path, formats=("onxx",))
    assert str(error.value) == "Unknown format 'onxx'. Did you mean 'onnx'? It is one of onnx, torchscript."
