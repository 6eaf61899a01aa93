"""Sequences that say when their steps were, from the file to the served model."""

from __future__ import annotations

import json
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cli_helpers import UNPLOTTED, Workplace, post, served
from server_helpers import json_tensor

LONGEST = 3.5
"""The longest gap, in regular steps, of which each lasts half an hour."""


def write_irregular(path: Path, *, longest: float = LONGEST, samples: int = 60, seed: int = 0) -> None:
    """Sine waves of two frequencies, sampled at irregular times, so that only the times tell the classes apart."""
    noise = np.random.default_rng(seed)
    gaps = noise.choice([1.0, 1.0, 1.0, 0.5, 2.0, longest], size=(samples, 24))
    gaps[:, 1:3] = 1.0, longest
    t = np.cumsum(gaps, axis=1)
    y = np.arange(samples) % 2
    x = np.sin(t * np.where(y == 0, 0.4, 0.8)[:, None])
    np.savez(path, x=x.astype(np.float32), y=y, t=t * 1800)


def infer(url: str, tensors: dict[str, np.ndarray]) -> Any:
    inputs = [json_tensor(name, value.astype(np.float32)) for name, value in tensors.items()]
    outputs = post(f"{url}/v2/models/waves/infer", {"inputs": inputs})["outputs"]
    return {output["name"]: np.array(output["data"]) for output in outputs}


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("waves"))
    write_irregular(place.path("waves.npz"))
    small = "--hidden-size 8 --max-steps 12"
    place.ok(f"-q train {UNPLOTTED} --data waves.npz --cell lipschitz {small} --run-dir run")
    place.ok("-q export run --name waves --format onnx --format torchscript")
    return place


def test_a_run_keeps_the_regular_step_and_the_longest_one(waves: Workplace) -> None:
    model = yaml.safe_load(waves.path("run/config.yaml").read_text())["model"]
    assert (model["time"], model["time_step"], model["max_dt"]) == ("dt", 1800.0, LONGEST)
    manifest = waves.document("registry show waves")["manifest"]
    assert manifest["signature"]["max_dt"] == LONGEST
    assert [tensor["name"] for tensor in manifest["signature"]["step"]["inputs"]][:2] == ["x", "dt"]


def test_run_version_and_server_give_the_same_answers(waves: Workplace) -> None:
    by_torch = waves.document("eval run --split validation")["metrics"]
    by_runtime = waves.document("eval waves --split validation")["metrics"]
    assert by_runtime["log_loss"] == pytest.approx(by_torch["log_loss"], rel=1e-5)

    write_irregular(waves.path("new.npz"), samples=3, seed=1)
    rows = waves.document("predict waves --input new.npz")["predictions"]
    expected = [[row["probability_0"], row["probability_1"]] for row in rows]
    with np.load(waves.path("new.npz")) as file:
        x, t = file["x"][..., None], file["t"]
    dt = np.diff(t, axis=1, prepend=t[:, :1] - 1800) / 1800
    with served(waves) as url:
        timed = infer(url, {"x": x, "dt": dt})["probabilities"].reshape(3, 2)
        regular = infer(url, {"x": x})["probabilities"].reshape(3, 2)
        with pytest.raises(urllib.error.HTTPError) as refused:
            infer(url, {"x": x, "dt": 2 * dt})
        sentence = json.load(refused.value)["error"]
    assert timed == pytest.approx(np.array(expected), abs=1e-6)
    assert np.abs(regular - timed).max() > 1e-3
    assert refused.value.code == 400
    assert sentence == (
        "dt must be at most 3.5, the longest step that the model takes, got 7; "
        "divide the gap into steps with missing values."
    )


def test_a_longer_gap_than_in_training_is_refused(waves: Workplace) -> None:
    write_irregular(waves.path("gaps.npz"), longest=9.0)
    for target in ("run", "waves"):
        result = waves(f"-q predict {target} --input gaps.npz --output answers.csv")
        assert result.code != 0
        assert result.sentence.endswith("got 9; divide the gap into steps with missing values.")
        assert not waves.path("answers.csv").exists()


def test_a_cell_without_a_step_length_refuses_times_unless_told_to_ignore_them(empty: Workplace) -> None:
    write_irregular(empty.path("waves.npz"))
    words = f"-q train {UNPLOTTED} --data waves.npz --cell gru --hidden-size 4 --max-steps 1"
    assert empty(words).sentence == (
        "'waves.npz' says when its steps were, and model.cell='gru' takes no time between steps. "
        "Take a cell that does, such as lipschitz, lem or gru_d, or set model.time=ignore."
    )
    empty.ok(f"{words} --set model.time=ignore --run-dir run")
    assert yaml.safe_load(empty.path("run/config.yaml").read_text())["model"]["max_dt"] is None


def test_what_is_certified_of_regular_steps_alone_is_refused_before_training(empty: Workplace) -> None:
    write_irregular(empty.path("waves.npz"))
    assert empty.refusal(f"train {UNPLOTTED} --data waves.npz --cell lipschitz_rk2 --certified --run-dir refused") == (
        "'waves.npz' says when its steps were, and of model.cell='lipschitz_rk2' regular steps alone are certified, "
        "got training.certified. Take lipschitz, noisy_rnn or lvf_mid, or set model.time=ignore."
    )
    assert not empty.path("refused").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "kind"), [("lem", "bounded"), ("neural_ode_rnn", "non-expansive")])
def test_other_certified_kinds_hold_for_irregular_time_too(cell: str, kind: str, empty: Workplace) -> None:
    write_irregular(empty.path("waves.npz"))
    words = f"--hidden-size 8 --epochs 2 --certified --run-dir {cell}"
    empty.ok(f"-q train {UNPLOTTED} --data waves.npz --cell {cell} {words}")
    assert empty.document(f"certify {cell} --require {kind}")["time"]["steps"] == "irregular"


def test_irregular_time_is_trained_within_the_certified_region(empty: Workplace) -> None:
    write_irregular(empty.path("waves.npz"))
    words = "--hidden-size 8 --epochs 2 --run-dir kept"
    summary = empty.document(f"train {UNPLOTTED} --data waves.npz --cell lipschitz --certified {words}")
    assert summary["certificate"]["kind"] == "contracting"
    assert empty.document("certify kept")["time"]["steps"] == "irregular"
    assert "over the time of a regular step or faster" in empty.ok("certify kept").out.replace("\n", " ")
