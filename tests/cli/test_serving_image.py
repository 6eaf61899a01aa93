"""The command line where torch and the other heavy libraries are not installed, as in the serving image."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from cli_helpers import Workplace
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


RUN_ALL = """
import contextlib, io, json, sys
from stablernn_cli.main import run

results = {}
for words in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words.split())
    results[words] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(results))
"""
LACKING = (
    *("data check digits", "train --data digits --cell gru", "bench --part train", "eval digits-run"),
    *("predict digits --input x.npz", "export digits-run --name x", "quickstart"),
)
WORKING = ("cells list", "cells show gru", "data list", "registry verify")


@pytest.fixture(scope="module")
def results(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of commands in a process that lacks the libraries."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(WITHOUT)
    np.savez(trained.path("x.npz"), x=np.zeros((1, 64, 1), np.float32))
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    words = [*(f"-q {command}" for command in (*LACKING, *WORKING)), "doctor --json"]
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *words],
        cwd=trained.folder,
        env=os.environ | trained.environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return {command.removeprefix("-q "): result for command, result in json.loads(done.stdout).items()}


def test_a_command_says_what_the_installation_lacks(results: dict[str, tuple[int, str, str]]) -> None:
    for command in LACKING:
        code, out, err = results[command]
        assert (code, out) == (1, ""), command
        assert err.startswith("Error: This installation has no '"), err
        assert err.endswith("See 'stablernn doctor'.\n")


def test_the_registry_and_lists_need_no_torch(results: dict[str, tuple[int, str, str]]) -> None:
    for command in WORKING:
        code, out, err = results[command]
        assert (code, err, bool(out)) == (0, "", True), command


def test_doctor_reports_it(results: dict[str, tuple[int, str, str]]) -> None:
    code, out, _ = results["doctor --json"]
    document = json.loads(out)
    assert (code, document["torch"]) == (1, {"works": False})
    assert document["onnxruntime"]["devices"]["cpu"]["usable"] is True
    (problem,) = [problem for problem in document["problems"] if problem["what"].startswith("torch is not installed")]
    assert problem["essential"] is True


def test_the_tiny_graph_is_what_onnx_makes_of_it() -> None:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "tiny", [x], [y])
    model = helper.make_model_gen_version(graph, opset_imports=[helper.make_opsetid("", 20)])
    assert model.SerializeToString() == TINY_GRAPH
