"""`stablernn reproduce` end to end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Workplace
from reproduce_helpers import little_images, little_table, two_rows
from stablernn.data import dataset_info
from stablernn_papers.tables import TABLES


def robustness(workplace: Workplace, *options: str) -> dict[str, Any]:
    rows = workplace.ok("reproduce list", *options, "--json").json
    return next(row for row in rows if row["table"] == "robustness")


@pytest.fixture
def little(empty: Workplace, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """A workplace in which the table is little: two cells of four units, a handful of images."""
    little_images(monkeypatch, empty.folder)
    little_table(monkeypatch, rows=two_rows(little_table(monkeypatch)))
    return empty


def test_every_table_has_its_command(empty: Workplace) -> None:
    listed = empty.document("reproduce list")
    assert [row["table"] for row in listed] == list(TABLES)
    assert [row["rows"] for row in listed] == [len(table.rows) for table in TABLES.values()]
    assert len(listed) == 13
    assert {"table", "paper", "rows", "state"} <= listed[0].keys()


@pytest.mark.slow
def test_a_table_is_made_and_printed_beside_the_published_one(little: Workplace) -> None:
    result = little.ok("reproduce robustness --short")
    lines = result.out.splitlines()
    assert lines[0].startswith("Erichson, Azencot, Queiruga, Hodgkinson, Mahoney: Lipschitz Recurrent Neural Networks")
    assert result.out.count("lipschitz ") == 2
    published = [line.split() for line in lines if line.split()[:1] == ["paper"]]
    assert published[0] == ["paper", "-", "93.0", "89.2", "54.1", "0.14", "3.1", "23.2", "-"]
    assert published[1] == ["paper", *["-"] * 8]
    assert "SHORT: the scaled-down protocol, which shows that it works and compares nothing." in lines
    assert "trained 2 of 2: lstm, seed 0" in result.err
    written = {path.name for path in (little.folder / "reproductions" / "robustness-short").iterdir()}
    assert written == {".locks", "measured", "protocol.json", "results.json", "robustness.png", "runs", "table.md"}


def test_the_list_knows_the_results_that_are_shipped(empty: Workplace) -> None:
    row = robustness(empty)
    shipped = Path(row["shipped"]["results"])
    results = json.loads(shipped.read_text())
    assert (row["state"], row["output"], row["finished_runs"]) == ("full", None, {"full": 0, "short": 0})
    assert row["shipped"] == {
        "state": "full",
        "commit": results["environment"]["commit"],
        "time": results["environment"]["time"],
        "results": str(shipped),
    }
    listed = empty.ok("reproduce list")
    (line,) = (line for line in listed.out.splitlines() if line.startswith("robustness "))
    assert line.split()[-1] == "shipped"
    described = empty.ok("reproduce list --verbose").out
    shipped_line = f"Shipped: full results of {row['shipped']['time'][:10]}, commit {row['shipped']['commit'][:12]}"
    assert shipped_line in " ".join(described.split())


def test_shipped_results_of_another_protocol_are_not_those_of_the_table(little: Workplace) -> None:
    row = robustness(little)
    assert (row["state"], row["shipped"]) == ("not run", None)


@pytest.mark.slow
@pytest.mark.slow
def test_an_edited_result_is_refused_and_the_others_are_listed(little: Workplace) -> None:
    little.ok("-q reproduce robustness --short --rows lstm")
    path = little.folder / "reproductions" / "robustness-short" / "results.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1', 1))
    result = little("reproduce list")
    assert result.code == 1
    rows = {words[0]: line for line in result.out.splitlines() if (words := line.split()) and words[0] in TABLES}
    assert rows.keys() == TABLES.keys()
    assert "not run" in rows["robustness"]
    assert "results.json' was edited after it was written" in result.sentence
    # The same command writes it again from the runs.
    little.ok("-q reproduce robustness --short --rows lstm")
    assert robustness(little)["state"] == "short"


def test_a_table_without_training_in_seconds(empty: Workplace) -> None:
    result = empty.ok("reproduce dynamics")
    assert "(results.json, table.md, dynamics.png, runs)" in result.err
    assert empty.refusal("reproduce dynamics --epochs 1 --output other").startswith("'dynamics' trains nothing")


BAD: dict[str, tuple[tuple[object, ...], str]] = {
    "cell": (
        "--rows lipschitz,lstn",
        "Unknown row of the table 'robustness' 'lstn'. Did you mean 'lstm'? It has lipschitz, lstm.",
    ),
    "seeds": ("--seeds 0,one", "--seeds must be a list of whole numbers such as 0,1,2, got '0,one'."),
    "seeds twice": ("--seeds 1,1", "--seeds must be a list of distinct numbers of 0 or more, got '1,1'."),
    "seed below 0": ("--seeds -1", "--seeds must be a list of distinct numbers of 0 or more, got '-1'."),
    "match": ("--match-accuracy 97", "--match-accuracy must be above 0 and at most 1, got 97."),
    "data": (
        "--data mnist",
        "Unknown data set of the table 'robustness' 'mnist'. Did you mean 'mnist-rows'? It has mnist-rows.",
    ),
    "lengths": ("--epochs 1 --steps 2", "--epochs and --steps exclude each other."),
    "jobs": (
        "--jobs 0",
        "--jobs must be greater than or equal to 1, got '0'. See 'stablernn reproduce robustness --help'.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(little: Workplace, case: str) -> None:
    arguments, sentence = BAD[case]
    assert little.refusal(f"reproduce robustness {arguments}") == sentence
    assert not little.path("reproductions").exists()


def test_without_the_images_it_says_which_files_are_wanted(little: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (little.folder / "data" / "mnist").iterdir():
        file.unlink()

    def out_of_reach(*arguments: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr("stablernn.data.named.fetch._blocks", out_of_reach)
    assert "train-images-idx3-ubyte" in little.refusal("reproduce robustness --short", code=1)
    assert not little.path("reproductions").exists()


def needs_mnist() -> None:
    if dataset_info("mnist-rows").presence != "yes":
        pytest.skip("MNIST is not below STABLERNN_DATA")


@pytest.mark.slow
def test_ctrl_c_leaves_what_the_same_command_goes_on_with(empty: Workplace) -> None:
    needs_mnist()
    words = "reproduce robustness --short --rows lipschitz,neural_ode_rnn --jobs 2"
    runs = empty.folder / "reproductions" / "robustness-short" / "runs"
    with empty.start(words) as process:
        # After their first epoch both are in the middle of a training, however slow the machine is.
        while not all((runs / f"{cell}-0" / "metrics.jsonl").exists() for cell in ("lipschitz", "neural_ode_rnn")):
            assert process.poll() is None
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "Run the same command again to go on; finished work is kept." in stderr
    assert [path.name for path in sorted(Path(runs).glob("*/checkpoints/last.safetensors"))] == ["last.safetensors"] * 2
    document = empty.document(f"{words}")
    assert [len(run["validation_accuracies"]) for run in document["runs"]] == [2, 2]
