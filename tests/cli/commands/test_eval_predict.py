"""`eval` and `predict`: the same numbers by torch and by ONNX Runtime, from a dataset and from a file."""

from __future__ import annotations

import csv
import datetime
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from cli_helpers import HORIZON, STEPS, Workplace, run_alone, write_load
from stablernn.data import ClassificationData, load_data
from stablernn.training.evaluation.metrics import forecast_metrics


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def flat(tree: dict[str, Any], above: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in tree.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value}
    return found


@pytest.mark.parametrize(("run", "ref", "samples"), [("digits-run", "digits", 360), ("load-run", "load", 19)])
def test_a_run_and_its_version_score_the_same(trained: Workplace, run: str, ref: str, samples: int) -> None:
    by_torch = trained.document(f"eval {run}")
    by_runtime = trained.document(f"eval {ref}:1")
    assert by_torch["target"] == run
    assert by_runtime["target"] == f"{ref}:1"
    assert by_torch["samples"] == by_runtime["samples"] == samples
    assert by_torch["split"] == "test"
    left, right = flat(by_torch["metrics"]), flat(by_runtime["metrics"])
    assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
    summary = trained.document(f"registry show {ref}")["manifest"]["metrics"]["test"]
    assert flat(summary) == pytest.approx(left, rel=1e-6)


def test_a_forecast_stands_beside_the_naive_ones(trained: Workplace) -> None:
    metrics = trained.document("eval load")["metrics"]
    point_errors = forecast_metrics(*np.ones((2, 1, 1, 1)), scale=np.ones((1, 1)), series=np.zeros(1, dtype=int))
    assert set(metrics["seasonal_naive"]) == point_errors.keys()
    assert metrics["relative_mae"] == pytest.approx(metrics["mae"] / metrics["seasonal_naive"]["mae"])
    assert {"pinball_0.1", "pinball_0.5", "pinball_0.9", "coverage_0.8"} <= set(metrics)
    lines = trained.ok("-q eval load").out.splitlines()
    assert lines[0] == "load:1 on load.csv, test: 19 windows"
    assert "model" in lines[2]
    assert "seasonal naive" in lines[2]


@pytest.mark.parametrize("target", ["digits-run", "digits:1"])
def test_predict_gives_what_eval_scores_for_classes(workplace: Workplace, target: str) -> None:
    np.savez(workplace.path("test.npz"), x=load_data("digits").split("test").x)
    workplace.ok(f"predict {target} --input test.npz --output answers.csv")
    workplace.ok(f"eval {target} --output scored.csv")
    answers, scored = (pl.read_csv(workplace.path(name)) for name in ("answers.csv", "scored.csv"))
    assert answers["id"].to_list() == list(range(360))
    assert answers["label"].equals(scored["predicted"])
    assert answers.drop("id", "label").equals(scored.drop("id", "label", "predicted"))


@pytest.mark.parametrize("target", ["load-run", "load:1"])
def test_predict_gives_what_eval_scores_for_forecasts(workplace: Workplace, target: str) -> None:
    full = workplace.path("load.csv").read_text().splitlines()
    workplace.path("before.csv").write_text("\n".join(full[:-HORIZON]) + "\n")
    answers = table(workplace.ok(f"-q predict {target} --input before.csv").out)
    workplace.ok(f"eval {target} --output scored.csv")
    # The last window of the split is what comes after the file.
    scored = [
        row for row in table(workplace.path("scored.csv").read_text()) if row["origin"] == full[-HORIZON - 1][:10]
    ]
    assert {(row["ds"], row["target"]): float(row["mean"]) for row in answers} == {
        (row["ds"], row["target"]): pytest.approx(float(row["mean"]), rel=1e-6) for row in scored
    }


@pytest.mark.parametrize("target", ["digits", "load"])
def test_predict_of_a_version_loads_no_torch(workplace: Workplace, target: str) -> None:
    # Ten sequences of 64 steps with one feature.
    np.savez(workplace.path("digits.npz"), x=np.linspace(0, 16, 640, dtype=np.float32).reshape(10, 64, 1))
    predict = ("-q", "predict", target, "--input", {"digits": "digits.npz", "load": "load.csv"}[target])
    result, has_torch = run_alone(workplace, *predict)
    assert (result.code, result.err, has_torch) == (0, "", False)
    assert result.out == workplace.ok(*predict).out


def test_a_shorter_horizon_cuts_the_forecast(trained: Workplace) -> None:
    whole = table(trained.ok("-q predict load --input load.csv").out)
    short = table(trained.ok("-q predict load --input load.csv --horizon 2").out)
    assert len(whole) == 2 * HORIZON
    assert short == [row for row in whole if row["ds"] in ("2024-04-30", "2024-05-01")]


