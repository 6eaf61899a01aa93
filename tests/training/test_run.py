from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from stablernn.cells import list_cells
from stablernn.data import load_data
from stablernn.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    StableRNNError,
    TrainingError,
    UnknownNameError,
)
from stablernn.training import evaluate, load_config, load_run, load_run_data, train
from stablernn.training.evaluation.metrics import forecast_metrics

TINY = ["model.hidden_size=5", "training.threads=1", "training.device=cpu", "training.max_steps=2"]
DIGITS = ["data.source=digits", "model.cell=lipschitz", "training.batch_size=500", *TINY]
CO2 = ["data.source=co2", "task.horizon=6", "task.context_length=12", "model.cell=gru", *TINY]
NO_PLOTS = "training.plots=false"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: (folder / name, train(load_config(overrides=overrides), folder / name))
        for name, overrides in (("classify", DIGITS), ("forecast", CO2))
    }


@pytest.mark.parametrize(
    ("task", "pictures"),
    [("classify", ["confusion.png", "reliability.png"]), ("forecast", ["forecast.png"])],
    ids=["classify", "forecast"],
)
def test_the_files_of_a_run(task: str, pictures: list[str], runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    run, _ = runs[task]
    assert sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()) == sorted(
        [
            "calibration.json",
            "example.json",
            "checkpoints/best.json",
            "checkpoints/best.safetensors",
            "checkpoints/last.json",
            "checkpoints/last.safetensors",
            "config.yaml",
            "data.json",
            "env.json",
            "metrics.jsonl",
            *(f"plots/{picture}" for picture in pictures),
            "plots/loss.png",
            "plots/metric.png",
            "plots/stability.png",
            "summary.json",
        ]
    )


