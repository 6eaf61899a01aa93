"""``StableClassifier``: one label for a sequence, with scikit-learn's interface."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from stablernn.data.sequences import NO_LABEL, default_channel_names, pad_sequences
from stablernn.data.types import SequenceSplit
from stablernn.errors import DataError
from stablernn.estimators.base import RunEstimator
from stablernn.estimators.fitted_run import FittedRun
from stablernn.estimators.sequence_arrays import SequenceArrays, from_sequences, from_table, is_table
from stablernn.training.evaluation.predictors import predict as run_batches
from stablernn.training.evaluation.torch_predictor import TorchPredictor

# The base class has said what to install if it is missing.
from sklearn.base import ClassifierMixin  # isort: skip
from sklearn.utils.class_weight import compute_sample_weight  # isort: skip
from sklearn.utils.multiclass import check_classification_targets  # isort: skip
from sklearn.utils.validation import check_array, column_or_1d, validate_data  # isort: skip

if TYPE_CHECKING:
    from stablernn.training.callbacks import Callback

_FILE = "training_data.npz"


@dataclass(eq=False, repr=False)
class StableClassifier(ClassifierMixin, RunEstimator):  # type: ignore[misc]
    """A classifier of sequences.

    It trains as ``stablernn train`` does, with the same defaults: scaling, augmentation, projections into the certified
    region, penalties, the best epoch by a held-out share of the sequences, and calibrated probabilities.

    Args:
        cell: Key of the recurrent cell, see :func:`stablernn.list_cells`; ``auto``: cell and other settings are chosen
            by cross-validation on the training data within ``budget``, see ``docs/guides/choosing.md``.
        hidden_size: Length of each layer's state.
        num_layers: Recurrent layers.
        members: Networks of an ensemble, whose probabilities are averaged.
        epochs: Passes over the training data; None: by the cell and the amount of data.
        max_steps: Optimizer steps, in place of ``epochs``.
        batch_size: Sequences in a step; None: by the cell and the amount of data.
        lr: Largest learning rate; None: recommended for the cell.
        patience: Epochs without a better validation metric after which training stops; None: never.
        certified: Whether the weights are kept in the region in which the cell is proved stable; None: where that holds
            for all inputs and costs little.
        class_weight: Weight of each class in the loss: ``balanced``, so that all classes count alike, or a weight by
            label, 1 for those that are left out; None: all weigh the same.
        device: ``auto``, ``cpu`` or ``cuda``, for the training; predictions are computed on the CPU.
        random_state: Seed of the held-out sequences, initial weights and order of samples; None draws one.
        settings: Further settings by dotted key, as ``--set`` takes them: ``{"training.clip_norm": 1.0}``. See
            ``docs/reference/settings.md``.
        budget: Of ``cell="auto"``: time or number of steps of search and training, such as ``90s``; None: two minutes.
        runs_folder: Folder in which each fit leaves a run directory, with data and figures; None: none is left.
        callbacks: Objects that are told of the start, each epoch and the end, see
            :mod:`stablernn.training.callbacks`.

    Attributes:
        classes_: The labels, sorted.
        n_features_in_: Columns of a table ``X``, else features of each step.
        run_: The run with all that follows from it.
        model_, config_, history_, summary_: Model, settings, epochs and summary of the run.

    Examples:
        >>> X = np.random.default_rng(0).normal(size=(40, 30)).cumsum(axis=1)
        >>> classifier = StableClassifier(max_steps=20).fit(X, X[:, -1] > 0)
        >>> classifier.predict_proba(X[:3]).shape
        (3, 2)
    """

    task = "classify"

    cell: str = "lipschitz"
    _: KW_ONLY
    hidden_size: int = 64
    num_layers: int = 1
    members: int = 1
    epochs: int | None = None
    max_steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    patience: int | None = None
    certified: bool | None = None
    class_weight: str | Mapping[Any, float] | None = None
    device: str = "auto"
    random_state: Any = 0
    settings: Mapping[str, Any] | None = None
    budget: str | None = None
    runs_folder: str | Path | None = None
    callbacks: Sequence[Callback] | None = None

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Train on labeled sequences.

        Args:
            X: A table ``(n, time)`` of one feature, as array or frame of pandas or polars; an array
                ``(n, time, features)``; or a list of arrays or frames ``(time,)`` or ``(time, features)`` of any
                lengths. Raw units; NaN is a missing value.
            y: Label of each sequence, ``(n,)``.
            groups: Group of each sequence, such as a person, ``(n,)``: groups are trained on or held out as a whole.
            sample_weight: Weight of each sequence in the loss, ``(n,)``, 0 or more, times that of its class; the
                choice of the best epoch and calibrated probabilities weigh all held-out sequences the same.

        Raises:
            ValueError: If an argument has another form, a value is infinite, or there are not two classes. Errors of
                settings and data are those of :mod:`stablernn.errors`, of which these are subclasses.
            TrainingError: If training fails.
        """
        arrays = self._read(X, is_fit=True)
        classes, texts = self._read_labels(y, len(arrays.values))
        data_settings: dict[str, Any] = {}
        contents: dict[str, npt.NDArray[Any]] = {"y": np.array(texts)}
        if groups is not None:
            contents["groups"] = np.asarray(groups).astype(str)
            data_settings["data.group_column"] = "groups"
            _check_count("groups", contents["groups"], len(arrays.values))
        if sample_weight is not None or self.class_weight is not None:
            contents["sample_weight"] = self._sample_weights(y, sample_weight, len(arrays.values))
        if arrays.features is not None:
            contents["features"] = np.array(arrays.features)
        contents["x"], contents["lengths"] = pad_sequences(arrays.values)
        # The draw of the held-out sequences; the seed of the training is set for all tasks.
        data_settings["data.seed"] = self._seed() if self.random_state is not None else 0
        facts = {
            "classes": classes.tolist(),
            "classes_dtype": classes.dtype.str if classes.dtype != object else "object",
            "n_features_in": int(self.n_features_in_),
            "reads_tables": self._reads_tables,
        }

        def write(path: Path) -> None:
            np.savez(path, allow_pickle=False, **contents)

        channels = default_channel_names(contents["x"].shape[2]) if arrays.features is None else ()
        run = self._train_on_file(_FILE, write, data_settings, facts, channels=channels)
        self._set_fitted(run)
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probabilities of ``classes_``, ``(n, classes)``.

        Args:
            X: As :meth:`fit` takes it, with as many features.

        Raises:
            NotFittedError: Before ``fit``.
            ValueError: If ``X`` has another form or other features.
        """
        run = self._fitted
        arrays = self._read(X, is_fit=False)
        x, lengths = pad_sequences(arrays.values)
        split = SequenceSplit(x, lengths, np.zeros(len(x), np.int64), tuple(map(str, range(len(x)))))
        probabilities = run_batches(TorchPredictor(run.model), split)["probabilities"].astype(np.float64)
        # In float64 the float32 shares of each sequence must add up to 1 again, as scikit-learn's metrics expect.
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return np.asarray(probabilities[:, self._columns(run)])

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable label of each sequence, ``(n,)``; all else as of :meth:`predict_proba`."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags

    def _read(self, X: Any, *, is_fit: bool) -> SequenceArrays:
        """Return the sequences of an argument, checked against those of the fit."""
        options: dict[str, Any] = {"ensure_all_finite": "allow-nan", "dtype": "numeric"}
        if is_fit:
            self._reads_tables = is_table(X)
            if self._reads_tables:
                return from_table(np.asarray(validate_data(self, X, **options)))
            arrays = from_sequences(X)
            self.n_features_in_ = arrays.values[0].shape[1]
            # Names of columns from a fit to a table.
            self.__dict__.pop("feature_names_in_", None)
            return arrays
        if is_table(X):
            arrays = from_table(self._validated_table(X, options) if self._reads_tables else check_array(X, **options))
        else:
            arrays = from_sequences(X)
        features = list(self._fitted.data["features"])
        if arrays.values[0].shape[1] != len(features):
            raise DataError(
                f"X has {arrays.values[0].shape[1]} features at each step, but {type(self).__name__} was fitted to "
                f"{len(features)}."
            )
        if arrays.features is not None and features not in (
            list(arrays.features),
            list(default_channel_names(len(features))),
        ):
            raise DataError(
                f"The sequences of X have the columns {', '.join(arrays.features)}, but {type(self).__name__} was "
                f"fitted to {', '.join(features)}, in this order."
            )
        return arrays

    def _validated_table(self, X: Any, options: Mapping[str, Any]) -> npt.NDArray[Any]:
        try:
            return np.asarray(validate_data(self, X, reset=False, **options))
        except ValueError as error:
            if "is expecting" not in str(error):
                raise
            raise ValueError(
                f"{error} A table has the columns of fit; give sequences of other lengths as a list of arrays."
            ) from error

    def _read_labels(self, y: Any, count: int) -> tuple[npt.NDArray[Any], list[str]]:
        """Set ``classes_`` and return them with the label of each sequence as text.

        Raises:
            ValueError: If there is not one label for each sequence, one is missing, or there are not two classes.
        """
        name = type(self).__name__
        if y is None:
            raise ValueError(f"{name} requires y to be passed, but the target y is None.")
        labels = column_or_1d(y, warn=True)
        _check_count("y", labels, count)
        for index, label in enumerate(labels.tolist()):
            if label is None or label != label or label in (math.inf, -math.inf):
                raise ValueError(
                    f"y[{index}] is {label}, which is no label. Give every sequence one, or leave it out of X and y."
                )
        check_classification_targets(labels)
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"{name} can't train when only one class is present, got y with the class {classes.tolist()[0]!r} "
                "alone. Add sequences of another class."
            )
        texts = _class_texts(classes)
        self.classes_ = classes
        return classes, [texts[number] for number in numbers]

    def _sample_weights(self, y: Any, sample_weight: Any, count: int) -> npt.NDArray[np.float64]:
        """Return the weight of each sequence in the loss, that of its class included.

        Raises:
            ValueError: If there is not one for each sequence, or one is negative or not finite.
        """
        weights = np.ones(count) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if weights.ndim != 1:
            raise ValueError(f"Sample weights must be 1D array or scalar, got {weights.ndim}D array.")
        _check_count("sample_weight", weights, count)
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise ValueError("sample_weight holds finite numbers of 0 or more; not all weights may be zero.")
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self._class_weights(), column_or_1d(y))
        return weights

    def _class_weights(self) -> str | Mapping[Any, float] | None:
        """Return ``class_weight`` with a weight for each class, 1 for those that are left out.

        Raises:
            ValueError: If it is another word, or has an unknown class.
        """
        if self.class_weight is None or self.class_weight == "balanced":
            return self.class_weight
        classes = self.classes_.tolist()
        if isinstance(self.class_weight, str) or set(self.class_weight) - set(classes):
            raise ValueError(
                f"class_weight is 'balanced', None, or a weight by class, of {classes}; got {self.class_weight!r}."
            )
        return {label: self.class_weight.get(label, 1) for label in classes}

    def _columns(self, run: FittedRun) -> list[int]:
        """Return the position of each of ``classes_`` among the outputs of the model."""
        labels = list(run.data["labels"])
        return [labels.index(text) for text in _class_texts(self.classes_)]

    def _stream_labels(self) -> Sequence[Any]:
        by_text = dict(zip(_class_texts(self.classes_), self.classes_.tolist(), strict=True))
        return [by_text[label] for label in self._fitted.data["labels"]]

    def _set_fitted(self, run: FittedRun) -> None:
        super()._set_fitted(run)
        facts = run.estimator
        # A run of the command line knows its labels as text.
        labels = facts.get("classes", list(run.data["labels"]))
        dtype = np.dtype(facts["classes_dtype"]) if "classes_dtype" in facts else None
        self.classes_ = np.array(labels, dtype) if facts else np.unique(labels)
        self.n_features_in_ = facts.get("n_features_in", len(run.data["features"]))
        self._reads_tables = facts.get("reads_tables", False)


def _check_count(name: str, values: npt.NDArray[Any], count: int) -> None:
    if len(values) != count:
        noun = "labels" if name == "y" else "entries"
        raise ValueError(f"{name} has {len(values)} {noun} for the {count} sequences of X. Give one for each sequence.")


def _class_texts(classes: npt.NDArray[Any]) -> list[str]:
    """Return labels as runs and versions hold them: whole numbers without a decimal point, all else as it prints.

    Raises:
        DataError: If a label stands for a missing one.
    """
    texts = [
        str(int(label)) if isinstance(label, float) and label.is_integer() else str(label) for label in classes.tolist()
    ]
    for text in texts:
        if text in NO_LABEL:
            raise DataError(f"y has the label '{text}', which stands for a missing label. Give the class another name.")
    return texts
