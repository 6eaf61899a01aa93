"""What models, layers and scalings refuse: the class of the error, and the option or value that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stablernn as srn
from stablernn.errors import ConfigError, DataError
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.models import SequencePredictor, build_model
from stablernn.nn.preprocessing import ContextScaling, Scaling, create_scaling

X, META = torch.zeros(3, 8, 3), torch.zeros(2, 5, 3, device="meta")
CONVOLVED: dict[str, Any] = {"patch_size": 8, "conv_layers": 2, "patch_embedding": 4}


def classifier(x: Any = None, dt: Any = None, **options: Any) -> object:
    model = srn.Classifier("cfc" if "max_dt" in options else "rnn", 1, options.pop("classes", 2), **options)
    return model if x is None else model(x, dt=dt)


def forecaster(features: int = 1, horizon: int = 2, **options: Any) -> Any:
    return srn.Forecaster("rnn", features, horizon, **options)


def predictor(inputs: int = 2, outputs: int = 2, x: Any = None, **options: Any) -> object:
    model = SequencePredictor("gru", inputs, outputs, **options)
    return model if x is None else model(x)


def scaling(kind: str = "context", **options: Any) -> object:
    return create_scaling(kind, 1, **{"mask_channel": False, "window": 6, **options})


TIMED: dict[str, Any] = {"max_dt": 4.0, "patch_size": 2}
Case = tuple[type[Exception], Callable[[], object], str]
REFUSED: dict[str, Case] = {
    "readout": (ConfigError, lambda: classifier(readout="men"), "'men'. Did you mean 'mean'"),
    "features": (ValueError, lambda: classifier(torch.zeros(2, 40, 5)), r"\(2, 40, 5\).*input_size=1"),
    "quantiles": (ValueError, lambda: forecaster(quantiles=(0.9, 0.1)), r"quantiles .* got \[0.9, 0.1\]"),
    "levels": (ValueError, lambda: forecaster(quantiles=(0.5, 1.0)), r"quantiles .* got \[0.5, 1.0\]"),
    "targets": (ValueError, lambda: forecaster(2, target_indices=[2]), r"target_indices .* got \[2\]"),
    "a target twice": (ValueError, lambda: forecaster(2, target_indices=[1, 1]), r"got \[1, 1\]"),
    "no target": (ValueError, lambda: forecaster(2, target_indices=[]), r"target_indices .* got \[\]"),
    "future": (ValueError, lambda: forecaster(2, future_indices=[2]), r"future_indices .* got \[2\]"),
    "both": (
        (ConfigError),
        lambda: forecaster(3, target_indices=[0, 2], future_indices=[2, 1]),
        r"not both; got \[2\]",
    ),
    "numpy": (ValueError, lambda: classifier(np.zeros((1, 4, 1), np.float32)), "got ndarray"),
    "float64": (ValueError, lambda: classifier(torch.zeros(1, 4, 1).double()), "torch.float64, .* torch.float32"),
    "a device": (ValueError, lambda: srn.Classifier("gru", 3, 2)(META), "input is on meta, .* on cpu"),
    "a layer's device": (ValueError, lambda: srn.StableRNN("gru", 3, 4)(META), "input is on meta, .* on cpu"),
    "parameters' device": (ValueError, lambda: srn.StableRNN("lem", 3, 4).to("meta")(X), "on cpu, .* on meta"),
    "a state's device": (
        ValueError,
        lambda: srn.StableRNN("lstm", 3, 4)(X, (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4, device="meta"))),
        "state is on meta",
    ),
    "classes": (ValueError, lambda: classifier(classes=1), "num_classes .* got 1"),
    "horizon": (ValueError, lambda: forecaster(horizon=0), "horizon .* got 0"),
    "task": (ConfigError, lambda: build_model({"task": "clasify"}), "'clasify'. Did you mean 'classify'"),
    "head": (ConfigError, lambda: forecaster(head="recursve"), "Did you mean 'recursive'"),
    "skip": (ConfigError, lambda: forecaster(skip="linea"), "Did you mean 'linear'"),
    "skip and scaling": (ConfigError, lambda: forecaster(skip="linear"), "got scaling='standard'"),
    "anchor": (ConfigError, lambda: forecaster(anchor="men"), "Did you mean 'mean'"),
    "anchor and scaling": (
        ConfigError,
        lambda: forecaster(anchor="mean", scaling="window", window=5),
        "got scaling='window'",
    ),
    "recursive channels": (
        ConfigError,
        lambda: forecaster(3, target_indices=[0], future_indices=[2], head="recursive"),
        "channel 1 is neither",
    ),
    "recursive cut at zero": (
        ConfigError,
        lambda: forecaster(head="recursive", non_negative=True),
        "non_negative=True goes with head='direct'",
    ),
    "recursive patches": (ConfigError, lambda: forecaster(head="recursive", patch_size=4), "got patch_stride=4"),
    "static size": (ValueError, lambda: forecaster(static_size=-1), "static_size .* got -1"),
    "head dropout": (ValueError, lambda: forecaster(head_dropout=1.5), "head_dropout .* got 1.5"),
    "members": (ValueError, lambda: classifier(members=0), "members .* got 0"),
    "embedding": (ValueError, lambda: classifier(patch_embedding=-1), "patch_embedding .* got -1"),
    "an unknown input": (
        ValueError,
        lambda: forecaster(3, static_size=1)(X, statc=torch.zeros(3, 1)),
        "Did you mean 'static'",
    ),
    "no such input": (
        ValueError,
        lambda: srn.Classifier("rnn", 3, 2).run(X, future=torch.zeros(3, 2, 1)),
        "'future'.* takes nothing",
    ),
    "static shape": (ValueError, lambda: forecaster(3, static_size=2)(X, static=torch.zeros(3, 1)), r"\(3, 2\)"),
    "future shape": (
        ValueError,
        lambda: forecaster(3, 4, future_indices=[1])(X, future=torch.zeros(3, 2, 1)),
        r"\(3, 2, 1\), .* \(3, 4, 1\)",
    ),
    "recursive future shape": (
        ValueError,
        lambda: forecaster(2, 4, future_indices=[1], head="recursive")(X[..., :2], future=torch.zeros(3, 1, 1)),
        r"\(3, 1, 1\), .* \(3, 4, 1\)",
    ),
    "an empty patch": (ConfigError, lambda: classifier(patch_size=0), "patch_size=0"),
    "a skipped sample": (ConfigError, lambda: classifier(patch_size=4, patch_stride=5), "patch_stride=5"),
    "a patch that stays": (ConfigError, lambda: classifier(patch_size=4, patch_stride=0), "patch_stride=0"),
    "times of patches": (
        ValueError,
        lambda: classifier(torch.zeros(1, 6, 1), torch.ones(1, 3), **TIMED),
        r"dt has shape \(1, 3\), .* \(1, 6\)",
    ),
    "time backwards": (
        ValueError,
        lambda: classifier(torch.zeros(1, 2, 1), torch.tensor([[3.0, -1.0]]), **TIMED),
        "dt must be",
    ),
    "a time too long": (
        ConfigError,
        lambda: classifier(torch.zeros(1, 2, 1), torch.tensor([[5.0, 1.0]]), **TIMED),
        "max_dt=4, .* got 5",
    ),
    "convolutions beyond a patch": (
        ConfigError,
        lambda: classifier(**CONVOLVED | {"conv_layers": 3}),
        "conv_layers=3 .* patch_size=8; set patch_size to 15",
    ),
    "convolutions without embedding": (
        ConfigError,
        lambda: classifier(**CONVOLVED | {"patch_embedding": 0}),
        "patch_embedding=0",
    ),
    "no channels": (ConfigError, lambda: classifier(**CONVOLVED | {"conv_channels": 0}), "got 2 and 0"),
    "fewer than no convolutions": (ConfigError, lambda: classifier(**CONVOLVED | {"conv_layers": -1}), "got -1 and"),
    "a readout of every step": (ConfigError, lambda: predictor(readout="mean"), "readout='last', got 'mean'"),
    "a scaling of every step": (ConfigError, lambda: predictor(scaling="window", window=4), "got 'window'"),
    "patches of every step": (ConfigError, lambda: predictor(patch_size=4), "patch_size=1, got 4"),
    "members of every step": (ConfigError, lambda: predictor(members=3), "real outputs, got categorical"),
    "output": (ConfigError, lambda: predictor(output="categoric"), "Did you mean 'categorical'"),
    "a mask of tokens": (ConfigError, lambda: predictor(tokens=True, mask_channel=True), "mask_channel .* tokens"),
    "an embedding of numbers": (ConfigError, lambda: predictor(embedding_size=8), "got embedding_size=8"),
    "a change of other channels": (
        ConfigError,
        lambda: predictor(2, 3, output="real", predict_change=True),
        "predict_change .* as many as inputs",
    ),
    "one class of tokens": (ValueError, lambda: predictor(2, 1), "num_outputs .* got 1"),
    "no vocabulary": (ValueError, lambda: predictor(0, tokens=True), "vocabulary of 1 or more .* got 0 and 0"),
    "a token too large": (ValueError, lambda: predictor(5, x=torch.tensor([[0, 5]]), tokens=True), "0 to 4, got 5"),
    "a negative token": (ValueError, lambda: predictor(5, x=torch.tensor([[0, -1]]), tokens=True), "0 to 4, got -1"),
    "tokens of features": (
        ValueError,
        lambda: predictor(5, x=torch.zeros(1, 2, 5, dtype=torch.int64), tokens=True),
        r"\(1, 2, 5\)",
    ),
    "tokens of numbers": (ValueError, lambda: predictor(5, x=torch.zeros(1, 2), tokens=True), "got torch.float32"),
    "an unknown scaling": (ConfigError, lambda: scaling("contxt"), "'contxt'. Did you mean 'context'"),
    "no window": (ConfigError, lambda: scaling(window=None), "'context' needs a context length"),
    "no running window": (ConfigError, lambda: scaling("window", window=None), "'window' needs a context length"),
    "a window of one": (ConfigError, lambda: scaling(window=1), "2 steps or more, got 1"),
    "a running window of one": (ConfigError, lambda: scaling("window", window=1), "2 steps or more, got 1"),
    "a window elsewhere": (ConfigError, lambda: scaling("standard"), "window of 6 steps .* got 'standard'"),
    "a long season": (ConfigError, lambda: scaling(season=6), "season .* from 1 to 5, .* got 6"),
    "no season": (ConfigError, lambda: scaling(season=0), "season .* got 0"),
    "a season elsewhere": (ConfigError, lambda: scaling("window", season=2), "got 'window'"),
    "logarithms elsewhere": (ConfigError, lambda: scaling("standard", window=None, log=True), "got 'standard'"),
    "logarithms of zero": (
        DataError,
        lambda: ContextScaling(2, window=4, log=True).fit([np.array([[3.0, 1.0], [2.0, 0.0]])]),
        "Feature 1 goes down to 0",
    ),
    "nothing observed": (DataError, lambda: Scaling(2).fit([np.array([[1.0, np.nan]])]), "Feature 1 has no observed"),
    "no series": (DataError, lambda: ContextScaling(2, window=4).fit([]), "Feature 0 has no observed"),
    "one resampled step": (ConfigError, lambda: classifier(resample_steps=1), "resample_steps is 2 or more"),
    "a resampled window": (
        ConfigError,
        lambda: classifier(resample_steps=10, scaling="window", window=5),
        "scaling 'window'",
    ),
    "resampled times": (ConfigError, lambda: classifier(resample_steps=10, max_dt=2.0), "max_dt or resample_steps"),
    "a resampled forecast": (ConfigError, lambda: forecaster(resample_steps=10), "resample_steps is for classifiers"),
    "recomputing": (ValueError, lambda: srn.StableRNN("rnn", 1, 4, recompute_every=0), "recompute_every .* got 0"),
    "recomputing members": (
        ValueError,
        lambda: Ensemble(1, "rnn", 1, 4, 1).recompute_every(-1),
        "recompute_every .* got -1",
    ),
}


@pytest.mark.parametrize(("error", "call", "message"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused(error: type[Exception], call: Callable[[], object], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
