"""The base class of the estimators: constructor arguments as settings of a run, training, and what a fit leaves."""

from __future__ import annotations

import base64
import html
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from stablernn.certificates.certificate import Certificate, certify
from stablernn.certificates.input_range import InputRange, training_range
from stablernn.certificates.stored_certificate import series_facts
from stablernn.data.messages import data_counts, format_counts
from stablernn.errors import ConfigError, did_you_mean
from stablernn.estimators.fitted_run import ESTIMATOR_FILE, FittedRun
from stablernn.estimators.stream import Stream
from stablernn.export import ExportReport, export
from stablernn.nn.models import SequenceModel
from stablernn.terms import Terms, use_terms
from stablernn.training.loop.launch import refuse_several_processes
from stablernn.training.run_directory import new_directory
from stablernn.training.search.budget import Budget
from stablernn.training.settings.config import AUTO, Config
from stablernn.training.settings.load import load_config
from stablernn.training.train_model import train
from stablernn_registry import Version

if TYPE_CHECKING:
    from stablernn.training.callbacks import Callback


try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted, check_random_state
except ImportError as error:
    raise ImportError(
        "StableClassifier and StableForecaster need scikit-learn, which is not installed. Install it with pip install "
        "-e '.[sklearn]' in the checkout."
    ) from error

SETTINGS = {
    "cell": "model.cell",
    "hidden_size": "model.hidden_size",
    "num_layers": "model.num_layers",
    "members": "model.members",
    "epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "batch_size": "training.batch_size",
    "lr": "training.lr",
    "patience": "training.patience",
    "certified": "training.certified",
    "device": "training.device",
}
"""Key of the settings of a run, by the parameter of an estimator that sets it."""
MAX_SEED = 2**32 - 1


class RunEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of estimators that train by the trainer of ``stablernn train``.

    A subclass declares ``task`` and ``parameter_keys``, writes its training data into a file and calls
    :meth:`_train_on_file`.
    """

    task: ClassVar[str]
    parameter_keys: ClassVar[Mapping[str, str]] = SETTINGS

    cell: str
    settings: Mapping[str, Any] | None
    random_state: Any
    budget: str | None
    runs_folder: str | Path | None
    callbacks: Sequence[Callback] | None

    # What a fit leaves; scikit-learn tells a fitted estimator by such names.
    run_: FittedRun

    @property
    def model_(self) -> SequenceModel:
        """The torch model, in evaluation mode on the CPU."""
        return self._fitted.model

    @property
    def config_(self) -> Config:
        """The resolved settings of the training, as ``config.yaml`` of a run holds them."""
        return self._fitted.config

    @property
    def history_(self) -> list[dict[str, Any]]:
        """The figures of each epoch: ``epoch``, ``step``, ``lr``, ``train_loss``, ``validation``, ``seconds``."""
        return [dict(record) for record in self._fitted.history]

    @property
    def summary_(self) -> dict[str, Any]:
        """The summary of the run: metrics by split, steps, certificate, notes on the data, warnings."""
        return dict(self._fitted.summary)

    def certify(self, inputs_within: Any = None) -> Certificate:
        """Prove what holds of the recurrent layers, see :func:`stablernn.certify`.

        Args:
            inputs_within: Range of raw inputs to which the certificate is restricted; ``training``: that of the
                training data, half as wide again; None: inputs of any size.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If the range does not fit the model.
        """
        if inputs_within == "training":
            inputs_within = self._training_range()
        return certify(self.model_, inputs_within=inputs_within)

    def export(self, folder: str | Path, *, formats: Sequence[str] = ("onnx",)) -> ExportReport:
        """Write graphs, weights, parity report and certificate into a folder, see :func:`stablernn.export`.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If a format is unknown.
            ParityError: If a graph does not compute what the model computes.
        """
        data = self._fitted.data
        steps = data.get("context_length") or data.get("longest")
        inputs, facts = self._training_range(), series_facts(data)
        return export(self.model_, folder, formats=formats, steps=steps, inputs_within=inputs, **facts)

    def stream(self) -> Stream:
        """Return a stream that takes samples one by one, computed by the exported step graph.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If the model resamples complete sequences, and so cannot stream.
        """
        return Stream(self.model_, labels=self._stream_labels())

    def save(self, folder: str | Path) -> None:
        """Write the run into a folder, for :meth:`from_run` and the commands ``export``, ``certify`` and ``predict``.

        Training data and the state of the optimizer are not written; with ``runs_folder`` the run of each fit keeps
        both.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If there is a run in the folder, or the model comes from a registry version.
        """
        self._fitted.write(folder)

    @classmethod
    def from_run(cls, run_dir: str | Path) -> Self:
        """Return a fitted estimator from a run of the command line or a folder of :meth:`save`.

        Raises:
            CheckpointError: If there is no run with trained weights, or a file is damaged.
            ConfigError: If the run is not finished, or is of another task.
        """
        return cls._from_fitted(FittedRun.read(run_dir), f"The run in '{run_dir}'")

    @classmethod
    def from_registry(cls, version: Version) -> Self:
        """Return a fitted estimator from a registry version.

        Args:
            version: As ``stablernn_registry.Registry().get("NAME@ALIAS")`` returns it.

        Raises:
            ConfigError: If the argument is no version, it was not exported from a run, or is of another task.
            CheckpointError: If no model can be built from its files.
        """
        return cls._from_fitted(FittedRun.from_version(version), f"'{getattr(version, 'ref', version)}'")

    @classmethod
    def _from_fitted(cls, run: FittedRun, subject: str) -> Self:
        if run.data["task"] != cls.task:
            raise ConfigError(
                f"{subject} is for the task '{run.data['task']}', and {cls.__name__} is for '{cls.task}'. Take the "
                "estimator of its task."
            )
        by_key = run.config.by_key()
        parameters = {name: by_key[key] for name, key in cls.parameter_keys.items()}
        # A length is stored in both units; one of them is enough to train again.
        if parameters.get("max_steps") is not None:
            parameters["epochs"] = None
        defaults = Config.model_validate({"data": {"source": ""}}).by_key()
        settings = {
            key: value
            for key, value in by_key.items()
            if key not in cls.parameter_keys.values() and value != defaults.get(key) and _is_free(key)
        }
        estimator = cls()
        estimator.set_params(**parameters, random_state=run.config.training.seed, settings=settings)
        estimator._set_fitted(run)
        return estimator

    def _set_fitted(self, run: FittedRun) -> None:
        """Set the attributes of a fitted estimator."""
        self.run_ = run

    @property
    def _fitted(self) -> FittedRun:
        check_is_fitted(self, "run_")
        return self.run_

    def _stream_labels(self) -> Sequence[Any] | None:
        return None

    def _training_range(self) -> InputRange | None:
        return training_range(self._fitted.data) if self._fitted.data.get("input_range") else None

    def _train_on_file(
        self,
        filename: str,
        write: Callable[[Path], None],
        data_settings: Mapping[str, Any],
        facts: Mapping[str, Any],
        form: Form = "array",
        channels: Sequence[str] = (),
    ) -> FittedRun:
        """Train on data that is written into the directory of the run.

        Args:
            filename: Name of the file.
            write: Writes the data to a path.
            data_settings: Settings that say how the file is read, by dotted key.
            facts: Content of ``estimator.json``.
            form: Form of the argument, for messages.
            channels: Columns of an array, for messages.

        Raises:
            ConfigError: If a parameter or a setting is not allowed.
            DataError: If the data cannot be used.
            TrainingError: If training fails.
        """
        # A fit that fails leaves none, instead of an earlier one that does not go with the parameters.
        self.__dict__.pop("run_", None)
        refuse_several_processes("An estimator", "Call `stablernn.training.train` on a file to share it by processes.")
        self._check_length()
        budget = self._check_budget()
        with (
            use_terms(ArgumentTerms(filename, self.parameter_keys, form, channels)),
            tempfile.TemporaryDirectory(prefix="stablernn-fit-") as temporary,
        ):
            directory = Path(temporary)
            # Settings are checked before a directory is left behind.
            config = self._config(directory / filename, data_settings)
            if self.runs_folder is not None:
                directory = new_directory(Path(filename).stem, config.model.cell, Path(self.runs_folder))
                config = self._config(directory / filename, data_settings)
            write(directory / filename)
            (directory / ESTIMATOR_FILE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
            train(config, directory, budget=budget, callbacks=self.callbacks or ())
            return FittedRun.read(directory, without=filename)

    def _check_budget(self) -> Budget | None:
        if self.budget is None:
            return None
        if self.cell != AUTO:
            raise ConfigError(
                f"A budget is for choosing a cell, got budget='{self.budget}' for cell='{self.cell}'. Take "
                "cell='auto', or leave the budget out."
            )
        return Budget.parse(self.budget)

    def _check_length(self) -> None:
        """Refuse two lengths of the training, of which merged settings would keep the last.

        Raises:
            ConfigError: If both are given.
        """
        epochs, max_steps = getattr(self, "epochs", None), getattr(self, "max_steps", None)
        if epochs is not None and max_steps is not None:
            raise ConfigError(f"epochs and max_steps exclude each other, got {epochs} and {max_steps}.")

    def _config(self, source: Path, data_settings: Mapping[str, Any]) -> Config:
        options = {key: _plain(getattr(self, name)) for name, key in self.parameter_keys.items()}
        options["training.seed"] = self._seed()
        # Settings of the user come later and win.
        if self.runs_folder is None:
            # Nobody would see the figures, and they take longer to draw than a small model to train.
            options["training.plots"] = False
        return load_config(options={**options, **data_settings, **self._checked_settings(), "data.source": str(source)})

    def _checked_settings(self) -> dict[str, Any]:
        """Return the settings that have no parameter.

        Raises:
            ConfigError: If one has a parameter, or names the data.
        """
        settings = dict(self.settings or {})
        by_key = {key: name for name, key in self.parameter_keys.items()} | {"training.seed": "random_state"}
        for key in settings:
            if key in by_key:
                raise ConfigError(f"'{key}' is the parameter {by_key[key]}. Set it there, and not in settings.")
            if key in ("data.source", "data.test"):
                raise ConfigError(f"'{key}' names a file, and an estimator is fitted to arrays. Leave it out.")
            if "." not in key:
                hint = did_you_mean(key, self.parameter_keys)
                raise ConfigError(
                    f"A key of settings has a section and a name, such as 'training.clip_norm', got '{key}'.{hint}"
                )
        return {key: _plain(value) for key, value in settings.items()}

    def _seed(self) -> int:
        """Return the seed of the run: ``random_state`` if it is a number, else one drawn from it."""
        if isinstance(self.random_state, int | np.integer) and 0 <= self.random_state <= MAX_SEED:
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _repr_html_inner(self) -> str:
        html = str(self._html_repr())
        return html if not hasattr(self, "run_") else html + fit_as_html(self.run_)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle


def _is_free(key: str) -> bool:
    """Return True for a setting that a fit on other data may take over."""
    if key in ("data.stamps", "data.channels_as_series", "data.window_stride", "data.validation_fraction"):
        return True
    section, _, name = key.partition(".")
    # What the data and the machine decide is decided again.
    return section in ("model", "training") and name not in ("seed", "engine", "plots", "time", "time_step", "max_dt")


def _plain(value: Any) -> Any:
    """Return a number of numpy, as searches over parameters draw them, as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


