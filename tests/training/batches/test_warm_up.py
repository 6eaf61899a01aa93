"""Training on longer contexts than a forecast is scored with, for a state that is carried on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.data.windows import WindowSet, build_windows
from stablernn.errors import InterruptedRun
from stablernn.training import Progress, load_config, load_run, train
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
@settings(max_examples=20, deadline=None)
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


TINY = ["model.hidden_size=5", "training.threads=1", "training.device=cpu", "training.plots=false", "model.cell=rnn"]
MEMBERS = [
    *("data.source=co2", "task.horizon=6", "task.context_length=20", "task.season=4", "model.members=2"),
    *("model.head_dropout=0.2", "training.batch_size=400", "training.max_steps=9", "training.warm_up=12", *TINY),
]


@pytest.mark.slow
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
