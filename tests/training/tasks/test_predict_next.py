"""The task 'predict-next' in training: stretches and their state, scores, settings, stop and resume."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stablernn.data.segments import count_targets, segments, streams
from stablernn.data.step_data import NO_TARGET, Output, StepData, StoredSteps
from stablernn.errors import ConfigError, DataError, InterruptedRun
from stablernn.nn.models import SequencePredictor
from stablernn.training import Progress, TorchPredictor, load_config, train
from stablernn.training.batches.losses import PredictNextObjective
from stablernn.training.batches.minibatches import SegmentMinibatches, count_segment_minibatches
from stablernn.training.build_model import create_model
from stablernn.training.evaluation.evaluate_predict_next import StepScorer, evaluate_steps
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.evaluation.stepwise import NUMBERS, predict_segments
from stablernn.training.loop.optim import build_optimizer, build_schedule
from stablernn.training.loop.trainer import Trainer
from stablernn.training.settings.config import Config, TrainingConfig
from stablernn.training.settings.resolve import resolve
from stablernn.training.tasks import task_for

CPU = torch.device("cpu")
LETTERS = tuple("abcd")


def text(length: int, *, seed: int = 0, period: int | None = None) -> StoredSteps:
    tokens = np.random.default_rng(seed).integers(4, size=length).astype(np.uint8)
    if period is not None:
        tokens = np.resize(tokens[:period], length)
    return StoredSteps([tokens[:-1]], [tokens[1:]])


def running(length: int = 200, **given: Any) -> StepData:
    split = [text(length, seed=seed, **given) for seed in range(3)]
    return StepData(
        "letters", "categorical", True, LETTERS, LETTERS, *split, continuous=True, headline="bpc", notes={},
        fingerprint="sha256:0",
    )  # fmt: skip


def frames(lengths: tuple[int, ...] = (7, 3, 5, 7, 1), output: Output = "real", seed: int = 0) -> StepData:
    random = np.random.default_rng(seed)

    def split() -> StoredSteps:
        inputs = [random.normal(2.0, 1.0, (length, 2)).astype(np.float32) for length in lengths]
        if output == "categorical":
            targets = [random.integers(3, size=length) for length in lengths]
        elif output == "bernoulli":
            targets = [(random.random((length, 3)) < 0.3).astype(np.float32) for length in lengths]
        else:
            targets = [np.concatenate([x[1:], np.full((1, 2), np.nan, np.float32)]) for x in inputs]
        return StoredSteps(inputs, targets)

    names = ("left", "right") if output == "real" else ("x", "y", "z")
    headline = "mse" if output == "real" else "nll"
    return StepData(
        "frames", output, False, ("left", "right"), names, split(), split(), split(), continuous=False,
        headline=headline, notes={}, fingerprint="sha256:0",
    )  # fmt: skip


def settings(*overrides: str, cell: str = "lstm") -> Config:
    return load_config(overrides=["data.source=x", f"model.cell={cell}", "model.hidden_size=6", *overrides])


class Recorder:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def record(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def save(self, name: str, checkpoint: object) -> None:
        pass


def trainer(data: StepData, **given: Any) -> tuple[Trainer, Recorder]:
    config = {
        "batch_size": 4, "lr": 0.01, "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant", "bptt_steps": 5,
        "epochs": 2, **given,
    }  # fmt: skip
    torch.manual_seed(3)
    model = create_model(resolve(settings(), task_for(data)), data)
    chosen = TrainingConfig.model_validate(config)
    minibatches = SegmentMinibatches(
        data.train, chosen.batch_size or 0, chosen.bptt_steps or 0, continuous=data.continuous, device=CPU
    )
    recorder = Recorder()
    return Trainer(
        model, minibatches, PredictNextObjective(data.headline), StepScorer(data, "validation"), chosen, recorder
    ), recorder


# --- streams and stretches -------------------------------------------------------------------------------------------


@given(length=st.integers(2, 60), rows=st.integers(1, 12))
def test_streams_hold_every_step_of_a_text_in_its_order(length: int, rows: int) -> None:
    split = text(length + 1)
    cut = streams(split, rows)
    assert len(cut.x) <= rows
    kept = [values[:count] for values, count in zip(cut.x, cut.lengths, strict=True)]
    assert np.array_equal(np.concatenate(kept), split.inputs[0])
    kept = [values[:count] for values, count in zip(cut.y, cut.lengths, strict=True)]
    assert np.array_equal(np.concatenate(kept), split.targets[0])
    assert count_targets(cut.y) == length
    assert list(cut.lengths) == sorted(cut.lengths, reverse=True)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    batch=st.integers(1, 5),
    bptt=st.integers(0, 7),
    seed=st.integers(0, 3),
)
def test_the_pieces_of_an_epoch_are_every_sequence_once(lengths: list[int], batch: int, bptt: int, seed: int) -> None:
    inputs = [100 * number + np.arange(length) for number, length in enumerate(lengths)]
    split = StoredSteps(inputs, inputs)
    minibatches = SegmentMinibatches(split, batch, bptt, continuous=False, device=CPU)
    assert minibatches.steps == count_segment_minibatches(split, batch, bptt, continuous=False)
    minibatches.shuffle(torch.Generator().manual_seed(seed))
    followed: list[list[int]] = []
    going: list[list[int]] = []
    for number in range(minibatches.steps):
        minibatch = minibatches.take(number)
        assert minibatch.batch.x.shape[1] <= (bptt or max(lengths))
        assert minibatch.weight == int(minibatch.batch.lengths.sum())
        if minibatch.is_first:
            going = [[] for _ in minibatch.batch.x]
            followed += going
        assert len(minibatch.batch.x) <= len(going)
        for row, values, count in zip(going, minibatch.batch.x, minibatch.batch.lengths, strict=False):
            row += values[:count].tolist()
    assert sorted(followed) == sorted(sequence.tolist() for sequence in inputs)


def test_steps_of_a_text_are_counted_without_reading_it() -> None:
    for batch, bptt in ((4, 10), (7, 3), (1, 0), (32, 150)):
        minibatches = SegmentMinibatches(text(101), batch, bptt, continuous=True, device=CPU)
        assert minibatches.steps == count_segment_minibatches(text(101), batch, bptt, continuous=True)


def test_the_order_of_sequences_is_drawn_and_that_of_a_text_is_not() -> None:
    split = StoredSteps([np.full(3, number) for number in range(20)], [np.zeros(3, np.int64)] * 20)
    minibatches = SegmentMinibatches(split, 4, 0, continuous=False, device=CPU)
    orders = []
    for seed in (0, 0, 1):
        minibatches.shuffle(torch.Generator().manual_seed(seed))
        orders.append([minibatches.take(number).batch.x[:, 0].tolist() for number in range(minibatches.steps)])
    assert orders[0] == orders[1] != orders[2]
    minibatches = SegmentMinibatches(text(50), 4, 5, continuous=True, device=CPU)
    before = minibatches.take(1).batch.x.clone()
    minibatches.shuffle(torch.Generator().manual_seed(5))
    assert torch.equal(minibatches.take(1).batch.x, before)


def test_stretches_leave_out_what_has_ended() -> None:
    samples = StoredSteps([np.arange(6), np.arange(4), np.arange(1)], [np.arange(6), np.arange(4), np.arange(1)])
    parts = list(segments(samples.gather([0, 1, 2]), np.arange(3), 3))
    assert [part.x.shape for part in parts] == [(3, 3), (2, 3)]
    assert [part.lengths.tolist() for part in parts] == [[3, 3, 1], [3, 1]]
    assert [part.remaining.tolist() for part in parts] == [[6, 4, 1], [3, 1]]


# --- training --------------------------------------------------------------------------------------------------------


def plain_loop(data: StepData, epochs: int) -> dict[str, torch.Tensor]:
    """The same training of a text in the fewest lines."""
    torch.manual_seed(3)
    model = create_model(resolve(settings(), task_for(data)), data)
    assert isinstance(model, SequencePredictor)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    cut = streams(data.train, 4)
    x, y = torch.from_numpy(cut.x), torch.from_numpy(cut.y)
    for _ in range(epochs):
        state = None
        for start in range(0, x.shape[1], 5):
            logits, state = model.answers(x[:, start : start + 5], state=state)
            state = tuple(tensor.detach() for tensor in state)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[:, start : start + 5].flatten()).backward()
            optimizer.step()
    return model.state_dict()


def test_equals_a_plain_loop_that_carries_the_state() -> None:
    data = running(201)
    ours, _ = trainer(data)
    ours.fit()
    for name, value in plain_loop(data, 2).items():
        torch.testing.assert_close(ours.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_the_training_loss_is_the_mean_over_the_targets() -> None:
    data = frames(output="categorical")
    ours, recorder = trainer(data, lr=1e-30, bptt_steps=2, epochs=1)
    expected = evaluate_steps(TorchPredictor(ours.model), data, "train")["nll"]
    ours.fit()
    assert recorder.lines[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_restored_state_does_not_lie_where_the_file_put_it() -> None:
    """There it is not aligned as torch's own tensors are, and the products of the next step round in another way."""
    ours, _ = trainer(running(81))
    for number in range(2):
        ours._step(ours._minibatches.take(number))
    checkpoint = ours.checkpoint()
    again, _ = trainer(running(81))
    again.restore(checkpoint)
    assert again._carried is not None
    for number, state in enumerate(again._carried):
        saved = checkpoint.tensors[f"carried.{number}"]
        assert torch.equal(state, saved)
        assert state.data_ptr() != saved.data_ptr()


