"""`eval` beyond scores: tables, rolling origins, free runs, beginnings of sequences; by torch and by ONNX Runtime."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import HORIZON, Workplace, republish
from stablernn.data import load_data
from step_forms import needs_native

FORECASTS = pytest.mark.parametrize("target", ["load-run", "load:1"])
CLASSES = pytest.mark.parametrize("target", ["digits-run", "digits:1"])


def own(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not isinstance(value, dict)}


@FORECASTS
def test_tables_by_series_and_by_step(trained: Workplace, target: str, tmp_path: Path) -> None:
    document = trained.document(f"eval {target} --by both --tables {tmp_path / 't'}")
    assert [(row["unique_id"], row["target"], row["windows"]) for row in document["by_series"]] == [
        ("load", "heat", 19),
        ("load", "power", 19),
    ]
    steps = document["by_step"]
    assert [(row["step"], row["target"]) for row in steps] == [
        (step, name) for name in ("heat", "power") for step in range(1, HORIZON + 1)
    ]
    assert np.mean([row["mae"] for row in steps]) == pytest.approx(document["metrics"]["mae"])
    assert document["tables"] == [str(tmp_path / "t" / f"by_{word}.csv") for word in ("series", "step")]
    for name in ("by_series", "by_step"):
        with (tmp_path / "t" / f"{name}.csv").open(newline="") as file:
            written = list(csv.DictReader(file))
        assert [list(row) for row in written] == [list(row) for row in document[name]]
        assert [float(row["mae"]) for row in written] == [row["mae"] for row in document[name]]


@pytest.mark.parametrize("name", ["digits", "load"])
def test_a_run_and_its_version_are_compared_on_the_same_samples(trained: Workplace, name: str) -> None:
    document = trained.document(f"eval {name}-run {name}:1")
    assert document["targets"] == [f"{name}-run", f"{name}:1"]
    assert own(document["metrics"][0]) == pytest.approx(own(document["metrics"][1]), rel=1e-3, abs=1e-5)
    comparison = document["comparison"]
    assert comparison["first"] == pytest.approx(comparison["second"], rel=1e-4)
    if name == "digits":
        assert (comparison["p"], comparison["better"], comparison["is_different"]) == (1.0, None, False)
    else:
        # 19 windows of one series overlap.
        assert comparison["units"] < 19 == document["samples"]
    verdict = "within noise" if comparison["units"] >= 6 else "cannot be told: Wilcoxon's signed-rank test needs 6"
    assert verdict in trained.ok(f"-q eval {name}-run {name}:1").out


def test_labeled_sequences_of_a_file_are_scored_as_a_whole(workplace: Workplace, tmp_path: Path) -> None:
    test = load_data("digits").split("test")
    samples = test.gather(range(60))
    np.savez(tmp_path / "new.npz", x=samples.x, y=samples.y.astype(str))
    document = workplace.document(f"eval digits:1 --data {tmp_path / 'new.npz'}")
    assert (document["split"], document["samples"]) == ("test", 60)
    # Not those of a fit to the sequences that are scored.
    assert document["metrics"]["ridge"]["accuracy"] < 1
    assert document["warnings"] == []
    # As if it had been better at training.
    republish(workplace, "digits:1", metrics={"test": {"accuracy": 0.99}})
    warned = workplace.ok(f"-q eval digits:2 --data {tmp_path / 'new.npz'}").out
    assert "Warning: The model does much worse on 'new.npz' than when it was trained: accuracy" in warned


def test_a_backtest_by_torch_and_by_the_served_graph(trained: Workplace) -> None:
    reports = [
        trained.document(f"eval {target} --backtest windows=4,step=3")["backtest"] for target in ("load-run", "load:1")
    ]
    for kind in ("carried", "fresh"):
        left, right = (own(report[kind]["metrics"]) for report in reports)
        assert left == pytest.approx(right, rel=1e-3, abs=1e-6)
        assert [report[kind]["steps_read"] for report in reports] == [12 + 3 * 3 if kind == "carried" else 48] * 2
    assert reports[0]["origins"] == 4
    # The last window is the last one of the split, read afresh as eval reads it.
    assert len(reports[0]["by_window"]) == 4
    assert reports[0]["carried"]["metrics"]["mae"] != reports[0]["fresh"]["metrics"]["mae"]


def test_a_soak_streams_the_split_by_torch_and_by_the_served_graph(trained: Workplace) -> None:
    left, right = (trained.document(f"eval {t} --soak")["soak"] for t in ("load-run", "load:1"))
    for report in (left, right):
        assert report["streamed_reason"] is None
        streamed = report["streamed"]
        assert (streamed["series"], streamed["readings"]) == (1, streamed["samples"])
        # The GRU is bounded, not proved to forget.
        assert streamed["alarms"] is streamed["block"] is streamed["false_alarm_rate"] is None
        assert streamed["drift_reason"].startswith("its certificate proves no forgetting time for regular steps,")
    (first,), (second,) = left["streamed"]["coverage"], right["streamed"]["coverage"]
    assert first["nominal"] == second["nominal"] == 0.8
    assert [first[name] for name in ("fixed", "adaptive")] == pytest.approx(
        [second[name] for name in ("fixed", "adaptive")], abs=0.05
    )


@CLASSES
def test_early_scores_end_with_the_score(trained: Workplace, target: str) -> None:
    document = trained.document(f"eval {target} --early")
    rows = document["early"]
    assert [row["share"] for row in rows] == pytest.approx([n / 10 for n in range(1, 11)])
    assert [row["steps"] for row in rows] == [7, 13, 20, 26, 32, 39, 45, 52, 58, 64]
    assert rows[-1]["accuracy"] == document["metrics"]["accuracy"]


BAD: dict[str, tuple[tuple[str, ...], int, str]] = {
    "by": ("digits --by step", 2, "--by is for forecasts, and digits:1 is for 'classify'. Leave it out."),
    "soak": ("digits --soak", 2, "--soak is for forecasts, and digits:1 is for 'classify'. Leave it out."),
    "early": ("load --early", 2, "--early is for classification, and load:1 is for 'forecast'. Leave it out."),
    "backtest": ("load --backtest 8", 2, "A backtest is written windows=8,step=24, got '8'."),
    "too many": (
        "load --backtest windows=30,step=3",
        2,
        "The split 'test' of 'load.csv' holds at most 7 origins of a series at a distance of 3 steps, got windows=30. "
        "Ask for fewer windows or a smaller step, or hold out more by data.test_steps.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_measured(trained: Workplace, case: str) -> None:
    arguments, code, sentence = BAD[case]
    result = trained(f"eval {arguments}")
    assert result.sentence == sentence
    assert result.code == code


def test_the_engine_of_a_run_is_chosen(trained: Workplace, tmp_path: Path) -> None:
    scores = {
        engine: trained.document(f"eval digits-run --engine {engine}")["metrics"]["log_loss"]
        for engine in ("loop", "fused")
    }
    assert scores["fused"] == pytest.approx(scores["loop"], rel=1e-5)
    trained.ok(f"-q predict load-run --engine loop --input load.csv --output {tmp_path / 'a.csv'}")
    for arguments in (("eval", "digits:1"), ("predict", "load:1", "--input", "load.csv")):
        result = trained(*arguments, "--engine", "loop")
        assert result.code == 2
        assert "Unknown engine 'loop'." in result.err
    document = trained.document("predict load:1 --input load.csv --engine torch")
    assert document["engine"] == "torch"
    result = trained("eval digits-run --engine fuesd")
    assert result.code == 2
    assert "Unknown engine 'fuesd'" in result.err


@needs_native
def test_a_version_that_the_native_engine_does_not_run_is_refused(trained: Workplace) -> None:
    for arguments in (("predict", "load:1", "--input", "load.csv"), ("eval", "load:1")):
        sentence = trained.refusal(*arguments, "--engine", "native", code=1)
        assert sentence.startswith("'load:1' cannot be served by the engine 'native': ")
        assert sentence.endswith("which this engine does not run. Use --engine onnx.")
