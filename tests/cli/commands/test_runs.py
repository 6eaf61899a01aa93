from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.image import imread

from cli_helpers import UNPLOTTED, Workplace, copied, run_alone, write_load

SMALL = f"--hidden-size 4 --epochs 1 {UNPLOTTED}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Runs ``first`` and ``again`` of equal settings, ``gru`` of another cell, ``load`` of other data; not to be
    changed."""
    workplace = Workplace(tmp_path_factory.mktemp("runs"))
    write_load(workplace.path("load.csv"))
    digits = f"-q train --data digits {SMALL}"
    workplace.ok(f"{digits} --cell lipschitz --run-dir runs/first")
    workplace.ok(f"{digits} --cell gru --free --run-dir runs/study/gru")
    forecast = "--horizon 6 --context-length 12 --target heat"
    workplace.ok(f"-q train --data load.csv --cell gru {SMALL} {forecast} --run-dir runs/load")
    shutil.copytree(workplace.path("runs/first"), workplace.path("runs/again"))
    return workplace


@pytest.fixture
def changed(runs: Workplace, tmp_path: Path) -> Iterator[Workplace]:
    """A copy of ``runs`` to change."""
    with copied(runs, tmp_path / "copy") as copy:
        yield copy


def summary_of(workplace: Workplace, run: str) -> dict:
    return json.loads((workplace.path(run) / "summary.json").read_text())


def test_the_list_has_every_run_with_its_facts(runs: Workplace) -> None:
    documents = {document["path"]: document for document in runs.document("runs list")}
    assert documents.keys() == {"runs/first", "runs/again", "runs/study/gru", "runs/load"}
    summary, gru = summary_of(runs, "runs/study/gru"), documents["runs/study/gru"]
    for key in ("task", "cell", "parameters", "epochs", "steps", "seconds", "best_epoch", "metrics", "warnings"):
        assert gru[key] == summary[key], key
    assert (gru["state"], gru["problem"], gru["data"], gru["metric"]) == ("done", None, "digits", "accuracy")
    assert documents["runs/load"]["metric"] == "mae"
    assert documents["runs/first"]["certificate"]["kind"] == "contracting"


def test_runs_are_listed_without_torch(runs: Workplace) -> None:
    result, has_torch = run_alone(runs, "runs list")
    assert (result.code, has_torch) == (0, False)
    assert "contracting" in result.out


def test_a_damaged_run_is_listed_with_the_reason(changed: Workplace) -> None:
    metrics = changed.path("runs/first/metrics.jsonl")
    metrics.write_text(metrics.read_text()[:-20])
    result = changed.ok("runs list")
    (line,) = [line for line in result.out.splitlines() if line.startswith("runs/first ") and " is damaged" not in line]
    assert " damaged " in line
    assert result.out.splitlines()[-1] == (
        "runs/first is damaged: Line 1 of 'runs/first/metrics.jsonl' is not a JSON object. Restore the file, or train "
        "again."
    )


def test_one_run_is_shown_with_its_settings_and_epochs(runs: Workplace) -> None:
    out = runs.ok("runs show runs/first").out
    rows = [line.split() for line in out.splitlines()]
    summary = summary_of(runs, "runs/first")
    assert ["model.hidden_size", "4", "64"] in rows
    assert ["training.plots", "false", "true"] in rows
    scores = [f"{summary['metrics'][split]['accuracy']:.4g}" for split in ("validation", "test")]
    assert ["accuracy", *scores] in rows
    assert "trained       1 epoch, " in out
    assert rows[-1][0] == "1"
    assert rows[-1][-1] == "best"


def test_many_epochs_are_condensed_to_some_with_the_best(changed: Workplace) -> None:
    path = changed.path("runs/first")
    record = json.loads((path / "metrics.jsonl").read_text())
    (path / "metrics.jsonl").write_text(
        "".join(json.dumps({**record, "epoch": epoch}) + "\n" for epoch in range(1, 101))
    )
    summary = summary_of(changed, "runs/first")
    (path / "summary.json").write_text(json.dumps({**summary, "epochs": 100, "best_epoch": 98}))
    lines = changed.ok("runs show runs/first").out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("13 of 100 epochs"))
    numbers = [int(line.split()[0]) for line in lines[start + 3 :]]
    assert numbers == [1, 10, 19, 28, 37, 46, 55, 64, 73, 82, 91, 98, 100]


def test_a_stopped_run_is_shown_with_the_command_that_resumes_it(changed: Workplace) -> None:
    changed.path("runs/first/summary.json").unlink()
    out = changed.ok("runs show runs/first").out
    assert "stopped; go on with it by: stablernn train --resume --run-dir runs/first" in out
    changed.ok("-q train --resume --run-dir runs/first")
    assert "done" in changed.ok("runs show runs/first").out


def test_two_runs_are_shown_side_by_side(runs: Workplace) -> None:
    result = runs.ok("runs show runs/first runs/study/gru")
    rows = [line.split() for line in result.out.splitlines()]
    first, gru = (summary_of(runs, run) for run in ("runs/first", "runs/study/gru"))
    assert ["better", "first", "gru"] in rows
    assert ["parameters", str(first["parameters"]), str(gru["parameters"])] in rows
    losses = [f"{summary['metrics']['test']['log_loss']:.4g}" for summary in (first, gru)]
    assert ["test", "log_loss", "lower", *losses] in rows
    assert ["model.cell", "lipschitz", "gru"] in rows
    assert ["training.certified", "true", "false"] in rows
    assert result.err == ""


def test_runs_on_different_data_are_warned_of(runs: Workplace) -> None:
    result = runs.ok("runs show runs/study/gru runs/load")
    assert result.err.startswith(
        "Warning: The runs were trained on different data, so that their scores cannot be compared: gru on digits "
        "(sha256:"
    )
    document = runs.document("runs show runs/study/gru runs/load")
    assert document["same_data"] is False
    assert document["differing_settings"]["data.source"] == ["digits", "load.csv"]


def test_curves_are_drawn_over_one_another(runs: Workplace, tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    result = runs.ok(f"runs show runs/first runs/study/gru --plot {path}")
    assert result.err.splitlines()[-1] == f"Wrote {path}."
    assert (imread(path)[..., :3] < 0.98).any(axis=-1).mean() > 0.005


REFUSED: dict[str, tuple[tuple[object, ...], int, str]] = {
    "folder": (
        "list gone",
        2,
        "There is no folder 'gone'. Name one with runs, or none for those in 'runs'.",
    ),
    "key": ("list --sort acuracy", 2, "Unknown key to sort runs by 'acuracy'. Did you mean 'accuracy'? "),
    "run": (
        "show runs/frist",
        2,
        "There is no run directory 'runs/frist'. The runs in 'runs' are: again, first, load.",
    ),
    "run in an empty folder": (
        "show gone/first",
        2,
        "There is no run directory 'gone/first'. See 'stablernn runs list FOLDER'.",
    ),
    "file": ("show load.csv", 2, "'load.csv' is a file, not a run directory. See 'stablernn runs list FOLDER'."),
    "ending": ("show runs/first --plot curves.jpg", 2, "--plot must end in .png, got 'curves.jpg'."),
    "folder of the figure": (
        "show runs/first --plot gone/curves.png",
        2,
        "There is no folder 'gone'. Make it, or choose another --plot.",
    ),
    "curves of two tasks": (
        "show runs/first runs/load --plot curves.png",
        2,
        "The runs in 'runs/first' and 'runs/load' have no validation metric in common: they are for 'classify' and "
        "'forecast'. Draw runs of one task.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_command_line_is_refused(runs: Workplace, case: str) -> None:
    arguments, code, sentence = REFUSED[case]
    result = runs(f"runs {arguments}")
    assert result.sentence.startswith(sentence)
    assert result.code == code
    assert result.out == ""


@pytest.mark.parametrize("name", ["config.yaml", "data.json"])
def test_a_run_without_readable_settings_is_not_shown(changed: Workplace, name: str) -> None:
    path = changed.path("runs/first") / name
    path.write_text(path.read_text()[:-40] + '"')
    sentence = changed.refusal("runs show runs/first", code=1)
    assert "'runs/first" in sentence
    assert name in sentence