def test_columns_are_found_by_name(workplace: Workplace) -> None:
    write_load(workplace.path("turned.csv"), columns=("wind", "power", "heat"))
    expected = workplace.ok("-q predict load --input load.csv").out
    found = workplace.ok("-q predict load --input turned.csv").out
    # A series without a name is called after its file.
    assert found == expected.replace("load,", "turned,")
    for target in ("load", "load-run"):
        scores = [workplace.document(f"eval {target} --data {f}") for f in ("load.csv", "turned.csv")]
        assert scores[0]["metrics"] == scores[1]["metrics"]


def test_the_data_of_a_run_is_found_by_name_when_its_columns_have_moved(workplace: Workplace) -> None:
    before = [workplace.document(f"eval {target}")["metrics"] for target in ("load", "load-run")]
    write_load(workplace.path("load.csv"), columns=("wind", "power", "heat"))
    assert [workplace.document(f"eval {target}")["metrics"] for target in ("load", "load-run")] == before


def test_the_data_of_a_run_is_found_from_another_folder(workplace: Workplace) -> None:
    expected = workplace.document("eval load-run")["metrics"]
    workplace.path("elsewhere").mkdir()
    elsewhere = Workplace(workplace.path("elsewhere"))
    assert elsewhere.document("eval ../load-run")["metrics"] == expected


def test_output_goes_to_a_file_that_is_whole_or_not_there(workplace: Workplace) -> None:
    result = workplace.ok("predict load --input load.csv --output answers.csv")
    assert result.out == ""
    assert result.err.splitlines()[-1] == "Wrote 12 rows to answers.csv."
    expected = workplace.ok("-q predict load --input load.csv").out
    assert workplace.path("answers.csv").read_text() == expected
    before = sorted(path.name for path in workplace.folder.iterdir())
    sentence = workplace.refusal("predict load --input load.csv --output gone/answers.csv", code=1)
    assert sentence == "Cannot write 'gone/answers.csv': No such file or directory. Choose another --output."
    assert sorted(path.name for path in workplace.folder.iterdir()) == before


def test_the_ending_of_the_output_says_its_format(workplace: Workplace) -> None:
    rows = workplace.document("predict load --input load.csv")["predictions"]
    for name in ("a.csv", "a.jsonl", "B.PARQUET"):
        workplace.ok(f"-q predict load --input load.csv --output {name}")
    assert [float(row["mean"]) for row in table(workplace.path("a.csv").read_text())] == [row["mean"] for row in rows]
    assert [json.loads(line) for line in workplace.path("a.jsonl").read_text().splitlines()] == rows
    assert pl.read_parquet(workplace.path("B.PARQUET"))["mean"].equals(
        pl.Series([row["mean"] for row in rows], dtype=pl.Float32)
    )


