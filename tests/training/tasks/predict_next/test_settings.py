"""Settings of the task 'predict-next': defaults by the data, and those that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predict_next_helpers import frames, running, settings
from stablernn.errors import ConfigError
from stablernn.training import load_config, train
from stablernn.training.resolve import resolve
from stablernn.training.tasks import task_for


def test_what_none_stands_for() -> None:
    text_config, frame_config = resolve(settings(), task_for(running(100_000))), resolve(settings(), task_for(frames()))
    assert (text_config.training.bptt_steps, frame_config.training.bptt_steps) == (150, 0)
    assert (text_config.model.embedding_size, frame_config.model.embedding_size) == (0, 0)
    assert text_config.task.name == "predict-next"
    assert text_config.training.clip_norm == 1.0
    assert resolve(text_config, task_for(running(100_000))) == text_config


@pytest.mark.parametrize(("count", "batch_size", "epochs"), [(5, 8, 2000), (150, 8, 106), (700, 16, 60)])
def test_few_sequences_are_read_in_small_batches_for_many_epochs(count: int, batch_size: int, epochs: int) -> None:
    task = task_for(frames((2,) * count))
    training = resolve(settings(), task).training
    assert (training.batch_size, training.epochs) == (batch_size, epochs)
    assert training.epochs * task.steps_per_epoch(batch_size, 0) >= 2000


def test_a_large_vocabulary_is_embedded() -> None:
    names = tuple(map(str, range(300)))
    data = replace(running(), features=names, outputs=names)
    assert resolve(settings(), task_for(data)).model.embedding_size == 6
    assert resolve(settings("model.embedding_size=0"), task_for(data)).model.embedding_size == 0


def test_the_schedule_step_counts_the_steps_of_stretches() -> None:
    data = running(1001)
    config = resolve(
        settings("training.schedule=step", "training.max_steps=90", "training.batch_size=10", "training.bptt_steps=10"),
        task_for(data),
    )
    assert config.training.step_epochs == 3


REFUSED = {
    "task.horizon=3": "task.horizon is only used by the task 'forecast', and 'frames' is for 'predict-next'.",
    "model.readout=mean": "model.readout is not used by the task 'predict-next', and 'frames' is for it; got 'mean'.",
    "model.patch_size=4": "model.patch_size is not used by the task 'predict-next', and 'frames' is for it; got 4.",
    "training.refit=true": "training.refit is not used by the task 'predict-next', and 'frames' is for it.",
    "model.embedding_size=4": "model.embedding_size is for tokens, and 'frames' has numbers as inputs; got 4.",
}


@pytest.mark.parametrize("override", REFUSED)
def test_refused_settings(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(settings(override), task_for(frames()))
    assert str(caught.value) == REFUSED[override]


def test_change_needs_outputs_that_are_inputs() -> None:
    assert resolve(settings("model.predict_change=true"), task_for(frames())).model.predict_change is True
    with pytest.raises(ConfigError, match=r"^model\.predict_change needs outputs that are the inputs one step on, and"):
        resolve(settings("model.predict_change=true"), task_for(frames(output="bernoulli")))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.embedding_size=8", "model.embedding_size"),
        ("model.predict_change=true", "model.predict_change"),
        ("training.bptt_steps=10", "training.bptt_steps"),
    ],
)
def test_its_settings_are_refused_by_other_tasks(override: str, key: str, tmp_path: Path) -> None:
    config = load_config(overrides=["data.source=digits", "model.cell=rnn", override])
    with pytest.raises(ConfigError) as caught:
        train(config, tmp_path / "run")
    tasks = "'predict-next' and 'simulate'" if key == "training.bptt_steps" else "'predict-next'"
    assert str(caught.value) == f"{key} is only used by the task {tasks}, and 'digits' is for 'classify'."