Form = Literal["pandas", "polars", "series", "array"]
"""Form of an argument: a frame of one of two libraries, whose rows can be named; an array of one series; several series
or sequences."""


class ArgumentTerms(Terms):
    """Terms for those who give the argument ``X`` and parameters.

    Args:
        filename: Name of the file that the argument was written to.
        parameter_keys: Key of a setting by the parameter that sets it.
        form: Form of the argument.
        channels: Columns of an array, which has none of its own.
    """

    source = "X"

    def __init__(
        self, filename: str, parameter_keys: Mapping[str, str], form: Form = "array", channels: Sequence[str] = ()
    ) -> None:
        self._filename = filename
        # The reader gives a series without a name that of its file.
        self._unnamed = Path(filename).stem
        self._parameters = {key: name for name, key in parameter_keys.items()}
        self._form = form
        self._channels = tuple(channels)

    def file(self, name: str) -> str:
        return "X" if name == self._filename else super().file(name)

    def grouped_file(self, name: str) -> str:
        return "groups"

    def row(self, number: int) -> str:
        # Files count rows from 1.
        if self._form in ("pandas", "polars"):
            return f"X{'.iloc' if self._form == 'pandas' else ''}[{number - 1}]"
        return super().row(number)

    def rows(self, numbers: Sequence[int]) -> str:
        return " and ".join(map(self.row, numbers))

    def row_of(self, file: str, number: int) -> str:
        return self.row(number)

    def series(self, file: str, name: str) -> str:
        if name == self._unnamed or self._form == "series":
            return "X"
        return f"X[{name.removeprefix('series_')}]" if self._form == "array" else super().series(file, name)

    def series_of(self, file: str, name: str) -> str:
        series = self.series(file, name)
        return series if series.startswith("X") else f"X: {series}"

    def column_of(self, file: str, name: str) -> str:
        column = self._channel(name)
        return f"X column '{name}'" if column is None else f"{column} of X" if column else "X"

    def in_column(self, noun: str, name: str) -> str:
        column = self._channel(name)
        return super().in_column(noun, name) if column is None else f" in {column} of" if column else " in"

    @property
    def channels(self) -> str:
        return "settings={'data.channels': [...]}"

    @property
    def group_column(self) -> str:
        return "groups"

    def key(self, key: str) -> str:
        return self._parameters.get(key, key)

    def setting(self, key: str, value: Any) -> str:
        parameter = self._parameters.get(key)
        return f"settings={{'{key}': {value!r}}}" if parameter is None else f"{parameter}={value!r}"

    def set(self, key: str, value: Any) -> str:
        return f"pass {self.setting(key, value)}"

    def cell(self, name: str) -> str:
        return f"cell={name!r}"

    def flag(self, name: str) -> str:
        return ""

    def _channel(self, name: str) -> str | None:
        """Return the name of a column of an array, empty for the only one; None for a column of a frame."""
        if name not in self._channels:
            return None
        return "" if len(self._channels) == 1 else f"channel {self._channels.index(name)}"


