from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forecast_helpers import Sums, many_series
from stablernn.data import ClassificationData, ForecastData, Samples, Series, WindowSet, load_data
from stablernn.errors import DataError, UnknownNameError
from stablernn.nn.models import Classifier, Forecaster
from stablernn.training import TorchPredictor, evaluate, predict
from stablernn.training.evaluation import scorers
from stablernn.training.evaluation.baselines import Baselines
from stablernn.training.evaluation.metrics import classification_metrics, seasonal_naive
from stablernn.training.evaluation.predictors import optional_inputs
from stablernn.training.evaluation.scorers import ClassificationScorer, ForecastScorer, Subset


@pytest.fixture(scope="module")
def digits() -> ClassificationData:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    return data


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> ForecastData:
    """Two series of season 4 with a gap and two channels, of which the second is forecast."""
    rows = ["unique_id,ds,a,b"]
    for name, level in (("p", 0), ("q", 100)):
        for step in range(60):
            b = "" if step in (30, 55) else level + 10 * (step % 4) + step / 10
            rows.append(f"{name},{step},{step},{b}")
    path = tmp_path_factory.mktemp("series") / "two.csv"
    path.write_text("\n".join(rows))
    data = load_data(str(path), target="b", season=4, horizon=6, context_length=5, validation_steps=8, test_steps=8)
    assert isinstance(data, ForecastData)
    return data


class Repeats:
    """The seasonal naive forecast, made from the context alone."""

    def run_numpy(self, x: np.ndarray, lengths: np.ndarray | None = None, *, dt: None = None) -> dict[str, np.ndarray]:
        b = x[:, :, 1]
        mean = np.stack([b[:, -4 + step % 4] for step in range(6)], axis=1)[..., None]
        return {"mean": mean, "quantiles": mean[..., None] + np.array([-1.0, 0.0, 1.0])}


class Knows:
    """Answers with the truth, in a class order of its own."""

    def __init__(self, y: np.ndarray, classes: int) -> None:
        self.answers = iter(np.eye(classes, dtype=np.float32)[y])

    def run_numpy(self, x: np.ndarray, lengths: np.ndarray | None = None, *, dt: None = None) -> dict[str, np.ndarray]:
        return {"probabilities": np.stack([next(self.answers) for _ in x])}


def own(scores: dict[str, Any]) -> dict[str, float]:
    """The predictor's scores without those of the baselines."""
    return {name: value for name, value in scores.items() if not isinstance(value, dict)}


def test_the_seasonal_naive_forecast_scores_like_itself(series: ForecastData) -> None:
    got = evaluate(Repeats(), series, "validation", quantiles=(0.1, 0.5, 0.9))
    plain = {name: value for name, value in got.items() if name in got["seasonal_naive"]}
    assert plain == pytest.approx(got["seasonal_naive"])
    assert got["relative_mae"] == pytest.approx(1.0)
    # Between two seasons b grows by .4 and .8, so every truth lies within 1 of the forecast.
    assert got["coverage_0.8"] == 1.0
    assert got["mase"] == pytest.approx(got["mae"] / 0.4)


def test_naive_forecasts_see_more_than_the_context(series: ForecastData) -> None:
    short = replace(series, context_length=2)
    assert evaluate(Shapes((6, 1)), short, "test")["seasonal_naive"] == pytest.approx(
        evaluate(Shapes((6, 1)), series, "test")["seasonal_naive"]
    )


class Shapes:
    """Zeros of a shape."""

    def __init__(self, shape: tuple[int, ...], name: str = "mean") -> None:
        self.shape = shape
        self.name = name

    def run_numpy(self, x: np.ndarray, lengths: np.ndarray | None = None, *, dt: None = None) -> dict[str, np.ndarray]:
        return {self.name: np.zeros((len(x), *self.shape))}


def test_naive_is_the_last_observed_value(series: ForecastData) -> None:
    got = evaluate(Shapes((6, 1)), series, "test")
    # Steps 52..57, 53..58, 54..59 of two equal shapes; the missing step 55 is left out, and stands in for nothing.
    errors = []
    for end in (52, 53, 54):
        b = [10 * (step % 4) + step / 10 for step in range(60)]
        last = end - 1
        errors += [abs(b[step] - b[last]) for step in range(end, end + 6) if step != 55]
    assert got["naive"]["mae"] == pytest.approx(np.mean(errors), rel=1e-5)


