"""Exported graphs in the oldest ONNX Runtime that runs them, which ``make oldest`` installs and docs/guides/python.md
names.

``oldest_runtime.py write FOLDER`` exports models of every task and stores the outputs of the installed runtime.
``oldest_runtime.py run FOLDER``, in an environment of numpy and the old ``onnxruntime`` alone, compares its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

TOLERANCE = 1e-5
"""Allowed error as a share of the largest value of an output: releases add in different orders."""


def open_session(file: Path) -> Any:
    """Open a graph on one CPU thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def write(folder: Path) -> None:
    """Export models into subfolders, with an ``.npz`` of inputs and outputs for each graph."""
    # Missing in the environment of the old runtime.
    import stablernn as srn

    context: dict[str, Any] = {"scaling": "context", "window": 12, "season": 4}
    patches: dict[str, Any] = {"patch_size": 8, "patch_stride": 4, "patch_embedding": 6}
    covariates: dict[str, Any] = {"future_indices": [1], "static_size": 2, "target_indices": [0, 2]}
    models = {
        "classify": srn.Classifier("lipschitz", 2, 3, 8),
        "classify-patches": srn.Classifier("lru", 2, 3, 8, **patches, conv_layers=2, conv_channels=5, members=2),
        "classify-times": srn.Classifier("cfc", 2, 3, 8, max_dt=4.0, readout="all", mask_channel=True),
        "classify-resampled": srn.Classifier("antisymmetric", 2, 3, 8, resample_steps=20),
        "classify-lstm": srn.Classifier("lstm", 2, 3, 8, num_layers=2, readout="mean"),
        "forecast": srn.Forecaster("gru", 3, 5, 8, **context, **covariates, log=True, skip="linear", members=2),
        "forecast-recursive": srn.Forecaster("lem", 2, 5, 8, **context, future_indices=[1], head="recursive"),
        "predict-next": srn.SequencePredictor("lipschitz", 2, 3, 8, output="real"),
        "predict-next-tokens": srn.SequencePredictor("gru", 5, 5, 8, tokens=True),
    }
    for name, model in models.items():
        values = np.random.default_rng(0).uniform(100, 600, (80, 3))
        if name != "predict-next-tokens":
            model.fit_scaling([values[:, : model.input_size]])
        if isinstance(model, srn.SequencePredictor) and not model.tokens:
            model.fit_targets([values])
        if isinstance(model, srn.Forecaster):
            model.fit_static(values[:, : model.static_size])
        srn.export(model.eval(), folder / name)
    for file in folder.glob("*/*.onnx"):
        session = open_session(file)
        inputs = {value.name: draw_input(value) for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        arrays = {f"in.{name}": array for name, array in inputs.items()}
        np.savez(file.with_suffix(".npz"), **arrays, **{f"out.{name}": array for name, array in outputs.items()})


def draw_input(value: Any) -> Any:
    """Return random values for an input of a graph: three sequences of 24 steps or fewer, with gaps."""
    generator = np.random.default_rng(0)
    shape = [{"batch": 3, "time": 24}.get(size, size) for size in value.shape]
    if value.name == "lengths":
        return np.array([24, 9, 1])
    if value.type == "tensor(int64)":
        return generator.integers(5, size=shape)
    if value.name.startswith("state"):
        return np.zeros(shape, np.float32)
    values = generator.uniform(100, 600, shape).astype(np.float32)
    if value.name == "dt":
        return values / 300
    if value.name == "x":
        values[generator.random(shape) < 0.1] = np.nan
    return values


def run(folder: Path) -> None:
    """Run all graphs, and exit with an error if an output differs."""
    files = sorted(folder.glob("*/*.npz"))
    if not files:
        sys.exit(f"There are no graphs in '{folder}'.")
    for file in files:
        with np.load(file) as arrays:
            inputs = {name[3:]: arrays[name] for name in arrays if name.startswith("in.")}
            expected = {name[4:]: arrays[name] for name in arrays if name.startswith("out.")}
        outputs = open_session(file.with_suffix(".onnx")).run(list(expected), inputs)
        for (name, values), actual in zip(expected.items(), outputs, strict=True):
            error, allowed = np.abs(actual - values).max(), TOLERANCE * np.abs(values).max()
            # Negated, since NaN compares as false.
            if not error <= allowed:
                sys.exit(f"'{name}' of {file.with_suffix('.onnx')} differs by {error:.2g}, allowed are {allowed:.2g}.")
    print(f"ONNX Runtime {ort.__version__} runs {len(files)} graphs.")


if __name__ == "__main__":
    {"write": write, "run": run}[sys.argv[1]](Path(sys.argv[2]))