def test_a_stretch_without_targets_moves_no_weight() -> None:
    split = StoredSteps([np.ones((6, 2), np.float32)] * 4, [_last_only(6)] * 4)
    data = replace(frames(), train=split, outputs=("sum",), features=("a", "b"), validation=split, test=split)
    ours, _ = trainer(data, bptt_steps=2, epochs=1, weight_decay=0.5, optimizer="adamw")
    before = {name: value.clone() for name, value in ours.model.state_dict().items()}
    ours._minibatches.shuffle(torch.Generator())
    for number in range(2):
        ours._step(ours._minibatches.take(number))
        assert all(torch.equal(value, before[name]) for name, value in ours.model.state_dict().items())
    ours._step(ours._minibatches.take(2))
    assert any(not torch.equal(value, before[name]) for name, value in ours.model.state_dict().items())


def _last_only(length: int) -> np.ndarray:
    y = np.full((length, 1), np.nan, np.float32)
    y[-1] = 3
    return y


def test_the_headline_of_the_data_chooses_the_best_weights() -> None:
    ours, recorder = trainer(running(80), epochs=3)
    ours.fit()
    assert ours.objective.headline == "bpc"
    assert ours.position.best == min(line["validation"]["bpc"] for line in recorder.lines)
    assert "frequencies" not in recorder.lines[-1]["validation"]


