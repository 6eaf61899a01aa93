"""A folder of recordings from training to prediction."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from cli_helpers import UNPLOTTED, Workplace, run_alone

RATE = 200
SMALL = "--cell lipschitz --hidden-size 4 --max-steps 2"


def write(folder: Path, count: int, rate: int = RATE, *, labeled: bool = True) -> None:
    for number in range(count):
        label = ("low", "high")[number % 2]
        path = folder / label if labeled else folder
        path.mkdir(parents=True, exist_ok=True)
        wave = 1000 * np.sin(np.arange(60) * (0.2 + 0.5 * (number % 2)) + number)
        wavfile.write(path / f"{number}.wav", rate, wave.astype(np.int16))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("recordings"))
    write(place.path("sounds"), 12)
    place.ok(f"-q train --data sounds {SMALL} {UNPLOTTED} --run-dir run")
    place.ok("-q export run --name sounds")
    return place


@pytest.mark.parametrize("target", ["run", "sounds"])
def test_new_recordings_are_classified_by_their_names(place: Workplace, target: str) -> None:
    write(place.path(f"new-{target}"), 3, labeled=False)
    place.ok(f"predict {target} --input new-{target} --output out.csv")
    with place.path("out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["0.wav", "1.wav", "2.wav"]
    assert set(rows[0]) == {"id", "label", "probability_high", "probability_low"}


def test_prediction_of_a_version_needs_no_torch(place: Workplace) -> None:
    result, has_torch = run_alone(place, "predict sounds --input sounds")
    assert (result.code, has_torch) == (0, False), result.err


def test_a_run_is_scored_on_its_folder(place: Workplace) -> None:
    document = place.document("eval run --split validation")
    assert document["data"]["as_trained"]


@pytest.mark.parametrize("command", ["predict sounds --input", "eval sounds --split validation --data"])
def test_another_sampling_rate_is_refused(place: Workplace, command: str) -> None:
    write(place.path("fast"), 12, 2 * RATE)
    assert place.refusal(f"{command} fast", code=1) == (
        "'fast' has recordings of 400 Hz, and sounds:1 was trained on 200 Hz. Resample them to that rate."
    )
