"""StableClassifier: forms of its arguments, the run behind it, refusals."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pandas as pd
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import stablernn as srn
from cli_helpers import Workplace
from stablernn.errors import ConfigError
from stablernn.estimators.stream import Stream
from stablernn.training import load_run
from stablernn_registry import Registry

Array = npt.NDArray[Any]
QUICK: dict[str, Any] = {"cell": "gru", "hidden_size": 8, "epochs": 8, "lr": 0.02, "batch_size": 16, "certified": False}


def waves(count: int, steps: int = 24, seed: int = 0) -> tuple[Array, Array]:
    """Slow and fast waves with noise, a table (count, steps), and the words for them."""
    generator = np.random.default_rng(seed)
    is_fast = np.arange(count) % 2 == 1
    phase = generator.uniform(0, 6.28, (count, 1))
    values = np.sin(np.arange(steps) * np.where(is_fast, 1.1, 0.3)[:, None] + phase)
    return 20 + 5 * (values + generator.normal(0, 0.1, values.shape)), np.where(is_fast, "fast", "slow")


X, Y = waves(80)


@pytest.fixture(scope="module")
def fitted() -> srn.StableClassifier:
    return srn.StableClassifier(**QUICK).fit(X, Y)


def test_it_learns_and_generalizes(fitted: srn.StableClassifier) -> None:
    assert fitted.score(*waves(60, seed=1)) > 0.95
    assert fitted.classes_.tolist() == ["fast", "slow"]
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1, atol=1e-12)


FORMS: dict[str, Callable[[Array], Any]] = {
    "a table": lambda x: x,
    "an array (n, time, features)": lambda x: x[:, :, None],
    "a frame of pandas": lambda x: pd.DataFrame(x).add_prefix("t"),
    "a frame of polars": lambda x: pl.DataFrame(x, schema=[f"t{step}" for step in range(x.shape[1])]),
    "a list of arrays": list,
    "lists of numbers": lambda x: x.tolist(),
    "a list of series": lambda x: [pd.Series(row) for row in x],
}


@pytest.mark.parametrize(
    "form",
    # A frame and a list in the quick tests; each form is a training.
    [
        pytest.param(form, id=name, marks=[] if name in ("a frame of polars", "lists of numbers") else pytest.mark.slow)
        for name, form in FORMS.items()
    ],
)
def test_every_form_of_the_same_sequences_gives_the_same_probabilities(
    form: Callable[[Array], Any], fitted: srn.StableClassifier
) -> None:
    again = srn.StableClassifier(**QUICK).fit(form(X), Y)
    np.testing.assert_array_equal(again.predict_proba(form(X[:9])), fitted.predict_proba(X[:9]))
    # Other forms of one feature are taken as well.
    np.testing.assert_array_equal(again.predict_proba(list(X[:9])), fitted.predict_proba(X[:9]))


def test_sequences_of_unequal_length_and_missing_values_are_ordinary() -> None:
    generator = np.random.default_rng(2)
    sequences = [np.stack([row, -row], axis=1)[: generator.integers(12, 25)] for row in X]
    for sequence in sequences:
        sequence[generator.random(sequence.shape) < 0.1] = np.nan
    classifier = srn.StableClassifier(**QUICK).fit(sequences, Y)
    assert classifier.n_features_in_ == 2
    missing = classifier.run_.data["notes"]["missing_values"]
    assert missing["train"] + missing["validation"] == sum(int(np.isnan(sequence).sum()) for sequence in sequences) > 0
    # A sequence alone has the answer that it has among longer ones.
    alone = [classifier.predict_proba([sequence])[0] for sequence in sequences[:5]]
    np.testing.assert_allclose(alone, classifier.predict_proba(sequences)[:5], atol=1e-6)


@pytest.mark.parametrize(
    "labels",
    [np.arange(80) % 2 * 10 + 5, pytest.param(np.arange(80) % 2 == 0, marks=pytest.mark.slow)],
    ids=["integers", "booleans"],
)
def test_labels_come_back_as_they_went_in(labels: Array, tmp_path: Path) -> None:
    classifier = srn.StableClassifier(**QUICK).fit(X, labels)
    predicted = classifier.predict(X)
    assert predicted.dtype == labels.dtype
    assert np.mean(predicted == labels) > 0.95
    classifier.save(tmp_path / "run")
    again = srn.StableClassifier.from_run(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(X), predicted)
    assert again.predict(X).dtype == labels.dtype


@pytest.mark.slow
def test_it_works_in_pipelines_and_searches() -> None:
    pipeline = make_pipeline(StandardScaler(), srn.StableClassifier(**QUICK))
    search = GridSearchCV(pipeline, {"stableclassifier__hidden_size": np.array([4, 8])}, cv=2).fit(X, Y)
    assert search.best_score_ > 0.8
    assert cross_val_score(srn.StableClassifier(**QUICK), list(X), Y, cv=2).min() > 0.8


def test_a_fit_is_the_run_that_the_command_line_trains(tmp_path: Path) -> None:
    np.savez(tmp_path / "waves.npz", x=X, y=Y)
    options = "--cell gru --hidden-size 8 --epochs 3 --lr 0.02 --batch-size 16 --free --set training.plots=false"
    Workplace(tmp_path).ok("train", "--data", "waves.npz", *options.split(), "--run-dir", "run")
    trained = load_run(tmp_path / "run")
    classifier = srn.StableClassifier(**{**QUICK, "epochs": 3}).fit(X, Y)
    for name, weight in trained.model.state_dict().items():
        np.testing.assert_array_equal(classifier.model_.state_dict()[name].numpy(), weight.numpy(), err_msg=name)
    loaded = srn.StableClassifier.from_run(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict_proba(X), classifier.predict_proba(X))
    assert (loaded.cell, loaded.epochs, loaded.settings["training.schedule"]) == ("gru", 3, "one-cycle")
    # What it was loaded with trains the same again.
    np.testing.assert_array_equal(loaded.fit(X, Y).predict_proba(X), classifier.predict_proba(X))


def test_each_fit_leaves_a_run_where_one_is_wanted(tmp_path: Path) -> None:
    classifier = srn.StableClassifier(**{**QUICK, "epochs": 2}, runs_folder=tmp_path / "runs")
    classifier.fit(X, Y)
    classifier.fit(X, Y)
    names = ["training_data-gru-1", "training_data-gru-2"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names
    document = Workplace(tmp_path).ok("eval", f"runs/{names[0]}", "--split", "validation", "--json").json
    assert document["metrics"]["accuracy"] == classifier.summary_["metrics"]["validation"]["accuracy"]


def test_a_saved_estimator_is_exported_and_comes_back_from_the_registry(
    fitted: srn.StableClassifier, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "run")
    workplace = Workplace(tmp_path)
    workplace.ok("export", "run", "--name", "waves")
    version = Registry(workplace.registry).get("waves")
    again = srn.StableClassifier.from_registry(version)
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.classes_.tolist() == ["fast", "slow"]
    with pytest.raises(ConfigError, match="loaded from a registry version, which is stored already"):
        again.save(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"from_registry takes a version, as Registry\(\)\.get.*got 'waves'"):
        srn.StableClassifier.from_registry("waves")  # type: ignore[arg-type]


def test_a_stream_ends_with_the_bits_of_the_exported_sequence(fitted: srn.StableClassifier, tmp_path: Path) -> None:
    report = fitted.export(tmp_path)
    sequence = np.where(np.arange(24) % 7 == 3, np.nan, X[0]).astype(np.float32)
    session = onnxruntime.InferenceSession(report.files["sequence.onnx"])
    feeds = {"x": sequence[None, :, None], "lengths": np.array([24])}
    states = {entry.name: np.zeros((1, entry.shape[1]), np.float32) for entry in session.get_inputs()[2:]}
    whole = dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds | states), strict=True))

    stream = fitted.stream()
    for _ in range(2):
        outputs = [stream.push(sample) for sample in sequence]
        assert outputs[-1] is not None
        np.testing.assert_array_equal(outputs[-1]["probabilities"], whole["probabilities"][0])
        assert outputs[-1]["label"] == fitted.predict(sequence[None].astype(float))[0]
        assert stream.steps == 24
        stream.reset()
    np.testing.assert_allclose(outputs[-1]["probabilities"], fitted.predict_proba(sequence[None])[0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 7, 24])
def test_a_stream_can_end_inside_a_patch(steps: int, patched: tuple[Stream, Path]) -> None:
    stream, graph = patched
    stream.reset()
    session = onnxruntime.InferenceSession(graph)
    feeds = {"x": X[:1, :steps, None].astype(np.float32), "lengths": np.array([steps])}
    states = {entry.name: np.zeros((1, entry.shape[1]), np.float32) for entry in session.get_inputs()[2:]}
    (whole,) = session.run(["probabilities"], feeds | states)
    outputs = [stream.push(value) for value in X[0, :steps]]
    assert [output is None for output in outputs] == [step % 3 != 2 for step in range(steps)]
    for _ in range(2):
        np.testing.assert_array_equal(stream.finish()["probabilities"], whole[0])


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stream, Path]:
    """A stream of a classifier whose layers advance once for three samples, and its graph of whole sequences."""
    settings = {"model.patch_size": 5, "model.patch_stride": 3}
    classifier = srn.StableClassifier(**QUICK, settings=settings).fit(X, Y)
    return classifier.stream(), classifier.export(tmp_path_factory.mktemp("patched")).files["sequence.onnx"]


def test_a_stream_refuses_what_is_no_sample(fitted: srn.StableClassifier) -> None:
    stream = fitted.stream()
    with pytest.raises(ValueError, match=re.escape("has the shape (1,), a number for each feature, got int64 of the")):
        stream.push([1, 2])
    with pytest.raises(ValueError, match="Feature 0 of sample 0 is inf"):
        stream.push(np.inf)
    with pytest.raises(ValueError, match="The stream has no sample yet"):
        stream.finish()
    resampled = srn.StableClassifier(**QUICK, settings={"model.resample_steps": 12}).fit(X, Y)
    with pytest.raises(ConfigError, match="needs complete sequences and cannot stream"):
        resampled.stream()


def test_what_is_proved_is_that_of_the_model(fitted: srn.StableClassifier) -> None:
    assert fitted.certify().kind == srn.certify(fitted.model_).kind
    assert fitted.certify("training").inputs is not None
    certified = srn.StableClassifier("lipschitz", hidden_size=8, epochs=1).fit(X, Y)
    assert certified.certify().kind == "contracting"
    assert certified.summary_["certificate"]["kind"] == "contracting"


@pytest.mark.slow
def test_weights_of_classes_and_sequences_shift_the_answers() -> None:
    noise = np.random.default_rng(0).normal(0, 6, X.shape)
    rare = np.concatenate([np.flatnonzero(Y == "fast")[:8], np.flatnonzero(Y == "slow")])
    x, y = (X + noise)[rare], Y[rare]
    shares = {}
    for method in ("gradient", "closed-form"):
        settings = {"training.method": method, "training.calibrate": False}
        options = {**QUICK, "settings": settings} if method == "gradient" else {"hidden_size": 8, "settings": settings}
        for name, weight, sample_weight in (
            ("none", None, None),
            ("balanced", "balanced", None),
            ("labels", {"fast": 50}, None),
            ("sequences", None, np.where(y == "fast", 50.0, 1.0)),
        ):
            classifier = srn.StableClassifier(**options, class_weight=weight)
            probabilities = classifier.fit(x, y, sample_weight=sample_weight).predict_proba(x)
            shares[name] = probabilities[:, 0].mean()
        assert shares["none"] < shares["balanced"] < shares["labels"], (method, shares)
        assert shares["sequences"] == pytest.approx(shares["labels"], abs=1e-6)


@pytest.mark.slow
def test_permutation_importance_finds_the_step_that_decides() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 6))
    classifier = srn.StableClassifier(**{**QUICK, "epochs": 30}).fit(x, x[:, 4] > 0)
    importance = permutation_importance(classifier, x, x[:, 4] > 0, n_repeats=3, random_state=0).importances_mean
    assert importance.argmax() == 4


def test_it_can_be_pickled_with_its_fit(fitted: srn.StableClassifier) -> None:
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.history_ == fitted.history_


@pytest.mark.slow
def test_cell_and_settings_are_chosen_within_a_budget() -> None:
    classifier = srn.StableClassifier("auto", budget="60steps", device="cpu", settings={"model.hidden_size": 4})
    with pytest.raises(ConfigError, match=r"'model\.hidden_size' is the parameter hidden_size"):
        classifier.fit(X, Y)
    classifier.set_params(settings=None, hidden_size=4).fit(X, Y)
    assert classifier.summary_["choice"]["chosen"]
    assert classifier.config_.model.cell != "auto"


@pytest.mark.slow
def test_a_script_without_a_guard_can_search(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, stablernn as srn\n"
        "X = np.random.default_rng(0).normal(size=(40, 12)).cumsum(axis=1)\n"
        "srn.StableClassifier('auto', budget='40steps', hidden_size=4, device='cpu').fit(X, X[:, -1] > 0)\n"
        "print(__file__)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(script)]), done.stderr


def test_predictions_need_a_fit() -> None:
    classifier = srn.StableClassifier()
    for method in (classifier.predict, classifier.predict_proba):
        with pytest.raises(NotFittedError):
            method(X)
    for attribute in (classifier.stream, classifier.certify):
        with pytest.raises(NotFittedError):
            attribute()


def test_a_folder_that_cannot_be_written_is_a_sentence(fitted: srn.StableClassifier, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"Cannot make the folder '.*': Not a directory\."):
        fitted.save(tmp_path / "file" / "run")
    fitted.save(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"There is a run in '.*' already\. Name another folder\."):
        fitted.save(tmp_path / "run")


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "one class": (X, ["a"] * 80, "only one class is present, got y with the class 'a' alone. Add sequences of another"),
    "NaN in y": (X, np.where(np.arange(80) == 3, np.nan, 1.0), "y[3] is nan, which is no label. Give every sequence"),
    "other features": ([*X[:-1], X[:9].T], Y, "X[79] has 9 features at each step, X[0] has 1"),
    "infinity": (np.where(X[4, 5] == X, np.inf, X)[:, :, None], Y, "X[4, 5, 0] is inf. Values must be finite float32"),
    "a feature of nothing": (
        np.full((80, 9, 1), np.nan),
        Y,
        "X has no value at all in the training split. Fill it in.",
    ),
    "lost digits": (X[:, :, None] + 1e12, Y, "Feature 0 of X goes from 1000000000013.584 to"),
    "a column twice": (
        [pd.DataFrame(np.stack([x, x], 1), columns=["a", "a"]) for x in X],
        Y,
        "The sequences of X have a column twice, got a, a. Rename one of them.",
    ),
}


@pytest.mark.parametrize(("x", "y", "message"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_a_sentence(x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        srn.StableClassifier(**QUICK).fit(x, y)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"settings": {"training.clipnorm": 1.0}}, "Did you mean 'training.clip_norm'?"),
    "a file": ({"settings": {"data.source": "x.npz"}}, "'data.source' names a file, and an estimator is fitted to"),
    "a budget of a cell": ({"budget": "60s"}, "A budget is for choosing a cell, got budget='60s' for cell='gru'."),
    "a size of zero": ({"hidden_size": 0}, "hidden_size must be greater than or equal to 1, got 0."),
    "two lengths": ({"max_steps": 3}, "epochs and max_steps exclude each other, got 8 and 3."),
}


@pytest.mark.parametrize(("options", "message"), SETTINGS.values(), ids=SETTINGS)
def test_settings_are_refused_in_a_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        srn.StableClassifier(**{**QUICK, **options}).fit(X, Y)


@pytest.mark.slow
def test_without_scikit_learn_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import stablernn as srn; srn.Classifier; srn.StableClassifier"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: StableClassifier and StableForecaster need scikit-learn, which is not installed. Install it with "
        "pip install -e '.[sklearn]' in the checkout."
    )
