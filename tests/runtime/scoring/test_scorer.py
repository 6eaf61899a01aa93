"""Versions as functions of tables: layouts, bits, errors of single sequences, and references that are sent around."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from published_models import Published, republished
from stablernn_registry import Registry, RegistryError, UnknownRefError
from stablernn_runtime import ServedModel
from stablernn_runtime.errors import InputError, ModelLoadError
from stablernn_runtime.scoring import Scorer
from stablernn_runtime.scoring.scorer import read_sequences

LOUDNESS = [[0.1, 0.4, 0.3], [0.2], [1.5, -0.5]]


@pytest.fixture
def animals(published: Published) -> Scorer:
    return Scorer.find("animals@production", registry=published.registry.root)


def long_table(sequences: list[list[float]], names: list[str], feature: str = "loudness") -> pl.DataFrame:
    rows = [
        {"id": name, "step": step, feature: value}
        for name, values in zip(names, sequences, strict=True)
        for step, value in enumerate(values)
    ]
    return pl.DataFrame(rows)


def test_a_row_for_each_sequence_and_a_row_for_each_step_give_the_bits_of_the_sequence_alone(
    animals: Scorer, published: Published
) -> None:
    names = ["b", "a", "c"]
    lists = animals.score({"id": names, "loudness": LOUDNESS})
    assert lists.columns == [
        "id",
        "label",
        *(f"probability_{label}" for label in ("cat", "dog", "owl", "rat")),
        "error",
    ]
    assert lists["id"].to_list() == names
    assert lists["error"].null_count() == 3
    model = ServedModel.load(published.registry.get("animals:1"), "cpu")
    for row, values in zip(lists.iter_rows(), LOUDNESS, strict=True):
        (alone,) = model.run_numpy(np.array(values, np.float32)[None, :, None])["probabilities"]
        assert np.array_equal(np.array(row[2:6], np.float32), alone)
        assert row[1] == (model.manifest.labels or [])[alone.argmax()]
    assert animals.score(long_table(LOUDNESS, names)).equals(lists)
    shuffled = long_table(LOUDNESS, names).sort("step", descending=True)
    sorted_again = animals.score(shuffled, time_column="step")
    assert sorted_again.sort("id").equals(lists.sort("id"))


class ArrowStream:
    """A table of a library that polars does not know, by the Arrow C stream interface alone."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("form", ["pandas", "arrow", "fixed lists", "integers"])
def test_tables_of_other_libraries_are_read(animals: Scorer, form: str) -> None:
    names, values = ["x", "y"], [[1.0, 2.0], [3.0, 4.0]]
    table: Any = pl.DataFrame({"unique_id": names, "loudness": values})
    expected = animals.score(table)
    if form == "pandas":
        table = pd.DataFrame({"unique_id": names, "loudness": values})
    elif form == "arrow":
        table = ArrowStream(table)
    elif form == "fixed lists":
        table = table.with_columns(pl.col("loudness").cast(pl.Array(pl.Float32, 2)))
    else:
        table = table.with_columns(pl.col("loudness").cast(pl.List(pl.Int16)))
    assert animals.score(table).equals(expected)


def test_a_sequence_that_cannot_be_answered_costs_no_other_its_answer(animals: Scorer) -> None:
    table = {
        "id": ["good", "empty", "none", "missing", "infinite", "huge", "long", "gap"],
        "loudness": [[1.0], [], None, [None, np.nan], [1.0, np.inf], [1e39], [0.0] * 9, [None, 2.0]],
    }
    answers = animals.score(table, most_steps=8)
    assert dict(zip(answers["id"], answers["error"], strict=True)) == {
        "good": None,
        "empty": "It has no steps.",
        "none": "It has no steps.",
        "missing": "All of its values are missing.",
        "infinite": "loudness is infinite or beyond float32 at step 1.",
        "huge": "loudness is infinite or beyond float32 at step 0.",
        "long": "It has 9 steps, and at most 8 are answered.",
        "gap": None,
    }
    has_answer = answers["error"].is_null()
    assert (answers["label"].is_null() ^ has_answer).all()
    assert (answers["probability_cat"].is_null() ^ has_answer).all()
    assert answers.filter(has_answer)["probability_cat"].is_finite().all()
    alone = animals.score({"id": ["gap"], "loudness": [[None, 2.0]]})
    assert answers.filter(pl.col("id") == "gap").equals(alone)


