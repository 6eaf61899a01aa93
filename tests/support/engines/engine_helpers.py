"""Models of every kind that engines must agree about, and packages that register engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

import stablernn as srn
from exports import exported
from packages import PACKAGES
from published_models import Published
from stablernn.export.parity import _draw_known_inputs, draw_inputs
from stablernn.nn.models import SequenceModel, SequencePredictor
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.devices import count_gpus

Arrays = dict[str, np.ndarray]

_GPUS = count_gpus()
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not _GPUS, reason="needs an NVIDIA GPU: " + ("no driver" if _GPUS is None else "the driver sees none")
    ),
]

CUDA_ENGINES = [
    pytest.param(
        "onnx",
        marks=pytest.mark.skipif(
            "CUDAExecutionProvider" not in ort.get_available_providers(), reason="ONNX Runtime is built without CUDA"
        ),
    ),
    pytest.param("torch", marks=pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")),
]


def environment(*folders: Path, **values: str) -> dict[str, str]:
    """Return the environment of a process that imports our packages from this checkout, after ``folders``."""
    paths = (*folders, *sorted({package.parent for package in PACKAGES.values()}))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **values}


KINDS: dict[str, Callable[[], SequenceModel]] = {
    "classes": lambda: srn.Classifier("antisymmetric", 2, 3, 12, num_layers=2, readout="mean", mask_channel=True),
    "members": lambda: srn.Classifier("lstm", 2, 3, 9, num_layers=2, members=3, readout="max"),
    "patches-dt": lambda: srn.Classifier(
        "lem", 2, 3, 9, max_dt=4.0, patch_size=4, patch_stride=3, readout="all", mask_channel=True
    ),
    "covariates": lambda: srn.Forecaster(
        "gru",
        3,
        5,
        9,
        scaling="context",
        window=12,
        season=4,
        log=True,
        skip="linear",
        target_indices=[2, 0],
        future_indices=[1],
        static_size=2,
        members=2,
        patch_size=3,
        patch_stride=2,
    ),
    "recursive": lambda: srn.Forecaster("lipschitz", 2, 5, 9, future_indices=[1], head="recursive"),
    "tokens": lambda: SequencePredictor("cfc", 6, 6, 9, tokens=True, embedding_size=4),
    "numbers-dt": lambda: SequencePredictor("lipschitz", 2, 2, 9, output="real", predict_change=True, max_dt=3.0),
    "rotations": lambda: srn.Classifier("exprnn", 1, 2, 10),
}
# Their exports take most of the time of the tests that compare engines.
SLOW_KINDS = ("members", "covariates", "recursive", "tokens", "numbers-dt", "rotations")
EACH_KIND = [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW_KINDS else kind for kind in KINDS]


def publish(
    root: Path, folder: Path, kinds: list[str], makers: Mapping[str, Callable[[], SequenceModel]] = KINDS
) -> Published:
    """Some of the models, as after training, exported and published under their names."""
    models: dict[str, SequenceModel] = {}
    for name in kinds:
        torch.manual_seed(len(name))
        model = makers[name]()
        noise = np.random.default_rng(0)
        if model.input_name == "x":
            model.fit_scaling([noise.uniform(100, 600, (80, model.input_size))])
        if isinstance(model, SequencePredictor) and model.output == "real":
            model.fit_targets([noise.uniform(100, 600, (80, model.num_outputs))])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        report = exported(model.eval(), folder / name)
        fields = {
            "signature": report.signature,
            "parity": report.parity,
            "cell": model.rnn.first.cell,
            "task": model.task,
        }
        Registry(root).publish(name, report.files, fields | _facts(model))
        models[f"{name}:1"] = model
    return Published(root, models)


def random_inputs(model: SequenceModel, seed: int, batch: int = 5, steps: int = 23) -> tuple[Arrays, Arrays]:
    """Return random inputs of the sequence graph other than states, and those of them that only the outputs use."""
    generator = np.random.default_rng(seed)
    inputs, known_inputs = draw_inputs(model, generator, batch, steps), _draw_known_inputs(model, generator, batch)
    lengths = generator.integers(1, steps + 1, size=batch)
    lengths[0] = steps
    return {**inputs, "lengths": lengths.astype(np.int64), **known_inputs}, known_inputs


def sequence(model: ServedModel, inputs: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]) -> Arrays:
    """Return the outputs of the sequence graph; with a recursive head, they contain one step."""
    return model.run(model.sequence, {**inputs, **states})


def zeros(model: ServedModel, batch: int) -> Arrays:
    return {state.input: np.zeros((batch, *map(int, state.shape[1:])), np.float32) for state in model.states}


def allowed(model: ServedModel) -> float:
    """Return the largest error of whole sequences that the parity report of the version allows."""
    parity = model.manifest.parity or {}
    return float(max(row["allowed_rel_error"] for row in parity["compared"]))


def _facts(model: SequenceModel) -> dict[str, Any]:
    features = [f"f{number}" for number in range(model.input_size)]
    if isinstance(model, srn.Classifier):
        return {"features": features, "labels": [f"c{number}" for number in range(model.num_classes)]}
    if isinstance(model, SequencePredictor):
        answers = [f"f{number}" for number in range(model.num_outputs)]
        names = {"targets": answers} if model.output == "real" else {"labels": answers}
        return {"features": features, "output": model.output, **names}
    assert isinstance(model, srn.Forecaster)
    return {
        "features": features,
        "targets": [features[index] for index in model.target_indices],
        "horizon": model.horizon,
        "context_length": 12,
        "quantiles": model.quantiles,
        "head": model.head_kind,
        "future": [features[index] for index in model.future_indices] or None,
        "static": [f"s{number}" for number in range(model.static_size)] or None,
    }


PLUGIN = """
import json
import time
from pathlib import Path

