"""A text and sequences of frames through the command line: train, eval, export, predict."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np
import pytest

from cli_helpers import UNPLOTTED, Workplace, run_alone

SMALL = f"--cell lstm --hidden-size 12 --run-dir run {UNPLOTTED}"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_text_from_training_to_answers(empty: Workplace) -> None:
    empty.path("notes.txt").write_text("abcacb\n" * 100)
    given = "--data notes.txt --max-steps 40 --set training.bptt_steps=10 --set training.lr=0.02"
    summary = empty.document(f"train {given} {SMALL}")
    assert summary["task"] == "predict-next"
    scores = summary["metrics"]["test"]
    assert scores["bpc"] == pytest.approx(scores["nll"] / math.log(2))
    assert scores["bpc"] < scores["frequencies"]["bpc"]

    report = empty.document("eval run")
    assert (report["task"], report["samples"]) == ("predict-next", 1)
    assert report["metrics"] == scores
    document = empty.document("export run --name notes")
    assert document["parity"]["stream_equals_sequence"] is True
    served = empty.document("eval notes")["metrics"]
    assert served["bpc"] == pytest.approx(scores["bpc"], rel=1e-4)
    shown = empty.document("registry show notes")["manifest"]
    assert (shown["output"], shown["labels"]) == ("categorical", ["\n", "a", "b", "c"])

    empty.path("asked.txt").write_text("abca")
    # A version is run by ONNX Runtime: torch would take most of the time of a command.
    result, has_torch = run_alone(empty, "-q predict notes --input asked.txt")
    assert (result.code, result.err, has_torch) == (0, "", False)
    rows = rows_of(result.out)
    assert [row["target"] for row in rows] == ["b", "c", "a", ""]
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert all(0 < float(row["probability"]) <= 1 for row in rows)
    right = [row for row in rows if row["label"] == row["target"]]
    assert all(float(row["nll"]) == pytest.approx(-math.log(float(row["probability"])), abs=1e-4) for row in right)
    by_torch = rows_of(empty.ok("-q predict run --input asked.txt").out)
    assert [row["label"] for row in by_torch] == [row["label"] for row in rows]

    empty.path("strange.txt").write_text("abz")
    assert empty("-q predict notes --input strange.txt").sentence == (
        "'strange.txt' has the character 'z', which the model was not trained on; it knows 4 characters."
    )
    assert empty("-q predict notes --input asked.txt --horizon 3").sentence == (
        "--horizon is for forecasts, and notes:1 answers at every step. Leave it out."
    )


KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "numbers": ({}, ["id", "step", "mean_channel_0", "mean_channel_1"]),
    "switches": (
        {"y": np.random.default_rng(1).random((12, 9, 3)) < 0.5, "outputs": np.array(["do", "re", "mi"])},
        ["id", "step", "probability_do", "probability_re", "probability_mi"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_frames(kind: str, empty: Workplace) -> None:
    arrays, columns = KINDS[kind]
    x = np.random.default_rng(0).normal(size=(12, 9, 2)).astype(np.float32).cumsum(axis=1)
    np.savez(empty.path("frames.npz"), x=x, **arrays)
    empty.ok(f"-q train --data frames.npz --task predict-next --max-steps 2 {SMALL}")
    empty.ok("-q export run --name frames")
    by_torch = empty.document("eval run")["metrics"]
    by_runtime = empty.document("eval frames")["metrics"]
    assert by_runtime["loss"] == pytest.approx(by_torch["loss"], rel=1e-4)
    assert set(by_torch) >= ({"mse", "naive", "mean"} if kind == "numbers" else {"nll", "frequencies"})

    np.savez(empty.path("two.npz"), x=x[:2], lengths=np.array([9, 4]))
    rows = rows_of(empty.ok("-q predict frames --input two.npz").out)
    assert list(rows[0]) == columns
    assert [(row["id"], row["step"]) for row in rows] == [("0", str(n)) for n in range(9)] + [
        ("1", str(n)) for n in range(4)
    ]
    assert all(math.isfinite(float(row[name])) for row in rows for name in columns)
