from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model_helpers import TRAINED
from stablernn.data import load_data
from stablernn.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    StableRNNError,
    UnknownNameError,
)
from stablernn.training import evaluate, load_config, load_run, train

TINY = ["model.hidden_size=5", "training.threads=1", "training.device=cpu", "training.max_steps=2"]
DIGITS = ["data.source=digits", "model.cell=lipschitz", "training.batch_size=500", *TINY]
CO2 = ["data.source=co2", "task.horizon=6", "task.context_length=12", "model.cell=gru", *TINY]
NO_PLOTS = "training.plots=false"
SERIES = ["data.source=series.csv", "task.horizon=2", "model.cell=rnn", NO_PLOTS, *TINY]
QUICK = {("lem", "digits"), ("exprnn", "co2"), ("lstm", "digits"), ("lru", "co2")}
"""Cells that the quick tests train: a plain step, an orthogonal matrix, a kernel of torch, a scan."""
Runs = dict[str, tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: (folder / name, train(load_config(overrides=overrides), folder / name))
        for name, overrides in (("classify", DIGITS), ("forecast", CO2))
    }


@pytest.mark.parametrize(
    ("task", "pictures"), [("classify", {"confusion.png", "reliability.png"}), ("forecast", {"forecast.png"})]
)
def test_the_files_of_a_run(task: str, pictures: set[str], runs: Runs) -> None:
    run, _ = runs[task]
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert {file for file in files if "/" not in file} == {
        "calibration.json", "example.json", "config.yaml", "data.json", "env.json", "metrics.jsonl", "summary.json",
    }  # fmt: skip
    plots = {f"plots/{picture}" for picture in pictures | {"loss.png", "metric.png", "stability.png"}}
    checkpoints = {f"checkpoints/{name}.{ending}" for name in ("best", "last") for ending in ("json", "safetensors")}
    assert {file for file in files if "/" in file} == plots | checkpoints


@pytest.mark.parametrize("task", ["classify", "forecast"])
def test_the_summary(task: str, runs: Runs) -> None:
    run, summary = runs[task]
    assert summary == json.loads((run / "summary.json").read_text())
    assert set(summary) == {
        "run", "task", "cell", "engine", "parameters", "epochs", "steps", "seconds", "best_epoch", "metrics",
        "baselines", "certificate", "data_notes", "still_improving", "diverged", "warnings",
        *(["gate", "linear_forecast"] if task == "forecast" else []),
    }  # fmt: skip
    assert (summary["run"], summary["task"], summary["epochs"], summary["steps"]) == (str(run), task, 1, 2)
    assert summary["parameters"] == sum(parameter.numel() for parameter in load_run(run).model.parameters())


def test_the_data_is_described(runs: Runs) -> None:
    got = json.loads((runs["forecast"][0] / "data.json").read_text())
    data = load_data("co2", horizon=6, context_length=12)
    assert got["fingerprint"] == data.fingerprint
    assert got["splits"] == {name: len(data.windows(name)) for name in ("train", "validation", "test")}
    assert got["notes"]["missing_values"] == data.notes["missing_values"] > 0
    values = np.concatenate(data.training_values()).astype(np.float64)
    assert got["scaling"]["mean"] == pytest.approx([np.nanmean(values)], rel=1e-6)
    labels = json.loads((runs["classify"][0] / "data.json").read_text())["labels"]
    assert labels == [str(digit) for digit in range(10)]


def test_the_environment_names_no_path(runs: Runs) -> None:
    text = (runs["classify"][0] / "env.json").read_text()
    got = json.loads(text)
    assert (got["packages"]["torch"], got["threads"], got["device"]) == (torch.__version__, 1, "cpu")
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text


@pytest.mark.parametrize("task", ["classify", "forecast"])
def test_a_loaded_run_scores_as_in_its_summary(task: str, runs: Runs) -> None:
    run, summary = runs[task]
    loaded = load_run(run)
    assert not loaded.model.training
    got = evaluate(loaded.predictor(), loaded.load_data(), "test", quantiles=loaded.config.task.quantiles)
    expected = summary["metrics"]["test"]
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert loaded.summary == summary


