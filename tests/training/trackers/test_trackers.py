"""Trackers on real runs: event files of TensorBoard, the file store of MLflow, an offline run of Weights & Biases."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import ALIKE, NO_PLOTS, Workplace
from stablernn.errors import InterruptedRun
from stablernn.training import load_config, train
from stablernn.training.callbacks import Callback, open_trackers
from stablernn.training.loop.base_trainer import Progress

OVERRIDES = (
    *("data.source=digits", "model.cell=gru", "model.hidden_size=5", "training.epochs=2", "training.batch_size=500"),
    *("training.plots=false", "training.device=cpu"),
)


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def logged(content: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, each in one piece: checksum, length, type, bytes."""
    position = 7
    while position + 7 <= len(content):
        length, kind = struct.unpack_from("<HB", content, position + 4)
        assert kind == 1, "a record in several pieces"
        yield content[position + 7 : position + 7 + length]
        position += 7 + length


class Events(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.config: Mapping[str, Any] = {}
        self.epochs: list[Mapping[str, Any]] = []

    def on_start(self, config: Mapping[str, Any], run_dir: Path) -> None:
        assert (run_dir / "config.yaml").is_file()
        self.names.append("start")
        self.config = config

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        self.names.append("epoch")
        self.epochs.append(metrics)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.names.append("end")
        self.summary = summary

    def on_failure(self, error: BaseException) -> None:
        self.names.append(type(error).__name__)


def test_a_callback_is_told_of_a_run_that_was_interrupted(tmp_path: Path) -> None:
    events = Events()

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        train(load_config(overrides=OVERRIDES), tmp_path / "run", progress=stop, callbacks=[events])
    assert events.names == ["start", "InterruptedRun"]
    train(None, tmp_path / "run", resume=True, callbacks=[events])
    assert events.names[2:] == ["start", "epoch", "epoch", "end"]


def test_tensorboard_has_the_figures_of_each_epoch(tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboard", reason="TensorBoard is not installed: pip install -e '.[tensorboard]' in the checkout"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    workplace = Workplace(tmp_path)
    workplace.ok(f"train {ALIKE} --cell gru", "--run-dir", "run", "--track", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    (record,) = records(tmp_path / "run")
    scalars = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    accuracy = record["validation"]["accuracy"]
    assert scalars["validation/accuracy"] == [(5, pytest.approx(accuracy))]
    assert scalars["train_loss"] == [(5, pytest.approx(record["train_loss"]))]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert scalars["final/test/accuracy"] == [(5, pytest.approx(summary["metrics"]["test"]["accuracy"]))]
    (text,) = events.Tensors("config/text_summary")
    assert b'"model.cell": "gru"' in text.tensor_proto.string_val[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "run"),
    [
        (("tune", "--cell", "lru", "--trials", 1, "--epochs", 1, "--output", "out"), "out/trials/0"),
        pytest.param(
            ("compare", "--cells", "lru", "--seeds", 0, "--epochs", 1, "--output", "out"),
            "out/runs/*",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["tune", "compare"],
)
def test_each_run_of_a_search_and_of_a_comparison_is_logged(
    words: tuple[object, ...], run: str, tmp_path: Path
) -> None:
    pytest.importorskip(
        "tensorboard", reason="TensorBoard is not installed: pip install -e '.[tensorboard]' in the checkout"
    )
    workplace = Workplace(tmp_path)
    workplace.ok(*words, "--data", "digits", "--set", "training.batch_size=500", *NO_PLOTS, "--track", "tensorboard")
    (events,) = tmp_path.glob(f"{run}/tensorboard/events.*")
    assert events.stat().st_size > 1000
    assert workplace(*words, "--data", "digits", "--track", "tensorbord").sentence.startswith("Unknown tracker")


@pytest.mark.slow
def test_mlflow_has_settings_figures_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install -e '.[mlflow]' in the checkout")
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    # The file store needs no server and no database, and asks to be confirmed.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits")
    train(load_config(overrides=OVERRIDES), tmp_path / "run", callbacks=open_trackers(["mlflow"]))
    client = mlflow.MlflowClient(f"file:{tmp_path / 'mlruns'}")
    (experiment,) = [each for each in client.search_experiments() if each.name == "digits"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["model.cell"] == "gru"
    history = client.get_metric_history(run.info.run_id, "validation/accuracy")
    expected = [(record["step"], record["validation"]["accuracy"]) for record in records(tmp_path / "run")]
    assert [(metric.step, metric.value) for metric in history] == expected
    assert "final/test/accuracy" in run.data.metrics
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"config.yaml", "summary.json"}


@pytest.mark.slow
def test_wandb_keeps_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install -e '.[wandb]' in the checkout")
    from wandb.proto.wandb_internal_pb2 import Record

    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true"), ("PROJECT", "digits")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    train(load_config(overrides=OVERRIDES), tmp_path / "run", callbacks=open_trackers(["wandb"]))
    (path,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    # The library's own process closes the file after the run.
    for _ in range(100):
        contents = [Record.FromString(content) for content in logged(path.read_bytes())]
        if contents and contents[-1].WhichOneof("record_type") == "exit":
            break
        time.sleep(0.1)
    rows, names = [], []
    for record in contents:
        if record.WhichOneof("record_type") == "history":
            rows.append({item.nested_key[0] or item.key: item.value_json for item in record.history.item})
        elif record.WhichOneof("record_type") == "run":
            names.append((record.run.project, record.run.display_name))
    assert names[0] == ("digits", "run")
    accuracies = [float(row["validation/accuracy"]) for row in rows]
    assert accuracies == [pytest.approx(record["validation"]["accuracy"]) for record in records(tmp_path / "run")]


def test_a_missing_library_is_an_error_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stablernn.training.callbacks.find_spec", lambda name: None)
    result = Workplace(tmp_path)(f"train {ALIKE} --cell gru", "--track", "mlflow")
    assert result.code == 2
    assert result.sentence == "The tracker 'mlflow' uses MLflow, which the extra 'stablernn[mlflow]' brings."
    assert not (tmp_path / "runs").exists()
