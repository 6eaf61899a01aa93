"""Wrong raw values: no search moves an output further than is stated, and closed forms reach what is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bounds.specimens import sampled
from model_helpers import mark_fitted
from stablernn import Classifier, Forecaster, SequencePredictor
from stablernn.certificates.certificate import prove
from stablernn.certificates.plain_words import describe_guarantee
from stablernn.certificates.projection import is_projected, project
from stablernn.certificates.stored_certificate import GAPS, SHARE, wrong_sample_bounds
from stablernn.nn.models import SequenceModel
from stablernn.robustness.attacks import differentiable_copy

TIME, ROWS = 16, 32
PATCHES: dict[str, Any] = {"patch_size": 4, "patch_stride": 2}

MODELS: dict[str, tuple[type[SequenceModel], str, dict[str, Any]]] = {
    "forecaster": (Forecaster, "lipschitz", {"input_size": 1, "horizon": 3}),
    "overlapping patches": (Forecaster, "rnn", {"input_size": 1, "horizon": 2, **PATCHES}),
    "patches of their own": (Forecaster, "lru", {"input_size": 1, "horizon": 2, "patch_size": 3, "anchor": "mean"}),
    "channels": (
        Forecaster,
        "rnn",
        {
            "input_size": 3,
            "horizon": 2,
            "target_indices": (0, 1),
            "future_indices": (2,),
            "static_size": 1,
            "members": 2,
            "mask_channel": True,
            "readout": "all",
            "patch_embedding": 3,
            "patch_size": 3,
            "patch_stride": 1,
        },
    ),
    "unscaled": (Forecaster, "exprnn", {"input_size": 2, "horizon": 2, "scaling": "none"}),
    "irregular": (Forecaster, "lipschitz", {"input_size": 1, "horizon": 2, "max_dt": 2.0, "patch_size": 2}),
    "classifier": (Classifier, "exprnn", {"input_size": 1, "num_classes": 3, "readout": "all", **PATCHES}),
    "padded classifier": (Classifier, "identity_rnn", {"input_size": 1, "num_classes": 2, "patch_size": 4}),
    "deep classifier": (Classifier, "rnn", {"input_size": 2, "num_classes": 3, "num_layers": 2, "members": 2}),
    "convolutions": (
        Classifier,
        "lipschitz",
        {"input_size": 1, "num_classes": 2, "patch_embedding": 3, "conv_layers": 1, "conv_channels": 2, **PATCHES},
    ),
    "next values": (SequencePredictor, "rnn", {"input_size": 2, "num_outputs": 2, "output": "real"}),
    "next changes": (
        SequencePredictor,
        "lru",
        {"input_size": 1, "num_outputs": 1, "output": "real", "predict_change": True},
    ),
    "mean of next values": (
        SequencePredictor,
        "ren",
        {"input_size": 2, "num_outputs": 2, "output": "real", "members": 2, "saturation": True},
    ),
    "next classes": (SequencePredictor, "lipschitz", {"input_size": 1, "num_outputs": 3}),
}


def trained(name: str, **changes: Any) -> SequenceModel:
    """A small model after a few steps of training, whose channels have scales of their own."""
    torch.manual_seed(0)
    kind, cell, options = MODELS[name]
    model: Any = kind(cell, hidden_size=4, **{**options, **changes})
    if model.scaling.kind != "none":
        model.scaling.mean.copy_(torch.tensor([4.0, -1.0, 0.0])[: model.input_size])
        model.scaling.scale.copy_(torch.tensor([3.0, 0.2, 1.0])[: model.input_size])
    if isinstance(model, SequencePredictor) and model.output == "real":
        model.targets.mean.fill_(5.0)
        model.targets.scale.fill_(0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    x = model.scaling.mean + model.scaling.scale * torch.randn(16, TIME, model.input_size)
    for step in range(1, 21):
        optimizer.zero_grad()
        loss = sum((output - 1).square().mean() for output in model.run(x)[0].values() if not output.isnan().any())
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
        model.after_step(step, 20)
        for stack in model.rnn.stacks:
            for depth, rnn_cell in enumerate(stack.cells):
                if is_projected(rnn_cell):
                    project(rnn_cell, 0.2 if depth == 0 else 0.3)
    if isinstance(model, Classifier):
        model.temperature.fill_(0.7)
    return mark_fitted(model).eval()


def moved(model: SequenceModel, before: dict[str, Tensor], after: dict[str, Tensor]) -> Tensor:
    """How far outputs move, ``(rows, ...)``: probabilities, or numbers in units of their scale."""
    if isinstance(model, SequencePredictor):
        # Of the last step alone.
        before, after = ({name: values[:, -1] for name, values in side.items()} for side in (before, after))
    if isinstance(model, SequencePredictor) and model.output != "real":
        return (before["logits"].softmax(dim=-1) - after["logits"].softmax(dim=-1)).abs()
    if isinstance(model, Classifier):
        return (before["probabilities"] - after["probabilities"]).abs()
    changes = []
    for name, values in before.items():
        change = (values - after[name]).abs()
        if isinstance(model, Forecaster):
            scale = model.scaling.scale[model.target_indices]
            changes.append((change / (scale[:, None] if name == "quantiles" else scale)).flatten(1))
        else:
            changes.append((change / (model.scaling if model.predict_change else model.targets).scale).flatten(1))
    return torch.cat(changes, dim=1)


def moved_most(before: Tensor, after: Tensor) -> float:
    return float((before - after).detach().abs().max())


class Search:
    """Sequences with a wrong value and missing ones behind it, changed by gradient ascent on what they move.

    ``wrong`` marks the samples that may be wrong, each by 1 in the 2-norm of its scaled values, or that all repeat the
    first of them where they are ``missing``.
    """

    def __init__(self, model: SequenceModel, wrong: Tensor, missing: Tensor, *, error: float = 1.0, steps: int = 20):
        generator = torch.Generator().manual_seed(1)
        rows, time = wrong.shape
        dt = None if model.max_dt is None else 2 * torch.rand(rows, time, generator=generator, dtype=torch.float64)
        shape = (rows, time, model.input_size)
        base = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(True)
        direction = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(True)
        optimizer = torch.optim.Adam([base, direction], lr=0.2)
        self.largest = 0.0
        with differentiable_copy(model.double()) as copied:
            for _ in range(steps):
                change = error * direction / direction.norm(dim=-1, keepdim=True) * wrong[..., None]
                pair = [
                    torch.where(missing[..., None], torch.nan, copied.scaling.mean + copied.scaling.scale * values)
                    for values in (base, base + change)
                ]
                outputs = [copied.run(x, dt=dt)[0] for x in pair]
                distances = moved(copied, outputs[0], outputs[1])
                largest = distances.flatten(1).amax(dim=1)
                if float(largest.max().detach()) > self.largest:
                    self.largest, worst = float(largest.max().detach()), int(largest.argmax())
                    self.pair = [x[worst : worst + 1].detach() for x in pair]
                    self.dt = None if dt is None else dt[worst : worst + 1]
                optimizer.zero_grad()
                (-largest.sum()).backward()
                optimizer.step()
        model.float()


def wrong_and_missing(gap: int | None) -> tuple[Tensor, Tensor]:
    """One wrong sample a row, from the first to the last, and the missing ones that repeat it."""
    index = torch.arange(TIME)
    start = (torch.arange(ROWS) % TIME)[:, None]
    # Of any number of missing ones rows have different ones.
    behind = torch.arange(ROWS)[:, None] % 7 * 3 if gap is None else torch.full((ROWS, 1), gap)
    return index == start, (index > start) & (index <= start + behind)


def stated(model: SequenceModel, gap: int | None) -> float:
    bounds = wrong_sample_bounds(model, prove(model, stored=False))
    bound = {effect["missing_after"]: effect["output_change"] for effect in bounds["effects"]}[gap]
    assert bound is not None
    if bounds["unit"] == "data" and isinstance(model, SequencePredictor) and model.output == "real":
        # From units of the data to those of the scales.
        scale = (model.scaling if model.predict_change else model.targets).scale
        return float(bound * model.scaling.scale[0] / scale[0])
    return float(bound)


def searched_gaps(name: str) -> tuple[int | None, ...]:
    """The gaps for which something is stated of a model."""
    # A non-expansive layer may add up what is repeated for ever.
    return GAPS[:2] if name in ("unscaled", "classifier") else GAPS


@pytest.mark.parametrize(
    "name", sampled(MODELS, "channels", "padded classifier", "next changes", "irregular", "unscaled")
)
def test_no_wrong_value_moves_an_output_further_than_is_stated(name: str) -> None:
    model = trained(name)
    for gap in searched_gaps(name):
        bound = stated(model, gap)
        assert 1e-3 * bound < Search(model, *wrong_and_missing(gap)).largest <= bound


def shift_model(size: int, stride: int, rate: float, **options: Any) -> Any:
    """A forecaster whose layer adds a wrong sample to one unit again and again, as its patches slide over it.

    The unit of each sample of a patch is passed on to that of the place where the next patch has it: linear, where all
    values are positive.
    """
    model = Forecaster("identity_rnn", 1, 1, size, patch_size=size, patch_stride=stride, quantiles=(), **options).eval()
    cell: Any = model.rnn.cells[0]
    with torch.no_grad():
        cell.weight_ih.copy_(torch.eye(size))
        cell.weight_hh.copy_(rate * torch.eye(size).roll(-stride, 0))
        for parameter in model.head.parameters():
            parameter.zero_()
        # A wrong sample is last read at the first place, or one less than a stride behind it.
        model.head.maps[0].weight[0, 0] = 1.0
    return mark_fitted(model)


@pytest.mark.parametrize(("size", "stride"), [(6, 2), (4, 1), (3, 3)])
def test_a_sample_counts_once_for_each_patch_that_holds_it_and_no_more(size: int, stride: int) -> None:
    model = shift_model(size, stride, 0.9, anchor="mean")
    x = torch.full((1, 8 * size, 1), 5.0)
    wrong = x.clone()
    # The first sample of a patch's new ones, and the last patch that holds it ends the sequence.
    wrong[0, 7 * size] += 1
    x, wrong = x[:, : 8 * size], wrong[:, : 8 * size]
    found = moved_most(model(x), model(wrong))
    assert found == pytest.approx(sum(0.9**k for k in range(size // stride)), rel=1e-5)
    assert found == pytest.approx(stated(model, 0), rel=1e-4)


@pytest.mark.parametrize("gap", [10, None])
def test_a_value_that_missing_ones_repeat_counts_for_each_of_them_and_no_more(gap: int | None) -> None:
    model = Forecaster("identity_rnn", 1, 1, 1, patch_size=4, patch_stride=2, quantiles=()).eval()
    with torch.no_grad():
        model.rnn.cells[0].weight_ih.fill_(0.5)
        model.rnn.cells[0].weight_hh.fill_(0.8)
        for parameter in model.head.parameters():
            parameter.fill_(1.0 if parameter.dim() > 1 else 0.0)
    mark_fitted(model)
    repeated = 200 if gap is None else gap
    x = torch.full((1, 40 + repeated, 1), 5.0)
    x[0, 40:] = torch.nan
    wrong = x.clone()
    wrong[0, 39] += 1
    found = moved_most(model(x), model(wrong))
    bound = stated(model, gap)
    assert found <= bound * (1 + 1e-6)
    # The last value itself, and the sum over the steps; a gap's first and last patches hold fewer wrong samples.
    assert found >= (0.999 if gap is None else 0.85) * bound
    assert gap is not None or bound == pytest.approx(1 + 2 / (1 - 0.8), rel=1e-4)


@pytest.mark.parametrize(("gap", "slopes"), [(0, 1), (None, 2)])
def test_an_embedding_counts_the_samples_of_a_patch_that_are_wrong(gap: int | None, slopes: int) -> None:
    options: dict[str, Any] = {"patch_size": 2, "patch_embedding": 1, "anchor": "mean", "quantiles": ()}
    model: Any = Forecaster("identity_rnn", 1, 1, 1, **options).eval().double()
    with torch.no_grad():
        model.rnn.cells[0].weight_hh.zero_()
        model.rnn.cells[0].weight_ih.fill_(1.0)
        for linear in (model.rnn.embeddings[0], model.head.maps[0]):
            linear.weight.fill_(1.0)
            linear.bias.zero_()
    mark_fitted(model)
    # GELU is steepest at the root of 2.
    x = torch.full((1, 8, 1), math.sqrt(2) / 2, dtype=torch.float64)
    wrong = x.clone()
    if gap is None:
        x[0, 5:] = wrong[0, 5:] = torch.nan
        wrong[0, 4] += 1e-4
    else:
        wrong[0, 7] += 1e-4
    found = moved_most(model(x), model(wrong)) / 1e-4
    assert found == pytest.approx(1.1289 * slopes, rel=1e-3)
    assert found * (1 - 1e-6) <= stated(model, gap) <= found * 1.001


@pytest.mark.parametrize(("size", "gap", "slack"), [(4, 0, 1.0), (16, 10, 1.1)])
def test_the_padding_at_the_end_of_a_sequence_repeats_its_last_value(size: int, gap: int, slack: float) -> None:
    model = Classifier("identity_rnn", 1, 2, 1, patch_size=size).eval()
    with torch.no_grad():
        model.rnn.cells[0].weight_ih.fill_(2 / size)
        model.rnn.cells[0].weight_hh.fill_(0.1)
        model.head.maps[0].weight.copy_(torch.tensor([[0.5], [-0.5]]))
        model.head.maps[0].bias.copy_(torch.tensor([-10.0, 10.0]))
        model.temperature.fill_(0.5)
    mark_fitted(model)
    # The last value is all that the last patch holds: both classes are equally probable halfway.
    x = torch.full((1, 3 * size + 1 + gap, 1), torch.nan)
    x[0, : 3 * size] = 0.0
    wrong = x.clone()
    x[0, 3 * size], wrong[0, 3 * size] = 9.5, 10.5
    found = moved_most(model.run(x)[0]["probabilities"], model.run(wrong)[0]["probabilities"])
    assert found == pytest.approx(math.tanh(2 / 0.5 / 4), rel=1e-2)
    # A gap may begin in the patch before.
    assert found * (1 - 1e-6) <= stated(model, gap) <= math.tanh(2 * slack / 0.5 / 4) * 1.01


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (4, 2)])
def test_the_time_of_forgetting_is_not_longer_than_it_takes(size: int, stride: int) -> None:
    options: dict[str, Any] = {"patch_size": size, "patch_stride": stride, "anchor": "mean", "quantiles": ()}
    model: Any = Forecaster("identity_rnn", 1, 1, 1, **options).eval().double()
    with torch.no_grad():
        model.rnn.cells[0].weight_ih.fill_(1 / math.sqrt(size))
        model.rnn.cells[0].weight_hh.fill_(0.8)
        model.head.maps[0].weight.fill_(1.0)
    mark_fitted(model)
    samples = wrong_sample_bounds(model, prove(model, stored=False))["forgotten_after"]
    found = []
    for held in (samples + 1, samples - (size - 1) - stride + 1):
        x = torch.full((1, 200 + held, 1), 5.0, dtype=torch.float64)
        wrong = x.clone()
        wrong[:, :200] += 1
        found.append(moved_most(model(x), model(wrong)))
    assert found[0] <= SHARE < found[1]


@pytest.mark.parametrize(
    "name", sampled(["forecaster", "overlapping patches", "next values", "irregular"], "overlapping patches")
)
def test_what_is_forgotten_is_after_any_number_of_wrong_values(name: str) -> None:
    model = trained(name)
    samples = wrong_sample_bounds(model, prove(model, stored=False))["forgotten_after"]
    assert samples is not None
    assert samples < 400
    index = torch.arange(30 + samples + 1)
    wrong = (index < 30).expand(8, -1)
    # Some of them missing.
    missing = wrong & (index % 5 == 3)
    assert 0 < Search(model, wrong, missing, steps=15).largest <= SHARE
    recent = (index < len(index) - model.patches.size).expand(8, -1)
    assert Search(model, recent, missing, steps=15).largest > SHARE


def test_with_the_scaling_context_an_error_of_any_size_is_forgotten() -> None:
    torch.manual_seed(0)
    model: Any = Forecaster(
        "lipschitz", 1, 2, 4, scaling="context", window=16, season=2, skip="linear", mask_channel=True, **PATCHES
    ).eval()
    for rnn_cell in model.rnn.cells:
        project(rnn_cell, 0.7)
    with torch.no_grad():
        for parameter in [*model.head.parameters(), model.skip.weight]:
            parameter.normal_()
    mark_fitted(model)
    bounds = wrong_sample_bounds(model, prove(model, stored=False))
    assert all(effect["output_change"] is None for effect in bounds["effects"])
    samples = bounds["forgotten_after"]
    found = []
    for held in (samples + 1, 8):
        x = torch.randn(64, 40 + held, 1, dtype=torch.float64)
        wrong = x.clone()
        wrong[:, :40] += 1000 * torch.randn(64, 40, 1)
        x[:, 36:40], wrong[:, 36:40] = torch.nan, torch.nan
        double = model.double()
        state = double.final_state(x)
        scale = double.scaling.anchor(double.patches.split(state)[0][:3])[1]
        outputs = [double.run(values)[0]["quantiles"].flatten(1) / scale for values in (x, wrong)]
        found.append(moved_most(*outputs))
    assert found[0] <= SHARE < found[1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scaling": "window", "window": 8}, "the scaling 'window' divides by recent values"),
        ({"scaling": "log"}, "a forecast by logarithms moves in proportion to itself"),
        ({"head": "recursive"}, "each forecast is read as the next value"),
        ({"cell": "gru_d"}, "the cell 'gru_d' fills in missing values by itself"),
    ],
)
def test_what_is_not_derived_is_named_and_has_no_figure(options: dict[str, Any], reason: str) -> None:
    model = Forecaster(**{"cell": "lipschitz", "input_size": 1, "horizon": 3, "hidden_size": 4, **options}).eval()
    certificate = prove(mark_fitted(model), stored=False)
    bounds = wrong_sample_bounds(model, certificate)
    assert bounds["reason"] == reason
    assert {effect["output_change"] for effect in bounds["effects"]} == {None}
    assert bounds["forgotten_after"] is None
    assert describe_guarantee(bounds) == [f"How far a wrong value moves a forecast is not bounded, since {reason}."]
