"""``predict`` and ``eval`` of versions by the engine ``native``: answers and scores of the default engine, no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from cli_helpers import HORIZON, UNPLOTTED, Workplace, run_alone, write_load
from stablernn.data import load_data
from step_forms import needs_native

pytestmark = [needs_native, pytest.mark.slow]

TOLERANCE = 1e-4
"""Of the largest number of an output, as loading allows; a missing value is null in both."""


@pytest.fixture(scope="module")
def versions(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """The classifier ``digits``, and a forecaster with the default settings but for a short training."""
    workplace = Workplace(tmp_path_factory.mktemp("versions"))
    write_load(workplace.path("load.csv"))
    data = f"--data load.csv --target heat --target power --horizon {HORIZON}"
    workplace.ok(f"-q train {data} --cell lipschitz --max-steps 5 {UNPLOTTED} --run-dir load-run")
    workplace.ok("-q export load-run --name load")
    workplace.ok(f"-q export {trained.path('digits-run')} --name digits")
    np.savez(workplace.path("digits.npz"), x=load_data("digits").split("test").x)
    return workplace


PREDICT = {
    "digits": ("predict", "digits:1", "--input", "digits.npz"),
    "load": ("predict", "load:1", "--input", "load.csv"),
}


def assert_close(native: list[float], default: list[float]) -> None:
    reference = np.array(default, np.float64)
    allowed = TOLERANCE * np.abs(reference).max()
    np.testing.assert_allclose(np.array(native, np.float64), reference, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", PREDICT)
def test_predictions_are_those_of_the_default_engine(versions: Workplace, tmp_path: Path, name: str) -> None:
    tables = {}
    for engine in ("onnx", "native"):
        output = tmp_path / f"{engine}.csv"
        document = versions.ok("-q", *PREDICT[name], "--engine", engine, "--output", output, "--json").json
        assert document["engine"] == engine
        tables[engine] = pl.read_csv(output)
    native, default = tables["native"], tables["onnx"]
    assert native.columns == default.columns
    assert len(native) == len(default) > 0
    numbers = [column for column, dtype in default.schema.items() if dtype == pl.Float64]
    assert native.drop(numbers).equals(default.drop(numbers))
    assert numbers
    for column in numbers:
        assert_close(native[column].to_list(), default[column].to_list())


@pytest.mark.parametrize("name", PREDICT)
def test_scores_are_those_of_the_default_engine(versions: Workplace, name: str) -> None:
    default, native = (
        versions.ok(f"-q eval {name}:1", *engine, "--json").json["metrics"] for engine in ((), ("--engine", "native"))
    )
    assert native.keys() == default.keys()
    assert default
    for metric, value in default.items():
        assert native[metric] == pytest.approx(value, rel=TOLERANCE), metric


@pytest.mark.slow
@pytest.mark.parametrize("name", PREDICT)
def test_predictions_need_no_torch(versions: Workplace, name: str) -> None:
    result, has_torch = run_alone(versions, "-q", *PREDICT[name], "--engine", "native", "--json")
    assert result.json["engine"] == "native"
    assert not has_torch