def test_an_answer_that_is_not_finite_is_the_error_of_its_sequence(
    animals: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ServedModel.run_numpy

    def refusing(model: ServedModel, x: Any, *arguments: Any, **options: Any) -> Any:
        if (x == 7).any():
            raise InputError("The output 'probabilities' is not finite.")
        return run(model, x, *arguments, **options)

    monkeypatch.setattr(ServedModel, "run_numpy", refusing)
    values = [[float(number)] for number in range(20)]
    answers = animals.score({"id": list(range(20)), "loudness": values})
    assert answers.filter(pl.col("error").is_not_null())["id"].to_list() == [7]
    monkeypatch.undo()
    everything = animals.score({"id": list(range(20)), "loudness": values})
    assert answers.filter(pl.col("id") != 7).equals(everything.filter(pl.col("id") != 7))


def test_forecasts_have_a_row_for_each_target_and_step(published: Published) -> None:
    scorer = Scorer.find("flow:1", registry=published.registry.root)
    x = np.random.default_rng(0).normal(size=(2, 12, 3)).astype(np.float32)
    names = ("flow", "rain", "level")
    table = {"unique_id": ["n", "s"], **{name: list(x[:, :, number]) for number, name in enumerate(names)}}
    table = {name: [*values, "gone" if name == "unique_id" else x[0, :0, 0]] for name, values in table.items()}
    answers = scorer.score(table)
    outputs = ServedModel.load(published.registry.get("flow:1"), "cpu").run_numpy(x)
    quantiles = [column for column in answers.columns if column.startswith("q")]
    assert answers.columns == ["unique_id", "step", "target", "mean", *quantiles, "error"]
    assert len(answers) == 2 * 2 * 5 + 1
    first = answers.filter((pl.col("unique_id") == "s") & (pl.col("target") == "level"))
    assert first["step"].to_list() == [1, 2, 3, 4, 5]
    assert np.array_equal(first["mean"].to_numpy(), outputs["mean"][1, :, 1])
    for number, column in enumerate(quantiles):
        assert np.array_equal(first[column].to_numpy(), outputs["quantiles"][1, :, 1, number])
    assert answers[-1].to_dicts()[0] == dict.fromkeys(answers.columns) | {
        "unique_id": "gone",
        "error": "It has no steps.",
    }


def test_a_forecast_reads_the_context_of_training_alone(published: Published) -> None:
    scorer = Scorer.find("co2:1", registry=published.registry.root)
    values = np.random.default_rng(0).normal(size=40).tolist()
    long, short = (scorer.score({"id": ["a"], "co2": [part]}) for part in (values, values[-6:]))
    assert long.equals(short)
    assert long["step"].to_list() == [1, 2, 3, 4]
    # What lies before the context may be anything.
    assert scorer.score({"id": ["a"], "co2": [[np.inf, *values]]}).equals(long)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"loudness": [[1.0]]}, {}, "The table has no column 'id' or 'unique_id' to name its sequences by."),
        (
            {"id": [1], "noise": [[1.0]]},
            {},
            "The table has no column 'loudness', which the model reads. Its columns are",
        ),
        ({"id": [1], "loudness": [["loud"]]}, {}, "The column 'loudness' has values of the type String"),
        ({"id": [1, None], "loudness": [1.0, 2.0]}, {}, "1 rows have no value of 'id'"),
        (
            {"id": [1, 1], "ds": [3, 3], "loudness": [1.0, 2.0]},
            {"time_column": "ds"},
            "Some sequences have two steps of one 'ds'.",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    animals: Scorer, table: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refusal:
        animals.score(table, **options)
    assert str(refusal.value).startswith(message)


@pytest.mark.slow
def test_batches_hold_like_lengths_and_few_numbers() -> None:
    lengths = [5, 3_000_000, 5, 2_000_000, 7, 2_000_000]
    table = {"id": list(range(6)), "x": [np.zeros(length, np.float32) for length in lengths]}
    read = read_sequences(table, ["x"], id_column=None, time_column=None, most_steps=10**7, last_steps=None)
    assert [batch.tolist() for batch in read.batches(2)] == [[0, 2], [4, 3], [5], [1]]


@pytest.mark.slow
def test_a_scorer_is_small_and_opens_its_version_once_in_another_process(animals: Scorer, published: Published) -> None:
    content = pickle.dumps(animals)
    assert len(content) < 600
    code = (
        "import pickle, sys; scorer = pickle.loads(bytes.fromhex(sys.argv[1])); "
        "assert scorer.open() is scorer.open() is pickle.loads(bytes.fromhex(sys.argv[1])).open(); "
        "print(scorer.score({'id': ['a'], 'loudness': [[0.1, 0.4]]}).write_json()); "
        "assert not {'torch', 'fastapi', 'uvicorn', 'asyncio'} & set(sys.modules), sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, content.hex()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == animals.score({"id": ["a"], "loudness": [[0.1, 0.4]]}).write_json()


def test_an_alias_that_moves_moves_nothing_and_other_files_are_refused(published: Published, tmp_path: Path) -> None:
    shutil.copytree(published.registry.root, tmp_path / "registry")
    registry = Registry(tmp_path / "registry")
    scorer = Scorer.find("animals@production", registry=registry.root)
    registry.set_alias("animals", "production", 2)
    assert scorer.model == "animals:1"
    assert scorer.open().ref == "animals:1"
    other = republished(published, tmp_path / "other", lambda fields, _: fields.update(lineage={"run": "2"}))
    with pytest.raises(ModelLoadError, match="and the job began with sha256:"):
        Scorer(str(other.root), scorer.model, scorer.digest).open()


def test_a_registry_that_is_away_is_waited_for(published: Published, tmp_path: Path) -> None:
    scorer = Scorer.find("animals:1", registry=published.registry.root)
    away = Scorer(str(tmp_path / "share"), "animals:1", scorer.digest, wait_seconds=20)
    mount = threading.Timer(0.5, lambda: shutil.copytree(published.registry.root, tmp_path / "share"))
    mount.start()
    assert away.open().digest == scorer.digest
    mount.join()
    began = time.monotonic()
    with pytest.raises(RegistryError):
        Scorer.find("animals:1", registry=tmp_path / "nowhere", wait_seconds=0.3)
    assert time.monotonic() - began >= 0.3
    # A version that is not there is not waited for.
    with pytest.raises(UnknownRefError):
        Scorer.find("animals:9", registry=published.registry.root, wait_seconds=600)


def test_many_streams_advance_with_the_bits_of_whole_sequences(animals: Scorer) -> None:
    x = np.random.default_rng(0).normal(size=(50, 20, 1)).astype(np.float32)
    x[3, 4:9] = np.nan
    states: dict[str, np.ndarray] | None = None
    for step in x.swapaxes(0, 1):
        answers, states = animals.advance(step, states)
    whole = animals.open().run_numpy(x)
    assert answers.keys() == whole.keys()
    for name, value in whole.items():
        assert np.array_equal(answers[name], value), name
    with pytest.raises(InputError):
        animals.advance(np.full((2, 1), np.inf))