_DIGITS = 4
"""Digits of a score."""


def fit_as_html(run: FittedRun) -> str:
    """Return the curve of the validation metric, or of the loss, and a table of facts of a run."""
    rows = {**_scores(run.summary), **_proof(run.summary), **_notes(run.data)}
    table = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows.items()
    )
    return f"<div>{_curve(run)}<table>{table}</table></div>"


def _curve(run: FittedRun) -> str:
    """Return the figure of a run as an image; nothing for a registry version, which has no epochs."""
    if not run.history:
        return ""
    # Imported here: matplotlib takes a second to import, and most fits are never shown.
    from stablernn.training.plots import draw_curves

    records = [dict(record) for record in run.history]
    with tempfile.TemporaryDirectory(prefix="stablernn-curve-") as folder:
        draw_curves(Path(folder), records, _headline(run), int(run.summary["best_epoch"]), "")
        figures = [Path(folder) / name for name in ("metric.png", "loss.png")]
        image = next(figure for figure in figures if figure.is_file()).read_bytes()
    return f"<img alt='learning curve' style='max-width:480px' src='data:image/png;base64,{_base64(image)}'>"


def _headline(run: FittedRun) -> str:
    """Return the metric that chose the epoch; an empty text where nothing was held out."""
    # The checkpoint of the best weights names it.
    return str(json.loads(run.files["checkpoints/best.json"])["metric"])


def _scores(summary: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    for split, scores in summary.get("metrics", {}).items():
        numbers = {name: score for name, score in scores.items() if isinstance(score, float | int)}
        rows[f"{split} scores"] = ", ".join(f"{name} {score:.{_DIGITS}g}" for name, score in numbers.items())
    if "seconds" in summary:
        rows["trained"] = f"{summary['epochs']} epochs, {summary['steps']} steps, {summary['seconds']:.1f} s"
    if summary.get("warnings"):
        rows["warnings"] = " ".join(summary["warnings"])
    return rows


def _proof(summary: Mapping[str, Any]) -> dict[str, str]:
    certificate = summary.get("certificate")
    if not certificate:
        return {}
    rate = certificate.get("contraction_rate")
    return {"proved": certificate["kind"] if rate is None else f"{certificate['kind']}, at a rate of {rate:.5f} a step"}


def _notes(data: Mapping[str, Any]) -> dict[str, str]:
    counts = data_counts(data.get("notes") or {})
    return {"data": format_counts(counts)} if counts else {}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
