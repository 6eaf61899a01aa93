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

from cli_helpers import HORIZON, NO_PLOTS, STEPS, Workplace, run_alone, write_load
from stablernn.data import ClassificationData, load_data
from stablernn.training.evaluation.metrics import classification_metrics, forecast_metrics


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def flat(tree: dict[str, Any], above: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in tree.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value}
    return found


@pytest.mark.parametrize(("run", "ref", "samples"), [("digits-run", "digits", 360), ("load-run", "load", 19)])
def test_a_run_and_its_version_score_the_same(trained: Workplace, run: str, ref: str, samples: int) -> None:
    by_torch = trained.ok("-q", "eval", run, "--json").json
    by_runtime = trained.ok("-q", "eval", f"{ref}:1", "--json").json
    assert by_torch["target"] == run
    assert by_runtime["target"] == f"{ref}:1"
    assert by_torch["samples"] == by_runtime["samples"] == samples
    assert by_torch["split"] == "test"
    left, right = flat(by_torch["metrics"]), flat(by_runtime["metrics"])
    assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
    summary = trained.ok("-q", "registry", "show", ref, "--json").json["manifest"]["metrics"]["test"]
    assert flat(summary) == pytest.approx(left, rel=1e-6)


def test_a_forecast_stands_beside_the_naive_ones(trained: Workplace) -> None:
    metrics = trained.ok("-q", "eval", "load", "--json").json["metrics"]
    point_errors = forecast_metrics(*np.ones((2, 1, 1, 1)), scale=np.ones((1, 1)), series=np.zeros(1, dtype=int))
    assert set(metrics["seasonal_naive"]) == point_errors.keys()
    assert metrics["relative_mae"] == pytest.approx(metrics["mae"] / metrics["seasonal_naive"]["mae"])
    assert {"pinball_0.1", "pinball_0.5", "pinball_0.9", "coverage_0.8"} <= set(metrics)
    lines = trained.ok("-q", "eval", "load").out.splitlines()
    assert lines[0] == "load:1 on load.csv, test: 19 windows"
    assert "model" in lines[2]
    assert "seasonal naive" in lines[2]


def test_another_split_has_other_samples(trained: Workplace) -> None:
    train, test = (trained.ok("-q", "eval", "digits", "--split", s, "--json").json for s in ("train", "test"))
    assert train["samples"] == 1077
    assert train["metrics"] != test["metrics"]


@pytest.mark.parametrize("target", ["digits-run", "digits:1"])
def test_predict_gives_what_eval_scores_for_classes(trained: Workplace, tmp_path: Path, target: str) -> None:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    split = data.split("test")
    np.savez(tmp_path / "test.npz", x=split.x)
    answers = table(trained.ok("-q", "predict", target, "--input", tmp_path / "test.npz").out)
    assert list(answers[0]) == ["id", "label", *(f"probability_{label}" for label in data.labels)]
    assert [row["id"] for row in answers] == [str(number) for number in range(360)]
    probabilities = np.array(
        [[float(row[f"probability_{label}"]) for label in data.labels] for row in answers], np.float32
    )
    assert [data.labels[n] for n in probabilities.argmax(axis=1)] == [row["label"] for row in answers]
    scored = trained.ok("-q", "eval", target, "--json").json["metrics"]
    baselines = {name: scored.pop(name) for name in ("ridge", "majority")}
    assert all({"accuracy", "macro_f1"} <= set(scores) for scores in baselines.values())
    assert classification_metrics(probabilities, split.y) == scored


