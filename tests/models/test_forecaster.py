"""The forecaster's parts: linear skip, covariates, recursive head, calibration, members, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.errors import ConfigError
from stablernn.nn.models import SequenceModel, build_model
from stablernn.nn.preprocessing import ContextScaling

CONTEXT: dict[str, Any] = {"scaling": "context", "window": 5, "season": 2}


def fitted(model: srn.Forecaster, *, low: float = 20, high: float = 60) -> srn.Forecaster:
    model.fit_scaling([np.random.default_rng(0).uniform(low, high, (60, model.input_size))])
    return model.double().eval()


def values(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64) * 40 + 20


def shaken(model: SequenceModel) -> None:
    """Weights that are nowhere zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


# Linear skip


@pytest.mark.parametrize("log", [False, True], ids=["linear", "log"])
def test_the_linear_skip_is_the_ridge_regression_on_the_remembered_values(log: bool) -> None:
    model = srn.Forecaster("gru", 2, 3, 4, **CONTEXT, log=log, target_indices=[1, 0], skip="linear", patch_size=2)
    model.fit_scaling([np.random.default_rng(0).uniform(20, 60, (60, 2))])
    generator = np.random.default_rng(1)
    x, y = generator.uniform(20, 60, (30, 9, 2)), generator.uniform(20, 60, (30, 3, 2))
    y[4, 1, 0] = np.nan
    x = x.astype(np.float32)
    model.fit_skip([(x[:20], y[:20]), (x[20:], y[20:])], 0.1)

    assert isinstance(model.scaling, ContextScaling)
    last = x[:, 4:].astype(np.float64)
    last, truth = (np.log(last), np.log(y)) if log else (last, y)
    unit = model.scaling.scale.double().numpy()
    mean = last.mean(axis=1)
    scale = np.abs(last[:, 2:] - last[:, :-2]).mean(axis=1) + 0.05 * unit
    rows, answers = [], []
    for window in range(30):
        for place, channel in enumerate((1, 0)):
            answer = (truth[window, :, place] - mean[window, channel]) / scale[window, channel]
            if not np.isnan(answer).any():
                rows.append((last[window, :, channel] - mean[window, channel]) / scale[window, channel])
                answers.append(answer)
    assert len(rows) == 59
    features, wanted = np.stack(rows), np.stack(answers)
    gram = features.T @ features
    expected = np.linalg.solve(gram + 0.1 * np.trace(gram) / 5 * np.eye(5), features.T @ wanted)
    assert model.skip is not None
    weights = model.skip.weight.detach().numpy().T
    assert weights == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_heads_of_zeros_say_what_the_skip_says() -> None:
    model = srn.Forecaster(
        "gru", 3, 2, 4, **CONTEXT, target_indices=[2, 0], skip="linear", future_indices=[1], members=2
    )
    fitted(model)
    assert model.skip is not None
    with torch.no_grad():
        model.skip.weight.copy_(torch.randn(2, 5))
    x = values(4, 11, 3)
    outputs, state = model.run(x, future=values(4, 2, 1))
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
    fitted(model)
    model.fit_static(np.array([[1.0, 100.0], [3.0, np.nan], [np.nan, 300.0]]))
    shaken(model)
    return model


@pytest.mark.parametrize("options", [{}, CONTEXT, {**CONTEXT, "log": True}], ids=["standard", "context", "log"])
def test_what_is_not_known_is_the_mean(options: dict[str, Any]) -> None:
    model = covariate_model(**options)
    x = values(3, 8, 3)
    static = torch.tensor([2.0, 200.0], dtype=torch.float64).expand(3, 2)
    future = model.scaling.inverse(model.scaling.mean[[2, 1]]).expand(3, 4, 2)
    means = model(x, static=static, future=future)
    torch.testing.assert_close(model(x), means, rtol=1e-9, atol=0)
    missing = {"static": torch.full_like(static, torch.nan), "future": torch.full_like(future, torch.nan)}
    torch.testing.assert_close(model(x, **missing), means, rtol=1e-9, atol=0)


