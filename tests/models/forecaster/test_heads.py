"""The forecaster's heads: linear skip, covariates, recursive head, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stablernn as srn
from models.forecaster.forecasters import CONTEXT, random_values, shake_weights, with_scaling
from stablernn.data.arrays import Samples
from stablernn.nn.models import SequenceModel, build_model

# Linear skip


def test_a_non_negative_forecast_is_cut_off_at_zero_and_no_longer_elsewhere() -> None:
    plain, cut = (srn.Forecaster("rnn", 1, 3, 4, non_negative=is_cut).eval() for is_cut in (False, True))
    cut.load_state_dict(plain.state_dict())
    shake_weights(plain)
    cut.load_state_dict(plain.state_dict())
    x = torch.randn(20, 9, 1)
    (wanted, _), (got, _) = plain.run(x), cut.run(x)
    assert any(bool((values < 0).any()) and bool((values > 0).any()) for values in wanted.values())
    for name, values in wanted.items():
        torch.testing.assert_close(got[name], values.clamp_min(0), rtol=0, atol=0)


def test_a_forecast_falls_no_farther_below_its_window_than_those_of_training_did() -> None:
    """But where the least value is in the last season, so that the series may be falling."""
    model = srn.Forecaster("rnn", 1, 2, 4, **CONTEXT, non_negative=True).eval()
    plain = srn.Forecaster("rnn", 1, 2, 4, **CONTEXT).eval()
    x = np.random.default_rng(0).uniform(1, 9, (999, 7, 1)).astype(np.float32)
    for each in (model, plain):
        each.fit_scaling(list(x))
    shake_weights(plain)
    with torch.no_grad():
        plain.head.maps[0].weight.mul_(9)
    model.load_state_dict({**plain.state_dict(), "lowest_share": torch.zeros(())})
    season = model.scaling.season
    before, latest = (part.min(axis=1, keepdims=True) for part in (x[:, -5:-season], x[:, -season:]))
    steady = np.flatnonzero(before < latest)
    y = 0.5 * before * np.ones((1, 2, 1), dtype=np.float32)
    y[before[:, 0, 0] > latest[:, 0, 0]] = 0
    # In a few windows values fall to a hundredth: as many as 1 % are, with the one that is added.
    y[steady[: len(steady) // 100 - 1]] *= 0.02
    model.fit_lowest_share([Samples(x, np.full(999, 7), y)])
    (wanted, _), (got, _) = plain.run(torch.from_numpy(x)), model.run(torch.from_numpy(x))
    lowest = torch.from_numpy(np.where(before < latest, 0.9 * 0.5 * before, 0))
    assert bool((wanted["mean"] < lowest).any())
    assert bool((wanted["mean"] > lowest).any())
    torch.testing.assert_close(got["mean"], wanted["mean"].maximum(lowest), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["quantiles"], wanted["quantiles"].maximum(lowest[..., None]), rtol=1e-5, atol=1e-5)


def test_heads_of_zeros_say_what_the_skip_says() -> None:
    model = srn.Forecaster(
        "gru", 3, 2, 4, **CONTEXT, target_indices=[2, 0], skip="linear", future_indices=[1], members=2
    )
    with_scaling(model)
    assert model.skip is not None
    with torch.no_grad():
        model.skip.weight.copy_(torch.randn(2, 5))
    x = random_values(4, 11, 3)
    outputs, state = model.run(x, future=random_values(4, 2, 1))
    location, scale = model.scaling.anchor(model.patches.split(state)[0])
    context = model.scaling.context(model.patches.split(state)[0]).numpy()
    weights = model.skip.weight.detach().numpy()
    for place, channel in enumerate((2, 0)):
        change = context[:, :, channel] @ weights.T
        expected = location.numpy()[:, channel, None] + scale.numpy()[:, channel, None] * change
        assert outputs["mean"][:, :, place].detach().numpy() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(outputs["quantiles"], outputs["mean"][..., None].expand(-1, -1, -1, 3))


def test_the_skip_is_a_group_of_parameters_of_its_own() -> None:
    model = srn.Forecaster("exprnn", 1, 2, 4, **CONTEXT, skip="linear")
    groups = model.parameter_groups()
    assert model.skip is not None
    assert [id(parameter) for parameter in groups["skip"]] == [id(model.skip.weight)]
    every = [id(parameter) for group in groups.values() for parameter in group]
    assert sorted(every) == sorted(id(parameter) for parameter in model.parameters())


# What is known beside the series


def covariate_model(**options: Any) -> srn.Forecaster:
    model = srn.Forecaster("gru", 3, 4, 5, future_indices=[2, 1], static_size=2, **options)
    with_scaling(model)
    model.fit_static(np.array([[1.0, 100.0], [3.0, np.nan], [np.nan, 300.0]]))
    shake_weights(model)
    return model


@pytest.mark.parametrize("options", [{}, CONTEXT, {**CONTEXT, "log": True}], ids=["standard", "context", "log"])
def test_what_is_not_known_is_the_mean(options: dict[str, Any]) -> None:
    model = covariate_model(**options)
    x = random_values(3, 8, 3)
    static = torch.tensor([2.0, 200.0], dtype=torch.float64).expand(3, 2)
    future = model.scaling.inverse(model.scaling.mean[[2, 1]]).expand(3, 4, 2)
    means = model(x, static=static, future=future)
    torch.testing.assert_close(model(x), means, rtol=1e-9, atol=0)
    missing = {"static": torch.full_like(static, torch.nan), "future": torch.full_like(future, torch.nan)}
    torch.testing.assert_close(model(x, **missing), means, rtol=1e-9, atol=0)


def test_one_missing_number_leaves_the_others_known() -> None:
    model = covariate_model()
    x, static, future = random_values(2, 8, 3), random_values(2, 2), random_values(2, 4, 2)
    known = model(x, static=static, future=future)
    partly = future.clone()
    partly[:, 2, 1] = torch.nan
    found = model(x, static=static, future=partly)
    assert torch.equal(found[:, [0, 1, 3]], known[:, [0, 1, 3]])
    assert (found[:, 2] != known[:, 2]).all()
    one = static.clone()
    one[:, 0] = torch.nan
    neither = model(x, static=torch.full_like(static, torch.nan), future=future)
    half = model(x, static=one, future=future)
    assert (half != known).all()
    assert (half != neither).all()


def test_what_is_known_counts_in_units_of_its_own() -> None:
    """Covariates in other units, their scaling fitted to each, change nothing."""
    x, static, future = random_values(3, 9, 2), random_values(3, 1), random_values(3, 2, 1)
    found = []
    for factor in (1.0, 1e4):
        torch.manual_seed(0)
        model = srn.Forecaster("gru", 2, 2, 4, future_indices=[1], static_size=1).double()
        units = np.array([1.0, factor])
        model.fit_scaling([np.random.default_rng(0).uniform(20, 60, (60, 2)) * units])
        model.fit_static(np.random.default_rng(1).uniform(20, 60, (9, 1)) * factor)
        found.append(model(x * torch.from_numpy(units), static=static * factor, future=future * factor))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=0)


def test_static_covariates_that_never_differ_or_are_never_known_keep_scale_one() -> None:
    model = srn.Forecaster("gru", 1, 2, 4, static_size=2)
    model.fit_static(np.array([[0.1, np.nan], [0.1, np.nan]]))
    assert model.static_scale.tolist() == [1.0, 1.0]
    assert model.static_mean.tolist() == pytest.approx([0.1, 0.0])


# Recursive head


@pytest.mark.parametrize(
    "options",
    [{}, {"scaling": "window", "window": 6}, {**CONTEXT, "skip": "linear"}, {"patch_size": 3, "patch_stride": 1}],
    ids=["standard", "window", "context-skip", "patches"],
)
def test_a_recursive_head_is_its_forecasts_fed_by_hand(options: dict[str, Any]) -> None:
    model = srn.Forecaster("gru", 3, 4, 5, target_indices=[2, 0], future_indices=[1], head="recursive", **options)
    with_scaling(model)
    shake_weights(model)
    x, future = random_values(3, 9, 3), random_values(3, 4, 1)
    future[0, 1] = torch.nan
    outputs, _ = model.run(x, future=future)
    assert outputs["mean"].shape == (3, 4, 2)
    assert outputs["quantiles"].shape == (3, 4, 2, 3)
    history = x
    for step in range(4):
        mean, quantiles = model.emit(model.final_state(history), future=future[:, step : step + 1])
        torch.testing.assert_close(outputs["mean"][:, step], mean[:, 0], rtol=1e-9, atol=0)
        torch.testing.assert_close(outputs["quantiles"][:, step], quantiles[:, 0], rtol=1e-9, atol=0)
        following = torch.stack([mean[:, 0, 1], future[:, step, 0], mean[:, 0, 0]], dim=1)
        history = torch.cat([history, following[:, None]], dim=1)


@pytest.mark.parametrize("patch", [{}, {"patch_size": 3, "patch_stride": 1}], ids=["samples", "patches"])
def test_steps_ahead_of_a_recursive_head_are_regular_ones(patch: dict[str, Any]) -> None:
    model = srn.Forecaster("cfc", 1, 3, 5, head="recursive", max_dt=4.0, **patch)
    with_scaling(model)
    shake_weights(model)
    x, dt = random_values(2, 6, 1), torch.rand(2, 6, dtype=torch.float64) * 4
    outputs, _ = model.run(x, dt=dt)
    one = torch.ones(2, 1, dtype=torch.float64)
    for step in range(3):
        mean = model.emit(model.final_state(x, dt=dt))[0]
        torch.testing.assert_close(outputs["mean"][:, step], mean[:, 0], rtol=1e-9, atol=0)
        x, dt = torch.cat([x, mean], dim=1), torch.cat([dt, one], dim=1)


# Calibration


def test_offsets_of_a_direct_head_are_in_units_of_the_scaling_and_quantiles_stay_sorted() -> None:
    model = srn.Forecaster("gru", 2, 3, 4, **CONTEXT, target_indices=[1], quantiles=(0.1, 0.5, 0.9))
    with_scaling(model)
    shake_weights(model)
    x = random_values(4, 9, 2)
    before, state = model.run(x)
    scale = model.scaling.anchor(model.patches.split(state)[0])[1][:, None, [1], None]
    offsets = torch.randn(3, 1, 3, dtype=torch.float64) * 3
    model.offsets.copy_(offsets)
    after, _ = model.run(x)
    assert torch.equal(after["mean"], before["mean"])
    moved = before["quantiles"] + scale * offsets
    assert (moved.diff(dim=-1) < 0).any()
    torch.testing.assert_close(after["quantiles"], moved.sort(dim=-1).values, rtol=1e-9, atol=0)


def test_an_offset_belongs_to_a_rank_and_not_to_a_crossing_answer() -> None:
    model = srn.Forecaster("gru", 1, 1, 4, quantiles=(0.1, 0.9))
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
        # The answer for the lower level lies above the one for the upper.
        next(layer for layer in model.head.modules() if isinstance(layer, torch.nn.Linear)).bias[1:] = torch.tensor(
            [5.0, -5.0]
        )
    model.offsets.copy_(torch.tensor([[[-1.0, 2.0]]]))
    assert model.run(torch.zeros(1, 3, 1))[0]["quantiles"].flatten().tolist() == [-6.0, 7.0]


def test_offsets_of_a_recursive_head_are_in_raw_units() -> None:
    model = srn.Forecaster("gru", 1, 3, 4, head="recursive", quantiles=(0.1, 0.9))
    with_scaling(model)
    shake_weights(model)
    x = random_values(4, 9, 1)
    before, _ = model.run(x)
    offsets = torch.tensor([[[-1.0, 2.0]], [[90.0, -90.0]], [[0.0, 0.5]]], dtype=torch.float64)
    model.offsets.copy_(offsets)
    after, _ = model.run(x)
    assert torch.equal(after["mean"], before["mean"])
    torch.testing.assert_close(after["quantiles"], (before["quantiles"] + offsets).sort(dim=-1).values)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_shrinking_the_mean_keeps_the_distance_of_the_quantiles(share: float) -> None:
    options: dict[str, Any] = {**CONTEXT, "skip": "linear", "members": 2}
    model = srn.Forecaster("gru", 3, 3, 4, target_indices=[2, 0], future_indices=[1], static_size=1, **options)
    with_scaling(model)
    shake_weights(model)
    x, known = random_values(4, 9, 3), {"static": random_values(4, 1), "future": random_values(4, 3, 1)}
    state = model.final_state(x)
    skip = model.skip_change(state)[:, None]
    before = model.changes(state, **known)[0]
    model.shrink_mean(share)
    after = model.changes(state, **known)[0]
    torch.testing.assert_close(after[..., 0] - skip, share * (before[..., 0] - skip), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after[..., 1:] - after[..., :1], before[..., 1:] - before[..., :1], rtol=1e-9, atol=1e-9)


BUILT: dict[str, Any] = {
    "forecaster": lambda: srn.Forecaster(
        "lstm",
        3,
        4,
        5,
        target_indices=[2, 0],
        quantiles=(0.2, 0.8),
        skip="linear",
        future_indices=[1],
        static_size=2,
        head_dropout=0.2,
        num_layers=2,
        dropout=0.1,
        readout="all",
        scaling="context",
        window=6,
        season=3,
        log=True,
        mask_channel=True,
        patch_size=4,
        patch_stride=2,
        patch_embedding=3,
        members=2,
    ),
    "recursive": lambda: srn.Forecaster("cfc", 1, 4, 5, head="recursive", max_dt=3.0, quantiles=()),
    "classifier": lambda: srn.Classifier(
        "gru",
        2,
        3,
        5,
        head_dropout=0.3,
        members=3,
        readout="all",
        patch_size=3,
        patch_embedding=4,
        conv_layers=1,
        scaling="window",
        window=9,
    ),
}


@pytest.mark.parametrize("kind", BUILT)
def test_a_model_is_built_again_from_its_config(kind: str) -> None:
    model: SequenceModel = BUILT[kind]()
    shake_weights(model)
    rebuilt = build_model(model.config())
    assert rebuilt.config() == model.config()
    rebuilt.load_state_dict(model.state_dict())
    x = torch.rand(2, 7, model.input_size) + 1
    first, second = (made.eval().run(x) for made in (model, rebuilt))
    for one, other in zip((*first[0].values(), *first[1]), (*second[0].values(), *second[1]), strict=True):
        assert torch.equal(one, other)