def test_batches_do_not_change_scores(digits: ClassificationData) -> None:
    torch.manual_seed(0)
    predictor = TorchPredictor(Classifier("rnn", 1, 10, 4))
    whole = evaluate(predictor, digits, "validation", batch_size=1000)
    parts = evaluate(predictor, digits, "validation", batch_size=7)
    one, other = own(parts), own(whole)
    # Some processors round by the size of the batch: of sequences that score all but alike, a few change places.
    assert one.pop("roc_auc") == pytest.approx(other.pop("roc_auc"), abs=2e-3)
    assert one == pytest.approx(other)


def test_predict_keeps_the_order(digits: ClassificationData) -> None:
    model = Classifier("rnn", 1, 10, 4)
    outputs = predict(TorchPredictor(model), digits.validation, batch_size=100)
    x, lengths, *_ = digits.validation.gather(np.arange(150, 160))
    with torch.no_grad():
        expected = torch.softmax(model(torch.from_numpy(x), torch.from_numpy(lengths)), dim=-1)
    np.testing.assert_allclose(outputs["probabilities"][150:160], expected.numpy(), rtol=1e-5)


def test_a_torch_model_is_scored_in_evaluation_mode(digits: ClassificationData) -> None:
    model = Classifier("rnn", 1, 10, 4, num_layers=2, dropout=0.9).train()
    predictor = TorchPredictor(model)
    assert evaluate(predictor, digits, "validation") == evaluate(predictor, digits, "validation")
    assert model.training


def test_a_forecaster_without_quantiles(series: ForecastData) -> None:
    model = Forecaster("rnn", 2, 6, 4, target_indices=(1,), quantiles=())
    model.fit_scaling(series.training_values())
    got = evaluate(TorchPredictor(model), series, "test")
    assert not [name for name in got if name.startswith(("pinball", "coverage"))]


def test_labels_are_matched_by_word(digits: ClassificationData) -> None:
    order = tuple(reversed(digits.labels))
    got = evaluate(Knows(9 - digits.validation.y, 10), digits, "validation", labels=order)
    assert got["accuracy"] == 1.0
    expected = classification_metrics(np.eye(10)[digits.validation.y], digits.validation.y)
    assert {name: got[name] for name in expected} == expected
    # The baselines are of the data, in whatever order the predictor has its classes.
    assert got["ridge"] == Baselines(digits).scores("validation")["ridge"]


@pytest.mark.parametrize(
    ("found", "expected", "fits"),
    [
        (("a", "b"), ("b", "a"), False),
        (("a", "b"), ("channel_0", "channel_1"), True),
        (("channel_0", "channel_1"), ("b", "a"), True),
    ],
    ids=["both named", "model without names", "data without names"],
)
def test_features_of_sequences_are_compared_where_both_have_names(
    digits: ClassificationData, found: tuple[str, ...], expected: tuple[str, ...], fits: bool
) -> None:
    train, validation = (replace(one, x=np.repeat(one.x, 2, axis=2)) for one in (digits.train, digits.validation))
    data = replace(digits, features=found, train=train, validation=validation)
    predictor = Shapes((10,), "probabilities")
    if fits:
        assert evaluate(predictor, data, "validation", features=expected)
    else:
        with pytest.raises(DataError, match="was loaded with the features a, b, the model expects b, a"):
            evaluate(predictor, data, "validation", features=expected)