REFUSED = {
    "load --input load.csv --horizon 7": "--horizon must be from 1 to 6",
    "load --input load.csv --output a.json": "--output must end in .csv, .parquet or .jsonl",
    "load --input load.csv --output load.csv": "--output 'load.csv' is the input itself",
    "load --input load.csv --workers 2": "--workers is for a folder of files",
    "digits --input load.csv --horizon 2": "--horizon is for forecasts",
    "digits --input one.npz --time-column when": "--time-column is for tables of series",
    "digits --input one.npz --stamps unix-s": "--stamps is for tables of series",
    "./none --input one.npz": "There is no run directory './none'. The runs in '.' are: digits-run, load-run.",
    "./load.csv --input one.npz": "'./load.csv' is a file, not a run directory.",
    "load@production --input one.npz": "Model 'load' has no alias 'production'.",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused(workplace: Workplace, words: str) -> None:
    np.savez(workplace.path("one.npz"), x=np.ones((2, 4, 1), np.float32))
    before = workplace.path("load.csv").read_bytes()
    sentence = workplace.refusal(f"predict {words}")
    assert REFUSED[words] in sentence, sentence
    assert workplace.path("load.csv").read_bytes() == before


def test_data_that_has_changed_is_said(workplace: Workplace) -> None:
    assert workplace.document("eval load-run")["data"]["as_trained"] is True
    write_load(workplace.path("load.csv"), steps=STEPS + 1)
    result = workplace.ok("eval load-run --json")
    assert result.json["data"]["as_trained"] is False
    assert "Note: 'load.csv' has changed since load-run was trained on it." in result.err


@pytest.mark.parametrize("kind", ["", "-run"], ids=["version", "run"])
@pytest.mark.parametrize(
    ("name", "file", "code", "sentence"),
    [
        ("digits", "two.npz", 1, "has 2 features (channel_0, channel_1), the model expects 1 (pixel)"),
        ("digits", "gone.npz", 2, "No file 'gone.npz'"),
        ("load", "other.csv", 2, "Unknown column 'wind'"),
        ("load", "two.npz", 1, "is for task 'classify'"),
    ],
)
def test_bad_input_files(workplace: Workplace, name: str, file: str, code: int, sentence: str, kind: str) -> None:
    np.savez(workplace.path("two.npz"), x=np.ones((5, 4, 2), np.float32))
    workplace.path("other.csv").write_text(workplace.path("load.csv").read_text().replace("wind", "sun"))
    result = workplace(f"predict {name}{kind} --input {file} --output answers.csv")
    assert (result.code, sentence in result.sentence) == (code, True)
    assert not workplace.path("answers.csv").exists()


def test_eval_on_data_of_another_frequency(workplace: Workplace) -> None:
    header, *lines = workplace.path("load.csv").read_text().splitlines()
    first = datetime.date(1990, 1, 1)
    weeks = [",".join([str(first + datetime.timedelta(weeks=n)), *line.split(",")[1:]]) for n, line in enumerate(lines)]
    workplace.path("weeks.csv").write_text("\n".join([header, *weeks]) + "\n")
    assert workplace.refusal("eval load --data weeks.csv", code=1) == (
        "'weeks.csv' is in steps of 'W-MON', and the model was trained on steps of 'D'. Give it in those; a step that "
        "nobody measured is a row without a value."
    )


def test_another_file_may_name_its_columns_otherwise(workplace: Workplace) -> None:
    lines = workplace.path("load.csv").read_text().splitlines()
    head = lines[0].replace("ds", "when", 1)
    workplace.path("named.csv").write_text("\n".join([f"store,{head}", *(f"load,{line}" for line in lines[1:])]) + "\n")
    given = "--id-column store --time-column when"
    found = workplace.ok(f"-q predict load --input named.csv {given}").out
    usual = workplace.ok("-q predict load --input load.csv").out
    assert found == usual.replace("unique_id,ds", "store,when", 1)


@pytest.fixture
def elsewhere(trained: Workplace, tmp_path: Path) -> Workplace:
    """Another folder to work in, with the same registry."""
    (tmp_path / "registry").symlink_to(trained.registry)
    return Workplace(tmp_path)


@pytest.mark.parametrize("command", ["eval load", "plot load:1 --output x.png"], ids=lambda words: words[0])
def test_a_version_whose_data_lies_in_another_folder_says_which_file_is_wanted(
    elsewhere: Workplace, command: str
) -> None:
    assert elsewhere.refusal(command) == (
        f"'load:1' was trained on the file 'load.csv', which is not in the working folder {elsewhere.folder}. Name the "
        "data with --data, or run the command in the folder of the file."
    )


def test_an_explanation_is_what_the_answer_loses_without_a_stretch(trained: Workplace, tmp_path: Path) -> None:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    x = data.split("test").x[:3].copy()
    x[2, 30:] = 0
    lengths = np.array([64, 64, 30])

    def probabilities(values: np.ndarray) -> list[dict[str, Any]]:
        np.savez(tmp_path / "x.npz", x=values, lengths=lengths)
        words = f"-q predict digits:1 --input {tmp_path / 'x.npz'} --explain {tmp_path / 'why'} --json"
        return trained.ok(words).json["predictions"]

    answers = probabilities(x)
    assert (tmp_path / "why" / "explanation.png").read_bytes().startswith(b"\x89PNG")
    rows = table((tmp_path / "why" / "explanation.csv").read_text())
    assert len(rows) == 30
    assert [row["label"] for row in rows[::10]] == [answer["label"] for answer in answers]
    for index, answer in enumerate(answers):
        row = rows[10 * index + 4]
        assert (row["id"], row["feature"]) == (str(index), "pixel")
        # The fifth tenth of the steps of each sequence.
        first, last = 4 * lengths[index] // 10, 5 * lengths[index] // 10
        assert (int(row["first_step"]), int(row["last_step"])) == (first + 1, last)
        without = x.copy()
        without[index, first:last] = np.nan
        changed = probabilities(without)[index]
        key = f"probability_{answer['label']}"
        assert float(row["contribution"]) == pytest.approx(answer[key] - changed[key], abs=1e-6)