def test_plateau_halves_the_rate_when_the_headline_is_no_better() -> None:
    ours, recorder = trainer(running(80), schedule="plateau", epochs=6)
    values = iter([2.0, 2.1, 1.9, 1.9, 1.8, 1.7])
    ours._scorer.score_of = lambda predictor: {"bpc": next(values)}  # type: ignore[method-assign, union-attr]
    ours.fit()
    rates = [line["lr"] for line in recorder.lines]
    assert rates == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025])


def test_plateau_needs_a_validation_split() -> None:
    data = replace(running(80), validation=StoredSteps([], []))
    with pytest.raises(ConfigError) as caught:
        trainer(data, schedule="plateau")
    assert str(caught.value) == "training.schedule='plateau' needs a validation split and there is none."


def test_plateau_takes_its_own_factor() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    chosen = TrainingConfig.model_validate(
        {"lr": 1.0, "optimizer": "sgd", "weight_decay": 0.0, "schedule": "plateau", "lr_decay": 0.1}
    )
    optimizer = build_optimizer({"other": [weight], "orthogonal": []}, chosen)
    schedule = build_schedule(optimizer, chosen, total_steps=9, epoch_steps=3)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 1.0
    schedule.validated(is_better=False)  # type: ignore[attr-defined]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_periodic_text_is_learnt() -> None:
    data = running(400, period=4)
    config = resolve(settings("training.epochs=15", "model.hidden_size=16", "training.lr=0.02"), task_for(data))
    torch.manual_seed(0)
    model = create_model(config, data)
    minibatches = SegmentMinibatches(data.train, 2, 20, continuous=True, device=CPU)
    chosen = config.training.model_copy(update={"batch_size": 2, "bptt_steps": 20})
    ours = Trainer(
        model, minibatches, PredictNextObjective(data.headline), StepScorer(data, "train"), chosen, Recorder()
    )
    ours.fit()
    ours.load_best()
    scores = evaluate_steps(TorchPredictor(model), data, "train")
    assert scores["bpc"] < 0.1
    assert scores["accuracy"] > 0.97
    assert scores["frequencies"]["bpc"] > 1


