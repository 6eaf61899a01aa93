"""The command line where torch and the other heavy libraries are not installed, as in the serving image."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cli_helpers import Workplace, command
from stablernn_cli.commands.doctor import TINY_GRAPH

# Read by the interpreter at its start; what is not installed looks like this to an import.
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {"torch", "onnx", "onnxscript", "polars", "matplotlib", "safetensors", "yaml"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def image(trained: Workplace, tmp_path: Path) -> Workplace:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    return trained


def run(image: Workplace, tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | image.environment | {"PYTHONPATH": path}
    return subprocess.run(
        command(*arguments), cwd=image.folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "check", "digits"],
        ["train", "--data", "digits", "--cell", "gru"],
        ["bench", "--part", "train"],
        pytest.param(["eval", "digits-run"], marks=pytest.mark.slow),
        ["predict", "digits", "--input", "x.npz"],
        pytest.param(["export", "digits-run", "--name", "x"], marks=pytest.mark.slow),
        pytest.param(["quickstart"], marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_a_command_says_what_the_installation_lacks(image: Workplace, tmp_path: Path, arguments: list[str]) -> None:
    np.savez(image.path("x.npz"), x=np.zeros((1, 64, 1), np.float32))
    done = run(image, tmp_path, "-q", *arguments)
    assert done.stderr.startswith("Error: This installation has no '"), done.stderr
    assert done.stderr.endswith(
        "', which this command needs. A serving image has only what 'serve' and 'registry' need; elsewhere, "
        "install stablernn again with its dependencies. See 'stablernn doctor'.\n"
    )
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("command", ["cells list", "cells show gru", "data list"])
def test_lists_need_no_torch(image: Workplace, tmp_path: Path, command: str) -> None:
    done = run(image, tmp_path, "-q", *command.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert "gru" in done.stdout or "digits" in done.stdout


def test_doctor_reports_it(image: Workplace, tmp_path: Path) -> None:
    done = run(image, tmp_path, "doctor", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["torch"] == {"works": False}
    assert document["onnxruntime"]["devices"]["cpu"] == {
        "usable": True,
        "reason": None,
        "provider": "CPUExecutionProvider",
    }
    assert {
        "what": "torch is not installed; train, eval of runs and export need it.",
        "fix": "Install stablernn again; a serving image leaves torch out on purpose",
        "essential": True,
    } in document["problems"]


def test_registry_works(image: Workplace, tmp_path: Path) -> None:
    done = run(image, tmp_path, "-q", "registry", "verify")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_tiny_graph_is_what_onnx_makes_of_it() -> None:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "tiny", [x], [y])
    model = helper.make_model_gen_version(graph, opset_imports=[helper.make_opsetid("", 20)])
    assert model.SerializeToString() == TINY_GRAPH
