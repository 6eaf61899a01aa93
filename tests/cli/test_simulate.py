"""A machine identified and simulated through the command line: train, eval, export, predict."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from scipy.signal import lfilter

from cli_helpers import UNPLOTTED, Workplace, run_alone
from stablernn.training.loop import gauss_newton

TRAIN = "train --data tank_train.csv --task simulate --inputs u,v --outputs y,z --run-dir run"


def write(place: Workplace, name: str, seed: int, *, step: float = 0.1, steps: int = 200, bend: float = 0.0) -> None:
    u = np.random.default_rng(seed).normal(size=(steps, 2))
    y = lfilter([0, 0.5], [1, -0.8], u[:, 0] + u[:, 1])
    y = np.tanh(bend * y) / bend if bend else y
    # Units that differ by a factor of a billion.
    table = np.column_stack([np.arange(steps) * step, u, 1e-6 * y, 1e3 * (y - 0.5 * np.roll(y, 1))])
    np.savetxt(place.path(name), table, delimiter=",", header="t,u,v,y,z", comments="")


def test_from_training_to_answers(empty: Workplace) -> None:
    write(empty, "tank_train.csv", 0)
    write(empty, "tank_test.csv", 1)
    result = empty.ok(f"{TRAIN} --max-steps 30 --cell lru --hidden-size 8 --json")
    summary = result.json
    assert summary["task"] == "simulate"
    scores = summary["metrics"]["test"]
    # A linear machine: no network is better, and a warning says so.
    assert scores["arx"]["fit"] > 95
    assert "no better than the best linear ARX model" in summary["warnings"][-1]
    assert scores["nrmse_z"] == pytest.approx(scores["nrmse_y"], rel=0.5)
    assert empty.path("run/plots/simulation_test.png").is_file()
    assert empty.document("eval run")["metrics"] == scores

    empty.ok("-q export run --name tank")
    served = empty.document("eval tank --data tank_test.csv")
    assert served["metrics"]["rmse_y"] == pytest.approx(scores["rmse_y"], rel=1e-4)

    # Of another machine's range, without outputs.
    table = np.genfromtxt(empty.path("tank_test.csv"), delimiter=",", names=True)[["t", "v", "u"]]
    table["u"][3:5] = 99
    np.savetxt(empty.path("new.csv"), np.array(table.tolist()), delimiter=",", header="t,v,u", comments="")
    answer, has_torch = run_alone(empty, "predict tank --input new.csv")
    assert (answer.code, has_torch) == (0, False)
    assert "2 samples of the input 'u' beyond the range of training" in answer.err
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert (list(rows[0]), len(rows)) == (["t", "y", "z"], 200)
    assert float(rows[7]["t"]) == pytest.approx(0.7)
    by_torch = list(csv.DictReader(io.StringIO(empty.ok("-q predict run --input new.csv").out)))
    one, other = (np.array([[float(row["y"]), float(row["z"])] for row in each]) for each in (rows, by_torch))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(one).max())

    np.savetxt(empty.path("half.csv"), np.array(table[["t", "u"]].tolist()), delimiter=",", header="t,u", comments="")
    assert empty.refusal("predict tank --input half.csv").startswith("Unknown column 'v'.")
    write(empty, "slow.csv", 1, step=0.2)
    for command in ("predict tank --input slow.csv", "eval tank --data slow.csv"):
        assert empty.refusal(command, code=1) == (
            "'slow.csv' is sampled every 0.2 s, and tank:1 was trained on every 0.1 s. Resample it to that."
        )


def test_without_a_cell_a_certified_network_is_fitted(empty: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauss_newton, "ITERATIONS", {"linear": 10, "coarse": 5, "whole": 15})
    write(empty, "tank_train.csv", 0, bend=0.6)
    write(empty, "tank_test.csv", 1, bend=0.6)
    summary = empty.document(f"{TRAIN} {UNPLOTTED}")
    assert (summary["cell"], summary["certificate"]["kind"]) == ("ren", "contracting")
    scores = summary["metrics"]["test"]
    # All that is no test was fitted to.
    assert (list(summary["metrics"]), summary["warnings"]) == (["test"], [])
    assert min(scores["fit_y"], scores["fit_z"]) > scores["arx"]["fit"] + 10
