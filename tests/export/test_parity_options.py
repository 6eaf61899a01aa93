"""Exported graphs of patches, members, covariates and scalings against their models, and what parity would catch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import stablernn as srn
from stablernn.errors import ParityError
from stablernn.export import torchscript
from stablernn.export.parity import _draw_known_inputs, check_parity, draw_inputs, open_session
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import export_parts
from stablernn.nn.models import SequenceModel

CONTEXT: dict[str, Any] = {"scaling": "context", "window": 12, "season": 4}
CONVOLUTIONS: dict[str, Any] = {"patch_embedding": 6, "conv_layers": 2, "conv_channels": 5}


def prepared(model: SequenceModel) -> SequenceModel:
    """As after training: units of its own, weights that are nowhere zero, calibrated."""
    generator = torch.Generator().manual_seed(0)
    model.fit_scaling([np.random.default_rng(0).uniform(100, 600, (80, model.input_size))])
    if isinstance(model, srn.Forecaster):
        model.fit_static(np.random.default_rng(1).uniform(1e4, 5e4, (20, model.static_size)))
        model.offsets.copy_(torch.randn(model.offsets.shape, generator=generator))
    if isinstance(model, srn.Classifier):
        model.temperature.fill_(1.7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval().requires_grad_(False)


def graphs(model: SequenceModel) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    exported = export_parts(model)
    return step_graph(exported), sequence_graph(exported)


VARIANTS: dict[str, Any] = {
    "patches-with-times-mask-all": lambda: srn.Classifier(
        "cfc", 2, 3, 9, max_dt=4.0, patch_size=4, patch_stride=3, readout="all", mask_channel=True
    ),
    # A mean of seven times once had other bits in a batch.
    "seven-times": lambda: srn.Classifier("lipschitz", 2, 3, 9, max_dt=4.0, patch_size=7),
    "members-embedding-two-layers": lambda: srn.Classifier(
        "lstm", 2, 3, 9, num_layers=2, members=3, patch_size=4, patch_embedding=6, head_dropout=0.2
    ),
    "context-log-skip-covariates": lambda: srn.Forecaster(
        "gru",
        3,
        5,
        9,
        **CONTEXT,
        log=True,
        skip="linear",
        target_indices=[2, 0],
        future_indices=[1],
        static_size=2,
        members=2,
        patch_size=3,
        patch_stride=2,
    ),
    "recursive-context": lambda: srn.Forecaster(
        "lipschitz", 2, 5, 9, **CONTEXT, skip="linear", future_indices=[1], head="recursive"
    ),
    "convolutions-overlap-members-mask": lambda: srn.Classifier(
        "lru", 2, 3, 9, **CONVOLUTIONS, patch_size=16, patch_stride=4, members=2, mask_channel=True, readout="all"
    ),
    # A product long enough for the runtime to divide it into blocks.
    "convolutions-wide": lambda: srn.Classifier(
        "lru", 3, 3, 16, patch_size=90, patch_stride=30, patch_embedding=32, conv_layers=3, conv_channels=48
    ),
    "convolutions-times": lambda: srn.Classifier(
        "cfc", 2, 3, 9, **CONVOLUTIONS, max_dt=4.0, patch_size=8, patch_stride=3
    ),
    "convolutions-context-skip": lambda: srn.Forecaster(
        "lipschitz",
        2,
        5,
        9,
        **CONVOLUTIONS,
        **CONTEXT,
        skip="linear",
        non_negative=True,
        patch_size=9,
        patch_stride=4,
    ),
    "patches-longer-than-the-window": lambda: srn.Forecaster("rnn", 1, 4, 9, scaling="context", window=5, patch_size=8),
}

QUICK = ("context-log-skip-covariates", "convolutions-overlap-members-mask")
QUICK_FAULTS = (
    "samples-behind-the-end-are-read",
    "times-of-a-last-patch-are-zero",
    "a-first-patch-is-filled-with-its-first-sample",
)


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in VARIANTS]
)
def test_every_option_exports_to_both_formats_with_parity(variant: str, tmp_path: Path) -> None:
    model = prepared(VARIANTS[variant]())
    report = srn.export(model, tmp_path, formats=("onnx", "torchscript"))
    assert report.parity["stream_equals_sequence"] is True
    assert report.parity["batch_equals_single"] is True
    assert report.parity["step_rel_error"] <= 1e-5
    assert all(row["torchscript_rel_error"] <= row["allowed_rel_error"] <= 1e-3 for row in report.parity["compared"])
    for name, file in (("step", "step.onnx"), ("sequence", "sequence.onnx")):
        read = onnx.load(report.files[file]).graph
        for side, found in (("inputs", read.input), ("outputs", read.output)):
            shapes = {
                value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
                for value in found
            }
            assert shapes == {tensor["name"]: tensor["shape"] for tensor in report.signature[name][side]}


def spoiled(sequence: onnx.ModelProto, output: str, node: onnx.NodeProto) -> onnx.ModelProto:
    """The graph with another node in place of the one that makes ``output``."""
    made = onnx.ModelProto()
    made.CopyFrom(sequence)
    (place,) = [number for number, old in enumerate(made.graph.node) if output in old.output]
    made.graph.node[place].CopyFrom(node)
    onnx.checker.check_model(made, full_check=True)
    return made


def instead(operation: str, inputs: list[str], output: str) -> tuple[str, onnx.NodeProto]:
    return output, helper.make_node(operation, inputs, [output])


Patched = tuple[SequenceModel, bytes, onnx.ModelProto]
FAULTS: dict[str, dict[str, tuple[str, onnx.NodeProto]]] = {
    "begin": {
        "samples-behind-the-end-are-read": instead("Identity", ["x"], "x_valid"),
        "times-behind-the-end-are-read": instead("Identity", ["dt"], "dt_valid"),
        "a-last-patch-is-filled-with-zeros": instead("Pad", ["x_valid", "x_pads"], "x_padded"),
        "times-of-a-last-patch-are-zero": instead("Pad", ["dt_valid", "dt_pads"], "dt_padded"),
        "an-unfinished-patch-is-left-out": instead("Div", ["lengths", "stride"], "groups"),
        "patches-are-taken-for-samples": instead("Identity", ["lengths"], "groups"),
    },
    "end": {
        "samples-are-not-moved": instead("Identity", ["x_padded"], "x_moved"),
        "times-are-not-moved": instead("Identity", ["dt_padded"], "dt_moved"),
        "all-are-moved-as-far-as-the-longest": instead("Mod", ["samples_below", "stride"], "shift"),
        "a-first-patch-is-filled-with-its-first-sample": instead("Identity", ["x_gathered"], "x_moved"),
    },
}


@pytest.fixture(scope="module")
def patched() -> dict[str, Patched]:
    options: dict[str, Any] = {"max_dt": 4.0, "patch_size": 4, "patch_stride": 3}
    models: dict[str, SequenceModel] = {
        "begin": VARIANTS["patches-with-times-mask-all"](),
        "end": srn.Forecaster("cfc", 2, 3, 6, **options, mask_channel=True),
    }
    found = {}
    for name, model in models.items():
        step, sequence = graphs(prepared(model))
        found[name] = model, step.SerializeToString(), sequence
    return found


@pytest.mark.parametrize("aligned", FAULTS)
def test_graphs_of_patches_pass_parity_as_they_are(aligned: str, patched: dict[str, Patched]) -> None:
    model, step, sequence = patched[aligned]
    check_parity(model, step, sequence.SerializeToString(), torchscript.script(model))


@pytest.mark.parametrize("aligned", FAULTS)
def test_what_stands_behind_the_end_of_a_sequence_changes_nothing(aligned: str, patched: dict[str, Patched]) -> None:
    model, _, sequence = patched[aligned]
    runtime, scripted = open_session(sequence.SerializeToString()), torchscript.script(model)
    generator = np.random.default_rng(0)
    x = generator.uniform(100, 600, (2, 11, 2)).astype(np.float32)
    dt = generator.uniform(0, 4, (2, 11)).astype(np.float32)
    lengths, states = np.array([6, 8]), model.initial_state(2)
    given = {f"state_{index}": state.numpy() for index, state in enumerate(states)}
    found = []
    for filling in (0.0, 1e30, np.nan, np.inf):
        for row, length in enumerate(lengths):
            x[row, length:], dt[row, length:] = filling, filling
        found.append(runtime.run(None, {"x": x, "dt": dt, "lengths": lengths, **given}))
        tensors = [torch.from_numpy(value) for value in (x.copy(), dt.copy(), lengths)]
        for one, other in zip(scripted(*tensors, *states), found[-1], strict=True):
            torch.testing.assert_close(one, torch.from_numpy(other), rtol=1e-4, atol=1e-5)
    for other in found[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("aligned", "fault"),
    [
        pytest.param(aligned, fault, marks=[] if fault in QUICK_FAULTS else pytest.mark.slow)
        for aligned in FAULTS
        for fault in FAULTS[aligned]
    ],
)
def test_a_graph_that_treats_patches_wrongly_fails_parity(
    aligned: str, fault: str, patched: dict[str, Patched]
) -> None:
    model, step, sequence = patched[aligned]
    with pytest.raises(ParityError, match="nothing was exported"):
        check_parity(model, step, spoiled(sequence, *FAULTS[aligned][fault]).SerializeToString())


@pytest.mark.parametrize(
    ("aligned", "line"),
    [
        ("begin", "dt = torch.where(valid"),
        pytest.param("begin", "x = torch.where(valid", marks=pytest.mark.slow),
        pytest.param("begin", "lengths = torch.div(", marks=pytest.mark.slow),
        pytest.param("end", "x = x.gather(", marks=pytest.mark.slow),
        pytest.param("end", "x = torch.where((place", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_treats_patches_wrongly_fails_parity(
    aligned: str, line: str, patched: dict[str, Patched], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, step, sequence = patched[aligned]
    dropped = 0
    for name in ("_PATCH_LINES", "_PATCH_DT_LINES", "_PATCH_LENGTHS_LINES"):
        lines = getattr(torchscript, name).splitlines(keepends=True)
        kept = [text for text in lines if not text.strip().startswith(line)]
        dropped += len(lines) - len(kept)
        monkeypatch.setattr(torchscript, name, "".join(kept))
    assert dropped == 1
    with pytest.raises(ParityError, match="The TorchScript graph differs"):
        check_parity(model, step, sequence.SerializeToString(), torchscript.script(model))


def test_parity_is_checked_on_values_like_those_of_training() -> None:
    """Of logarithms too: their mean is no value of the series, and all that lies below the least one looks alike."""
    model = VARIANTS["context-log-skip-covariates"]()
    prepared(model)
    x = draw_inputs(model, np.random.default_rng(0), 5, 40)["x"]
    assert 100 < np.nanmedian(x) < 600
    assert (x[~np.isnan(x)] > float(model.scaling.floor.max())).mean() > 0.8
    known = _draw_known_inputs(model, np.random.default_rng(0), 50)
    assert 1e4 < np.nanmedian(known["static"]) < 5e4
    assert known["future"].shape == (50, 5, 1)
    assert 100 < np.nanmedian(known["future"]) < 600
