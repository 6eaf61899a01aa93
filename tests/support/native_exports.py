"""Small models as the files that the server engine ``native`` opens, without the checks of a whole export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from stablernn.export import model_signature
from stablernn.export.family_description import add_description
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import export_parts
from stablernn.nn.models import SequenceModel, SequencePredictor

Arrays = dict[str, np.ndarray]


def as_trained(model: SequenceModel) -> SequenceModel:
    """Return a model with other weights than a new one, and a fitted scaling."""
    torch.manual_seed(0)
    noise = np.random.default_rng(0)
    model.fit_scaling([noise.normal(3, 2, (80, model.input_size))])
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


def sequence_feeds(signature: dict[str, Any], batch: int, time: int, seed: int = 0) -> Arrays:
    """Return random inputs of whole sequences with gaps, padding and states."""
    random = np.random.default_rng(seed)
    feeds: Arrays = {}
    for tensor in signature["sequence"]["inputs"]:
        shape = [{"batch": batch, "time": time}.get(size, size) for size in tensor["shape"]]
        feeds[tensor["name"]] = random.normal(size=shape).astype(np.float32)
    feeds["x"][random.uniform(size=feeds["x"].shape) < 0.1] = np.nan
    feeds["lengths"] = random.integers(1, time + 1, batch).astype(np.int64)
    feeds["lengths"][0] = time
    # The number of steps that a running statistic has seen is none of the normal ones.
    for state in signature["states"]:
        if state["role"] == "outputs seen":
            feeds[state["input"]] = np.full((batch, 1), 3, np.float32)
    return feeds