def test_one_missing_number_leaves_the_others_known() -> None:
    model = covariate_model()
    x, static, future = values(2, 8, 3), values(2, 2), values(2, 4, 2)
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
    x, static, future = values(3, 9, 2), values(3, 1), values(3, 2, 1)
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
    fitted(model)
    shaken(model)
    x, future = values(3, 9, 3), values(3, 4, 1)
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
    fitted(model)
    shaken(model)
    x, dt = values(2, 6, 1), torch.rand(2, 6, dtype=torch.float64) * 4
    outputs, _ = model.run(x, dt=dt)
    one = torch.ones(2, 1, dtype=torch.float64)
    for step in range(3):
        mean = model.emit(model.final_state(x, dt=dt))[0]
        torch.testing.assert_close(outputs["mean"][:, step], mean[:, 0], rtol=1e-9, atol=0)
        x, dt = torch.cat([x, mean], dim=1), torch.cat([dt, one], dim=1)


def test_a_recursive_head_is_trained_through_its_own_forecasts() -> None:
    model = srn.Forecaster("gru", 1, 3, 4, head="recursive")
    model(torch.randn(2, 6, 1))[:, 2].sum().backward()
    assert all(parameter.grad is not None for parameter in model.rnn.parameters())


# Calibration


def test_offsets_of_a_direct_head_are_in_units_of_the_scaling_and_quantiles_stay_sorted() -> None:
    model = srn.Forecaster("gru", 2, 3, 4, **CONTEXT, target_indices=[1], quantiles=(0.1, 0.5, 0.9))
    fitted(model)
    shaken(model)
    x = values(4, 9, 2)
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
    fitted(model)
    shaken(model)
    x = values(4, 9, 1)
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
    fitted(model)
    shaken(model)
    x, known = values(4, 9, 3), {"static": values(4, 1), "future": values(4, 3, 1)}
    state = model.final_state(x)
    skip = model.skip_change(state)[:, None]
    before = model.changes(state, **known)[0]
    model.shrink_mean(share)
    after = model.changes(state, **known)[0]
    torch.testing.assert_close(after[..., 0] - skip, share * (before[..., 0] - skip), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after[..., 1:] - after[..., :1], before[..., 1:] - before[..., :1], rtol=1e-9, atol=1e-9)


# Members


def test_a_forecast_is_the_mean_of_its_members() -> None:
    model = srn.Forecaster("gru", 2, 3, 4, members=3, readout="all", static_size=1, patch_size=2)
    fitted(model)
    shaken(model)
    x, static = values(5, 9, 2), values(5, 1)
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


def test_training_members_at_once_is_training_each_alone() -> None:
    model = srn.Classifier("gru", 1, 3, 4, members=2)
    model.member_logits(model.final_state(torch.randn(4, 7, 1)))[:, 1].square().sum().backward()
    first, second = model.member_parameters()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in first)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in second)


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
    shaken(model)
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


# Config and refusals

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
        "gru", 2, 3, 5, head_dropout=0.3, members=3, readout="all", patch_size=3, scaling="window", window=9
    ),
}


@pytest.mark.parametrize("kind", BUILT)
def test_a_model_is_built_again_from_its_config(kind: str) -> None:
    model: SequenceModel = BUILT[kind]()
    shaken(model)
    rebuilt = build_model(model.config())
    assert rebuilt.config() == model.config()
    rebuilt.load_state_dict(model.state_dict())
    x = torch.rand(2, 7, model.input_size) + 1
    first, second = (made.eval().run(x) for made in (model, rebuilt))
    for one, other in zip((*first[0].values(), *first[1]), (*second[0].values(), *second[1]), strict=True):
        assert torch.equal(one, other)