def test_a_few_symbols_are_copied() -> None:
    """Three symbols, a delay, a marker; the symbols are to be said again at the end."""

    def split(count: int, seed: int) -> StoredSteps:
        symbols = np.random.default_rng(seed).integers(1, 4, (count, 3))
        read, said = np.zeros((2, count, 8), np.int64)
        read[:, :3], read[:, 4], said[:, -3:] = symbols, 4, symbols
        return StoredSteps(list(read), list(said))

    data = replace(
        running(), features=tuple("_abc!"), outputs=tuple("_abc"), continuous=False, answer_steps=3,
        headline="accuracy", train=split(500, 0), validation=split(50, 1), test=split(50, 2),
    )  # fmt: skip
    config = resolve(settings("model.hidden_size=32", "training.lr=0.02", "training.epochs=20"), task_for(data))
    torch.manual_seed(0)
    model = create_model(config, data)
    minibatches = SegmentMinibatches(data.train, 25, 0, continuous=False, device=CPU)
    ours = Trainer(
        model,
        minibatches,
        PredictNextObjective(data.headline),
        StepScorer(data, "validation"),
        config.training,
        Recorder(),
    )
    ours.fit()
    ours.load_best()
    assert direction(ours.objective.headline) == "higher"
    assert evaluate_steps(TorchPredictor(model), data)["accuracy"] > 0.9


# --- scores ----------------------------------------------------------------------------------------------------------


def fitted(data: StepData) -> SequencePredictor:
    torch.manual_seed(0)
    model = create_model(resolve(settings(), task_for(data)), data)
    assert isinstance(model, SequencePredictor)
    return model.eval()


def test_a_uniform_model_has_log2_of_the_classes_as_bpc() -> None:
    data = running()
    model = fitted(data)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    scores = evaluate_steps(TorchPredictor(model), data)
    assert scores["bpc"] == pytest.approx(2)
    assert scores["perplexity"] == pytest.approx(4)
    assert scores["loss"] == scores["nll"] == pytest.approx(math.log(4))