def test_a_run_without_plots_has_none(tmp_path: Path) -> None:
    train(load_config(overrides=[*CO2, NO_PLOTS]), tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.parametrize("task", ["classify", "forecast"])
def test_the_summary(task: str, runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    run, summary = runs[task]
    assert summary == json.loads((run / "summary.json").read_text())
    assert list(summary) == [
        "run",
        "task",
        "cell",
        "engine",
        "parameters",
        "epochs",
        "steps",
        "seconds",
        "best_epoch",
        "metrics",
        "baselines",
        "certificate",
        "data_notes",
        "still_improving",
        "diverged",
        "warnings",
        *(["gate"] if task == "forecast" else []),
    ]
    assert (summary["run"], summary["task"], summary["epochs"], summary["steps"]) == (str(run), task, 1, 2)
    assert summary["parameters"] == sum(parameter.numel() for parameter in load_run(run).model.parameters())


def test_a_forecast_stands_beside_the_seasonal_naive_one(runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    scores = runs["forecast"][1]["metrics"]["test"]
    point_errors = forecast_metrics(*np.ones((2, 1, 1, 1)), scale=np.ones((1, 1)), series=np.zeros(1, dtype=int))
    assert set(scores["seasonal_naive"]) == point_errors.keys()
    assert scores["relative_mae"] == pytest.approx(scores["mae"] / scores["seasonal_naive"]["mae"])


def test_a_classification_stands_beside_ridge_and_the_majority(runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    summary = runs["classify"][1]
    for split in ("validation", "test"):
        assert set(summary["metrics"][split]["ridge"]) == {"accuracy", "macro_f1"}
        assert set(summary["metrics"][split]["majority"]) == {"accuracy", "macro_f1", "log_loss"}
    assert summary["metrics"]["test"]["ridge"]["accuracy"] == 0.925
    assert summary["baselines"]["ridge"]["rows"] == 1077
    assert runs["forecast"][1]["baselines"] == {}


def test_the_stored_settings_are_resolved(runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    tree = yaml.safe_load((runs["forecast"][0] / "config.yaml").read_text())
    assert tree["task"] == {
        "name": "forecast",
        "horizon": 6,
        "context_length": 12,
        "season": 52,
        "quantiles": [0.1, 0.5, 0.9],
    }
    assert tree["model"]["mask_channel"] is True
    assert None not in [tree["training"][key] for key in ("lr", "batch_size", "optimizer", "schedule", "weight_decay")]


def test_the_data_is_described(runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    got = json.loads((runs["forecast"][0] / "data.json").read_text())
    data = load_data("co2", horizon=6, context_length=12)
    assert got["fingerprint"] == data.fingerprint
    assert got["splits"] == {name: len(data.windows(name)) for name in ("train", "validation", "test")}
    assert got["notes"]["missing_values"] == data.notes["missing_values"] > 0
    values = np.concatenate(data.training_values()).astype(np.float64)
    assert got["scaling"]["mean"] == pytest.approx([np.nanmean(values)], rel=1e-6)
    labels = json.loads((runs["classify"][0] / "data.json").read_text())["labels"]
    assert labels == [str(digit) for digit in range(10)]


def test_the_environment_names_no_path(runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    text = (runs["classify"][0] / "env.json").read_text()
    got = json.loads(text)
    assert (got["packages"]["torch"], got["threads"], got["device"]) == (torch.__version__, 1, "cpu")
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text


@pytest.mark.parametrize("task", ["classify", "forecast"])
def test_a_loaded_run_scores_as_in_its_summary(task: str, runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
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


def test_equal_settings_give_equal_weights(tmp_path: Path, runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    train(load_config(overrides=[*DIGITS, NO_PLOTS]), tmp_path / "again")
    name = "checkpoints/best.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (runs["classify"][0] / name).read_bytes()


def test_a_moved_run_is_still_a_run(tmp_path: Path, runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    shutil.copytree(runs["classify"][0], tmp_path / "there")
    loaded = load_run(tmp_path / "there")
    assert loaded.summary is not None
    assert loaded.summary["run"] == str(tmp_path / "there")


def test_another_source_is_read_in_the_same_way(tmp_path: Path, runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    path = tmp_path / "other.csv"
    path.write_text("\n".join(["ds,co2", *(f"{step},{step % 9}" for step in range(400))]))
    data = load_run_data(load_run(runs["forecast"][0]).config, str(path))
    assert (data.name, data.horizon, data.context_length, data.season) == ("other.csv", 6, 12, 52)


def test_runs_are_numbered_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        assert train(load_config(overrides=[*DIGITS, NO_PLOTS]))["run"] == f"runs/digits-lipschitz-{number}"


def test_a_file_names_its_run_without_its_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("My Series.csv").write_text("\n".join(["ds,y", *(f"{step},{step % 5}" for step in range(90))]))
    config = load_config(overrides=["data.source=My Series.csv", "task.horizon=2", "model.cell=rnn", NO_PLOTS, *TINY])
    assert train(config)["run"] == "runs/my-series-rnn-1"


def test_a_run_is_not_overwritten(runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    run, _ = runs["classify"]
    with pytest.raises(ConfigError) as caught:
        train(load_config(overrides=DIGITS), run)
    assert str(caught.value) == (
        f"There is a run in '{run}' already. Resume it with --resume, or name another directory."
    )


def test_a_run_cannot_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.write_text("")
    with pytest.raises(ConfigError) as caught:
        train(load_config(overrides=DIGITS), path)
    assert str(caught.value) == f"Cannot make the run directory '{path}': File exists."


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("model.cell=lipshitz", UnknownNameError),
        ("model.cell_options.nonsense=1", ConfigError),
        ("data.source=digist", UnknownNameError),
        ("data.target=x", ConfigError),
        ("task.horizon=3", ConfigError),
        ("task.name=forecast", ConfigError),
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError) as caught:
        train(load_config(overrides=[*DIGITS, "training.device=cuda"]))
    assert re.fullmatch(
        r"The device 'cuda' is not there: (torch .* is built without CUDA|torch sees no GPU)\. "
        r"Allowed here are 'cpu' and 'auto'\.",
        str(caught.value),
    )


def test_loading_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_run(tmp_path)
    assert str(caught.value) == f"There is no run in '{tmp_path}': it has no config.yaml."


def test_loading_a_run_without_weights(tmp_path: Path, runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    for name in ("config.yaml", "data.json"):
        (tmp_path / name).write_bytes((runs["classify"][0] / name).read_bytes())
    with pytest.raises(CheckpointError) as caught:
        load_run(tmp_path)
    assert str(caught.value) == (
        f"The run in '{tmp_path}' has no trained weights yet: no epoch was finished. Go on with it by --resume."
    )


def test_loading_a_damaged_run(tmp_path: Path, runs: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    shutil.copytree(runs["classify"][0], tmp_path / "run")
    (tmp_path / "run/data.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"data\.json' cannot be read as JSON: .*\.$"):
        load_run(tmp_path / "run")
    for content in ("[1]", "{}", '{"name": "digits", "task": "classify", "scaling": {}}'):
        (tmp_path / "run" / "data.json").write_text(content)
        with pytest.raises(
            CheckpointError, match=r"data\.json' does not describe the data .* it has no 'fingerprint'\."
        ):
            load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("cell", "source"),
    # In the quick tests, every other cell is trained for one task; in the slow ones, each for both.
    [
        pytest.param(cell, source, marks=[pytest.mark.slow] if (number + 2 * place) % 4 else [])
        for number, cell in enumerate(list_cells())
        for place, source in enumerate(("digits", "co2"))
    ],
)
def test_every_cell_trains_for_both_tasks(cell: str, source: str, tmp_path: Path) -> None:
    overrides = DIGITS if source == "digits" else CO2
    summary = train(
        load_config(overrides=[*overrides, f"model.cell={cell}", "training.max_steps=1", NO_PLOTS]), tmp_path / "run"
    )
    headline = {"digits": "accuracy", "co2": "mae"}[source]
    assert np.isfinite(summary["metrics"]["test"][headline])


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


SERIES = ["data.source=series.csv", "task.horizon=2", "model.cell=rnn", NO_PLOTS, *TINY]


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


def test_a_run_without_its_data_says_where_it_lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small_series(Path("series.csv"))
    train(load_config(overrides=SERIES), "run")
    Path("elsewhere").mkdir()
    Path("series.csv").rename("elsewhere/other.csv")
    monkeypatch.chdir("elsewhere")
    with pytest.raises(UnknownNameError) as caught:
        load_run("../run").load_data()
    assert str(caught.value) == f"No file '{tmp_path / 'series.csv'}'. Check the path."
    # What was typed at training is taken where the file itself is gone.
    Path("other.csv").rename("series.csv")
    assert load_run("../run").load_data().name == "series.csv"


def test_a_model_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^A model with model\.hidden_size=10000000 and model\.num_layers=1 does not"
    ):
        train(load_config(overrides=[*DIGITS, "model.cell=rnn", "model.hidden_size=10000000"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_whose_weights_overflow_is_not_done(tmp_path: Path) -> None:
    settings = [*DIGITS, "model.cell=rnn", "training.optimizer=sgd", "training.lr=1e38", "training.max_steps=1"]
    settings += ["training.schedule=constant", "training.clip_norm=0", "training.weight_decay=100"]
    with pytest.raises(TrainingError, match="^No epoch left a model that can be used: the validation metric"):
        train(load_config(overrides=settings), tmp_path / "run")
    assert not (tmp_path / "run/summary.json").exists()
    with pytest.raises(CheckpointError):
        load_run(tmp_path / "run")
