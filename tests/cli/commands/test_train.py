"""`train`: the run directory, its summary, stopping and going on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_helpers import NO_PLOTS, Result, Workplace
from stablernn.training.evaluation.metric_catalog import metrics_of

TINY = ("--data", "digits", "--cell", "rnn", "--hidden-size", 4, *NO_PLOTS)


def weights(run: Path) -> bytes:
    return (run / "checkpoints" / "best.safetensors").read_bytes()


def test_the_summary_is_one_document(empty: Workplace) -> None:
    result = empty.ok("train", *TINY, "--epochs", 1, "--seed", 3, "--run-dir", "run", "--json")
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


@pytest.fixture(scope="module")
def forecast(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Any]:
    """What a run of a forecast says, and its summary."""
    place = Workplace(tmp_path_factory.mktemp("forecast"))
    small = ("--data", "co2", "--cell", "rnn", "--hidden-size", 2, "--max-steps", 1)
    result = place.ok("train", *small, *NO_PLOTS, "--run-dir", "run")
    return result, json.loads((place.path("run") / "summary.json").read_text())


def test_the_seasonal_naive_score_stands_beside_a_forecast_score(forecast: tuple[Result, Any]) -> None:
    run, summary = forecast
    header = next(line for line in run.out.splitlines() if line.startswith("metric"))
    assert header.split("  ")[0] == "metric"
    for split in ("validation", "test"):
        assert f"seasonal naive, {split}" in header
        mae = summary["metrics"][split]["seasonal_naive"]["mae"]
        row = next(line for line in run.out.splitlines() if line.startswith("mae"))
        assert f"{mae:.4g}" in row


def test_a_run_directory_has_what_the_contract_says(trained: Workplace) -> None:
    for name in ("digits-run", "load-run"):
        found = {path.relative_to(trained.path(name)).as_posix() for path in trained.path(name).rglob("*")}
        assert found >= {
            "config.yaml",
            "env.json",
            "data.json",
            "metrics.jsonl",
            "summary.json",
            "checkpoints/best.safetensors",
            "checkpoints/best.json",
            "checkpoints/last.safetensors",
            "checkpoints/last.json",
        }
        assert len([word for word in found if word.startswith("plots/") and word.endswith(".png")]) >= 2


def test_options_reach_the_configuration(empty: Workplace) -> None:
    empty.path("base.yaml").write_text("training: {lr: 0.5, batch_size: 64}\nmodel: {cell: gru, hidden_size: 3}\n")
    empty.ok(
        "-q", "train", *NO_PLOTS, "--config", "base.yaml", "--data", "digits", "--lr", 0.01, "--max-steps", 2,
        "--set", "training.clip_norm=1", "--set", "model.readout=mean", "--run-dir", "run",
    )  # fmt: skip
    config = yaml.safe_load((empty.path("run") / "config.yaml").read_text())
    assert config["data"]["source"] == "digits"
    assert config["model"] | {"cell": "gru", "hidden_size": 3, "readout": "mean"} == config["model"]
    assert config["training"] | {"lr": 0.01, "batch_size": 64, "max_steps": 2, "clip_norm": 1.0} == config["training"]
    assert config["training"]["epochs"] is None


def test_progress_goes_to_stderr_a_line_an_epoch(empty: Workplace) -> None:
    result = empty.ok("train", *TINY, "--epochs", 2, "--batch-size", 128)
    lines = [line for line in result.err.splitlines() if line.startswith("epoch ")]
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("loss " in line and "validation accuracy " in line for line in lines)
    assert result.err.splitlines()[-1] == "Next: stablernn export runs/digits-rnn-1 --name NAME"
    assert "runs/digits-rnn-1" in result.out
    assert "accuracy" in result.out


def test_quiet_leaves_the_answer_only(empty: Workplace) -> None:
    result = empty.ok("-q", "train", *TINY, "--max-steps", 1, "--json")
    assert result.err == ""
    assert result.json["run"] == "runs/digits-rnn-1"


def test_a_diverged_run_fails_with_what_to_change(empty: Workplace) -> None:
    result = empty("-q", "train", *TINY, "--epochs", 1, "--lr", "1e9", "--run-dir", "run")
    assert result.code == 1
    assert result.sentence.startswith("Training diverged: the training loss ended at ")
    assert result.sentence.endswith(" Set a lower training.lr, such as 0.001, or a smaller training.clip_norm.")
    summary = json.loads((empty.path("run") / "summary.json").read_text())
    assert (summary["diverged"], summary["warnings"]) == (True, [result.sentence])


def test_a_useless_model_is_warned_of(empty: Workplace) -> None:
    options = ("--set", "training.calibrate=false")
    result = empty.ok("train", *TINY, "--max-steps", 1, "--lr", "1e-9", "--run-dir", "run", "--json", *options)
    (sentence,) = result.json["warnings"]
    assert sentence.startswith("The model is no better than one answer for all sequences (validation log_loss ")
    assert f"Warning: {sentence}\n" in result.err


def test_a_forecast_says_what_is_kept_of_its_layers(forecast: tuple[Result, Any]) -> None:
    run, summary = forecast
    gate = summary["gate"]
    (line,) = [line for line in run.out.splitlines() if line.startswith("layers")]
    assert ("left out" in line) is (gate["share"] == 0)
    assert f"{gate['skip_error']:.4g} without" in line


def test_a_run_is_not_written_over(workplace: Workplace) -> None:
    before = weights(workplace.path("digits-run"))
    result = workplace("train", *TINY, "--run-dir", "digits-run")
    assert result.sentence == (
        "There is a run in 'digits-run' already. Resume it with --resume, or name another directory."
    )
    assert result.code == 2
    assert weights(workplace.path("digits-run")) == before


# tests/training/test_resume.py stops a run in the same place, without the command line.
@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on_to_the_same_numbers(empty: Workplace) -> None:
    # Long enough that the signal comes in the middle, short enough to finish.
    long = (*TINY, "--epochs", 12, "--set", "training.schedule=constant")
    process = empty.start("train", *long, "--run-dir", "stopped", "--json")
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

    resumed = empty.ok("-q", "train", "--resume", "--run-dir", "stopped", "--json").json
    straight = empty.ok("-q", "train", *long, "--run-dir", "straight", "--json").json
    assert resumed["metrics"] == straight["metrics"]
    assert resumed["steps"] == straight["steps"] == 408
    assert weights(empty.path("stopped")) == weights(empty.path("straight"))


def test_a_resumed_run_can_be_longer_but_not_another(empty: Workplace) -> None:
    short = (*TINY, "--epochs", 1, "--batch-size", 128, "--set", "training.schedule=constant", "--run-dir", "run")
    empty.ok("-q", "train", *short)
    result = empty("train", "--resume", "--run-dir", "run", "--lr", 0.5)
    assert result.sentence.startswith("A resumed run keeps its settings: 'training.lr' was ")
    assert result.code == 2
    assert empty.ok("-q", "train", "--resume", "--run-dir", "run", "--epochs", 2, "--json").json["epochs"] == 2


def test_a_bar_is_drawn_where_somebody_watches(empty: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    pty = pytest.importorskip("pty")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    ours, theirs = pty.openpty()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        seen = pool.submit(_read_all, ours)
        with open(theirs, "w") as terminal:
            result = empty("train", *TINY, "--epochs", 2, "--batch-size", 512, "--json", stderr=terminal)
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


BAD = {
    "infinite": ("inf.csv", "'inf.csv' row 5, column 'y' is inf. Values must be finite float32 numbers; "),
    "empty": ("empty.csv", "'empty.csv' is empty."),
    "one class": ("one.npz", "'one.npz' has one class only ('0'); classification needs two or more."),
    "too short": ("short.csv", "'short.csv': series 'short' has 10 steps, "),
    "a folder": (
        "folder",
        "'folder' has no recordings; they are .wav, .csv, .parquet, .npy, .mat, .edf, .bdf files. Put them into a "
        "subfolder for each class, or list them in manifest.csv.",
    ),
    "no reader": ("text.doc", "'text.doc' has no ending that is read. "),
}


@pytest.mark.parametrize("row", BAD)
def test_bad_content(empty: Workplace, row: str) -> None:
    import numpy as np

    name, sentence = BAD[row]
    days = [f"2024-01-{day:02d}" for day in range(1, 31)]
    values = [str(number) for number in range(30)]
    empty.path("inf.csv").write_text(
        "ds,y\n" + "".join(f"{d},{'inf' if n == 3 else v}\n" for n, (d, v) in enumerate(zip(days, values, strict=True)))
    )
    empty.path("empty.csv").write_text("")
    empty.path("short.csv").write_text("ds,y\n" + "".join(f"{d},1\n" for d in days[:10]))
    np.savez(empty.path("one.npz"), x=np.ones((9, 4, 1), np.float32), y=np.zeros(9, np.int64))
    empty.path("folder").mkdir()
    empty.path("text.doc").write_text("hello")
    before = sorted(empty.folder.rglob("*"))

    result = empty("train", "--data", name, "--cell", "gru", "--horizon" if row == "too short" else "--seed", 5)
    assert result.sentence.startswith(sentence)
    assert result.code == 1
    assert result.out == ""
    assert sorted(empty.folder.rglob("*")) == before


def test_a_device_that_is_not_there(empty: Workplace) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = empty("train", *TINY, "--device", "cuda")
    assert result.sentence.startswith("The device 'cuda' is not there: ")
    assert result.code == 1
    assert list(empty.folder.iterdir()) == []


def test_a_folder_that_cannot_be_written(empty: Workplace) -> None:
    empty.path("file").write_text("")
    result = empty("train", *TINY, "--run-dir", "file/run")
    assert result.sentence == "Cannot make the run directory 'file/run': Not a directory."
    assert result.code == 2