X = torch.zeros(3, 8, 3)
REFUSED: dict[str, tuple[Any, str]] = {
    "future-range": (
        lambda: srn.Forecaster("rnn", 2, 2, future_indices=[2]),
        "future_indices must be different channels from 0 to 1, got [2].",
    ),
    "no-target": (
        lambda: srn.Forecaster("rnn", 2, 2, target_indices=[]),
        "target_indices must be different channels from 0 to 1, got [].",
    ),
    "both": (
        lambda: srn.Forecaster("rnn", 3, 2, target_indices=[0, 2], future_indices=[2, 1]),
        "A channel is forecast or known in the future, not both; got [2].",
    ),
    "quantile-levels": (
        lambda: srn.Forecaster("rnn", 1, 2, quantiles=(0.5, 1.0)),
        "quantiles must increase and lie between 0 and 1, got [0.5, 1.0].",
    ),
    "head": (
        lambda: srn.Forecaster("rnn", 1, 2, head="recursve"),
        "Unknown head 'recursve'. Did you mean 'recursive'? It is direct or recursive.",
    ),
    "skip": (
        lambda: srn.Forecaster("rnn", 1, 2, skip="linea"),
        "Unknown skip 'linea'. Did you mean 'linear'? It is none or linear.",
    ),
    "anchor": (
        lambda: srn.Forecaster("rnn", 1, 2, anchor="men"),
        "Unknown anchor 'men'. Did you mean 'mean'? It is last or mean.",
    ),
    "anchor-scaling": (
        lambda: srn.Forecaster("rnn", 1, 2, anchor="mean", scaling="window", window=5),
        "anchor='mean' starts from the mean of the training data, which only the scalings 'standard' and 'none' use, "
        "got scaling='window'.",
    ),
    "recursive-channels": (
        lambda: srn.Forecaster("rnn", 3, 2, target_indices=[0], future_indices=[2], head="recursive"),
        "A recursive head needs every channel to be a target or known in the future, so that its forecasts can stand "
        "for values; channel 1 is neither. Leave it out, or take head='direct'.",
    ),
    "recursive-patches": (
        lambda: srn.Forecaster("rnn", 1, 2, head="recursive", patch_size=4),
        "A recursive head forecasts one sample at a time, got patch_stride=4; take patch_stride=1, or head='direct'.",
    ),
    "skip-scaling": (
        lambda: srn.Forecaster("rnn", 1, 2, skip="linear"),
        "skip='linear' reads the values that the scaling 'context' remembers, got scaling='standard'.",
    ),
    "static-size": (lambda: srn.Forecaster("rnn", 1, 2, static_size=-1), "static_size must be 0 or more, got -1."),
    "head-dropout": (
        lambda: srn.Forecaster("rnn", 1, 2, head_dropout=1.5),
        "head_dropout must be from 0 to 1, got 1.5.",
    ),
    "members": (lambda: srn.Classifier("rnn", 1, 2, members=0), "members must be 1 or more, got 0."),
    "embedding": (
        lambda: srn.Classifier("rnn", 1, 2, patch_embedding=-1),
        "patch_embedding must be 0 or more, got -1.",
    ),
    "scaling": (
        lambda: srn.Classifier("rnn", 1, 2, scaling="contxt"),
        "Unknown scaling 'contxt'. Did you mean 'context'? It is standard, none, window, context.",
    ),
    "regular-steps": (
        lambda: srn.Forecaster("cfc", 3, 2)(X, dt=torch.ones(3, 8)),
        "The model was built for regular steps, got dt; give max_dt when it is built.",
    ),
    "unknown-input": (
        lambda: srn.Forecaster("rnn", 3, 2, static_size=1)(X, statc=torch.zeros(3, 1)),
        "Unknown input 'statc'. Did you mean 'static'? Besides the series the model takes static.",
    ),
    "no-such-input": (
        lambda: srn.Classifier("rnn", 3, 2).run(X, future=torch.zeros(3, 2, 1)),
        "Unknown input 'future'. Besides the series the model takes nothing.",
    ),
    "static-shape": (
        lambda: srn.Forecaster("rnn", 3, 2, static_size=2)(X, static=torch.zeros(3, 1)),
        "static has shape (3, 1), the model expects (3, 2).",
    ),
    "future-shape": (
        lambda: srn.Forecaster("rnn", 3, 4, future_indices=[1])(X, future=torch.zeros(3, 2, 1)),
        "future has shape (3, 2, 1), the model expects (3, 4, 1).",
    ),
    "recursive-future-shape": (
        lambda: srn.Forecaster("rnn", 2, 4, future_indices=[1], head="recursive")(
            X[..., :2], future=torch.zeros(3, 1, 1)
        ),
        "future has shape (3, 1, 1), the model expects (3, 4, 1).",
    ),
}


@pytest.mark.parametrize("option", REFUSED)
def test_a_wrong_option_is_refused_with_a_sentence(option: str) -> None:
    make, sentence = REFUSED[option]
    with pytest.raises((ValueError, ConfigError)) as error:
        make()
    assert str(error.value) == sentence
