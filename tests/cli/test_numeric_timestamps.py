"""Unix times from training to forecast: the run remembers what whole numbers are, and every command may say it anew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from cli_helpers import UNPLOTTED, Workplace, republish
from stablernn_registry import Registry

DAY = 86_400
# Of all scalings, the default one of forecasts takes longest to export.
SMALL = "--cell lipschitz --hidden-size 4 --max-steps 3 --set model.scaling=standard"
CALENDAR = "--set data.calendar=week"
FIRST = 1_704_067_200  # 2024-01-01
REFUSED = (
    "holds whole numbers that look like Unix times in seconds: 1704067200 would be 2024-01-01 00:00:00. Say what they "
    "are with data.stamps (--stamps): unix-s, or step where they only number the steps."
)


def write(path: Path, unit: str, steps: int = 90) -> None:
    days = np.arange(steps)
    dates = np.datetime_as_string(np.datetime64("2024-01-01") + days, unit="D")
    times = {
        "s": FIRST + DAY * days,
        "ms": 1000 * (FIRST + DAY * days),
        "iso": dates + np.array("T00:00:00Z"),
        "yyyymmdd": np.char.replace(dates, "-", ""),
    }[unit]
    values = 10 + np.sin(2 * np.pi * days / 7)
    path.write_text("\n".join(["ds,y", *(f"{t},{y:.4f}" for t, y in zip(times, values, strict=True))]) + "\n")


@pytest.fixture(scope="module")
def unix(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A published model ``daily`` with a calendar, trained on Unix times in seconds."""
    place = Workplace(tmp_path_factory.mktemp("unix"))
    for unit in ("s", "ms", "iso"):
        (place.folder / unit).mkdir()
        write(place.path(f"{unit}/d.csv"), unit)
    place.ok(f"-q train {UNPLOTTED} --data s/d.csv --stamps unix-s {SMALL} {CALENDAR} --run-dir run")
    place.ok("-q export run --name daily")
    return place


def test_train_and_check_refuse_unix_times_that_nobody_named(unix: Workplace) -> None:
    assert (
        unix.refusal("train --data s/d.csv --cell lipschitz --run-dir none", code=1) == f"'d.csv' column 'ds' {REFUSED}"
    )
    report = unix("data check s/d.csv")
    assert report.code == 1
    assert f"problem: 'd.csv' column 'ds' {REFUSED} [refused]" in report.out
    assert "--stamps unix-s" in report.out


def test_run_and_version_record_what_the_numbers_are(unix: Workplace) -> None:
    assert json.loads(unix.path("run/data.json").read_text())["stamps"] == "unix-s"
    manifest = Registry(unix.registry).get("daily").manifest
    assert manifest.preprocessing["stamps"] == "unix-s"
    assert (manifest.frequency, manifest.season) == ("D", 7)


@pytest.mark.parametrize("target", ["run", "daily"])
def test_predict_and_eval_read_them_as_training_did(unix: Workplace, target: str) -> None:
    said = unix.ok(f"-q predict {target} --input s/d.csv").out
    assert said.splitlines()[1].startswith("d,2024-03-31T00:00:00Z,")
    assert unix.ok(f"-q predict {target} --input iso/d.csv").out == said
    assert unix.ok(f"-q predict {target} --input ms/d.csv --stamps unix-ms").out == said
    scores = unix.document(f"eval {target}")["metrics"]
    again = unix.document(f"eval {target} --data ms/d.csv --stamps unix-ms")
    assert (again["metrics"], again["data"]["as_trained"]) == (scores, True)


@pytest.mark.parametrize("command", ["predict daily --input", "eval daily --data"])
def test_another_unit_than_that_of_training_is_refused(unix: Workplace, command: str) -> None:
    assert unix.refusal(f"{command} ms/d.csv", code=1) == (
        "'d.csv' row 2, column 'ds': '1704067200000' is no time of the years 1678 to 2261 by data.stamps=unix-s. Set "
        "data.stamps (--stamps) to what the numbers are."
    )


def test_a_model_of_dates_asks_what_the_numbers_are(workplace: Workplace) -> None:
    header, *lines = workplace.path("load.csv").read_text().splitlines()
    numbered = [f"{FIRST + DAY * day},{line.split(',', 1)[1]}" for day, line in enumerate(lines)]
    workplace.path("unix").mkdir()
    workplace.path("unix/load.csv").write_text("\n".join([header, *numbered]) + "\n")
    for target in ("load-run", "load"):
        assert (
            workplace.refusal(f"predict {target} --input unix/load.csv", code=1) == f"'load.csv' column 'ds' {REFUSED}"
        )
        dated = workplace.ok(f"-q predict {target} --input load.csv").out
        said = workplace.ok(f"-q predict {target} --input unix/load.csv --stamps unix-s").out
        assert said.replace("T00:00:00Z", "") == dated


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A run and a model ``digits:1`` of days as YYYYMMDD, as they were written before there was ``data.stamps``."""
    place = Workplace(tmp_path_factory.mktemp("dated"))
    write(place.path("d.csv"), "yyyymmdd")
    place.ok(f"-q train {UNPLOTTED} --data d.csv --stamps yyyymmdd {SMALL} --run-dir run")
    config = yaml.safe_load(place.path("run/config.yaml").read_text())
    del config["data"]["stamps"]
    place.path("run/config.yaml").write_text(yaml.safe_dump(config))
    described = json.loads(place.path("run/data.json").read_text())
    del described["stamps"]
    place.path("run/data.json").write_text(json.dumps(described))
    place.ok("-q export run --name old")
    lineage = Registry(place.registry).get("old").manifest.lineage
    republish(place, "old:1", lineage={**lineage, "config": config})
    return place


@pytest.mark.slow
@pytest.mark.parametrize("target", ["run", "digits:1"])
def test_a_model_from_before_stamps_reads_days_as_it_did(dated: Workplace, target: str) -> None:
    said = dated.ok(f"-q predict {target} --input d.csv").out
    assert said.splitlines()[1].startswith("d,2024-03-31,")
    assert dated.document(f"eval {target}")["data"]["as_trained"] is True


def test_a_table_is_one_however_its_ending_is_written(unix: Workplace) -> None:
    unix.path("ms/d.CSV").write_bytes(unix.path("ms/d.csv").read_bytes())
    report = unix.document("eval run --data ms/d.CSV --stamps unix-ms")
    assert report["data"]["as_trained"] is True
