"""Certified radii: closed forms, no attack within them, and how they compare with what flips a label."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bounds.specimens import sampled
from stablernn import Classifier, list_cells
from stablernn.bounds.step_bound import GELU_SLOPE
from stablernn.certificates.certified_radius import ClassBounds, certified_radii
from stablernn.errors import CertificateError
from stablernn.robustness.attacks import PerturbedClassifier, change_norms, deepfool, differentiable_copy, pgd

SHAPES: dict[str, dict[str, Any]] = {
    "last": {"readout": "last"},
    "mean": {"readout": "mean"},
    "max": {"readout": "max"},
    "all, patches": {"readout": "all", "patch_size": 4, "patch_stride": 2},
    "embedding": {"readout": "last", "patch_size": 3, "patch_stride": 3, "patch_embedding": 6},
    "members": {"readout": "all", "members": 3, "patch_size": 2, "patch_embedding": 5},
    "convolutions": {"readout": "last", "patch_size": 4, "patch_stride": 2, "patch_embedding": 6, "conv_layers": 1},
    "layers": {"readout": "mean", "num_layers": 2},
    "mask": {"readout": "last", "mask_channel": True},
}
CELLS = ("lru", "lipschitz", "exprnn", "gru")


def drawn(cell: str, shape: str, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    model = Classifier(cell, 2, 4, 8, **SHAPES[shape])
    with torch.no_grad():
        model.scaling.mean.copy_(torch.tensor([4.0, 0.0]))
        model.scaling.scale.copy_(torch.tensor([3.0, 0.2]))
        # Wide enough that labels are close to each other here and far apart there.
        for weight in model.head.parameters():
            weight.normal_()
    return model.eval()


def batch(seed: int = 0, samples: int = 48, time: int = 14) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, time, 2, generator=generator) * torch.tensor([3.0, 0.2]) + torch.tensor([4.0, 0.0])
    x[1, 3:6] = torch.nan
    x[2, :2] = torch.nan
    lengths = torch.randint(1, time + 1, (samples,), generator=generator)
    lengths[:4] = torch.tensor([time, time, 5, 1])
    return x, lengths


def flips_within(model: Classifier, x: Tensor, lengths: Tensor, radii: np.ndarray) -> Tensor:
    """Which labels change within a radius, by PGD from three starts and by DeepFool."""
    found = torch.zeros(len(x), dtype=torch.bool)
    radius = torch.from_numpy(radii)
    with differentiable_copy(model) as copied:
        attacked = PerturbedClassifier(copied, x, lengths)
        with torch.no_grad():
            label = attacked(torch.zeros_like(x)).argmax(dim=1)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            change = pgd(
                attacked,
                label,
                attacked.mask,
                norm="l2",
                budget=radius,
                random_start=seed > 0,
                generator=generator,
            )
            with torch.no_grad():
                found |= attacked(change).argmax(dim=1) != label
        change, flipped = deepfool(attacked, attacked.mask, norm="l2", steps=30)
        found |= flipped & (change_norms(change, "l2") <= radius)
    return found


@pytest.mark.parametrize(
    ("seed", "cell", "shape"),
    sampled(
        itertools.product((0, 1), CELLS, SHAPES),
        (0, "lipschitz", "mean"),
        (0, "lru", "all, patches"),
        (0, "exprnn", "members"),
        (0, "gru", "convolutions"),
        (0, "lru", "layers"),
    ),
)
def test_no_attack_flips_a_label_within_its_radius(seed: int, cell: str, shape: str) -> None:
    model = drawn(cell, shape, seed)
    x, lengths = batch(seed)
    radii = certified_radii(model, x, lengths)
    assert (radii > 0).all()
    # What float32 does to a margin of nothing is not what was proved.
    assert not bool(flips_within(model, x, lengths, radii * (1 - 1e-4)).any())


def test_a_radius_that_is_wrong_is_caught() -> None:
    model = drawn("exprnn", "last")
    x, lengths = batch()
    assert bool(flips_within(model, x, lengths, 100 * certified_radii(model, x, lengths)).any())


def linear_model(decay: float, weight: float, classes: Tensor, readout: str) -> Classifier:
    """``h <- decay h + weight x`` per unit, on positive inputs, read by a head with rows ``classes`` (2, 2)."""
    model = Classifier("indrnn", 2, 2, 2, readout=readout).eval()
    cell = model.rnn.cells[0]
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.copy_(
                torch.full((2,), decay)
                if "hh" in name or "recurrent" in name
                else weight * torch.eye(2)
                if parameter.dim() == 2
                else torch.zeros(2)
            )
        (head,) = model.head.maps
        head.weight.copy_(classes)
        head.bias.zero_()
    return model


@pytest.mark.parametrize(("readout", "weights"), [("last", 0.9 ** np.arange(10)), ("mean", None)])
def test_a_linear_recurrence_against_its_closed_form(readout: str, weights: np.ndarray | None) -> None:
    decay, weight, steps = 0.9, 0.5, 10
    classes = torch.tensor([[1.0, 0.5], [-0.5, 0.25]])
    model = linear_model(decay, weight, classes, readout)
    x = torch.rand(5, steps, 2, generator=torch.Generator().manual_seed(0)) + 0.5
    with torch.no_grad():
        logits = model(x).double().numpy()
    margin = np.abs(logits[:, 0] - logits[:, 1])
    apart = math.hypot(1.5, 0.25)
    if weights is None:
        every = weight * (decay ** np.arange(steps)).sum() / math.sqrt(steps)
        expected = margin / (apart * every)
    else:
        expected = margin / (apart * weight * np.linalg.norm(weights))
    assert certified_radii(model, x) == pytest.approx(expected, rel=1e-5)
    if readout == "last":
        # It is the distance to the boundary itself, which DeepFool finds.
        with differentiable_copy(model) as copied:
            attacked = PerturbedClassifier(copied, x, torch.full((5,), steps))
            change, _ = deepfool(attacked, attacked.mask, norm="l2", steps=1, overshoot=0.0)
        small = change_norms(change, "l2").numpy() < 0.5
        assert change_norms(change, "l2").numpy()[small] == pytest.approx(expected[small], rel=1e-4)


def test_values_count_as_often_as_patches_and_gaps_repeat_them() -> None:
    x = torch.randn(1, 12, 2, generator=torch.Generator().manual_seed(0))
    plain = drawn("exprnn", "last")
    plain.scaling.scale.fill_(1.0)
    gap = x.clone()
    gap[0, 4:7] = torch.nan
    held = gap.clone()
    held[0, 4:7] = gap[0, 3]
    # The same sequence for the layers, of which one value stands for four.
    with torch.no_grad():
        assert torch.equal(plain(gap), plain(held))
    assert certified_radii(plain, gap)[0] == pytest.approx(certified_radii(plain, held)[0] / 2, rel=1e-6)


def test_an_embedding_counts_by_its_norm_and_the_slope_of_gelu() -> None:
    model = drawn("exprnn", "embedding")
    bounds = ClassBounds(model)
    without = copy.deepcopy(model)
    norm = float(np.linalg.norm(model.rnn.embeddings[0].weight.detach().double().numpy(), 2))  # type: ignore[arg-type]
    with torch.no_grad():
        without.rnn.embeddings[0].weight.div_(norm)  # type: ignore[operator,union-attr]
    assert bounds.growth(7) == pytest.approx(norm * ClassBounds(without).growth(7), rel=1e-6)
    last, _ = bounds._cascades[0].gains(7)
    rows = model.head.maps[0].weight.detach().double().numpy()
    apart = np.linalg.norm(rows[0] - rows[1])
    assert bounds.growth(7)[0, 1] == pytest.approx(apart * last * norm * GELU_SLOPE, rel=1e-6)


def test_equal_members_have_no_more_than_the_two_logarithms_of_one() -> None:
    model = drawn("exprnn", "members")
    state = model.state_dict()
    first = {name: value for name, value in state.items() if ".stacks.0." in name or ".maps.0." in name}
    first |= {name: value for name, value in state.items() if ".embeddings.0." in name}
    for name, value in first.items():
        for other in ("1", "2"):
            for part in ("stacks", "maps", "embeddings"):
                if f".{part}.0." in name:
                    state[name.replace(f".{part}.0.", f".{part}.{other}.")] = value
    model.load_state_dict(state)
    alone = ClassBounds(model)
    one = Classifier("exprnn", 2, 4, 8, **{**SHAPES["members"], "members": 1})
    one.load_state_dict({name: value for name, value in state.items() if name in one.state_dict()})
    pairs = ClassBounds(one).growth(5)
    assert alone.growth(5)[0, 1] == pytest.approx(pairs[0].max() + pairs[1].max())
    assert alone.growth(5)[0, 1] >= pairs[0, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scaling": "window", "window": 5}, "model.scaling=standard"),
        ({"cell": "lem", "max_dt": 2.0}, "irregular time"),
        ({"cell": "gru_d"}, "fills in missing values"),
        ({"cell": "lstm"}, "with the cell 'lstm'"),
    ],
)
def test_where_no_radius_is_proved_the_reason_is_said(options: dict[str, Any], words: str) -> None:
    model = Classifier(**{"cell": "lru", "input_size": 2, "num_classes": 3, "hidden_size": 4, **options}).eval()
    with pytest.raises(CertificateError, match=words):
        certified_radii(model, torch.zeros(1, 4, 2))


@pytest.mark.parametrize("cell", sampled(list_cells(), "rnn", "lru", "cfc"))
def test_no_attack_flips_a_label_of_any_cell_within_its_radius(cell: str) -> None:
    model = drawn(cell, "all, patches", seed=5)
    x, lengths = batch(5, samples=24, time=11)
    try:
        radii = certified_radii(model, x, lengths)
    except CertificateError:
        return
    assert not bool(flips_within(model, x, lengths, radii * (1 - 1e-4)).any())
