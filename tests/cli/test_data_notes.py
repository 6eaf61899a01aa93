"""What the data behind scores lacks is said wherever they are; what was fitted after training goes with a version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import UNPLOTTED, Workplace
from stablernn.data.load import load_source
from stablernn.data.options import LoadOptions
from stablernn.data.step_data import Data
from stablernn_cli.output import data_notes

PARTIAL = {"partial": ["data_batch_3.bin", "data_batch_5.bin"]}
UNCHECKED = {"unchecked": ["MuseData.pickle"]}
LINE = (
    "Data: only in part, missing or short: data_batch_3.bin, data_batch_5.bin; with no published checksum to compare "
    "with: MuseData.pickle."
)


@pytest.mark.parametrize(
    ("notes", "line"),
    [
        ({}, None),
        (PARTIAL, LINE.partition(";")[0] + "."),
        (UNCHECKED, "Data: with no published checksum to compare with: MuseData.pickle."),
        (UNCHECKED | PARTIAL, LINE),
        ({"counts": {"gap_steps_filled": 6, "constant_series": 1}}, "Data: 6 missing steps filled, 1 constant series."),
        (
            UNCHECKED | {"counts": {"short_rows": 1}},
            "Data: with no published checksum to compare with: MuseData.pickle; 1 row with too few cells.",
        ),
    ],
)
def test_the_line(notes: dict[str, Any], line: str | None) -> None:
    assert data_notes(notes) == line


COUNTED = {
    "short_rows": 1,
    "blank_rows_skipped": 1,
    "missing_values": 4,
    "gap_steps_filled": 2,
    "constant_series": 1,
    "ignored_columns": 1,
}
COUNTED_LINE = (
    "Data: 1 row with too few cells, 1 blank row skipped, 4 missing values, 2 missing steps filled, 1 constant series, "
    "1 column ignored."
)


def write_flawed(path: Path) -> None:
    """Two series, one that never changes, with gaps, missing cells, a short and a blank row and a column too many."""
    days = [str(np.datetime64("2024-01-01") + day) for day in range(60)]
    rows = [f"a,{day},{n % 5},0,7" for n, day in enumerate(days) if n not in (20, 30)]
    rows += [f"b,{day},5,{n % 3},7" for n, day in enumerate(days)]
    rows[3:3] = [",,,,"]
    rows[8] = rows[8].rsplit(",", 3)[0]
    rows[10] = rows[10].rsplit(",", 3)[0] + ",,,"
    path.write_text("\n".join(["unique_id,ds,y,x,note", *rows]) + "\n")


def test_what_was_counted_is_said_before_training(empty: Workplace) -> None:
    write_flawed(empty.path("d.csv"))
    training = f"train {UNPLOTTED} --data d.csv --cell rnn --hidden-size 3 --max-steps 1"
    chosen = f"{training} --set 'data.channels=[y, x]'"
    result = empty.ok(f"{chosen} --run-dir told --json")
    assert result.json["data_notes"] == {"counts": COUNTED}
    lines = result.err.splitlines()
    assert lines.count(COUNTED_LINE) == 1
    assert lines.index(COUNTED_LINE) < next(n for n, line in enumerate(lines) if line.startswith("epoch "))
    quiet = empty.ok(f"-q {chosen} --run-dir quiet")
    assert quiet.err == ""
    assert COUNTED_LINE in quiet.out.splitlines()
    assert empty.document("eval told")["data_notes"] == {"counts": COUNTED}


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes all data that runs load lack something."""

    def load(options: LoadOptions) -> Data:
        data = load_source(options)
        return replace(data, notes={**data.notes, **PARTIAL, **UNCHECKED})

    return lambda: monkeypatch.setattr("stablernn.training.run_data.load_source", load)


def test_scores_say_what_their_data_lacks(trained: Workplace, lacking: Callable[[], None], tmp_path: Path) -> None:
    evaluated = "-q eval digits-run"
    assert trained.document(f"{evaluated}")["data_notes"] == {}
    assert "Data:" not in trained.ok(evaluated).out
    lacking()
    training = f"-q train {UNPLOTTED} --data digits --cell rnn --hidden-size 3 --max-steps 1"
    assert LINE in trained.ok(f"{training} --run-dir {tmp_path / 'said'}").out.splitlines()
    told = trained.document(f"{training} --run-dir {tmp_path / 'told'}")
    assert told["data_notes"] == PARTIAL | UNCHECKED
    assert json.loads((tmp_path / "told/summary.json").read_text())["data_notes"] == PARTIAL | UNCHECKED
    for target in ("digits-run", "digits:1"):
        assert LINE in trained.ok(f"-q eval {target}").out.splitlines()
        assert trained.document(f"eval {target}")["data_notes"] == PARTIAL | UNCHECKED
