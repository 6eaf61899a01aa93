"""Models whose heads are solved for in closed form, from the data to streams of a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import NO_PLOTS, Workplace, first_document, write_load
from stablernn_client import Client

SOLVED = ("--cell", "lru", "--hidden-size", 16, "--set", "training.method=closed-form")


def write_waves(path: Path, samples: int = 60, seed: int = 0) -> None:
    """Sine waves of two frequencies and random phase."""
    random = np.random.default_rng(seed)
    y = np.arange(samples) % 2
    x = np.sin(np.arange(24) * (0.4 + 0.4 * y[:, None]) + random.uniform(0, 6, (samples, 1)))
    np.savez(path, x=x.astype(np.float32), y=np.array(["slow", "fast"])[y])


def write_frames(path: Path) -> None:
    """Sequences of two numbers at each step, of which the next ones are targets."""
    random = np.random.default_rng(0)
    x = np.sin(random.uniform(0, 6, (12, 1, 2)) + 0.5 * np.arange(30)[None, :, None])
    np.savez(path, x=x.astype(np.float32))


def serve(place: Workplace, model: str, samples: np.ndarray) -> list[Any]:
    """Step a stream of the real server by the real client, and return the results."""
    process = place.start("-q", "serve", "--port", 0, "--json")
    try:
        assert process.stdout is not None
        url = first_document(process.stdout)["url"]
        with Client(url) as client, client.stream(model) as stream:
            return list(stream.steps(samples))
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("waves"))
    write_waves(place.path("waves.npz"))
    summary = place.ok("-q", "train", "--data", "waves.npz", *SOLVED, "--run-dir", "run", "--json").json
    assert (summary["epochs"], summary["steps"], summary["warnings"]) == (1, 0, [])
    assert summary["certificate"]["kind"] == "contracting"
    assert summary["metrics"]["validation"]["accuracy"] > 0.9
    place.ok("-q", "export", "run", "--name", "waves")
    return place


def test_a_run_has_the_files_of_any_other_and_repeats_itself(waves: Workplace) -> None:
    assert {path.name for path in waves.path("run").iterdir()} == {
        *("config.yaml", "env.json", "data.json", "metrics.jsonl", "checkpoints", "calibration.json", "summary.json"),
        *("plots", "example.json"),
    }
    before = waves.path("run/checkpoints/best.safetensors").read_bytes()
    metrics = json.loads(waves.path("run/summary.json").read_text())["metrics"]
    again = waves.ok("-q", "train", "--resume", "--run-dir", "run", "--json").json
    assert waves.path("run/checkpoints/best.safetensors").read_bytes() == before
    assert again["metrics"] == metrics
    refused = waves("-q", "train", "--resume", "--run-dir", "run", "--epochs", 3)
    assert refused.sentence.startswith("training.epochs is only used by training.method=gradient, got 3")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--budget", "20steps", "--hidden-size", 16), marks=pytest.mark.slow),
        ("--cell", "lru", "--hidden-size", 8, "--max-steps", 10, "--set", "training.refit=true"),
    ],
    ids=["closed form of a small budget", "refit"],
)
def test_a_model_that_is_trained_on_all_sequences_is_scored_and_no_alias_leads_to_a_useless_one(
    tmp_path: Path, options: tuple[object, ...]
) -> None:
    place = Workplace(tmp_path)
    # Nothing tells the classes apart.
    np.savez(tmp_path / "same.npz", x=np.tile(np.arange(8.0, dtype=np.float32), (48, 1)), y=np.arange(48) % 3 % 2)
    summary = place.ok("train", "--data", "same.npz", *options, *NO_PLOTS, "--run-dir", "run", "--json").json
    (scores,) = summary["metrics"].values()
    assert scores["accuracy"] == scores["majority"]["accuracy"]
    refused = place("export", "run", "--name", "same", "--alias", "live")
    assert refused.code == 3
    assert "check 'score' failed (it is no better than the most frequent class: 'accuracy'" in refused.sentence
    assert place.ok("registry", "list", "--json").json == [{"name": "same", "versions": [1], "aliases": {}}]
    place.ok("registry", "alias", "same@live", 1, "--force", "--why", "a drill")
    entry = place.ok("registry", "log", "same", "--json").json[-1]
    assert (entry["forced"], entry["why"]) == (True, "a drill")
    assert [check["name"] for check in entry["checks"] if not check["ok"]] == ["score"]


@pytest.mark.slow
def test_run_version_and_server_give_the_same_answers(waves: Workplace) -> None:
    by_torch = waves.ok("-q", "eval", "run", "--split", "validation", "--json").json["metrics"]
    by_runtime = waves.ok("-q", "eval", "waves", "--split", "validation", "--json").json["metrics"]
    assert by_runtime["log_loss"] == pytest.approx(by_torch["log_loss"], rel=1e-5)

    write_waves(waves.path("new.npz"), samples=2, seed=1)
    rows = waves.ok("-q", "predict", "waves", "--input", "new.npz", "--json").json["predictions"]
    with np.load(waves.path("new.npz")) as file:
        sequence = file["x"][0]
    *_, last = serve(waves, "waves", sequence[:, None])
    assert last.label == rows[0]["label"]
    expected = [rows[0]["probability_fast"], rows[0]["probability_slow"]]
    np.testing.assert_allclose(np.ravel(last.outputs["probabilities"]), expected, atol=1e-5)


def test_the_certificate_is_recomputed_from_the_weights(waves: Workplace) -> None:
    assert waves.ok("-q", "certify", "run", "--json").json["kind"] == "contracting"
    waves.ok("-q", "registry", "verify", "waves", "--recompute")


@pytest.mark.slow
def test_a_forecast_is_exported_and_predicts_with_quantiles(empty: Workplace) -> None:
    write_load(empty.path("load.csv"))
    options = ("--data", "load.csv", "--target", "power", "--horizon", 6, *NO_PLOTS)
    summary = empty.ok("-q", "train", *options, *SOLVED, "--run-dir", "run", "--json").json
    assert summary["steps"] == 0
    # Nothing was trained that the skip could be compared with.
    assert "gate" not in summary
    parity = empty.ok("-q", "export", "run", "--name", "load", "--json").json["parity"]
    assert parity["stream_equals_sequence"] is True
    by_runtime = empty.ok("-q", "eval", "load", "--json").json["metrics"]
    assert by_runtime["mae"] == pytest.approx(summary["metrics"]["test"]["mae"], rel=1e-4)
    rows = empty.ok("-q", "predict", "load", "--input", "load.csv", "--json").json["predictions"]
    assert len(rows) == 6


@pytest.mark.slow
def test_numbers_of_the_next_step_are_exported(empty: Workplace) -> None:
    write_frames(empty.path("frames.npz"))
    options = ("--data", "frames.npz", "--task", "predict-next", *NO_PLOTS)
    scores = empty.ok("-q", "train", *options, *SOLVED, "--run-dir", "run", "--json").json["metrics"]["test"]
    assert scores["mse"] < 0.2 * scores["mean"]["mse"]
    empty.ok("-q", "export", "run", "--name", "frames")
    assert empty.ok("-q", "eval", "frames", "--json").json["metrics"]["mse"] == pytest.approx(scores["mse"], rel=1e-3)
