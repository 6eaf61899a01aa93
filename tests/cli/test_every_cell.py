"""Every cell of the catalog on the main job through the command line, for all tasks: train, eval, export, serve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cli_helpers import HORIZON, UNPLOTTED, Workplace, post, served, write_load
from model_helpers import TRAINED
from stablernn.cells import list_cells

CONTEXT = 14


def steps(cell: str, count: int) -> tuple[str, ...]:
    """The option for a short training; the head of a fixed cell is solved for."""
    return ("--max-steps", str(count)) if cell in TRAINED else ()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "forecast"])
@pytest.mark.parametrize("cell", list_cells())
def test_the_main_job(empty: Workplace, cell: str, task: str) -> None:
    write_load(empty.path("load.csv"))
    data = ("--horizon", HORIZON, "--context-length", CONTEXT, "--target", "heat") if task == "forecast" else ()
    source = "load.csv" if task == "forecast" else "digits"
    small = ("--hidden-size", 16, *steps(cell, 30))
    empty.ok(f"-q train {UNPLOTTED} --data {source}", *data, "--cell", cell, *small, "--run-dir", "run")

    formats = "--format onnx --format torchscript"
    document = empty.document(f"export run --name model {formats}")
    assert document["ref"] == "model:1"
    assert {"step.onnx", "sequence.onnx", "model.torchscript"} <= set(document["files"])
    assert len({row["time"] for row in document["parity"]["compared"]}) >= 3
    assert empty.document("registry verify model")["ok"] is True
    assert document["parity"]["step_rel_error"] <= 1e-5
    assert document["parity"]["stream_equals_sequence"] is True

    by_torch = empty.document("eval run")["metrics"]
    by_runtime = empty.document("eval model")["metrics"]
    headline = "log_loss" if task == "classify" else "mae"
    assert by_runtime[headline] == pytest.approx(by_torch[headline], rel=1e-4)

    inputs, file = asked(empty, task)
    rows = empty.document(f"predict model --input {file}")["predictions"]
    with served(empty) as url:
        answer = post(f"{url}/v1/timeseries/{task}", {"model": "model", "inputs": inputs})
    content = [output["content"][0] for output in answer["outputs"]]
    if task == "forecast":
        assert content[0]["mean_forecast"] == [row["mean"] for row in rows]
    else:
        assert [answer["label"] for answer in content] == [row["label"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("cell", list_cells())
def test_a_text_is_followed(empty: Workplace, cell: str) -> None:
    empty.path("text.txt").write_text("abcacb" * 80)
    small = ("--hidden-size", 16, *steps(cell, 60), *(("--set", "training.bptt_steps=15") if cell in TRAINED else ()))
    empty.ok(f"-q train {UNPLOTTED} --data text.txt --cell {cell}", *small, "--run-dir", "run")
    formats = "--format onnx --format torchscript"
    document = empty.document(f"export run --name model {formats}")
    assert document["parity"]["stream_equals_sequence"] is True
    by_torch = empty.document("eval run")["metrics"]
    by_runtime = empty.document("eval model")["metrics"]
    assert by_runtime["bpc"] == pytest.approx(by_torch["bpc"], rel=1e-4)

    empty.path("asked.txt").write_text("abc")
    rows = empty.document("predict model --input asked.txt")["predictions"]
    with served(empty) as url:
        tensor = {"name": "tokens", "shape": [1, 3], "datatype": "INT64", "data": [[0, 1, 2]]}
        answer = post(f"{url}/v2/models/model/infer", {"inputs": [tensor]})
    logits = np.reshape(answer["outputs"][0]["data"], (3, 3))
    assert ["abc"[best] for best in logits.argmax(axis=1)] == [row["label"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("cell", list_cells())
def test_the_command_that_cells_show_gives_trains(empty: Workplace, cell: str) -> None:
    program, *words = empty.document(f"cells show {cell}")["train"].split()
    assert program == "stablernn"
    assert empty.ok("-q", *words, *steps(cell, 2), "--json").json["cell"] == cell


def asked(workplace: Workplace, task: str) -> tuple[list[dict[str, Any]], str]:
    """The same input as a request and as a file."""
    if task == "forecast":
        table = [line.split(",") for line in workplace.path("load.csv").read_text().splitlines()[1:]]
        return [{"series": [[float(word) for word in row[1:]] for row in table[-CONTEXT:]]}], "load.csv"
    x = np.arange(3 * 64, dtype=np.float32).reshape(3, 64, 1) % 16
    np.savez(workplace.path("three.npz"), x=x)
    return [{"series": sample[:, 0].tolist()} for sample in x], "three.npz"