def test_the_best_weights_are_scored_and_kept(tmp_path: Path) -> None:
    # Training rises and validation falls: the better the model knows the one, the worse it forecasts the other.
    values = [*range(120), *range(120, 0, -1)]
    (tmp_path / "turn.csv").write_text("\n".join(["ds,y", *(f"{step},{y}" for step, y in enumerate(values))]))
    overrides = [f"data.source={tmp_path / 'turn.csv'}", "data.validation_steps=60", "data.test_steps=60"]
    overrides += ["task.horizon=4", "task.context_length=8", "task.season=1", "model.cell=gru", *TINY]
    overrides += ["training.max_steps=null", "training.epochs=6", "training.lr=0.01", "training.schedule=constant"]
    # A linear map of the context would go on falling as it went on rising.
    overrides += ["model.scaling=standard", "training.warm_up=0"]
    summary = train(load_config(overrides=[*overrides, NO_PLOTS]), tmp_path / "run")
    errors = [
        json.loads(line)["validation"]["mae"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    ]
    assert errors[summary["best_epoch"] - 1] == min(errors) < 0.9 * errors[-1]
    assert summary["metrics"]["validation"]["mae"] == min(errors)
    loaded = load_run(tmp_path / "run")
    assert evaluate(loaded.predictor(), loaded.load_data(), "validation")["mae"] == pytest.approx(min(errors))


def test_equal_settings_give_equal_weights(tmp_path: Path, runs: Runs) -> None:
    train(load_config(overrides=[*DIGITS, NO_PLOTS]), tmp_path / "again")
    name = "checkpoints/best.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (runs["classify"][0] / name).read_bytes()


def test_a_moved_run_is_still_a_run(tmp_path: Path, runs: Runs) -> None:
    shutil.copytree(runs["classify"][0], tmp_path / "there")
    loaded = load_run(tmp_path / "there")
    assert loaded.summary is not None
    assert loaded.summary["run"] == str(tmp_path / "there")


def test_runs_are_numbered_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small_series(Path("My Series.csv"))
    overrides = ["data.source=My Series.csv", *SERIES[1:]]
    for number in (1, 2):
        assert train(load_config(overrides=overrides))["run"] == f"runs/my-series-rnn-{number}"


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("model.cell=lipshitz", UnknownNameError),
        ("data.source=digist", UnknownNameError),
        ("task.horizon=3", ConfigError),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_work_leaves_no_directory(
    override: str, kind: type[StableRNNError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(overrides=[*DIGITS, override])
    with pytest.raises(kind):
        train(config)
    assert list(tmp_path.iterdir()) == []


def test_where_a_run_cannot_begin(tmp_path: Path, runs: Runs) -> None:
    (tmp_path / "taken").write_text("")
    for path, reason in ((runs["classify"][0], "already"), (tmp_path / "taken", "File exists")):
        with pytest.raises(ConfigError, match=f"'{path}'.*{reason}"):
            train(load_config(overrides=DIGITS), path)


def test_runs_that_cannot_be_loaded(tmp_path: Path, runs: Runs) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.yaml"):
        load_run(tmp_path)
    shutil.copytree(runs["classify"][0], tmp_path / "run")
    for content, reason in (("{", "cannot be read as JSON"), ("[1]", "'fingerprint'"), ("{}", "'fingerprint'")):
        (tmp_path / "run/data.json").write_text(content)
        with pytest.raises(CheckpointError, match=rf"data\.json' .*{reason}"):
            load_run(tmp_path / "run")
    shutil.copy(runs["classify"][0] / "data.json", tmp_path / "run")
    (tmp_path / "run/checkpoints/best.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no trained weights yet"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("cell", "source"),
    [
        pytest.param(cell, source, marks=[] if (cell, source) in QUICK else pytest.mark.slow)
        for cell in TRAINED
        for source in ("digits", "co2")
    ],
)
def test_every_cell_trains_for_both_tasks(cell: str, source: str, tmp_path: Path) -> None:
    overrides = DIGITS if source == "digits" else CO2
    summary = train(
        load_config(overrides=[*overrides, f"model.cell={cell}", "training.max_steps=1", NO_PLOTS]), tmp_path / "run"
    )
    headline = {"digits": "accuracy", "co2": "mae"}[source]
    assert np.isfinite(summary["metrics"]["test"][headline])


@pytest.mark.slow
def test_sequences_of_unequal_length_with_gaps(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    lengths = random.integers(3, 12, 40)
    x = random.normal(size=(40, 12, 2)) + y[:, None, None]
    x[random.random(x.shape) < 0.2] = np.nan
    np.savez(tmp_path / "toy.npz", x=x, y=y, lengths=lengths)
    overrides = [f"data.source={tmp_path / 'toy.npz'}", "model.cell=lvf_mid", "model.readout=mean", *TINY]
    summary = train(load_config(overrides=[*overrides, "training.max_steps=100", NO_PLOTS]), tmp_path / "run")
    assert list(summary["metrics"]) == ["validation"]
    assert summary["metrics"]["validation"]["accuracy"] >= 0.75
    assert load_run(tmp_path / "run").config.model.mask_channel is True
    with pytest.raises(DataError):
        evaluate(load_run(tmp_path / "run").predictor(), load_run(tmp_path / "run").load_data(), "test")


@pytest.mark.slow
def test_a_forecast_beats_the_seasonal_naive_one_on_a_clear_signal(tmp_path: Path) -> None:
    steps = np.arange(400)
    y = 20 + 0.5 * steps + 5 * np.sin(2 * np.pi * steps / 12)
    rows = ["ds,y", *(f"{step},{value:.4f}" for step, value in zip(steps, y, strict=True))]
    (tmp_path / "trend.csv").write_text("\n".join(rows))
    config = load_config(
        overrides=[
            f"data.source={tmp_path / 'trend.csv'}",
            "task.horizon=12",
            "task.season=12",
            "model.cell=gru",
            "model.hidden_size=16",
            "training.threads=1",
            "training.device=cpu",
            "training.epochs=8",
            NO_PLOTS,
        ]
    )
    assert train(config, tmp_path / "run")["metrics"]["test"]["relative_mae"] < 0.85


def wide(path: Path, order: str, steps: int = 60) -> Path:
    """Channels of very different sizes, in an order."""
    columns = {"a": 1.0, "b": 100.0, "c": 10000.0}
    rows = [",".join([str(step), *(str(columns[c] * (step % 5)) for c in order)]) for step in range(steps)]
    path.write_text("\n".join([",".join(["ds", *order]), *rows]))
    return path


def test_columns_of_other_data_are_found_by_name(tmp_path: Path) -> None:
    source = wide(tmp_path / "abc.csv", "abc")
    overrides = [f"data.source={source}", "data.target=[c, a]", "task.horizon=2", "model.cell=rnn", NO_PLOTS, *TINY]
    train(load_config(overrides=overrides), tmp_path / "run")
    run = load_run(tmp_path / "run")
    expected = evaluate(run.predictor(), run.load_data(), "test")
    turned = run.load_data(str(wide(tmp_path / "cba.csv", "cba")))
    assert evaluate(run.predictor(), turned, "test") == expected
    # Also where the run's own file was written anew.
    wide(source, "bca")
    assert evaluate(run.predictor(), run.load_data(), "test") == expected
    assert evaluate(run.predictor(), run.load_data(str(source)), "test") == expected


def test_features_of_other_sequences_are_found_by_name(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 5, 2)) * [1, 100], np.arange(40) % 2
    np.savez(tmp_path / "ab.npz", x=x, y=y, features=np.array(["a", "b"]))
    np.savez(tmp_path / "ba.npz", x=x[:, :, ::-1], y=y, features=np.array(["b", "a"]))
    overrides = [f"data.source={tmp_path / 'ab.npz'}", "model.cell=rnn", NO_PLOTS, *TINY]
    train(load_config(overrides=overrides), tmp_path / "run")
    run = load_run(tmp_path / "run")
    expected = evaluate(run.predictor(), run.load_data(), "validation")
    assert evaluate(run.predictor(), run.load_data(str(tmp_path / "ba.npz")), "validation") == expected


def small_series(path: Path, level: int = 0) -> None:
    path.write_text("\n".join(["ds,y", *(f"{step},{level + step % 7}" for step in range(80))]))


def test_the_data_of_a_run_is_found_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    small_series(Path("series.csv"))
    train(load_config(overrides=SERIES), "runs/one")
    fingerprint = load_run("runs/one").load_data().fingerprint
    # A file of the same name here is not the run's.
    monkeypatch.chdir(tmp_path)
    small_series(tmp_path / "series.csv", level=5)
    assert load_run("project/runs/one").load_data().fingerprint == fingerprint
    project.rename(tmp_path / "renamed")
    assert load_run("renamed/runs/one").load_data().fingerprint == fingerprint
    # No path of this machine gets into what is published.
    assert load_run("renamed/runs/one").config.data.source == "series.csv"
    assert str(tmp_path) not in (tmp_path / "renamed/runs/one/data.json").read_text()


def test_a_model_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.hidden_size=10000000"):
        train(load_config(overrides=[*DIGITS, "model.cell=rnn", "model.hidden_size=10000000"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
