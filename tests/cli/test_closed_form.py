"""Models whose heads are solved for in closed form, from the data to streams of a server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli_helpers import UNPLOTTED, Workplace

SOLVED = "--cell lru --hidden-size 16 --set training.method=closed-form"


def write_waves(path: Path, samples: int = 60, seed: int = 0) -> None:
    """Sine waves of two frequencies and random phase."""
    random = np.random.default_rng(seed)
    y = np.arange(samples) % 2
    x = np.sin(np.arange(24) * (0.4 + 0.4 * y[:, None]) + random.uniform(0, 6, (samples, 1)))
    np.savez(path, x=x.astype(np.float32), y=np.array(["slow", "fast"])[y])


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("waves"))
    write_waves(place.path("waves.npz"))
    summary = place.document(f"train --data waves.npz {SOLVED} --run-dir run")
    assert (summary["epochs"], summary["steps"], summary["warnings"]) == (1, 0, [])
    assert summary["certificate"]["kind"] == "contracting"
    assert summary["metrics"]["validation"]["accuracy"] > 0.9
    place.ok("-q export run --name waves")
    return place


def test_a_run_has_the_files_of_any_other_and_repeats_itself(waves: Workplace) -> None:
    assert {path.name for path in waves.path("run").iterdir()} == {
        *("config.yaml", "env.json", "data.json", "metrics.jsonl", "checkpoints", "calibration.json", "summary.json"),
        *("plots", "example.json"),
    }
    before = waves.path("run/checkpoints/best.safetensors").read_bytes()
    metrics = json.loads(waves.path("run/summary.json").read_text())["metrics"]
    again = waves.document("train --resume --run-dir run")
    assert waves.path("run/checkpoints/best.safetensors").read_bytes() == before
    assert again["metrics"] == metrics
    refused = waves("-q train --resume --run-dir run --epochs 3")
    assert refused.sentence.startswith("training.epochs is only used by training.method=gradient, got 3")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--budget 20steps --hidden-size 16",
        "--cell lru --hidden-size 8 --max-steps 10 --set training.refit=true",
    ],
    ids=["closed form of a small budget", "refit"],
)
def test_a_model_that_is_trained_on_all_sequences_is_scored_and_no_alias_leads_to_a_useless_one(
    tmp_path: Path, options: str
) -> None:
    place = Workplace(tmp_path)
    # Nothing tells the classes apart.
    np.savez(tmp_path / "same.npz", x=np.tile(np.arange(8.0, dtype=np.float32), (48, 1)), y=np.arange(48) % 3 % 2)
    summary = place.document(f"train --data same.npz {options} {UNPLOTTED} --run-dir run")
    (scores,) = summary["metrics"].values()
    assert scores["accuracy"] == scores["majority"]["accuracy"]
    for split in ("", " --split validation"):
        sentence = place.refusal(f"eval run{split}", code=1)
        assert "(stablernn runs show run); --data FILE scores it on other data." in sentence
    assert "check 'score' failed (it is no better than the most frequent class: 'accuracy'" in place.refusal(
        "export run --name same --alias live", code=3
    )
    assert place.document("registry list") == [{"name": "same", "versions": [1], "aliases": {}}]
    assert "(new) (forced past: score)." in place.ok("registry alias same@live 1 --force --why 'a drill'").out
    entry = place.document("registry log same")[-1]
    assert (entry["forced"], entry["why"]) == (True, "a drill")
    assert [check["name"] for check in entry["checks"] if not check["ok"]] == ["score"]


def test_the_certificate_is_recomputed_from_the_weights(waves: Workplace) -> None:
    assert waves.document("certify run")["kind"] == "contracting"
    waves.ok("-q registry verify waves --recompute")