import onnxruntime as ort


class Graph:
    def __init__(self, content):
        self.session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(self, names, feeds):
        return self.session.run(names, feeds)


class Sleepy(Graph):
    def run(self, names, feeds):
        time.sleep(0.02)
        return super().run(names, feeds)


class Failing(Graph):
    def run(self, names, feeds):
        raise KeyError("a kernel")


class Engine:
    version = "plugin 1.0"
    device = "cpu"
    device_note = ""
    kind = Graph

    def __init__(self, folder, device):
        self.asked = device
        self.threads = None
        self.signature = json.loads((folder / "config.json").read_bytes())["signature"]
        self.sequence = self.kind((folder / "sequence.onnx").read_bytes())
        self.step = self.kind((folder / "step.onnx").read_bytes())

    def set_threads(self, count):
        self.threads = count


class SleepyEngine(Engine):
    kind = Sleepy


class FailingEngine(Engine):
    kind = Failing


class OtherEngine(Engine):
    def __init__(self, folder, device):
        super().__init__(folder, device)
        self.signature["sequence"]["outputs"][0]["shape"] = ["batch", 99]


def no_device(folder, device):
    raise RuntimeError(f"The device '{device}' cannot be used: the plugin knows none")


def no_model(folder, device):
    raise ValueError("the plugin reads no such model")


def no_package(folder, device):
    import a_package_that_nobody_has
"""


def write_plugin(folder: Path) -> Path:
    """A package that registers engines, as an installation leaves it in a folder of ``sys.path``."""
    dist_info = folder / "some_engines-1.0.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-engines\nVersion: 1.0\n")
    factories = {
        "plain": "Engine",
        "sleepy": "SleepyEngine",
        "failing": "FailingEngine",
        "other": "OtherEngine",
        "no-device": "no_device",
        "no-model": "no_model",
        "no-package": "no_package",
        "nothing": "no_such_name",
    }
    lines = [f"{name} = some_engines:{factory}" for name, factory in factories.items()]
    (dist_info / "entry_points.txt").write_text("\n".join(["[stablernn.engines]", *lines, ""]))
    (folder / "some_engines.py").write_text(PLUGIN)
    return folder