@pytest.mark.slow
def test_answers_have_the_names_that_the_columns_of_a_table_have(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    days = np.datetime_as_string(np.datetime64("2024-01-01") + np.arange(40), unit="D")
    rows = [f"{shop},{day},{number * 13 % 11}" for shop in ("north", "south") for number, day in enumerate(days)]
    place.path("sales.csv").write_text("\n".join(["shop,date,sold", *rows]) + "\n")
    columns = ("--id-column", "shop", "--time-column", "date")
    small = ("--cell", "lipschitz", "--max-steps", 2, "--hidden-size", 4, "--horizon", 3, *NO_PLOTS)
    place.ok("-q", "train", "--data", "sales.csv", *columns, *small, "--run-dir", "run")
    place.ok("-q", "export", "run", "--name", "sales")
    # By torch as a whole, and by ONNX Runtime in pieces.
    for target in ("run", "sales"):
        assert place.ok("-q", "predict", target, "--input", "sales.csv").out.startswith("shop,date,mean,q0.1,")
    place.ok("-q", "eval", "sales", "--output", "scored.csv")
    assert place.path("scored.csv").read_text().startswith("shop,origin,date,actual,mean,")
    # A file with other names keeps these, unless they are those of answers.
    text = place.path("sales.csv").read_text()
    place.path("other.csv").write_text(text.replace("shop,date", "mean,day", 1))
    words = ("--input", "other.csv", "--id-column", "mean", "--time-column", "day")
    assert place.ok("-q", "predict", "sales", *words).out.startswith("unique_id,day,mean,q0.1,")


@pytest.mark.parametrize("target", ["load-run", "load:1"])
def test_predict_gives_what_eval_scores_for_forecasts(workplace: Workplace, target: str) -> None:
    # A file whose test split is one window: its last HORIZON steps. What stands before them is the input.
    full = workplace.path("load.csv").read_text().splitlines()
    workplace.path("before.csv").write_text("\n".join(full[:-HORIZON]) + "\n")
    answers = table(workplace.ok("-q", "predict", target, "--input", "before.csv").out)
    assert list(answers[0]) == ["unique_id", "ds", "target", "mean", "q0.1", "q0.5", "q0.9"]
    truth = {
        (row["ds"], name): float(np.float32(row[name]))
        for row in table("\n".join(full))[-HORIZON:]
        for name in ("heat", "power")
    }
    assert [(row["ds"], row["target"]) for row in answers] == [
        (ds, name) for name in ("heat", "power") for ds in sorted({ds for ds, _ in truth})
    ]
    errors = [abs(float(row["mean"]) - truth[row["ds"], row["target"]]) for row in answers]

    # The same single window by eval: the data with a test split of just these steps.
    from stablernn.training import evaluate, load_run
    from stablernn_registry import Registry
    from stablernn_runtime import ServedModel

    data = load_data(
        workplace.path("load.csv"), target=["heat", "power"], horizon=HORIZON, context_length=12, test_steps=HORIZON
    )
    predictor: Any = (
        load_run(workplace.path(target)).predictor()
        if target == "load-run"
        else ServedModel.load(Registry(workplace.registry).get(target), "cpu")
    )
    scored = evaluate(predictor, data, "test", quantiles=(0.1, 0.5, 0.9))
    assert float(np.mean(errors)) == pytest.approx(scored["mae"], rel=1e-6)


@pytest.mark.parametrize("target", ["digits", "load"])
def test_predict_of_a_version_loads_no_torch(workplace: Workplace, target: str) -> None:
    # Ten sequences of 64 steps with one feature.
    np.savez(workplace.path("digits.npz"), x=np.linspace(0, 16, 640, dtype=np.float32).reshape(10, 64, 1))
    predict = ("-q", "predict", target, "--input", {"digits": "digits.npz", "load": "load.csv"}[target])
    result, has_torch = run_alone(workplace, *predict)
    assert (result.code, result.err, has_torch) == (0, "", False)
    assert result.out == workplace.ok(*predict).out


def test_a_shorter_horizon_cuts_the_forecast(trained: Workplace) -> None:
    whole = table(trained.ok("-q", "predict", "load", "--input", "load.csv").out)
    short = table(trained.ok("-q", "predict", "load", "--input", "load.csv", "--horizon", 2).out)
    assert len(whole) == 2 * HORIZON
    assert short == [row for row in whole if row["ds"] in ("2024-04-30", "2024-05-01")]


@pytest.mark.parametrize("horizon", [0, HORIZON + 1])
def test_a_horizon_that_was_not_trained(trained: Workplace, horizon: int) -> None:
    result = trained("predict", "load", "--input", "load.csv", "--horizon", horizon)
    assert result.sentence == (
        f"--horizon must be from 1 to {HORIZON}, the steps that load:1 was trained for, got {horizon}. "
        "Train with a longer --horizon for more."
    )
    assert (result.code, result.out) == (2, "")


def test_columns_are_found_by_name(workplace: Workplace) -> None:
    write_load(workplace.path("turned.csv"), columns=("wind", "power", "heat"))
    expected = workplace.ok("-q", "predict", "load", "--input", "load.csv").out
    found = workplace.ok("-q", "predict", "load", "--input", "turned.csv").out
    # A series without a name is called after its file.
    assert found == expected.replace("load,", "turned,")
    for target in ("load", "load-run"):
        scores = [workplace.ok("-q", "eval", target, "--data", f, "--json").json for f in ("load.csv", "turned.csv")]
        assert scores[0]["metrics"] == scores[1]["metrics"]


def test_the_data_of_a_run_is_found_by_name_when_its_columns_have_moved(workplace: Workplace) -> None:
    before = [workplace.ok("-q", "eval", target, "--json").json["metrics"] for target in ("load", "load-run")]
    write_load(workplace.path("load.csv"), columns=("wind", "power", "heat"))
    assert [workplace.ok("-q", "eval", target, "--json").json["metrics"] for target in ("load", "load-run")] == before


def test_the_data_of_a_run_is_found_from_another_folder(workplace: Workplace) -> None:
    expected = workplace.ok("-q", "eval", "load-run", "--json").json["metrics"]
    workplace.path("elsewhere").mkdir()
    elsewhere = Workplace(workplace.path("elsewhere"))
    assert elsewhere.ok("-q", "eval", "../load-run", "--json").json["metrics"] == expected


def test_output_goes_to_a_file_that_is_whole_or_not_there(workplace: Workplace) -> None:
    result = workplace.ok("predict", "load", "--input", "load.csv", "--output", "answers.csv")
    assert result.out == ""
    assert result.err.splitlines()[-1] == "Wrote 12 rows to answers.csv."
    expected = workplace.ok("-q", "predict", "load", "--input", "load.csv").out
    assert workplace.path("answers.csv").read_text() == expected
    before = sorted(path.name for path in workplace.folder.iterdir())
    failed = workplace("predict", "load", "--input", "load.csv", "--output", "gone/answers.csv")
    assert failed.sentence == "Cannot write 'gone/answers.csv': No such file or directory. Choose another --output."
    assert failed.code == 1
    assert sorted(path.name for path in workplace.folder.iterdir()) == before


@pytest.mark.parametrize("target", ["load", "digits"])
def test_the_ending_of_the_output_says_its_format(workplace: Workplace, target: str) -> None:
    if target == "digits":
        np.savez(workplace.path("load.npz"), x=np.zeros((3, 64, 1), np.float32))
    source = "load.csv" if target == "load" else "load.npz"
    expected = table(workplace.ok("-q", "predict", target, "--input", source).out)
    for name in ("a.csv", "a.parquet", "a.jsonl", "B.PARQUET"):
        workplace.ok("-q", "predict", target, "--input", source, "--output", name)
    assert table(workplace.path("a.csv").read_text()) == expected
    for name in ("a.parquet", "B.PARQUET"):
        frame = pl.read_parquet(workplace.path(name))
        assert frame.columns == list(expected[0])
        assert [{key: str(value) for key, value in row.items()} for row in expected] == [
            {key: str(np.float32(value)) if isinstance(value, float) else str(value) for key, value in row.items()}
            for row in frame.iter_rows(named=True)
        ]
    lines = [json.loads(line) for line in workplace.path("a.jsonl").read_text().splitlines()]
    assert lines == workplace.ok("-q", "predict", target, "--input", source, "--json").json["predictions"]


@pytest.mark.parametrize("name", ["a.xlsx", "answers", "a.json", "a.csv.gz", ".csv"])
def test_an_output_of_no_known_format_is_refused(trained: Workplace, name: str) -> None:
    result = trained("predict", "load", "--input", "load.csv", "--output", name)
    assert result.code == 2
    assert result.sentence == (
        f"--output must end in .csv, .parquet or .jsonl, which selects the format, got '{name}'. Choose another name."
    )
    assert not trained.path(name).exists()


def test_json_holds_the_rows_unless_a_file_does(workplace: Workplace) -> None:
    document = workplace.ok("predict", "load", "--input", "load.csv", "--json").json
    rows = table(workplace.ok("-q", "predict", "load", "--input", "load.csv").out)
    assert document["rows"] == len(rows) == len(document["predictions"])
    assert [str(np.float32(row["mean"])) for row in document["predictions"]] == [row["mean"] for row in rows]
    assert document["predictions"][0]["ds"] == rows[0]["ds"] == "2024-04-30"
    named = workplace.ok("predict", "load", "--input", "load.csv", "--output", "a.csv", "--json").json
    assert named["output"] == "a.csv"
    assert "predictions" not in named


def test_data_that_has_changed_is_said(workplace: Workplace) -> None:
    assert workplace.ok("eval", "load-run", "--json").json["data"]["as_trained"] is True
    write_load(workplace.path("load.csv"), steps=STEPS + 1)
    result = workplace.ok("eval", "load-run", "--json")
    assert result.json["data"]["as_trained"] is False
    assert "Note: 'load.csv' has changed since load-run was trained on it." in result.err


BAD_INPUT = {
    "features": (
        "digits",
        "two.npz",
        1,
        "'two.npz' has 2 features (channel_0, channel_1), the model expects 1 (pixel).",
    ),
    "infinite": ("digits", "inf.npz", 1, "'inf.npz': x[3, 1, 0] is inf. Values must be finite float32 numbers; "),
    "empty": ("digits", "empty.npz", 1, "'empty.npz' is empty. Write it again, or give another file."),
    "no file": ("digits", "gone.npz", 2, "No file 'gone.npz'. Check the path."),
    "too few columns": (
        "load",
        "heat.csv",
        1,
        "'heat.csv' has 1 feature (heat), the model expects 3 (heat, power, wind).",
    ),
    "unknown column": ("load", "other.csv", 2, "Unknown column 'wind'. 'other.csv' has heat, power, sun."),
    "wrong kind": (
        "load",
        "two.npz",
        1,
        "'two.npz' is for task 'classify'; task 'forecast' reads .csv, .parquet, .xlsx.",
    ),
}


@pytest.mark.parametrize("kind", ["run", "version"])
@pytest.mark.parametrize("row", BAD_INPUT)
def test_bad_input_files(workplace: Workplace, row: str, kind: str) -> None:
    name, file, code, sentence = BAD_INPUT[row]
    x = np.ones((5, 4, 1), np.float32)
    np.savez(workplace.path("two.npz"), x=np.ones((5, 4, 2), np.float32))
    x[3, 1, 0] = np.inf
    np.savez(workplace.path("inf.npz"), x=x)
    workplace.path("empty.npz").write_bytes(b"")
    write_load(workplace.path("heat.csv"), columns=("heat",))
    text = workplace.path("load.csv").read_text()
    workplace.path("other.csv").write_text(text.replace("wind", "sun"))
    target = f"{name}-run" if kind == "run" else name
    result = workplace("predict", target, "--input", file, "--output", "answers.csv")
    assert result.sentence.startswith(sentence)
    assert result.code == code
    assert not workplace.path("answers.csv").exists()


def test_eval_on_data_of_another_frequency(workplace: Workplace) -> None:
    header, *lines = workplace.path("load.csv").read_text().splitlines()
    first = datetime.date(1990, 1, 1)
    weeks = [",".join([str(first + datetime.timedelta(weeks=n)), *line.split(",")[1:]]) for n, line in enumerate(lines)]
    workplace.path("weeks.csv").write_text("\n".join([header, *weeks]) + "\n")
    result = workplace("eval", "load", "--data", "weeks.csv")
    assert result.sentence == (
        "'weeks.csv' is in steps of 'W-MON', and the model was trained on steps of 'D'. Give it in those; a step that "
        "nobody measured is a row without a value."
    )
    assert result.code == 1


def test_another_file_may_name_its_columns_otherwise(workplace: Workplace) -> None:
    lines = workplace.path("load.csv").read_text().splitlines()
    head = lines[0].replace("ds", "when", 1)
    workplace.path("named.csv").write_text("\n".join([f"store,{head}", *(f"load,{line}" for line in lines[1:])]) + "\n")
    given = ("--id-column", "store", "--time-column", "when")
    found = workplace.ok("-q", "predict", "load", "--input", "named.csv", *given).out
    usual = workplace.ok("-q", "predict", "load", "--input", "load.csv").out
    assert found == usual.replace("unique_id,ds", "store,when", 1)


def test_columns_of_a_table_are_not_for_sequences(workplace: Workplace) -> None:
    np.savez(workplace.path("one.npz"), x=np.ones((2, 4, 1), np.float32))
    result = workplace("predict", "digits", "--input", "one.npz", "--time-column", "when")
    assert result.sentence == "--time-column is for tables of series, got 'when'. Leave it out."
    assert result.code == 2


def test_eval_on_data_of_another_kind(workplace: Workplace) -> None:
    np.savez(workplace.path("two.npz"), x=np.ones((9, 4, 2), np.float32), y=np.arange(9) % 3)
    result = workplace("eval", "digits", "--data", "two.npz", "--split", "train")
    assert result.sentence == "'two.npz' has 2 features (channel_0, channel_1), the model expects 1 (pixel)."
    assert result.code == 1


def test_a_horizon_is_not_for_classes(trained: Workplace) -> None:
    result = trained("predict", "digits", "--input", "load.csv", "--horizon", 2)
    assert result.sentence == "--horizon is for forecasts, and digits:1 classifies. Leave it out."
    assert result.code == 2


def test_predict_does_not_write_over_its_input(trained: Workplace, tmp_path: Path) -> None:
    data = trained.path("load.csv")
    link = tmp_path / "link.csv"
    link.symlink_to(data)
    before = data.read_bytes()
    result = trained("predict", "load", "--input", data, "--output", link)
    assert result.code == 2
    assert result.sentence == f"--output '{link}' is the input itself. Choose another file."
    assert data.read_bytes() == before


@pytest.fixture
def elsewhere(trained: Workplace, tmp_path: Path) -> Workplace:
    """Another folder to work in, with the same registry."""
    (tmp_path / "registry").symlink_to(trained.registry)
    return Workplace(tmp_path)


@pytest.mark.parametrize(
    "command", [("eval", "load"), ("plot", "load:1", "--output", "x.png")], ids=lambda words: words[0]
)
def test_a_version_whose_data_lies_in_another_folder_says_which_file_is_wanted(
    elsewhere: Workplace, command: tuple[str, ...]
) -> None:
    result = elsewhere(*command)
    assert result.sentence == (
        f"'load:1' was trained on the file 'load.csv', which is not in the working folder {elsewhere.folder}. Name the "
        "data with --data, or run the command in the folder of the file."
    )
    assert result.code == 2


def test_a_version_is_evaluated_on_data_that_is_named(trained: Workplace, elsewhere: Workplace) -> None:
    data = trained.path("load.csv")
    assert elsewhere.ok("-q", "eval", "load", "--data", data, "--json").json["target"] == "load:1"


def test_a_run_whose_data_is_gone_says_where_it_was(workplace: Workplace) -> None:
    data = workplace.path("load.csv")
    data.unlink()
    # The run knows its data by the way from itself, which was copied with it.
    result = workplace("eval", "load-run")
    assert result.sentence == (
        "'load-run' was trained on the file 'load.csv', which is not in the working folder "
        f"{workplace.folder}. Name the data with --data, or run the command in the folder of the file."
    )
    assert result.code == 2


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("./none", "There is no run directory './none'."),
        ("./registry", "'./registry' is not a run directory: it has no config.yaml."),
        ("./load.csv", "'./load.csv' is a file, not a run directory."),
    ],
)
def test_a_path_that_is_no_run_is_told_the_runs_beside_it(trained: Workplace, target: str, problem: str) -> None:
    result = trained("eval", target)
    assert result.sentence == f"{problem} The runs in '.' are: digits-run, load-run."
    assert result.code == 2


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("load@production", "Model 'load' has no alias 'production'. It has no aliases."),
        ("load:7", "Model 'load' has no version 7, it has only version 1."),
        (
            "lod@production",
            "Unknown model 'lod' in the registry {registry}. Did you mean 'load'? It has 'digits', 'load'.",
        ),
    ],
)
def test_a_reference_that_is_not_there_is_answered_for_the_registry_alone(
    trained: Workplace, target: str, sentence: str
) -> None:
    result = trained("eval", target)
    expected = sentence.format(registry=trained.registry)
    assert result.sentence == f"'{target}' is not in the registry {trained.registry}. {expected}"
    assert result.code == 2


def test_an_explanation_is_what_the_answer_loses_without_a_stretch(trained: Workplace, tmp_path: Path) -> None:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    x = data.split("test").x[:3].copy()
    x[2, 30:] = 0
    lengths = np.array([64, 64, 30])

    def probabilities(values: np.ndarray) -> list[dict[str, Any]]:
        np.savez(tmp_path / "x.npz", x=values, lengths=lengths)
        words = ("-q", "predict", "digits:1", "--input", tmp_path / "x.npz", "--explain", tmp_path / "why", "--json")
        return trained.ok(*words).json["predictions"]

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


def test_an_explanation_of_a_forecast_is_its_change_for_each_channel(workplace: Workplace) -> None:
    workplace.ok("-q", "predict", "load:1", "--input", "load.csv", "--explain", "why")
    rows = table(workplace.path("why/explanation.csv").read_text())
    assert list(rows[0]) == ["id", "feature", "first_step", "last_step", "contribution"]
    assert len({row["feature"] for row in rows}) == 3
    assert max(float(row["contribution"]) for row in rows) > min(float(row["contribution"]) for row in rows) >= 0
