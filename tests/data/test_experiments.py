"""Experiments with inputs and outputs: how files are read, divided and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.io import savemat

from stablernn.data import load_data
from stablernn.data.experiments import SimulationData
from stablernn.errors import StableRNNError

STEPS = 40


def load(source: Path, **options: Any) -> SimulationData:
    data = load_data(source, **{"task": "simulate", "inputs": ["u"], "outputs": ["y"], **options})
    assert isinstance(data, SimulationData)
    return data


def write(path: Path, **columns: Any) -> Path:
    time = np.arange(STEPS) * 0.5
    table = pl.DataFrame({"t": time, "u": np.sin(time), "y": np.cos(time)} | columns, strict=False)
    table.write_parquet(path) if path.suffix == ".parquet" else table.write_csv(path)
    return path


def test_forms_of_one_recording_are_read_alike(tmp_path: Path) -> None:
    table = load(write(tmp_path / "a.csv"))
    time = np.arange(STEPS) * 0.5
    arrays = {"u": np.sin(time), "y": np.cos(time), "t": time}
    np.savez(tmp_path / "a.npz", **arrays)
    savemat(tmp_path / "a.mat", {name: values[:, None] for name, values in arrays.items()})
    dates = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 1, 0, 0, 19, 500_000), "500ms", eager=True)
    write(tmp_path / "a.parquet", t=dates)
    for name in ("a.npz", "a.mat", "a.parquet"):
        other = load(tmp_path / name)
        assert (other.fingerprint, other.sample_time) == (table.fingerprint, 0.5), name
    (tmp_path / "folder").mkdir()
    for name in ("one.csv", "two.csv"):
        write(tmp_path / "folder" / name)
    # Rows of two experiments may be mixed.
    rows = pl.concat([pl.read_csv(tmp_path / "a.csv").with_columns(unique_id=pl.lit(name)) for name in "ba"])
    rows.sort("t", maintain_order=True).write_csv(tmp_path / "both.csv")
    assert load(tmp_path / "folder").fingerprint == load(tmp_path / "both.csv").fingerprint


def test_a_cube_of_arrays_holds_experiments_of_several_channels(tmp_path: Path) -> None:
    u = np.arange(2 * STEPS * 2.0).reshape(2, STEPS, 2)
    np.savez(tmp_path / "a.npz", u=u, y=u[:, :, 0] ** 2, lengths=[STEPS, STEPS - 10])
    data = load(tmp_path / "a.npz", inputs=["u_1", "u_0"])
    assert [len(each) for each in data.records.inputs] == [STEPS, STEPS - 10]
    np.testing.assert_array_equal(data.records.inputs[1], u[1, : STEPS - 10, ::-1])
    np.savez(tmp_path / "a.npz", u=u[0], y=u[0, 1:, 0])
    with pytest.raises(StableRNNError, match=r"different shapes .*: u_0 1 x 40, y 1 x 39\."):
        load(tmp_path / "a.npz", inputs=["u_0"])


def test_blocks_are_scored_after_their_own_inputs(tmp_path: Path) -> None:
    data = load(write(tmp_path / "a.csv"), washout=3)
    y = data.records.targets[0][:, 0]
    splits = {name: split.gather([0]) for name, split in data.splits().items()}
    scored = {name: np.flatnonzero(~np.isnan(each.y[0, :, 0])) for name, each in splits.items()}
    # 8 of 40 samples each, and a gap of the washout after training.
    ends = {"train": (0, 20), "validation": (24, 31), "test": (32, 39)}
    assert {name: (each[0], each[-1]) for name, each in scored.items()} == ends
    for name, each in splits.items():
        np.testing.assert_array_equal(each.x[0, :, 0], data.records.inputs[0][: ends[name][1] + 1, 0])
        np.testing.assert_array_equal(each.y[0, scored[name], 0], y[scored[name]])
    # A fit to all but the test reads no sample of it.
    assert data.without_validation().train.lengths.tolist() == [32]
    fold = data.folds(4)[1]
    known, left_out = (~np.isnan(each.targets[0][:, 0]) for each in (fold.train, fold.test))
    assert np.flatnonzero(left_out).tolist() == list(range(8, 16))
    assert np.flatnonzero(~known).tolist() == list(range(5, 19))


def test_whole_experiments_are_drawn_and_a_test_file_is_found(tmp_path: Path) -> None:
    rows = pl.concat([pl.read_csv(write(tmp_path / "a.csv")).with_columns(unique_id=pl.lit(str(i))) for i in range(10)])
    rows.write_csv(tmp_path / "x_train.csv")
    assert [len(split) for split in load(tmp_path / "x_train.csv").splits().values()] == [6, 2, 2]
    write(tmp_path / "x_test.csv")
    data = load(tmp_path / "x_train.csv")
    assert [len(split) for split in data.splits().values()] == [8, 2, 1]
    assert data.as_test() is data
    assert [len(part.test) for part in data.folds(5)] == [2] * 5


ONE = [1, *[2] * (STEPS - 1)]
HOLES = [None if i in (7, 9) else 1.0 for i in range(STEPS)]


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({}, {"outputs": ["u"]}, "'u' is an input and an output, and a simulation is given its inputs alone"),
        ({}, {"inputs": []}, "The task 'simulate' needs the inputs of 'a.csv', got none"),
        ({}, {"inputs": ["v"]}, r"Unknown column 'v'.* 'a.csv' has t, u, y"),
        ({"u": HOLES}, {}, "has no value of the input 'u' in 2 samples, first in sample 8, and a simulation needs all"),
        ({"y": [None] * STEPS}, {}, "has no value of the output 'y'"),
        ({"unique_id": ONE}, {}, "'a.csv', experiment '1' has 1 sample, and a simulation needs two or more"),
        ({"t": [*range(20), *range(21, 41)]}, {}, "from sample 20 to the next 2 s pass, most often 1 s"),
        ({"t": list(range(STEPS, 0, -1))}, {}, "from sample 1 to the next -1 s pass"),
        ({"t": ["x"] * STEPS}, {}, "sample 1 has no time in seconds and no date, but 'x'"),
        ({}, {"sample_time": 0.6}, "is sampled every 0.5 s, and 0.6 s are expected, as in data.sample_time"),
        ({}, {"validation_fraction": 0.45}, "too short to hold out 36 of them after a gap of 5"),
        ({}, {"horizon": 3}, "horizon is for forecasting; 'a.csv' is read for task 'simulate'"),
        ({}, {"task": "forecast", "target": "y"}, "inputs is for task 'simulate'; 'a.csv' is read for task 'forecast'"),
    ],
)
def test_refusals(tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    source = write(tmp_path / "a.csv", **columns)
    with pytest.raises(StableRNNError, match=sentence):
        load_data(source, **{"task": "simulate", "inputs": ["u"], "outputs": ["y"], **options})


def test_different_sampling_times_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv")
    write(tmp_path / "b.csv", t=np.arange(STEPS) * 0.52)
    with pytest.raises(StableRNNError, match=r"'b.csv' is sampled every 0.52 s, and 0.5 s are expected"):
        load(tmp_path)
    with pytest.raises(StableRNNError, match=r"'b.csv' is sampled every 0.52 s, and 0.5 s are expected"):
        load(tmp_path / "a.csv", test=tmp_path / "b.csv")
