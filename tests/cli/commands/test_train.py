"""`train`: the run directory, its summary, stopping and going on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from cli_helpers import UNPLOTTED, Workplace
from stablernn.training.evaluation.metric_catalog import metrics_of

TINY = f"--data digits --cell rnn --hidden-size 4 {UNPLOTTED}"


def weights(run: Path) -> bytes:
    return (run / "checkpoints" / "best.safetensors").read_bytes()


def test_the_summary_is_one_document(empty: Workplace) -> None:
    result = empty.ok(f"train {TINY} --epochs 1 --seed 3 --run-dir run --json")
    summary = result.json
    assert {key: summary[key] for key in ("run", "task", "cell", "epochs", "steps")} == {
        "run": "run",
        "task": "classify",
        "cell": "rnn",
        "epochs": 1,
        "steps": 34,
    }
    # An embedding of 12 samples (4, 12) with bias, W (4, 4), V (4, 4), b (4), a head (10, 3 * 4) with bias.
    assert summary["parameters"] == 48 + 4 + 16 + 16 + 4 + 120 + 10
    assert summary["seconds"] > 0
    for split in ("validation", "test"):
        names = {metric.name for metric in metrics_of("classify")}
        assert set(summary["metrics"][split]) == names | {"ridge", "majority"}
    stored = json.loads((empty.path("run") / "summary.json").read_text())
    assert stored == summary


def test_options_reach_the_configuration(empty: Workplace) -> None:
    empty.path("base.yaml").write_text("training: {lr: 0.5, batch_size: 64}\nmodel: {cell: gru, hidden_size: 3}\n")
    options = "--lr 0.01 --max-steps 2 --set training.clip_norm=1 --set model.readout=mean"
    empty.ok(f"-q train {UNPLOTTED} --config base.yaml --data digits {options} --run-dir run")
    config = yaml.safe_load((empty.path("run") / "config.yaml").read_text())
    assert config["data"]["source"] == "digits"
    assert config["model"] | {"cell": "gru", "hidden_size": 3, "readout": "mean"} == config["model"]
    assert config["training"] | {"lr": 0.01, "batch_size": 64, "max_steps": 2, "clip_norm": 1.0} == config["training"]
    assert config["training"]["epochs"] is None


def test_progress_goes_to_stderr_a_line_an_epoch(empty: Workplace) -> None:
    result = empty.ok(f"train {TINY} --epochs 2 --batch-size 128")
    lines = [line for line in result.err.splitlines() if line.startswith("epoch ")]
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("loss " in line and "validation accuracy " in line for line in lines)
    assert result.err.splitlines()[-1] == "Next: stablernn export runs/digits-rnn-1 --name NAME"
    assert "runs/digits-rnn-1" in result.out
    assert "accuracy" in result.out


def test_a_diverged_run_fails_with_what_to_change(empty: Workplace) -> None:
    sentence = empty.refusal(f"-q train {TINY} --epochs 1 --lr 1e9 --run-dir run", code=1)
    assert sentence.startswith("Training diverged: the training loss ended at ")
    assert sentence.endswith(" Set a lower training.lr, such as 0.001, or a smaller training.clip_norm.")
    summary = json.loads((empty.path("run") / "summary.json").read_text())
    assert (summary["diverged"], summary["warnings"]) == (True, [sentence])


def test_a_run_is_not_written_over(workplace: Workplace) -> None:
    before = weights(workplace.path("digits-run"))
    assert workplace.refusal(f"train {TINY} --run-dir digits-run") == (
        "There is a run in 'digits-run' already. Resume it with --resume, or name another directory."
    )
    assert weights(workplace.path("digits-run")) == before


# tests/training/test_resume.py stops a run in the same place, without the command line.
@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on_to_the_same_numbers(empty: Workplace) -> None:
    # Long enough that the signal comes in the middle, short enough to finish.
    long = f"{TINY} --epochs 12 --set training.schedule=constant"
    process = empty.start(f"train {long} --run-dir stopped --json")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch 1/"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("Error: Stopped at step ")
    assert last.endswith(" of 408. Go on with it by --resume --run-dir stopped.")
    assert not (empty.path("stopped") / "summary.json").exists()

    resumed = empty.document("train --resume --run-dir stopped")
    straight = empty.document(f"train {long} --run-dir straight")
    assert resumed["metrics"] == straight["metrics"]
    assert resumed["steps"] == straight["steps"] == 408
    assert weights(empty.path("stopped")) == weights(empty.path("straight"))


def test_a_resumed_run_can_be_longer_but_not_another(empty: Workplace) -> None:
    short = f"{TINY} --epochs 1 --batch-size 128 --set training.schedule=constant --run-dir run"
    empty.ok(f"-q train {short}")
    assert empty.refusal("train --resume --run-dir run --lr 0.5").startswith(
        "A resumed run keeps its settings: 'training.lr' was "
    )
    assert empty.document("train --resume --run-dir run --epochs 2")["epochs"] == 2


def test_a_bar_is_drawn_where_somebody_watches(empty: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    pty = pytest.importorskip("pty")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    ours, theirs = pty.openpty()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        seen = pool.submit(_read_all, ours)
        with open(theirs, "w") as terminal:
            result = empty(f"train {TINY} --epochs 2 --batch-size 512 --json", stderr=terminal)
        text = seen.result().decode(errors="replace")
    os.close(ours)
    assert result.json["epochs"] == 2
    assert "epoch 2/2" in text
    assert "validation accuracy" in text
    assert "━" in text


def _read_all(handle: int) -> bytes:
    seen = b""
    # The read ends with an error once the other side is closed.
    with contextlib.suppress(OSError):
        while chunk := os.read(handle, 65536):
            seen += chunk
    return seen


def test_a_device_that_is_not_there(empty: Workplace) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert empty.refusal(f"train {TINY} --device cuda", code=1).startswith("The device 'cuda' is not there: ")
    assert list(empty.folder.iterdir()) == []
