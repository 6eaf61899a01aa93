"""Small models as the files that the server engine ``native`` opens, without the checks of a whole export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import stablernn as srn
from stablernn.export import model_signature
from stablernn.export.family_description import add_description
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import export_parts
from stablernn.nn.models import SequenceModel, SequencePredictor

Arrays = dict[str, np.ndarray]

MODELS: dict[str, Callable[[], SequenceModel]] = {
    "one unit": lambda: srn.Classifier("rnn", 1, 2, 1),
    "residual": lambda: srn.Classifier("antisymmetric", 2, 3, 37, num_layers=3, readout="last"),
    "with A, mean": lambda: srn.Classifier("lipschitz", 2, 3, 33, num_layers=2, readout="mean", mask_channel=True),
    "two-stage, max": lambda: srn.Classifier("lipschitz_rk2", 1, 3, 17, readout="max"),
    "shared gate, all": lambda: srn.Classifier("antisymmetric_g", 3, 11, 19, num_layers=2, readout="all"),
    "modrelu, patches": lambda: srn.Classifier("exprnn", 2, 3, 40, patch_size=3, patch_stride=3, mask_channel=True),
    "embedding": lambda: srn.Classifier("rnn", 2, 3, 18, patch_size=4, patch_embedding=21, num_layers=2),
    "overlapping patches": lambda: srn.Classifier("lipschitz", 2, 3, 18, patch_size=5, patch_stride=2, readout="all"),
    "as by default": lambda: srn.Classifier(
        "antisymmetric", 1, 10, 24, patch_size=16, patch_stride=4, patch_embedding=12, mask_channel=True, readout="all"
    ),
    "relu": lambda: srn.Classifier("identity_rnn", 2, 3, 9, num_layers=2, scaling="none"),
    "wide": lambda: srn.Classifier("antisymmetric", 1, 10, 128),
    "forecast": lambda: srn.Forecaster("lipschitz", 3, 4, 21, target_indices=(0, 2), patch_size=4, patch_stride=4),
    "covariates": lambda: srn.Forecaster("antisymmetric", 3, 4, 8, future_indices=[1], static_size=2, readout="all"),
    "context": lambda: srn.Forecaster(
        "lipschitz",
        3,
        5,
        21,
        target_indices=(0, 2),
        scaling="context",
        window=14,
        season=4,
        skip="linear",
        mask_channel=True,
        patch_size=3,
        patch_stride=3,
    ),
    "context, logarithms": lambda: srn.Forecaster(
        "antisymmetric",
        2,
        4,
        9,
        target_indices=(0, 1),
        scaling="context",
        window=10,
        season=3,
        log=True,
        head="recursive",
        skip="linear",
        readout="all",
    ),
    "context, overlapping patches": lambda: srn.Forecaster(
        "rnn", 2, 3, 18, scaling="context", window=9, season=8, patch_size=5, patch_stride=2, patch_embedding=7
    ),
    "context, patches longer than the window": lambda: srn.Forecaster(
        "antisymmetric_g",
        2,
        3,
        18,
        scaling="context",
        window=3,
        season=2,
        patch_size=4,
        patch_stride=4,
        mask_channel=True,
    ),
    "members": lambda: srn.Classifier("lipschitz", 2, 3, 17, members=3, num_layers=2, readout="all"),
    "members with embeddings": lambda: srn.Forecaster(
        "lipschitz_rk2",
        2,
        3,
        12,
        members=2,
        scaling="context",
        window=14,
        season=7,
        skip="linear",
        patch_size=4,
        patch_embedding=5,
        readout="mean",
    ),
    "logits of every step": lambda: srn.SequencePredictor("lipschitz", 2, 5, 23, num_layers=2),
    "numbers of every step": lambda: srn.SequencePredictor("antisymmetric", 2, 3, 12, output="real"),
}
"""One model or more for everything that the engine runs."""


def as_trained(model: SequenceModel) -> SequenceModel:
    """Return a model with other weights than a new one, and a fitted scaling."""
    torch.manual_seed(0)
    noise = np.random.default_rng(0)
    series = noise.normal(3, 2, (80, model.input_size))
    model.fit_scaling([np.exp(series / 2) if model.log else series])
    if isinstance(model, SequencePredictor) and model.output == "real":
        model.fit_targets([noise.normal(3, 2, (80, model.num_outputs))])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
    model.mark_fitted()
    return model.eval().requires_grad_(False)


def write_version(model: SequenceModel, folder: Path) -> Path:
    """Write the files of a version that the engine reads."""
    parts = export_parts(model)
    step = step_graph(parts)
    add_description(step, model)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step.onnx").write_bytes(step.SerializeToString())
    (folder / "sequence.onnx").write_bytes(sequence_graph(parts).SerializeToString())
    (folder / "config.json").write_text(json.dumps({"signature": model_signature(model)}))
    return folder


def change_description(folder: Path, change: Any) -> None:
    """Write another description into ``step.onnx``, or none.

    Args:
        folder: From :func:`write_version`.
        change: A function that changes the document, or returns a text to be written in place of it.
    """
    graph = onnx.load_from_string((folder / "step.onnx").read_bytes())
    document = json.loads(graph.metadata_props[0].value)
    text = change(document)
    graph.metadata_props[0].value = text if isinstance(text, str) else json.dumps(document)
    (folder / "step.onnx").write_bytes(graph.SerializeToString())


def changed_copy(folder: Path, target: Path, change: Any) -> Path:
    """Copy the files of a version and change the description of the copy, as :func:`change_description` does."""
    target.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    change_description(target, change)
    return target


def sequence_feeds(signature: dict[str, Any], batch: int, time: int, seed: int = 0) -> Arrays:
    """Return random inputs of whole sequences with gaps, padding and states."""
    random = np.random.default_rng(seed)
    feeds: Arrays = {}
    for tensor in signature["sequence"]["inputs"]:
        shape = [{"batch": batch, "time": time}.get(size, size) for size in tensor["shape"]]
        feeds[tensor["name"]] = random.normal(size=shape).astype(np.float32)
    feeds["x"] = 3 + 2 * feeds["x"]
    feeds["x"][random.uniform(size=feeds["x"].shape) < 0.1] = np.nan
    feeds["lengths"] = random.integers(1, time + 1, batch).astype(np.int64)
    feeds["lengths"][0] = time
    # The number of steps that a running statistic has seen is none of the normal ones.
    for state in signature["states"]:
        if state["role"] == "outputs seen":
            feeds[state["input"]] = np.full((batch, 1), 3, np.float32)
        # Nor is that of the samples in a window.
        if state["role"] == "steps since the first observed value":
            feeds[state["input"]] = random.integers(0, 4, (batch, *state["shape"][1:])).astype(np.float32)
    return feeds
