"""Rates of certificates, verified on exported graphs by a program that shares no code with the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from bounds import independent_check
from bounds.independent_check import (
    NotCoveredError,
    are_allowed,
    check,
    exact,
    holds_exactly,
    holds_in_float64,
    inequality,
    read_norms,
    read_step,
)
from bounds.specimens import drawn, mark_fitted, sampled, trained
from stablernn import list_cells
from stablernn.certificates.certificate import certify
from stablernn.export.scan import step_graph
from stablernn.export.step import export_parts
from stablernn.nn.models import Classifier, SequenceModel
from stablernn_registry import Registry

LURE_CELLS = [key for key in list_cells() if drawn(key, 3).lure_system() is not None]
IN_INFINITY_NORM = ("antisymmetric", "neural_ode_rnn", "noisy_rnn")
"""Cells of which some draws are certified in the infinity norm, whose rates are row sums."""
TRAINED = ("rnn", "rnn_orth", "soft_orth", "identity_rnn", "lipschitz", "neural_ode_rnn")
"""Cells that training takes far from where their rate is exact."""


def write(model: SequenceModel, folder: Path) -> Path:
    """Write the two files that the checker reads."""
    (folder / "step.onnx").write_bytes(step_graph(export_parts(model)).SerializeToString())
    document = json.dumps(certify(model, stored=False).document())
    (folder / "certificate.json").write_text(document, encoding="utf-8")
    return folder


def model_of(key: str, hidden: int, draw: str = "fresh", **options: object) -> SequenceModel:
    """A classifier whose cells are drawn as :func:`bounds.specimens.drawn` does."""
    model = mark_fitted(Classifier(key, 2, 3, hidden, readout="last", **options))
    for number, cell in enumerate(model.rnn.cells):
        if cell.input_size == 2:
            cell.load_state_dict(drawn(key, hidden, draw, seed=number).state_dict())
    return model.eval()


def holds_by_fractions(folder: Path, factor: float = 1.0) -> bool:
    """Return whether a factor times the rate of the first layer holds in rational arithmetic."""
    certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    states, metric, multipliers = next(read_norms(certificate))
    step = read_step(onnx.load(folder / "step.onnx"), states)
    T = np.eye(len(step.F)) if metric is None else metric
    matrices = [exact(matrix) for matrix in (step.F, step.G, step.V, step.D, T, multipliers)]
    # Reading the matrices has rounded them, by less than this.
    rate = factor * certificate["contraction_rate"] * (1 + 1e-12)
    return holds_exactly(inequality(*matrices, exact(np.array([rate]))[0]))


def change_certificate(folder: Path, **entries: object) -> None:
    path = folder / "certificate.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | entries), encoding="utf-8")


@pytest.mark.parametrize("key", sampled(LURE_CELLS, "antisymmetric", "lipschitz_rk2", "urnn"))
def test_the_rate_holds_for_the_exported_graph(tmp_path: Path, key: str) -> None:
    folder = write(model_of(key, 3, "small"), tmp_path)
    assert [holds for _, holds in check(folder)] == [True]
    assert holds_by_fractions(folder)


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["fresh", "large"])
@pytest.mark.parametrize("key", LURE_CELLS)
def test_the_rate_holds_for_other_weights(tmp_path: Path, key: str, draw: str) -> None:
    folder = write(model_of(key, 6, draw), tmp_path)
    norm = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))["norm"]
    if norm.endswith("linf"):
        assert key in IN_INFINITY_NORM
        with pytest.raises(NotCoveredError, match="linf"):
            check(folder)
    else:
        assert [holds for _, holds in check(folder)] == [True]


@pytest.mark.parametrize("key", sampled(TRAINED, "rnn"))
def test_a_rate_that_is_three_percent_too_small_is_found(tmp_path: Path, key: str) -> None:
    folder = write(trained(key, 4), tmp_path)
    assert [holds for _, holds in check(folder)] == [True]
    assert holds_by_fractions(folder)
    rate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))["contraction_rate"]
    change_certificate(folder, contraction_rate=0.97 * rate)
    assert [holds for _, holds in check(folder)] == [False]
    assert not holds_by_fractions(folder)


def test_each_layer_of_each_member_is_checked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mark_fitted(Classifier("lipschitz", 2, 3, 4, num_layers=2, members=2)).eval()
    results = check(write(model, tmp_path))
    assert results == [([f"state_{number}"], True) for number in (1, 2, 3, 4)]


def test_a_version_in_a_registry_is_read_by_its_manifest(tmp_path: Path) -> None:
    model = mark_fitted(Classifier("rnn", 2, 3, 4, patch_size=4, patch_embedding=6)).eval()
    folder = write(model, tmp_path)
    files = {name: folder / name for name in ("step.onnx", "certificate.json")}
    fields = {"task": "predict-next", "cell": "rnn", "signature": {}, "features": ["x", "y"]}
    Registry(tmp_path / "registry").publish("pump", files, fields)
    results = check(tmp_path / "registry" / "models" / "pump" / "versions" / "1.json")
    assert [holds for _, holds in results] == [True]


def test_other_weights_in_the_graph_are_found(tmp_path: Path) -> None:
    folder = write(trained("rnn", 4), tmp_path)
    graph = onnx.load(folder / "step.onnx")
    (weight,) = (one for one in graph.graph.initializer if list(one.dims) == [4, 4])
    weight.CopyFrom(numpy_helper.from_array(1.5 * numpy_helper.to_array(weight), weight.name))
    onnx.save(graph, folder / "step.onnx")
    assert [holds for _, holds in check(folder)] == [False]


def test_a_modrelu_with_a_larger_bias_is_found(tmp_path: Path) -> None:
    folder = write(model_of("exprnn", 3), tmp_path)
    graph = onnx.load(folder / "step.onnx")
    (relu,) = (node for node in graph.graph.node if node.op_type == "Relu")
    (shifted,) = (node for node in graph.graph.node if node.output[0] == relu.input[0])
    (bias,) = (one for one in graph.graph.initializer if one.name in shifted.input)
    bias.CopyFrom(numpy_helper.from_array(np.full(3, 0.1, dtype=np.float32), bias.name))
    onnx.save(graph, folder / "step.onnx")
    with pytest.raises(NotCoveredError, match="bias is too large"):
        check(folder)


@pytest.mark.parametrize(
    ("key", "reason"),
    sampled([("lstm", "the form of the step"), ("lru", "without multipliers")], ("lstm", "the form of the step")),
)
def test_rates_that_are_proved_otherwise_are_not_covered(tmp_path: Path, key: str, reason: str) -> None:
    folder = write(model_of(key, 3), tmp_path)
    with pytest.raises(NotCoveredError, match=reason):
        check(folder)


def test_multipliers_that_differ_within_a_group_are_found() -> None:
    assert are_allowed([1.0, 2.0, 1.0], [0, 1, 0])
    assert not are_allowed([1.0, 2.0, 1.5], [0, 1, 0])
    assert not are_allowed([1.0, -1.0], [0, 1])


def test_a_matrix_with_a_negative_eigenvalue_is_found() -> None:
    matrix = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert not holds_in_float64(matrix)
    assert not holds_exactly(exact(matrix))


@pytest.mark.slow
def test_it_runs_where_the_package_is_not_installed(tmp_path: Path) -> None:
    folder = write(trained("lipschitz", 4), tmp_path)
    # A finder that fails for the package's modules stands in for an environment without them.
    program = (
        "import runpy, sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(('stablernn', 'torch')): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        f"sys.argv = ['check', {str(folder)!r}]\n"
        f"runpy.run_path({independent_check.__file__!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "state_1: verified\n"), done.stderr