@pytest.mark.parametrize(
    ("labels", "features", "classes", "split", "message"),
    [
        (
            ("0", "1", "2"),
            None,
            3,
            "validation",
            "has the label '3', which the model was not trained on; it knows 0, 1",
        ),
        (None, None, 3, "validation", "'digits' has 10 classes, the model answers 3"),
        (None, ("a", "b", "c"), 10, "validation", r"'digits' has 1 feature, the model expects 3 \(a, b, c\)"),
        (None, None, 10, "test", "'digits' has no test split"),
        (None, None, 10, "tset", "Unknown split 'tset'. Did you mean 'test'?"),
    ],
)
def test_sequences_that_the_model_was_not_made_for(
    labels: Any, features: Any, classes: int, split: str, message: str, digits: ClassificationData
) -> None:
    error = UnknownNameError if split == "tset" else DataError
    with pytest.raises(error, match=message):
        evaluate(
            Shapes((classes,), "probabilities"), replace(digits, test=None), split, labels=labels, features=features
        )


@pytest.mark.parametrize(
    ("shape", "features", "message"),
    [
        ((6, 1), ("b", "a"), "was loaded with the features a, b, the model expects b, a"),
        ((3, 2), None, "was loaded for a horizon of 6 and 1 target, the model answers 3"),
    ],
)
def test_series_that_the_model_was_not_made_for(
    shape: tuple[int, int], features: Any, message: str, series: ForecastData
) -> None:
    with pytest.raises(DataError, match=f"'two.csv' {message}"):
        evaluate(Shapes(shape), series, "test", features=features)


def test_empty_split(digits: ClassificationData) -> None:
    nothing = digits.validation.gather(np.array([], dtype=np.int64))
    split = replace(digits.validation, x=nothing.x, lengths=nothing.lengths, y=nothing.y, ids=())
    empty = replace(digits, validation=split)
    with pytest.raises(DataError, match=r"^The split 'validation' of 'digits' is empty\. Choose another split\."):
        evaluate(Shapes((10,), "probabilities"), empty, "validation")


def test_the_scale_of_mase_is_of_the_training_steps_alone(tmp_path: Path) -> None:
    # In training y alternates between 0 and 1; then it jumps by 50, which would make any later scale larger.
    rows = [f"{step},{step % 2 if step < 40 else 50 * (step % 2)}" for step in range(60)]
    (tmp_path / "d.csv").write_text("\n".join(["ds,y", *rows]))
    data = load_data(tmp_path / "d.csv", season=1, horizon=2, context_length=4, validation_steps=10, test_steps=10)
    for split in ("validation", "test"):
        got = evaluate(Shapes((2, 1)), data, split)
        assert got["mase"] == pytest.approx(got["mae"] / 1.0)
        assert got["mae"] == pytest.approx(25)


