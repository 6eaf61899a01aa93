"""Training on longer contexts than a forecast is scored with, for a state that is carried on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forecast_helpers import many_series
from stablernn.data import ForecastData
from stablernn.data.windows import WindowSet, build_windows
from stablernn.errors import InterruptedRun
from stablernn.training import Progress, load_config, load_run, train
from stablernn.training.evaluation.backtest import backtest
from stablernn.training.loop.checkpoint import load_checkpoint
from stablernn.training.loop.minibatches import SampleMinibatches

CONTEXT, HORIZON = 5, 2
RANDOM = np.random.default_rng(0)
VALUES = [RANDOM.normal(size=(steps, 3)).astype(np.float32) for steps in (30, 9, 17)]
TIMES = [np.concatenate([[1], RANDOM.integers(1, 5, len(part) - 1)]).astype(np.float32) for part in VALUES]
STATIC = RANDOM.normal(size=(3, 2)).astype(np.float32)


def windows(*, timed: bool = True) -> WindowSet:
    return build_windows(
        VALUES,
        [(0, len(part)) for part in VALUES],
        context_length=CONTEXT,
        horizon=HORIZON,
        target_indices=[0],
        future_indices=[2],
        static=STATIC,
        dt=TIMES if timed else None,
    )


@given(
    extra=st.integers(0, 8),
    multiple=st.integers(1, 4),
    timed=st.booleans(),
    chosen=st.lists(st.integers(0, len(windows()) - 1), min_size=1, max_size=8),
)
@settings(max_examples=80, deadline=None)
def test_longer_windows_are_the_series_cut_by_hand(extra: int, multiple: int, timed: bool, chosen: list[int]) -> None:
    extra *= multiple
    found = windows(timed=timed)
    got, plain = found.gather_longer(chosen, extra, multiple), found.gather(chosen)
    assert got.x.shape == (len(chosen), CONTEXT + extra, 3)
    for row, (series, end) in enumerate(found.origins[number] for number in chosen):
        # As far back as asked for or as the series reaches, by whole patches.
        more = min(extra, (end - CONTEXT) // multiple * multiple)
        length, begin = CONTEXT + more, end - CONTEXT - more
        assert got.lengths[row] == length
        np.testing.assert_array_equal(got.x[row, :length], VALUES[series][begin:end])
        assert (got.x[row, length:] == 0).all()
        if got.dt is not None:
            assert got.dt[row, 0] == 1
            np.testing.assert_array_equal(got.dt[row, 1:length], TIMES[series][begin + 1 : end])
            assert (got.dt[row, length:] == 1).all()
    assert (got.dt is not None) is timed
    for name in ("y", "static", "future"):
        np.testing.assert_array_equal(getattr(got, name), getattr(plain, name))


def test_nothing_more_is_the_window_itself() -> None:
    every = range(len(windows()))
    # Windows have all fields but the weight.
    for got, expected in zip(windows().gather_longer(every, 0)[:-1], windows().gather(every)[:-1], strict=True):
        assert got is not None
        np.testing.assert_array_equal(got, expected)


def test_lengths_are_drawn_for_each_batch() -> None:
    feed = SampleMinibatches(windows(), 8, torch.device("cpu"), warm_up=7, multiple=3)
    # The last windows of the longest series, which could be some twenty steps longer.
    lengths = {int(feed.take(2).batch.lengths.max()) for _ in range(60)}
    # Contexts are not made longer by 7 steps where patches advance by 3.
    assert lengths == {CONTEXT, CONTEXT + 3, CONTEXT + 6}
    torch.manual_seed(0)
    first = feed.take(1).batch
    torch.manual_seed(0)
    assert torch.equal(feed.take(1).batch.x, first.x)


def test_without_a_warm_up_no_number_is_drawn() -> None:
    feed = SampleMinibatches(windows(), 8, torch.device("cpu"))
    before = torch.get_rng_state()
    assert feed.take(0).batch.x.shape[1] == CONTEXT
    assert torch.equal(torch.get_rng_state(), before)


TINY = ["model.hidden_size=5", "training.threads=1", "training.device=cpu", "training.plots=false", "model.cell=rnn"]
MEMBERS = [
    *("data.source=co2", "task.horizon=6", "task.context_length=20", "task.season=4", "model.members=2"),
    *("model.head_dropout=0.2", "training.batch_size=400", "training.max_steps=9", "training.warm_up=12", *TINY),
]


def test_a_stopped_run_with_members_and_a_warm_up_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    whole = train(load_config(overrides=MEMBERS), tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        train(load_config(overrides=MEMBERS), tmp_path / "run", progress=stop)
    resumed = train(None, tmp_path / "run", resume=True)
    assert resumed["metrics"] == whole["metrics"]
    for name in ("best", "last"):
        got, expected = (
            load_checkpoint(tmp_path / run / f"checkpoints/{name}.safetensors") for run in ("run", "whole")
        )
        assert got.tensors.keys() == expected.tensors.keys()
        assert [key for key, value in got.tensors.items() if not torch.equal(value, expected.tensors[key])] == []
    written = [(tmp_path / run / "calibration.json").read_bytes() for run in ("run", "whole")]
    assert written[0] == written[1]
    assert load_run(tmp_path / "run").config.model.members == 2


def noisy_wave(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    step = np.arange(700)
    values = 10 + (2 + np.sin(step / 50)) * np.sin(2 * np.pi * step / 12) + 0.1 * random.normal(size=len(step))
    path = tmp_path / "wave.csv"
    path.write_text("\n".join(["ds,y", *(f"{row},{value:.5f}" for row, value in zip(step, values, strict=True))]))
    return path


def test_a_carried_state_is_as_good_as_a_fresh_one_after_a_warm_up(tmp_path: Path) -> None:
    """Evidence, not a bound: without the skip the layers alone must cope with a state of hundreds of steps."""
    source = noisy_wave(tmp_path)
    found: dict[int, dict[str, Any]] = {}
    for warm_up in (0, 24):
        overrides = [f"data.source={source}", "task.horizon=4", "task.context_length=24", "task.season=12"]
        overrides += ["model.skip=none", "model.cell=gru", "model.hidden_size=16", "training.threads=1"]
        overrides += [
            "training.device=cpu",
            "training.plots=false",
            "training.max_steps=100",
            f"training.warm_up={warm_up}",
        ]
        train(load_config(overrides=overrides), tmp_path / str(warm_up))
        run = load_run(tmp_path / str(warm_up))
        data = run.load_data()
        assert isinstance(data, ForecastData)
        found[warm_up] = backtest(run.predictor(), data, "test", windows=30, step=2)
    lost = {
        warm_up: report["carried"]["metrics"]["mae"] / report["fresh"]["metrics"]["mae"] - 1
        for warm_up, report in found.items()
    }
    assert abs(lost[24]) < 0.05
    assert lost[24] <= lost[0] + 0.01


def test_short_series_are_warmed_up_as_far_as_they_reach(tmp_path: Path) -> None:
    data = many_series([np.arange(30.0)[:, None], np.arange(18.0)[:, None]], validation_steps=3, test_steps=3)
    found = data.windows("train")
    assert int(found.gather_longer(range(len(found)), 100).lengths.max()) == 24 - 2
    assert int(found.gather_longer(range(len(found)), 100).lengths.min()) == data.context_length
