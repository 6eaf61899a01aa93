"""Options of a forecaster: rebuilt from its config, refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stablernn as srn
from models.forecaster.forecasters import shake_weights
from stablernn.errors import ConfigError
from stablernn.nn.models import SequenceModel, build_model

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
    shake_weights(model)
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