def test_the_truth_is_read_without_the_contexts(series: ForecastData, monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(*_: object) -> None:
        raise AssertionError("contexts were gathered")

    monkeypatch.setattr(WindowSet, "gather", gather)
    assert ForecastScorer(series, "test").truth.shape == (6, 6, 1)


def test_each_series_is_forecast_from_its_own_past() -> None:
    random = np.random.default_rng(0)
    lengths = [14, 30, 12, 20]
    many = ForecastData(
        name="many",
        series=tuple(Series(f"s{n}", np.arange(n), random.normal(size=(n, 1)).astype(np.float32)) for n in lengths),
        channels=("y",),
        targets=("y",),
        frequency="1",
        season=3,
        horizon=2,
        context_length=2,
        validation_steps=3,
        test_steps=4,
        notes={},
        fingerprint="",
    )
    for split in ("train", "validation", "test"):
        apart = [ForecastScorer(replace(many, series=(one,)), split) for one in many.series]
        weights = [scorer.samples for scorer in apart]
        for name in ("seasonal_naive", "naive", "drift"):
            expected = np.average([scorer.naive[name]["mae"] for scorer in apart], weights=weights)
            assert ForecastScorer(many, split).naive[name]["mae"] == pytest.approx(expected)


def test_many_series_are_grouped_once(series: ForecastData, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mask over all windows for each series would be quadratic; slices of them are views.
    seen: list[bool] = []

    def naive(values: np.ndarray, ends: np.ndarray, **options: int) -> np.ndarray:
        seen.append(ends.base is not None)
        return seasonal_naive(values, ends, **options)

    monkeypatch.setattr(scorers, "seasonal_naive", naive)
    ForecastScorer(series, "test")
    assert seen == [True] * 4


def test_windows_without_a_value_in_their_context_are_scored_for_nobody() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(40, 1)).astype(np.float32)
    values[30:34] = np.nan
    data = many_series([values], season=1)
    windows = data.windows("test")
    # Origins are 31 to 38: both targets of 31 and 32 are missing, and so is all that 34 sees.
    assert [end for _, end in windows.origins] == [33, 35, 36, 37, 38]
    assert (windows.dropped, windows.without_context) == (2, 1)
    scores = evaluate(Sums(), data)
    errors = []
    for end in (33, 35, 36, 37, 38):
        last = values[:end, 0][~np.isnan(values[:end, 0])][-1]
        errors += [abs(truth - last) for truth in values[end : end + 2, 0] if not np.isnan(truth)]
    assert scores["naive"]["mae"] == pytest.approx(np.mean(errors))


def test_a_chosen_window_is_scored_like_a_split_of_its_own(series: ForecastData) -> None:
    whole = ForecastScorer(series, "validation", quantiles=(0.1, 0.5, 0.9))
    chosen = np.array([1, 4])
    part = ForecastScorer(series, "validation", quantiles=(0.1, 0.5, 0.9), windows=chosen)
    outputs = predict(Repeats(), whole.source)
    picked = predict(Repeats(), part.source)
    assert part.samples == 2
    for name, values in picked.items():
        np.testing.assert_array_equal(values, outputs[name][chosen])
    np.testing.assert_array_equal(part.truth, whole.truth[chosen])
    for name in ("seasonal_naive", "naive", "drift"):
        np.testing.assert_array_equal(part.naive_forecast(name), whole.naive_forecast(name)[chosen])
    errors = np.abs(picked["mean"] - part.truth)
    assert part.score(picked)["mae"] == pytest.approx(np.nanmean(errors))


def test_chosen_samples_are_numbered_anew(digits: ClassificationData) -> None:
    chosen = Subset(digits.validation, np.array([5, 3, 9]))
    assert len(chosen) == 3
    np.testing.assert_array_equal(chosen.gather(np.array([2, 0])).y, digits.validation.y[[9, 5]])


def test_a_sequence_in_two_parts_is_the_whole(digits: ClassificationData) -> None:
    torch.manual_seed(0)
    predictor = TorchPredictor(Classifier("lstm", 1, 10, 4, num_layers=2))
    x = digits.validation.x[:5]
    first = predictor.run_sequence(x[:, :20])
    second = predictor.run_sequence(x[:, 20:], state=predictor.next_state(first))
    whole = predictor.run_numpy(x)
    assert set(second) - set(whole) == {name.output for name in predictor.states}
    np.testing.assert_allclose(second["probabilities"], whole["probabilities"], rtol=1e-5, atol=1e-7)


def test_what_samples_bring_reaches_the_predictor() -> None:
    class Source:
        def __len__(self) -> int:
            return 3

        def gather(self, indices: np.ndarray) -> Samples:
            ones = np.ones((len(indices), 2, 1), dtype=np.float32)
            static = indices[:, None].astype(np.float32)
            return Samples(ones, np.full(len(indices), 2), indices, dt=None, static=static, future=ones)

    seen: list[dict[str, np.ndarray]] = []

    class Looks:
        def run_numpy(self, x: np.ndarray, lengths: np.ndarray | None = None, **further: np.ndarray) -> dict:
            seen.append(further)
            return {"mean": x}

    predict(Looks(), Source(), batch_size=2)
    assert [sorted(further) for further in seen] == [["future", "static"]] * 2
    np.testing.assert_array_equal(seen[1]["static"], [[2]])
    assert optional_inputs(Source().gather(np.array([0]))._replace(static=None)).keys() == {"future"}


def test_the_ridge_classifier_is_fitted_for_final_scores_only(
    digits: ClassificationData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a ridge classifier was fitted")

    monkeypatch.setattr("stablernn.training.evaluation.baselines.Ridge", fail)
    scorer = ClassificationScorer(digits, "validation")
    scorer.score({"probabilities": np.eye(10)[digits.validation.y]})
    with pytest.raises(AssertionError):
        evaluate(Knows(digits.validation.y, 10), digits, "validation")