def test_carried_state_equals_one_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of one stream in stretches of a few steps has the scores of the whole at once."""
    data = running(60)
    model = fitted(data)
    monkeypatch.setattr("stablernn.training.evaluation.stepwise.STREAMS", 1)
    monkeypatch.setattr("stablernn.training.evaluation.stepwise.LONGEST", 7)
    parts = list(predict_segments(TorchPredictor(model), data.test, 4, continuous=True))
    assert [part.x.shape[1] for part, _ in parts] == [7] * 8 + [3]
    with torch.no_grad():
        whole = model(torch.from_numpy(data.test.gather([0]).x)).numpy()
    np.testing.assert_allclose(np.concatenate([answer for _, answer in parts], axis=1), whole, atol=1e-6)


@pytest.mark.parametrize("output", ["categorical", "bernoulli", "real"])
def test_stretches_and_batches_do_not_move_a_score(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    data = frames(output=output)
    predictor = TorchPredictor(fitted(data))
    whole = evaluate_steps(predictor, data)
    monkeypatch.setattr("stablernn.training.evaluation.stepwise.ROWS", 2)
    monkeypatch.setattr("stablernn.training.evaluation.stepwise.LONGEST", 3)
    assert flat(evaluate_steps(predictor, data)) == pytest.approx(flat(whole), rel=1e-5)


def flat(scores: dict[str, Any], prefix: str = "") -> dict[str, float]:
    found = {}
    for name, value in scores.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def test_scores_of_switches_are_summed_over_them() -> None:
    data = frames(output="bernoulli")
    model = fitted(data)
    total, steps = 0.0, 0
    for x, y in zip(data.test.inputs, data.test.targets, strict=True):  # type: ignore[attr-defined]
        with torch.no_grad():
            share = torch.sigmoid(model(torch.from_numpy(x)[None]))[0].double().numpy()
        total -= float((y * np.log(share) + (1 - y) * np.log(1 - share)).sum())
        steps += len(x)
    scores = evaluate_steps(TorchPredictor(model), data)
    assert scores["nll"] == scores["loss"] == pytest.approx(total / steps, rel=1e-5)
    counts = np.concatenate(data.train.targets)  # type: ignore[attr-defined]
    share = (counts.sum(axis=0) + 1) / (len(counts) + 2)
    y = np.concatenate(data.test.targets)  # type: ignore[attr-defined]
    expected = -(y * np.log(share) + (1 - y) * np.log(1 - share)).sum(axis=1).mean()
    assert scores["frequencies"]["nll"] == pytest.approx(expected, rel=1e-6)


def test_numbers_are_scored_over_those_that_are_there_beside_naive_answers() -> None:
    data = frames()
    model = fitted(data)
    errors, naive, mean = [], [], []
    centre = np.nanmean(np.concatenate(data.train.targets), axis=0)  # type: ignore[attr-defined]
    for x, y in zip(data.test.inputs, data.test.targets, strict=True):  # type: ignore[attr-defined]
        with torch.no_grad():
            answers = model(torch.from_numpy(x)[None])[0].numpy()
        errors.append((answers - y) ** 2)
        naive.append((x - y) ** 2)
        mean.append((centre - y) ** 2)
    scores = evaluate_steps(TorchPredictor(model), data)
    assert scores["mse"] == scores["loss"] == pytest.approx(np.nanmean(np.concatenate(errors)), rel=1e-5)
    assert scores["rmse"] == pytest.approx(math.sqrt(scores["mse"]))
    assert scores["naive"]["mse"] == pytest.approx(np.nanmean(np.concatenate(naive)), rel=1e-5)
    assert scores["mean"]["mse"] == pytest.approx(np.nanmean(np.concatenate(mean)), rel=1e-5)


def test_the_naive_answer_holds_the_last_observed_value_from_stretch_to_stretch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.array([[1, 5], [np.nan, 6], [np.nan, np.nan], [np.nan, np.nan], [2, np.nan]], np.float32)
    y = np.full((5, 2), 1.0, np.float32)
    split = StoredSteps([x], [y])
    data = replace(frames(), train=split, validation=split, test=split)
    monkeypatch.setattr("stablernn.training.evaluation.stepwise.LONGEST", 2)
    scores = evaluate_steps(TorchPredictor(fitted(data)), data)
    expected = [0, 16, 0, 25, 0, 25, 0, 25, 1, 25]
    assert scores["naive"]["mse"] == pytest.approx(np.mean(expected))


def test_accuracy_is_counted_over_the_answer_alone() -> None:
    """Of blanks and an answer at the end only the answer is scored by accuracy, in each sequence at its own end."""
    inputs = [np.zeros(5, np.int64), np.zeros(3, np.int64)]
    targets = [np.array([0, 0, 0, 1, 0]), np.array([0, 1, NO_TARGET])]
    split = StoredSteps(inputs, targets)
    data = replace(running(), train=split, validation=split, test=split, continuous=False)
    model = fitted(data)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([5.0, 0.0, 0.0, 0.0]))
    predictor = TorchPredictor(model)
    assert evaluate_steps(predictor, data)["accuracy"] == pytest.approx(5 / 7)
    assert evaluate_steps(predictor, replace(data, answer_steps=2))["accuracy"] == pytest.approx(1 / 3)


def test_scores_of_nothing_are_missing() -> None:
    split = StoredSteps([np.zeros(4, np.int64)], [np.full(4, NO_TARGET)])
    data = replace(running(), validation=split)
    scores = evaluate_steps(TorchPredictor(fitted(data)), data, "validation")
    assert all(math.isnan(value) for value in flat(scores).values())


def test_answers_of_many_classes_come_in_short_stretches() -> None:
    data = running(3000)
    parts = predict_segments(TorchPredictor(fitted(data)), data.test, NUMBERS // 64, continuous=True)
    assert next(iter(parts))[0].x.shape == (10, 1)


def test_a_predictor_of_other_inputs_is_refused() -> None:
    data = running()
    predictor = TorchPredictor(fitted(data))
    with pytest.raises(DataError) as caught:
        evaluate_steps(predictor, data, features=["a", "b"], outputs=LETTERS)
    assert str(caught.value) == "'letters' has the inputs a, b, c, d (4), the model was trained with a, b (2)."
    with pytest.raises(DataError) as caught:
        evaluate_steps(predictor, replace(data, test=StoredSteps([], [])))
    assert str(caught.value) == "The split 'test' of 'letters' is empty. Choose another split."


# --- settings --------------------------------------------------------------------------------------------------------


def test_what_none_stands_for() -> None:
    text_config, frame_config = resolve(settings(), task_for(running(100_000))), resolve(settings(), task_for(frames()))
    assert (text_config.training.bptt_steps, frame_config.training.bptt_steps) == (150, 0)
    assert (text_config.model.embedding_size, frame_config.model.embedding_size) == (0, 0)
    assert text_config.task.name == "predict-next"
    assert text_config.training.clip_norm == 1.0
    assert resolve(text_config, task_for(running(100_000))) == text_config


def test_a_short_text_is_read_in_few_streams() -> None:
    sizes = [resolve(settings(), task_for(running(length))).training.batch_size for length in (100, 9001, 1_000_000)]
    assert sizes == [1, 3, 32]


@pytest.mark.parametrize(("count", "batch_size", "epochs"), [(5, 8, 2000), (150, 8, 106), (700, 16, 60)])
def test_few_sequences_are_read_in_small_batches_for_many_epochs(count: int, batch_size: int, epochs: int) -> None:
    task = task_for(frames((2,) * count))
    training = resolve(settings(), task).training
    assert (training.batch_size, training.epochs) == (batch_size, epochs)
    assert training.epochs * task.steps_per_epoch(batch_size, 0) >= 2000


def test_a_batch_size_of_the_user_stands_and_the_epochs_make_up_for_it() -> None:
    task = task_for(frames((2,) * 150))
    training = resolve(settings("training.batch_size=50"), task).training
    assert (training.batch_size, training.epochs) == (50, 667)


def test_a_large_vocabulary_is_embedded() -> None:
    names = tuple(map(str, range(300)))
    data = replace(running(), features=names, outputs=names)
    assert resolve(settings(), task_for(data)).model.embedding_size == 6
    assert resolve(settings("model.embedding_size=0"), task_for(data)).model.embedding_size == 0


def test_a_named_dataset_has_settings_of_its_own() -> None:
    training = resolve(settings(), task_for(replace(running(1000), name="ptb-char"))).training
    assert (training.batch_size, training.bptt_steps) == (128, 150)


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
    with pytest.raises(ConfigError) as caught:
        resolve(settings("model.predict_change=true"), task_for(frames(output="bernoulli")))
    assert str(caught.value) == (
        "model.predict_change needs outputs that are the inputs one step on, and those of 'frames' are not."
    )


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
    assert str(caught.value) == f"{key} is only used by the task 'predict-next', and 'digits' is for 'classify'."


# --- a whole run -----------------------------------------------------------------------------------------------------

TINY = [
    "model.hidden_size=6",
    "training.device=cpu",
    "training.plots=false",
    "training.batch_size=3",
    "training.schedule=plateau",
]


def write_text(path: Path) -> None:
    letters = np.random.default_rng(0).integers(4, size=600)
    path.write_text("".join("abc\n"[letter] for letter in letters))


def contents(run: Path) -> dict[str, Any]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "best": (run / "checkpoints/best.safetensors").read_bytes(),
        "records": [{key: value for key, value in record.items() if key != "seconds"} for record in records],
        "metrics": json.loads((run / "summary.json").read_text())["metrics"],
    }


@pytest.mark.parametrize("stop", [4, 11])
@pytest.mark.parametrize("kind", ["text", "sequences"])
def test_a_stopped_run_goes_on_to_the_same_bits(kind: str, stop: int, tmp_path: Path) -> None:
    """Stopped in the middle of an epoch, with a state that is being carried, and with dropout that draws numbers."""
    if kind == "text":
        write_text(tmp_path / "notes.txt")
        source = "notes.txt"
    else:
        random = np.random.default_rng(0)
        lengths = random.integers(5, 30, 12)
        np.savez(tmp_path / "notes.npz", x=random.normal(size=(12, 30, 2)).astype(np.float32), lengths=lengths)
        source = "notes.npz"
    overrides = [
        f"data.source={tmp_path / source}", "task.name=predict-next", "model.cell=lstm", "model.num_layers=2",
        "model.dropout=0.3", "training.bptt_steps=11", "training.max_steps=26", *TINY,
    ]  # fmt: skip
    train(load_config(overrides=overrides), tmp_path / "whole")

    with pytest.raises(InterruptedRun):
        train(load_config(overrides=overrides), tmp_path / "part", progress=_stopping(stop))
    checkpoint = json.loads((tmp_path / "part/checkpoints/last.json").read_text())
    assert checkpoint["position"]["step"] == stop
    assert any(name.startswith("carried.") for name in checkpoint["tensors"])
    train(None, tmp_path / "part", resume=True)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def _stopping(step: int) -> Any:
    """Ask a run to stop at a step, as Ctrl-C does."""

    def report(progress: Progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return report
