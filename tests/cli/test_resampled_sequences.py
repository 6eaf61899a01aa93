"""Sequences of very different lengths, resampled, from the file to the version and its checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli_helpers import UNPLOTTED, Workplace
from stablernn_cli.promotion_checks import check_graphs, recompute_both
from stablernn_registry import Registry


def write_gestures(path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = np.array([8, 40] * 20)
    x = random.normal(size=(40, 40, 2)).astype(np.float32)
    np.savez(path, x=x, lengths=lengths, y=np.array(["quick", "slow"] * 20))


@pytest.fixture(scope="module")
def gestures(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("gestures"))
    write_gestures(place.path("gestures.npz"))
    small = "--hidden-size 8 --max-steps 12 --set model.resample_steps=24"
    place.ok(f"-q train {UNPLOTTED} --data gestures.npz --cell lru {small} --run-dir run")
    place.ok("-q export run --name gestures")
    return place


def test_an_export_says_that_there_are_no_streams(gestures: Workplace) -> None:
    text = gestures.ok("export run --name again").out
    assert "none: the model resamples complete sequences" in text
    assert "step.onnx" not in text


def test_run_and_version_have_the_same_scores(gestures: Workplace) -> None:
    by_torch, by_runtime = (
        gestures.document(f"eval {target} --split validation")["metrics"] for target in ("run", "gestures")
    )
    assert by_runtime["log_loss"] == pytest.approx(by_torch["log_loss"], rel=1e-5)


@pytest.mark.parametrize("target", ["run", "gestures"])
def test_early_classification_is_refused(gestures: Workplace, target: str) -> None:
    result = gestures(f"-q eval {target} --split validation --early")
    assert result.code == 2
    assert "resamples complete sequences to 24 samples and has no answer before the last one" in result.err


def test_a_certificate_counts_steps_of_the_resampled_sequence(gestures: Workplace) -> None:
    text = " ".join(gestures.ok("certify gestures").out.split())
    assert "steps are those of a sequence resampled to 24 samples, not of a stream" in text
    assert "a gap" not in text


def test_the_checks_of_a_promotion_pass(gestures: Workplace) -> None:
    version = Registry(gestures.path("registry")).get("gestures:1")
    assert check_graphs(version).ok
    assert all(result.ok for result in recompute_both(version))
